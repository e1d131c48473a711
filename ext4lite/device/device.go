// SPDX-License-Identifier: Apache-2.0

// Package device is the ground ext4lite stands on: an array of bytes that can
// be read, written, made durable and given back in part.
//
// It owns descriptors of host files and the locks on them. It knows nothing of
// ext4. Implementations are safe for concurrent use; a caller that reads what
// it is just writing orders the two itself.
package device

import (
	"errors"
	"fmt"
	"io"
	"os"

	"z.gfire.dev/gvx/ext4lite/errno"
)

// Device holds a volume's bytes.
type Device interface {
	io.ReaderAt
	io.WriterAt
	// Size is the length in bytes.
	Size() int64
	// Truncate changes the length. New bytes read as zero.
	Truncate(size int64) error
	// Sync returns when all that was written is on stable storage.
	Sync() error
	// Punch makes a range read as zero and gives its space back where the
	// host can. The length of the device stays.
	Punch(off, n int64) error
	// Close releases the device and its lock.
	Close() error
}

// Locator is a Device whose bytes are pages of host files, so that they can be
// mapped.
type Locator interface {
	// Locate tells which file holds the byte at off, where in that file, and
	// for how many of the n bytes that holds. With write set the answer is
	// where a write goes; what the range held is there already.
	Locate(off, n int64, write bool) (Place, error)
}

// Place is a run of bytes in a host file.
type Place struct {
	File   *os.File
	Offset int64
	Len    int64
	// Owned says that a write to this range would go to this very place.
	Owned bool
}

// Mover is a Device that keeps a range somewhere else once it is written.
type Mover interface {
	// Moves tells whether a write would move any of the range.
	Moves(off, n int64) bool
}

// Orderer is a Device that keeps notes about writes, which must be stored
// before later writes that depend on them.
type Orderer interface {
	// Order stores the notes of all writes so far, without waiting for the
	// disk. Sync does so too.
	Order() error
}

// Preallocator is a Device that can reserve the host's space for a range, so
// that a later write cannot fail for want of it.
type Preallocator interface {
	Preallocate(off, n int64) error
}

// Freer is a Device that gives space back, and changes nothing where the host has
// no holes: then the error wraps errors.ErrUnsupported.
type Freer interface {
	Free(off, n int64) error
}

// ErrLocked means that another process, or another open device, uses the file.
var ErrLocked = errors.New("volume is in use")

// Access says how a file is opened.
type Access int

const (
	// ReadOnly takes a shared lock.
	ReadOnly Access = iota
	// ReadWrite takes an exclusive lock.
	ReadWrite
)

// File is a Device in one host file.
type File struct {
	f        *os.File
	size     sizeBox
	readonly bool
}

// OpenFile opens and locks a host file.
func OpenFile(path string, access Access) (*File, error) {
	f, err := OpenHost(path, access)
	if err != nil {
		return nil, err
	}
	d, err := NewFile(f, access)
	if err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

// OpenHost opens a host file without a lock. What is neither a file nor a block
// device is refused, before it is opened, since an open may do something to it,
// and after, since it may be in the file's place only then; the open of a pipe
// does not wait for its other side.
func OpenHost(path string, access Access) (*os.File, error) {
	st, err := os.Stat(path)
	if err == nil {
		err = holdsVolume(path, st)
	}
	if err != nil {
		return nil, err
	}
	flag := os.O_RDWR
	if access == ReadOnly {
		flag = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flag|openNoWait, 0)
	if err != nil {
		return nil, err
	}
	if st, err = f.Stat(); err == nil {
		err = holdsVolume(path, st)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func holdsVolume(path string, st os.FileInfo) error {
	if m := st.Mode(); !m.IsRegular() && m&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return fmt.Errorf("open %s: it is no file: a volume lives in one", path)
	}
	return nil
}

// CreateFile makes a new, empty host file of a size and locks it. It refuses
// a file that exists.
func CreateFile(path string, size int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	d, err := NewFile(f, ReadWrite)
	if err == nil {
		err = d.Truncate(size)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return d, nil
}

// NewFile makes a Device of an open file, which may be unlinked, and takes it
// over: Close closes it.
func NewFile(f *os.File, access Access) (*File, error) {
	if err := lock(f, access == ReadWrite); err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return newFile(f, access)
}

// Donated makes a Device of a file whose lock its donor holds on the same open
// file description.
func Donated(f *os.File, access Access) (*File, error) { return newFile(f, access) }

func newFile(f *os.File, access Access) (*File, error) {
	size, err := sizeOf(f)
	if err != nil {
		return nil, err
	}
	d := &File{f: f, readonly: access == ReadOnly}
	d.size.set(size)
	return d, nil
}

// sizeOf asks a file without moving in it, which a process may not be allowed to. A
// block device has its size at its end only.
func sizeOf(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st.Mode().IsRegular() {
		return st.Size(), nil
	}
	return f.Seek(0, io.SeekEnd)
}

// Name is the path the file was opened by.
func (d *File) Name() string { return d.f.Name() }

// Host is the file itself.
func (d *File) Host() *os.File { return d.f }

// ReadAt reads; bytes past the end of the host file are an error.
func (d *File) ReadAt(p []byte, off int64) (int, error) { return d.f.ReadAt(p, off) }

// WriteAt writes.
func (d *File) WriteAt(p []byte, off int64) (int, error) { return d.f.WriteAt(p, off) }

// Size is the length in bytes.
func (d *File) Size() int64 { return d.size.get() }

// Truncate changes the length. A block device is as long as it is.
func (d *File) Truncate(size int64) error {
	if err := d.f.Truncate(size); err != nil {
		if st, e := d.f.Stat(); e == nil && !st.Mode().IsRegular() {
			return fmt.Errorf("resize %s: it is no file: %w: %w", d.f.Name(), errno.EOPNOTSUPP, err)
		}
		return err
	}
	d.size.set(size)
	return nil
}

// Sync makes the file's data durable.
func (d *File) Sync() error { return datasync(d.f) }

// Free gives a range back.
func (d *File) Free(off, n int64) error {
	if n <= 0 {
		return nil
	}
	return punch(d.f, off, n)
}

// Punch frees a range; where the host cannot, it writes zeros.
func (d *File) Punch(off, n int64) error {
	err := d.Free(off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		return WriteZeros(d, off, n)
	}
	return err
}

// Preallocate reserves space.
func (d *File) Preallocate(off, n int64) error { return preallocate(d.f, off, n) }

// Locate answers with the file itself.
func (d *File) Locate(off, n int64, write bool) (Place, error) {
	return Place{File: d.f, Offset: off, Len: n, Owned: !d.readonly}, nil
}

// Close closes the file, which releases the lock.
func (d *File) Close() error { return d.f.Close() }

const zeroChunk = 1 << 20 // bounds the buffer of WriteZeros

// WriteZeros fills a range with zeros by writing them.
func WriteZeros(d io.WriterAt, off, n int64) error {
	buf := make([]byte, min(n, zeroChunk))
	for n > 0 {
		k := min(n, zeroChunk)
		if _, err := d.WriteAt(buf[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
