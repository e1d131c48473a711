// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// The gofer's lockdown: it opens files, so that less can be taken from it than
// from a sandbox, and nothing but files is left.

package lockdown

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
)

// goferRootCaps are what a gofer of root's keeps, each for what its guests'
// kernel has already allowed.
var goferRootCaps = []uint{
	unix.CAP_CHOWN,        // new files belong to the guest's user, and may be given away
	unix.CAP_DAC_OVERRIDE, // files belong to many users, of whom the process is none
	unix.CAP_FOWNER,       // their modes and times; links to them; sticky directories
	unix.CAP_FSETID,       // a set-group-id bit survives where Linux lets it
	unix.CAP_SETFCAP,      // package managers give programs capabilities
}

// goferUserCaps are what a gofer keeps in a user namespace, where they count for
// files of the one user alone: a guest's root is not stopped by modes.
var goferUserCaps = []uint{unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID}

// PlanGofer says what this user may put around a gofer on this host, and which
// capabilities it has then. Root's stays root: files belong to many users.
// alone says that it has the rights of the launcher's user only.
func PlanGofer() (o *Outer, alone bool) {
	held, err := capabilities()
	if err != nil {
		held = capabilitySets{}
	}
	o = &Outer{OwnLandlock: true}
	admin := held.effective(unix.CAP_SYS_ADMIN)
	switch {
	case os.Geteuid() == 0 && held.effective(unix.CAP_CHOWN):
		// A user namespace of its own would take away what it is root for.
		for _, c := range goferRootCaps {
			if held.permits(c) {
				o.Capabilities = append(o.Capabilities, c)
			}
		}
		if !admin {
			return o, false
		}
	case admin || userNamespacesAllowed():
		alone = true
		if !admin {
			o.Capabilities = goferUserCaps
		}
	default:
		return o, true
	}
	for _, ns := range namespaceFlags {
		if ns.name != "user" || !admin {
			o.Namespaces = append(o.Namespaces, ns.name)
		}
	}
	o.EmptyRoot = true
	return o, alone
}

// TreeRule is what a gofer's files are limited to: all below an open descriptor.
type TreeRule struct {
	FD                int
	Directory, Writes bool
}

// landlockRefer is the version that can allow renames between directories.
// Without it a Landlock of files would break programs.
const landlockRefer = 2

// RestrictFiles takes from all threads of the process, for good, what is not below
// the trees, as far as Landlock reaches: opening, making, moving and removing; and
// ports, abstract sockets and foreign processes. It reports whether this host can.
//
// It has to be the process' only domain of ours: one that handles no files denies
// moves between directories nevertheless.
func RestrictFiles(trees []TreeRule) (bool, error) {
	abi := LandlockABI()
	if abi < landlockRefer {
		return false, nil
	}
	r := sandboxRuleset(abi, ownBinary, true)
	r.FS = fsRights(abi)
	fd, err := createRuleset(&r)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	for _, t := range trees {
		if err := addPathRule(fd, t.FD, t.rights(abi)); err != nil {
			return false, fmt.Errorf("add Landlock rule: %w", err)
		}
	}
	if err := allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0, 0, 0); err != nil {
		return false, fmt.Errorf("enter Landlock domain: %w", err)
	}
	return true, nil
}

// rights are what a tree allows: never to execute. What it may make as a character
// device is an overlay's whiteout, for want of the capability.
func (t *TreeRule) rights(abi int) uint64 {
	rights := uint64(accessReadFile)
	if t.Directory {
		rights |= accessReadDir
	}
	if !t.Writes {
		return rights
	}
	rights |= accessWriteFile
	if abi >= 3 {
		rights |= accessTruncate
	}
	if t.Directory {
		rights |= accessRemoveDir | accessRemoveFile | accessMakeDir | accessMakeReg | accessMakeSym | accessMakeChar | accessRefer
	}
	return rights
}

// SealGofer is [Seal] for a gofer: its last step before it answers a sandbox. The
// capabilities named are those that it may still hold.
func SealGofer(program []bpf.Instruction, kept []uint) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make process undumpable: %w", err)
	}
	for _, c := range []check{
		{LayerNoNewPrivs, true, func() (bool, error) { return prctlIs(unix.PR_GET_NO_NEW_PRIVS, 0, 1) }},
		{LayerCapabilities, true, func() (bool, error) { return onlyCapabilities(kept) }},
		{LayerNoCore, true, noCore},
		{LayerNotDumpable, true, func() (bool, error) { return prctlIs(unix.PR_GET_DUMPABLE, 0, 0) }},
		{LayerEnvironment, true, func() (bool, error) { return len(os.Environ()) == 0, nil }},
	} {
		if ok, err := c.holds(); err != nil || !ok {
			return errors.Join(fmt.Errorf("verify lockdown: %s does not hold: refusing to serve files", c.layer), err)
		}
	}
	return Install(program)
}

// onlyCapabilities says whether the thread holds none but these.
func onlyCapabilities(kept []uint) (bool, error) {
	held, err := capabilities()
	if err != nil {
		return false, err
	}
	for c := range uint(64) {
		bit := uint32(1) << (c % 32)
		sets := held[c/32]
		if (sets.Effective|sets.Permitted|sets.Inheritable)&bit != 0 && !slices.Contains(kept, c) {
			return false, nil
		}
	}
	return true, nil
}
