// SPDX-License-Identifier: Apache-2.0

// The host's operations on files, for devices that are made of several.

package device

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// Skipper is a Device that knows where it holds nothing.
type Skipper interface {
	// NextData gives the first offset from off on that may hold anything but
	// zeros, or the size.
	NextData(off int64) (int64, error)
}

// NextData asks the host for the next data.
func (d *File) NextData(off int64) (int64, error) { return nextData(d.f, off, d.Size()) }

// Datasync makes a file's data durable.
func Datasync(f *os.File) error { return datasync(f) }

// SyncDir makes the names in a directory durable: that a file was made, renamed
// or removed.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // it has no such thing
	}
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrPermission) {
		return nil // one that may be written, and not read: nothing can be done
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // file systems that cannot do better
		return err
	}
	return nil
}

// PunchFile frees a range of a file, or writes zeros where the host cannot.
func PunchFile(f *os.File, off, n int64) error {
	err := punch(f, off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		return WriteZeros(f, off, n)
	}
	return err
}

// Reflink makes dst share all of src's blocks, copy on write. Where the host's
// file system cannot, the error wraps errors.ErrUnsupported.
func Reflink(dst, src *os.File) error { return reflink(dst, src) }
