// SPDX-License-Identifier: Apache-2.0

// What macOS offers for a volume's file: F_FULLFSYNC and flock. Its holes need
// a structure that no maintained Go package declares, so zeros are written.

package device

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openNoWait has an open of something else than a file return.
const openNoWait = unix.O_NONBLOCK

// datasync uses F_FULLFSYNC: fsync alone leaves data in the drive's cache.
func datasync(f *os.File) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_FULLFSYNC, 0); err == nil {
		return nil
	}
	return f.Sync()
}

func punch(f *os.File, off, n int64) error { return errors.ErrUnsupported }

func preallocate(f *os.File, off, n int64) error { return nil }

func lock(f *os.File, exclusive bool) error {
	how := unix.LOCK_SH | unix.LOCK_NB
	if exclusive {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	err := unix.Flock(int(f.Fd()), how)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
