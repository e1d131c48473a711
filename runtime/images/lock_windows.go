// SPDX-License-Identifier: Apache-2.0

// Whole-file locks by LockFileEx. Windows enforces locks on the bytes they
// cover, so the one byte locked lies where no file of ours has data.

package images

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// renameOpen says that an open file can be renamed and unlinked.
const renameOpen = false

// lockOffsetHigh is the upper half of the offset of the locked byte: 2^62.
const lockOffsetHigh = 1 << 30

func lockFlags(mode lockMode) uint32 {
	if mode == exclusive {
		return windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	return 0
}

// tryLock reports false when another handle holds a conflicting lock.
func tryLock(f *os.File, mode lockMode) (bool, error) {
	err := lockFileEx(f, lockFlags(mode)|windows.LOCKFILE_FAIL_IMMEDIATELY)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}

// blockLock waits for the lock.
func blockLock(f *os.File, mode lockMode) error { return lockFileEx(f, lockFlags(mode)) }

func lockFileEx(f *os.File, flags uint32) error {
	ol := windows.Overlapped{OffsetHigh: lockOffsetHigh}
	return os.NewSyscallError("LockFileEx", windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &ol))
}
