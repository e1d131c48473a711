// SPDX-License-Identifier: Apache-2.0

// A file that is open: its data and, of a directory, its names.

package gofer

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
)

// openFile is an open descriptor of a regular file or a directory.
type openFile struct {
	lisafs.OpenFD
	tree *tree
	fd   int
}

// Open implements lisafs.ControlFDImpl. A regular file's descriptor goes to the
// sandbox too: it reads, writes and maps without asking again.
func (f *file) Open(flags uint32) (*lisafs.OpenFD, int, error) {
	fd, err := f.reopen(int(flags) & (unix.O_ACCMODE | unix.O_TRUNC))
	if err != nil {
		return nil, -1, err
	}
	o := f.open(fd, flags)
	if !f.IsRegular() {
		return o, -1, nil
	}
	return o, donation(fd), nil
}

// open makes the open descriptor of a file, which takes over fd.
func (f *file) open(fd int, flags uint32) *lisafs.OpenFD {
	o := &openFile{tree: f.tree, fd: fd}
	o.OpenFD.Init(f.FD(), flags, o)
	return &o.OpenFD
}

// donation returns a descriptor to give away, -1 if there is none to be had: it
// saves requests, no more.
func donation(fd int) int {
	dup, err := duplicate(fd)
	if err != nil {
		return -1
	}
	return dup
}

// FD implements lisafs.OpenFDImpl.
func (o *openFile) FD() *lisafs.OpenFD {
	if o == nil {
		return nil
	}
	return &o.OpenFD
}

// Close implements lisafs.OpenFDImpl.
func (o *openFile) Close() { unix.Close(o.fd) }

// Stat implements lisafs.OpenFDImpl.
func (o *openFile) Stat() (lisafs.Statx, error) { return o.tree.stat(o.fd) }

// Sync implements lisafs.OpenFDImpl.
func (o *openFile) Sync() error { return unix.Fsync(o.fd) }

// Write implements lisafs.OpenFDImpl.
func (o *openFile) Write(buf []byte, off uint64) (uint64, error) {
	n, err := unix.Pwrite(o.fd, buf, int64(off))
	return uint64(max(n, 0)), err
}

// Read implements lisafs.OpenFDImpl.
func (o *openFile) Read(buf []byte, off uint64) (uint64, error) {
	n, err := unix.Pread(o.fd, buf, int64(off))
	return uint64(max(n, 0)), err
}

// Allocate implements lisafs.OpenFDImpl.
func (o *openFile) Allocate(mode, off, length uint64) error {
	return unix.Fallocate(o.fd, uint32(mode), int64(off), int64(length))
}

// Flush implements lisafs.OpenFDImpl.
func (o *openFile) Flush() error { return nil }

// Renamed implements lisafs.OpenFDImpl.
func (o *openFile) Renamed() {}

// direntBytes is what one system call reads: lisafs' answer may be many of them.
const direntBytes = 32 << 10

const (
	// direntNameOffset is where the name of an entry begins.
	direntNameOffset = 19
	// maxDirentBytes is the longest entry: a name of 255 bytes, and its zero.
	maxDirentBytes = 280
	// maxListBytes bounds one answer, whatever is asked for: gVisor asks for 64 KiB,
	// and the answer's form takes less than twice of that.
	maxListBytes = 256 << 10
)

// Getdent64 implements lisafs.OpenFDImpl.
func (o *openFile) Getdent64(count uint32, rewind bool, record func(lisafs.Dirent64)) error {
	if rewind {
		if _, err := unix.Seek(o.fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
	}
	dir, err := o.Stat()
	if err != nil {
		return err
	}
	// An overlay's files may lie on devices of their own, which only a look at
	// each tells; elsewhere a directory's are its own, as in Linux' answer.
	look, err := overlaid(o.fd)
	if err != nil {
		return err
	}
	count = min(count, maxListBytes)
	buf := make([]byte, min(direntBytes, count))
	for left := int(count); left > 0; {
		n, err := unix.Getdents(o.fd, buf[:min(len(buf), left)])
		if err == unix.EINVAL && left < maxDirentBytes && left < int(count) {
			return nil // no room for another name: the next request gets it
		}
		if err != nil || n <= 0 {
			return err
		}
		left -= n
		for d := range dirents(buf[:n]) {
			d.DevMajor, d.DevMinor = primitive.Uint32(dir.DevMajor), primitive.Uint32(dir.DevMinor)
			if look && d.Name != "." && d.Name != ".." {
				st, err := o.tree.statAt(o.fd, string(d.Name), 0)
				if err != nil {
					continue // removed since
				}
				d.Ino, d.DevMajor, d.DevMinor = primitive.Uint64(st.Ino), primitive.Uint32(st.DevMajor), primitive.Uint32(st.DevMinor)
			}
			record(d)
		}
	}
	return nil
}

// dirents are the entries that getdents64(2) has put into buf, each an inode number,
// an offset, the entry's length, a type and a name that ends in a zero. (fsutil's
// parser reads the longest possible entry, beyond the end of a buffer.)
func dirents(buf []byte) iter.Seq[lisafs.Dirent64] {
	return func(yield func(lisafs.Dirent64) bool) {
		for len(buf) > direntNameOffset {
			length := int(binary.NativeEndian.Uint16(buf[16:]))
			if length <= direntNameOffset || length > len(buf) {
				return
			}
			name, _, _ := bytes.Cut(buf[direntNameOffset:length], []byte{0})
			if !yield(lisafs.Dirent64{
				Ino: primitive.Uint64(binary.NativeEndian.Uint64(buf)), Off: primitive.Uint64(binary.NativeEndian.Uint64(buf[8:])),
				Type: primitive.Uint8(buf[18]), Name: lisafs.SizedString(name),
			}) {
				return
			}
			buf = buf[length:]
		}
	}
}

// overlaid says whether a descriptor lies on an overlay.
func overlaid(fd int) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return false, err
	}
	return s.Type == unix.OVERLAYFS_SUPER_MAGIC, nil
}
