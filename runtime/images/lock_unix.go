// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Whole-file locks by flock(2). They belong to the open file description:
// descriptors that were duplicated or donated keep the lock.

package images

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameOpen says that an open file can be renamed and unlinked.
const renameOpen = true

func flockOp(mode lockMode) int {
	if mode == exclusive {
		return unix.LOCK_EX
	}
	return unix.LOCK_SH
}

// tryLock reports false when another description holds a conflicting lock.
func tryLock(f *os.File, mode lockMode) (bool, error) {
	err := flock(f, flockOp(mode)|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// blockLock waits for the lock.
func blockLock(f *os.File, mode lockMode) error { return flock(f, flockOp(mode)) }

func flock(f *os.File, op int) error {
	for {
		err := unix.Flock(int(f.Fd()), op)
		if err != unix.EINTR {
			return os.NewSyscallError("flock", err)
		}
	}
}
