// SPDX-License-Identifier: Apache-2.0

// What Linux offers for a volume's file: fdatasync, holes, preallocation and
// locks that belong to the open file.

package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openNoWait has an open of something else than a file return.
const openNoWait = unix.O_NONBLOCK

func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func datasync(f *os.File) error {
	return retry(func() error { return unix.Fdatasync(int(f.Fd())) })
}

func punch(f *os.File, off, n int64) error {
	err := retry(func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) {
		return errors.ErrUnsupported
	}
	return err
}

func preallocate(f *os.File, off, n int64) error {
	err := retry(func() error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, off, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) {
		return nil // the space is then taken at the first write
	}
	return err
}

// lock takes an open-file-description lock: it goes with the descriptor to a
// process that is given it, and two opens in one process exclude each other.
func lock(f *os.File, exclusive bool) error {
	l := unix.Flock_t{Type: unix.F_RDLCK, Whence: 0}
	if exclusive {
		l.Type = unix.F_WRLCK
	}
	err := retry(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrLocked
	}
	return err
}

// nextData uses SEEK_DATA; a host without it has data everywhere.
func nextData(f *os.File, off, size int64) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, nil
	case err != nil:
		return off, nil
	}
	return at, nil
}

func canSyncRanges(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	return st.Type == unix.EXT4_SUPER_MAGIC || st.Type == unix.XFS_SUPER_MAGIC
}

func writeBack(f *os.File, off, n int64) error {
	return retry(func() error {
		return unix.SyncFileRange(int(f.Fd()), off, n,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	})
}

func startWriteBack(f *os.File, off, n int64) error {
	return retry(func() error { return unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE) })
}

func writeDurable(f *os.File, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwritev2(int(f.Fd()), [][]byte{p}, off, unix.RWF_DSYNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func reflink(dst, src *os.File) error {
	err := retry(func() error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("reflink %s: the host's file system cannot share blocks between files: %w", src.Name(), errors.ErrUnsupported)
	}
	return err
}
