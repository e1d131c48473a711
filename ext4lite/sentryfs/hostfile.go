// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safecopy"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/hostfd"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// preadMinBytes is the size from which read(2) goes through pread rather than
// the mapping: large reads want the kernel's readahead, and a thread that waits
// for the disk in a system call gives its processor back to the Go scheduler,
// which one waiting in a page fault does not. Small reads save the call.
const preadMinBytes = 64 << 10

// HostFile is a donated file, mapped whole. It is the memmap.File that guests
// map. The mapping stays until the mount is released: whoever maps pages holds,
// through the file description, the mount. Pages of a volume that does not
// change need no reference counts. Those of one that does are counted by the
// volume, block by block, so that it gives none to another file before the last
// guest has let go of it.
//
// A file that is cut short behind the sandbox's back gives EIO, or SIGBUS in a
// guest: never a crash of the Sentry, as all access is by safecopy.
type HostFile struct {
	memmap.DefaultMemoryType
	memmap.NoBufferedIOFallback

	fd   int
	size int64
	data []byte

	// writable says that the mapping is.
	writable bool
	// holds counts the references of pages, where a volume wants that.
	holds pageHolder
	// shift is what a page's offset in the file is more than that in the
	// volume, once placed was told: 1 until then.
	shift atomic.Int64
	// use says when the mapping was read: see quietMappings.
	use atomic.Int32
	// mapping is held while the mapping is let go of or unmapped; nothing is locked
	// under it.
	mapping sync.Mutex
}

// pageHolder is a volume that counts the references of its pages, by their
// places in the volume.
type pageHolder interface {
	HoldRun(volumeOff, n int64)
	ReleaseRun(volumeOff, n int64)
}

// notPlaced is no multiple of a page, as every shift is.
const notPlaced = 1

var _ memmap.File = (*HostFile)(nil)

// OpenHostFile takes ownership of fd and maps its first size bytes, or all of
// them if size is 0. On an error, too, fd is closed.
func OpenHostFile(fd int, size int64) (*HostFile, error) {
	f, err := mapHostFile(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("map volume file, descriptor %d: %w", fd, err)
	}
	return f, nil
}

func mapHostFile(fd int, size int64) (*HostFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("not a regular file (mode %#o): %w", st.Mode, unix.EINVAL)
	}
	if size == 0 {
		size = st.Size
	}
	if size <= 0 || size > st.Size {
		return nil, fmt.Errorf("volume of %d bytes in a file of %d bytes: %w", size, st.Size, unix.EINVAL)
	}
	data, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	return &HostFile{fd: fd, size: size, data: data}, nil
}

// mapVolumeFile maps a file of a volume that counts references. The descriptor
// stays its owner's.
func mapVolumeFile(fd int, writable bool, holds pageHolder) (*HostFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("find size: %w", err)
	}
	size := st.Size
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		// A block device has its size at its end only.
		var err error
		if size, err = unix.Seek(fd, 0, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("find size: %w", err)
		}
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	f := &HostFile{fd: fd, size: size, data: data, writable: writable, holds: holds}
	f.shift.Store(notPlaced)
	return f, nil
}

// placed notes what the file's pages have to be moved by to be the volume's. It
// reports whether that is the same for all.
func (f *HostFile) placed(shift int64) bool {
	if f.shift.CompareAndSwap(notPlaced, shift) {
		return shift&pageMask == 0
	}
	return f.shift.Load() == shift
}

// close gives the mapping and the descriptor back.
func (f *HostFile) close() {
	f.unmap()
	unix.Close(f.fd)
	f.fd = -1
}

// SizeBytes is the size of the volume in the file.
func (f *HostFile) SizeBytes() int64 { return f.size }

// ReadAt implements io.ReaderAt with no system call.
func (f *HostFile) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, unix.EINVAL
	}
	if off >= f.size {
		return 0, io.EOF
	}
	src := f.data[off:]
	short := len(src) < len(p)
	if short {
		p = p[:len(src)]
	}
	if len(p) == 0 {
		return 0, nil
	}
	f.used()
	n, err := safecopy.CopyIn(p, unsafe.Pointer(&src[0]))
	switch {
	case err != nil:
		return n, fmt.Errorf("read %d bytes at %d of volume file: %v: %w", len(p), off, err, unix.EIO)
	case short:
		return n, io.EOF
	}
	return n, nil
}

// readToBlocks copies file bytes from off on into dsts. It returns EIO where
// the file ends before.
func (f *HostFile) readToBlocks(dsts safemem.BlockSeq, off int64) (uint64, error) {
	n := dsts.NumBytes()
	if off < 0 || off > f.size || n > uint64(f.size-off) {
		return 0, linuxerr.EIO
	}
	if n >= preadMinBytes {
		got, err := hostfd.Preadv2(int32(f.fd), dsts, off, 0)
		if err == io.EOF {
			err = linuxerr.EIO
		}
		return got, err
	}
	f.used()
	src := safemem.BlockFromUnsafeSlice(f.data[off : off+int64(n)])
	got, err := safemem.CopySeq(dsts, safemem.BlockSeqOf(src))
	if _, ok := err.(safecopy.BusError); ok {
		err = linuxerr.EIO
	}
	return got, err
}

// zeroBetween reports whether a guest that maps the page with [start, end) sees
// only zeros there: also behind the end of the volume, where the file may go on.
func (f *HostFile) zeroBetween(start, end int64) bool {
	src, err := f.MapInternal(memmap.FileRange{Start: uint64(start), End: uint64(end)}, hostarch.Read)
	if err != nil {
		return false
	}
	var page [hostarch.PageSize]byte
	n, err := safemem.CopySeq(safemem.BlockSeqOf(safemem.BlockFromSafeSlice(page[:])), src)
	if err != nil {
		return false
	}
	for _, b := range page[:n] {
		if b != 0 {
			return false
		}
	}
	return true
}

// IncRef implements memmap.File.
func (f *HostFile) IncRef(fr memmap.FileRange, _ uint32) {
	if f.holds != nil {
		f.holds.HoldRun(int64(fr.Start)-f.shift.Load(), int64(fr.Length()))
	}
}

// DecRef implements memmap.File.
func (f *HostFile) DecRef(fr memmap.FileRange) {
	if f.holds != nil {
		f.holds.ReleaseRun(int64(fr.Start)-f.shift.Load(), int64(fr.Length()))
	}
}

// MapInternal implements memmap.File.
func (f *HostFile) MapInternal(fr memmap.FileRange, at hostarch.AccessType) (safemem.BlockSeq, error) {
	mapped := (uint64(f.size) + hostarch.PageSize - 1) &^ (hostarch.PageSize - 1)
	if at.Write && !f.writable || fr.End > mapped || fr.Start >= fr.End {
		return safemem.BlockSeq{}, &memmap.BusError{Err: linuxerr.EROFS}
	}
	// The kernel maps whole pages: what lies behind the last byte is there to
	// be read, and zero.
	f.used()
	p := unsafe.Add(unsafe.Pointer(unsafe.SliceData(f.data)), fr.Start)
	return safemem.BlockSeqOf(safemem.BlockFromUnsafePointer(p, int(fr.Length()))), nil
}

// DataFD implements memmap.File.
func (f *HostFile) DataFD(memmap.FileRange) (int, error) { return f.fd, nil }

// FD implements memmap.File.
func (f *HostFile) FD() int { return f.fd }
