// SPDX-License-Identifier: Apache-2.0

// What the process takes from itself before it answers anybody.

package gofer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// maxDataBytes bounds the process' own memory. A sandbox that was taken over may
// announce requests of gigabytes; an honest one has at most a megabyte for each of
// its few channels under way.
const maxDataBytes = 1 << 30

// shed gives up what the launcher's fork could not take away: the host's files but
// for the trees, capabilities, stray descriptors. The working directory is the
// process' own descriptors then, see [file.self].
func shed(cfg *api.Gofer) error {
	if slices.Contains(cfg.Lockdown.Namespaces, "mnt") {
		for i := range cfg.Trees {
			detach(&cfg.Trees[i])
		}
	}
	var keep []int
	for i := range cfg.Trees {
		keep = append(keep, int(cfg.Trees[i].RootFD), int(cfg.Trees[i].SocketFD))
	}
	err := lockdown.Shed(lockdown.ShedOptions{
		Keep: keep, EmptyRoot: cfg.Lockdown.EmptyRoot, Descriptors: true, Capabilities: cfg.Capabilities,
	})
	if err != nil {
		return fmt.Errorf("shed host state: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxDataBytes, Max: maxDataBytes}); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	own := lockdown.OwnDescriptors
	if err = unix.Chdir(own); err != nil {
		own = "/proc/self/fd"
		err = unix.Chdir(own)
	}
	if err != nil {
		return fmt.Errorf("enter %s: %w: without it no file can be opened", own, err)
	}
	return nil
}

// detach gives a tree a mount of its own, where the launcher could not: in this
// process' namespace, which is a copy. It has to be found by its path again, and to
// be the same file. A host that refuses leaves it as it is: Landlock remains.
func detach(t *api.GoferTree) {
	if t.Detached || t.Follow {
		return
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(t.RootFD)))
	fd := -1
	if err == nil {
		fd, err = lockdown.Detach(unix.AT_FDCWD, path, lockdown.DetachOptions{Submounts: t.Submounts, ReadOnly: t.ReadOnly})
	}
	if err == nil {
		err = same(fd, int(t.RootFD))
	}
	if err != nil {
		closeAll(fd)
		log.Infof("gofer: tree %s stays in its mount: %v", t.Name, err)
		return
	}
	unix.Close(int(t.RootFD))
	t.RootFD, t.Detached = api.FD(fd), true
}

// same says whether two descriptors are of one file.
func same(a, b int) error {
	var sa, sb unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &sa), unix.Fstat(b, &sb)); err != nil {
		return err
	}
	if sa.Dev != sb.Dev || sa.Ino != sb.Ino {
		return errors.New("its path is another file's in this namespace")
	}
	return nil
}

// seal restricts the process to the trees and to the allow-list. From here on it
// can open nothing else, connect to nobody and execute nothing. instead is
// [lockdown.Kill], but for tests.
func seal(cfg *api.Gofer, trees []*tree, instead lockdown.Action) error {
	rules := make([]lockdown.TreeRule, len(trees))
	for i, t := range trees {
		var st unix.Stat_t
		if err := unix.Fstat(t.root, &st); err != nil {
			return fmt.Errorf("tree %s: %w", t.name, err)
		}
		rules[i] = lockdown.TreeRule{FD: t.root, Directory: st.Mode&unix.S_IFMT == unix.S_IFDIR, Writes: !t.readOnly}
	}
	if held, err := lockdown.RestrictFiles(rules); err != nil {
		return err
	} else if !held {
		log.Infof("gofer: this host has no Landlock that could limit it to its trees")
	}
	program, err := lockdown.GoferFilter(lockdown.FilterOptions{Action: instead})
	if err != nil {
		return err
	}
	return lockdown.SealGofer(program, cfg.Capabilities)
}
