// SPDX-License-Identifier: Apache-2.0

// What Windows offers for a volume's file: sparse files, zeroed ranges and
// byte-range locks.

package device

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// openNoWait has an open of something else than a file return.
const openNoWait = 0

func datasync(f *os.File) error { return f.Sync() }

const (
	fsctlSetSparse   = 0x000900c4
	fsctlSetZeroData = 0x000980c8
)

// punch marks the file sparse, which is harmless to repeat, and zeroes the
// range, which frees it.
func punch(f *os.File, off, n int64) error {
	h := windows.Handle(f.Fd())
	var got uint32
	if err := windows.DeviceIoControl(h, fsctlSetSparse, nil, 0, nil, 0, &got, nil); err != nil {
		return errors.ErrUnsupported
	}
	r := struct{ from, to int64 }{off, off + n}
	if err := windows.DeviceIoControl(h, fsctlSetZeroData, (*byte)(unsafe.Pointer(&r)), uint32(unsafe.Sizeof(r)), nil, 0, &got, nil); err != nil {
		return errors.ErrUnsupported
	}
	return nil
}

func preallocate(f *os.File, off, n int64) error { return nil }

// lock locks one byte far past any volume: Windows locks are mandatory, and a
// lock on the data would keep readers out.
func lock(f *os.File, exclusive bool) error {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	at := windows.Overlapped{OffsetHigh: 0x7fffffff}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}
