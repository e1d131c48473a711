// SPDX-License-Identifier: Apache-2.0

// Errors: what a caller may have to tell apart.

package erofs

import (
	"errors"
	"fmt"
	"io/fs"
)

var (
	// ErrNotEROFS: the bytes carry no EROFS superblock.
	ErrNotEROFS = errors.New("not an EROFS image")
	// ErrCorrupt: the image contradicts the format or itself.
	ErrCorrupt = errors.New("corrupt EROFS image")
	// ErrUnsupported: a valid image that needs what this reader lacks. The
	// message has the feature's name.
	ErrUnsupported = errors.New("unsupported EROFS feature")
	// ErrNotExist: no such name. It is fs.ErrNotExist.
	ErrNotExist = fs.ErrNotExist
	// ErrNoXattr: the inode has no attribute of that name.
	ErrNoXattr = errors.New("no such extended attribute")
	// ErrNotDir: a path component, or the inode of a directory operation,
	// is no directory.
	ErrNotDir = errors.New("not a directory")
	// ErrInvalid: an entry the format or Linux cannot express.
	ErrInvalid = errors.New("invalid entry")
	// ErrLimit: a named limit of this package is exceeded.
	ErrLimit = errors.New("limit exceeded")
	// ErrFinished: the builder has been finished, or an earlier error has
	// left its image unusable.
	ErrFinished = errors.New("builder is closed")
)

// corrupt returns an error that wraps ErrCorrupt.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// unsupported returns an error that wraps ErrUnsupported.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}
