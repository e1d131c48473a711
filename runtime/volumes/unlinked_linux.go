// SPDX-License-Identifier: Apache-2.0

// Files without a name: nothing is left of them however a process ends.

package volumes

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// unlinked makes a file in a directory that has no name there.
func unlinked(dir, name string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), name), nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL):
		return unlinkedByName(dir)
	}
	return nil, &os.PathError{Op: "make a file in", Path: dir, Err: err}
}

// link gives a file of unlinked a name that nothing has.
func link(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.PathError{Op: "make", Path: path, Err: err}
	}
	return nil
}

// renameNew gives a file another name, which nothing has.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		return os.Rename(from, to) // the file system knows no better
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}

// canLink says that link works for what unlinked makes in a directory. It does
// not for files that had a name and lost it.
func canLink(dir string) bool {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
