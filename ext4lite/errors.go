// SPDX-License-Identifier: Apache-2.0

// Error numbers and the words around them.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
)

// Errno is a Linux error number; every error of this package wraps one, or an
// error of the host.
type Errno = errno.Errno

// The numbers that operations end with.
const (
	EPERM        = errno.EPERM
	ENOENT       = errno.ENOENT
	EIO          = errno.EIO
	E2BIG        = errno.E2BIG
	EACCES       = errno.EACCES
	EBUSY        = errno.EBUSY
	EEXIST       = errno.EEXIST
	EXDEV        = errno.EXDEV
	ENOTDIR      = errno.ENOTDIR
	EISDIR       = errno.EISDIR
	EINVAL       = errno.EINVAL
	EFBIG        = errno.EFBIG
	ENOSPC       = errno.ENOSPC
	EROFS        = errno.EROFS
	EMLINK       = errno.EMLINK
	ERANGE       = errno.ERANGE
	ENAMETOOLONG = errno.ENAMETOOLONG
	ENOTEMPTY    = errno.ENOTEMPTY
	ELOOP        = errno.ELOOP
	ENODATA      = errno.ENODATA
	EOPNOTSUPP   = errno.EOPNOTSUPP
	ESTALE       = errno.ESTALE
	EUCLEAN      = errno.EUCLEAN
	ENXIO        = errno.ENXIO
)

// ErrnoOf gives the number an error stands for: its own, ENOSPC where the host
// is out of space, EIO for other errors of the host, 0 for nil.
func ErrnoOf(err error) Errno { return errno.Of(err) }

func fail(op string, ino uint32, err error) error {
	return fmt.Errorf("%s inode %d: %w", op, ino, err)
}

func failName(op, name string, err error) error {
	return fmt.Errorf("%s %q: %w", op, name, err)
}
