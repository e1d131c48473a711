// SPDX-License-Identifier: Apache-2.0

// Package errno names the error numbers that ext4lite's operations end with,
// with the values Linux gives them, on every operating system.
//
// An error of ext4lite wraps one Errno; [Of] finds it. The package knows
// nothing of file systems and never talks to the host.
package errno

import (
	"errors"
	"io/fs"
	"strconv"
	"syscall"
)

// Errno is a Linux error number.
type Errno uint16

// The numbers that operations of ext4lite can end with.
const (
	EPERM        Errno = 1
	ENOENT       Errno = 2
	EIO          Errno = 5
	ENXIO        Errno = 6
	E2BIG        Errno = 7
	EBADF        Errno = 9
	EAGAIN       Errno = 11
	ENOMEM       Errno = 12
	EACCES       Errno = 13
	EBUSY        Errno = 16
	EEXIST       Errno = 17
	EXDEV        Errno = 18
	ENOTDIR      Errno = 20
	EISDIR       Errno = 21
	EINVAL       Errno = 22
	EFBIG        Errno = 27
	ENOSPC       Errno = 28
	EROFS        Errno = 30
	EMLINK       Errno = 31
	ERANGE       Errno = 34
	ENAMETOOLONG Errno = 36
	ENOTEMPTY    Errno = 39
	ELOOP        Errno = 40
	ENODATA      Errno = 61
	EOPNOTSUPP   Errno = 95
	ESTALE       Errno = 116
	EUCLEAN      Errno = 117
)

var text = map[Errno]string{
	EPERM:        "operation not permitted",
	ENOENT:       "no such file or directory",
	EIO:          "input/output error",
	ENXIO:        "no such device or address",
	E2BIG:        "argument list too long",
	EBADF:        "bad file descriptor",
	EAGAIN:       "resource temporarily unavailable",
	ENOMEM:       "cannot allocate memory",
	EACCES:       "permission denied",
	EBUSY:        "device or resource busy",
	EEXIST:       "file exists",
	EXDEV:        "invalid cross-device link",
	ENOTDIR:      "not a directory",
	EISDIR:       "is a directory",
	EINVAL:       "invalid argument",
	EFBIG:        "file too large",
	ENOSPC:       "no space left on device",
	EROFS:        "read-only file system",
	EMLINK:       "too many links",
	ERANGE:       "numerical result out of range",
	ENAMETOOLONG: "file name too long",
	ENOTEMPTY:    "directory not empty",
	ELOOP:        "too many levels of symbolic links",
	ENODATA:      "no data available",
	EOPNOTSUPP:   "operation not supported",
	ESTALE:       "stale file handle",
	EUCLEAN:      "structure needs cleaning",
}

// Error gives the text that strerror(3) gives.
func (e Errno) Error() string {
	if s, ok := text[e]; ok {
		return s
	}
	return "errno " + strconv.Itoa(int(e))
}

// Is makes errors.Is(err, fs.ErrNotExist) and its kin work.
func (e Errno) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e == ENOENT
	case fs.ErrExist:
		return e == EEXIST || e == ENOTEMPTY
	case fs.ErrPermission:
		return e == EPERM || e == EACCES
	case fs.ErrInvalid:
		return e == EINVAL
	}
	return false
}

// Of gives the number an error carries. An error of the host's own I/O is
// ENOSPC where the host ran out of space and EIO otherwise; nil is 0.
func Of(err error) Errno {
	if err == nil {
		return 0
	}
	var e Errno
	if errors.As(err, &e) {
		return e
	}
	var se syscall.Errno
	if errors.As(err, &se) && hostOutOfSpace(se) {
		return ENOSPC
	}
	return EIO
}
