// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Locks, owners and processes as Unix has them.

package state

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// waitLock opens path, makes it if need be, and waits for its exclusive lock.
func waitLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// tryLock opens path in an existing directory and tries for its exclusive
// lock.
func tryLock(path string) (f *os.File, ok bool, err error) {
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, false, err
	}
	switch err := flock(f, unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return f, true, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, false, nil
	default:
		f.Close()
		return nil, false, err
	}
}

// isLocked reports whether somebody holds path's exclusive lock. It asks with
// a shared one, so that two who ask at once do not take each other for the
// launcher.
func isLocked(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// waitShared waits until nobody holds path's exclusive lock.
func waitShared(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return flock(f, unix.LOCK_SH)
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return err
		}
	}
}

// checkOwner refuses a directory that another user may write.
func checkOwner(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return wrapHost(err, "open container store: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.IsDir() || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return api.Errorf(api.KindPermission, "open container store: %s has to be a directory of your own that nobody else may write (it is %s, owner %d): choose another --root", dir, fi.Mode(), st.Uid)
	}
	return nil
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
