// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
)

// The names of the layers that [Seal] reports, as doctor, inspect and tests
// show them.
const (
	LayerUID          = "unprivileged uid"
	LayerNoNewPrivs   = "no_new_privs"
	LayerCapabilities = "no capabilities"
	LayerBounding     = "empty bounding set"
	LayerNoCore       = "no core dumps"
	LayerNotDumpable  = "not dumpable"
	LayerSession      = "own session"
	LayerEnvironment  = "empty environment"
	LayerEmptyRoot    = "empty root"
	LayerSeccomp      = "seccomp allow-list"
)

// Seal is the last step before guest code: it makes the process unreadable to
// others of its uid, asks the kernel which layers hold, and installs the
// allow-list on all threads. It must follow the platform's start, because
// stubs of a process that is not dumpable cannot be attached to while they are
// being set up.
//
// It returns the names of the layers that hold. Those without which no guest
// may run (no_new_privs, no capabilities, the allow-list) are errors instead.
func Seal(program []bpf.Instruction) ([]string, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("make process undumpable: %w", err)
	}
	layers, err := verify()
	if err != nil {
		return nil, err
	}
	if err := Install(program); err != nil {
		return nil, err
	}
	return append(layers, LayerSeccomp), nil
}

// check asks the kernel about one layer.
type check struct {
	layer    string
	required bool
	holds    func() (bool, error)
}

// verify asks the kernel which layers hold. After the filter it could not.
func verify() ([]string, error) {
	var layers []string
	for _, c := range []check{
		{LayerUID, false, func() (bool, error) { return unix.Getuid() != 0 && unix.Geteuid() == unix.Getuid(), nil }},
		{LayerNoNewPrivs, true, func() (bool, error) { return prctlIs(unix.PR_GET_NO_NEW_PRIVS, 0, 1) }},
		{LayerCapabilities, true, noCapabilities},
		{LayerBounding, false, emptyBounding},
		{LayerNoCore, true, noCore},
		{LayerNotDumpable, true, func() (bool, error) { return prctlIs(unix.PR_GET_DUMPABLE, 0, 0) }},
		{LayerSession, false, func() (bool, error) { sid, err := unix.Getsid(0); return sid == unix.Getpid(), err }},
		{LayerEnvironment, true, func() (bool, error) { return len(os.Environ()) == 0, nil }},
		{LayerEmptyRoot, false, rootIsEmpty},
	} {
		ok, err := c.holds()
		switch {
		case err != nil:
			return nil, fmt.Errorf("verify lockdown: %s: %w", c.layer, err)
		case ok:
			layers = append(layers, c.layer)
		case c.required:
			return nil, fmt.Errorf("verify lockdown: %s does not hold, though the kernel reported no error: refusing to run a guest", c.layer)
		}
	}
	return layers, nil
}

func noCapabilities() (bool, error) {
	held, err := capabilities()
	if err != nil || !held.none() {
		return false, err
	}
	return noneOf(func(c uintptr) (int, error) {
		return unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, c, 0, 0)
	})
}

func emptyBounding() (bool, error) {
	return noneOf(func(c uintptr) (int, error) {
		return unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
	})
}

// noneOf asks about every capability that the kernel knows.
func noneOf(ask func(uintptr) (int, error)) (bool, error) {
	for c := range uintptr(64) {
		set, err := ask(c)
		switch {
		case errors.Is(err, unix.EINVAL):
			return c > 0, nil // beyond the last one
		case err != nil:
			return false, err
		case set != 0:
			return false, nil
		}
	}
	return true, nil
}

func noCore() (bool, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &l)
	return l == unix.Rlimit{}, err
}

// rootIsEmpty looks whether "/" holds what [emptyRoot] leaves there and nothing
// else: a file of no bytes. A root that it may not list is not empty.
func rootIsEmpty() (bool, error) {
	for _, d := range []struct{ path, only string }{{"/", "proc"}, {"/proc", "self"}, {"/proc/self", "maps"}} {
		if names := namesIn(d.path); len(names) != 1 || names[0] != d.only {
			return false, nil
		}
	}
	var st unix.Stat_t
	err := unix.Lstat(emptyMaps, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0 && st.Blocks == 0, nil
}

// namesIn returns up to two names of a directory: enough to see that there is
// one alone.
func namesIn(path string) []string {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(2)
	return names
}
