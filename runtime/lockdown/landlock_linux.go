// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LandlockABI returns the version of the kernel's Landlock interface, 0 where
// there is none or where it is switched off.
func LandlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// restrictThread puts a ruleset into force on the calling thread and its
// future children, for good. The thread must be locked and never be used for
// anything else again.
func restrictThread(r landlockRuleset) error {
	fd, err := createRuleset(&r)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, rule := range r.Rules {
		if err := addRule(fd, rule); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("enter Landlock domain: %w", errno)
	}
	return nil
}

// createRuleset makes a ruleset without rules.
func createRuleset(r *landlockRuleset) (int, error) {
	attr := struct{ fs, net, scoped uint64 }{r.FS, r.Net, r.Scoped}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), r.attrSize(), 0)
	if errno != 0 {
		return -1, fmt.Errorf("create Landlock ruleset: %w", errno)
	}
	return int(fd), nil
}

func addRule(ruleset int, rule landlockRule) error {
	path, err := unix.Open(rule.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // nothing there to give back
	}
	if err != nil {
		return fmt.Errorf("add Landlock rule for %s: %w", rule.Path, err)
	}
	defer unix.Close(path)
	if err := addPathRule(ruleset, path, rule.Access); err != nil {
		return fmt.Errorf("add Landlock rule for %s: %w", rule.Path, err)
	}
	return nil
}

// addPathRule gives rights to all below an open file.
func addPathRule(ruleset, path int, access uint64) error {
	// struct landlock_path_beneath_attr is packed: 12 bytes.
	var attr [12]byte
	*(*uint64)(unsafe.Pointer(&attr[0])) = access
	*(*int32)(unsafe.Pointer(&attr[8])) = int32(path)
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr[0])), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
