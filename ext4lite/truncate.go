// SPDX-License-Identifier: Apache-2.0

// Changing a file's length and its holes: truncate, fallocate, seek.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// OnInvalidate sets the function that is told before blocks of the file are
// unmapped or moved, so that mappings of them are taken away. It is called
// with the inode locked and must not call back into it.
func (i *Inode) OnInvalidate(fn func(off, n int64)) {
	i.mu.Lock()
	i.inval = fn
	i.mu.Unlock()
}

func (i *Inode) invalidate(off, n int64) {
	if i.inval != nil && n > 0 {
		i.inval(off, n)
	}
}

// Truncate sets the file's length.
func (i *Inode) Truncate(size int64) error {
	err := i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.truncate(size)
	})
	if err != nil {
		return fail("truncate", i.ino, err)
	}
	return nil
}

func (i *Inode) truncate(size int64) error {
	fs := i.fs
	if err := i.regular("truncate"); err != nil {
		return err
	}
	if size < 0 {
		return EINVAL
	}
	if size > fs.maxSize() {
		return EFBIG
	}
	if fs.readonly.Load() {
		return EROFS
	}
	bs := int64(fs.g.BlockSize)
	old := int64(i.d.Size)
	if size >= old {
		if err := i.zeroGap(size); err != nil {
			return err
		}
		// Blocks that fallocate left past the end stay, as in the kernel,
		// unless the length is set to what it is.
		return i.setSize(size, nil)
	}
	if err := i.extents(); err != nil {
		return err
	}
	i.dropWindow()
	i.invalidate(size, old-size)
	if tail := size % bs; tail != 0 {
		if err := i.zeroWritten(size, min(old, size-tail+bs)); err != nil {
			return err
		}
	}
	// The inode is on the orphan list while its blocks go: a crash in between
	// finds the new length, and the next open takes the rest.
	if err := i.setSize(size, func(h *journal.Handle) { fs.addOrphan(h, i) }); err != nil {
		return err
	}
	return i.unmapRange(i.endBlock(), disk.MaxLogical+1, func(h *journal.Handle) { fs.unlist(h, i) })
}

// unlist takes an inode off the orphan list if it has a name.
func (fs *FS) unlist(h *journal.Handle, i *Inode) {
	if i.d.Links > 0 {
		fs.delOrphan(h, i)
	}
}

func (i *Inode) setSize(size int64, more func(*journal.Handle)) error {
	h, err := i.fs.start(4)
	if err != nil {
		return err
	}
	defer h.Stop()
	i.d.Size = uint64(size)
	now := i.fs.now()
	i.d.Mtime, i.d.Ctime = now, now
	i.touch(h)
	if more != nil {
		more(h)
	}
	return nil
}

// Fallocate modes, as in fallocate(2).
const (
	FallocKeepSize  = 0x1
	FallocPunchHole = 0x2
	FallocZeroRange = 0x10
)

// Fallocate reserves, punches or zeroes a range: mode 0 and FallocKeepSize
// allocate, FallocPunchHole|FallocKeepSize frees, FallocZeroRange makes the
// range read as zero and keeps its blocks.
func (i *Inode) Fallocate(mode uint32, off, n int64) error {
	err := i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.fallocate(mode, off, n)
	})
	if err != nil {
		return fail("fallocate", i.ino, err)
	}
	return nil
}

func (i *Inode) fallocate(mode uint32, off, n int64) error {
	if err := i.regular("fallocate"); err != nil {
		return err
	}
	switch {
	case off < 0 || n <= 0:
		return EINVAL
	case i.fs.readonly.Load():
		return EROFS
	case off > i.fs.maxSize()-n:
		return EFBIG
	}
	if err := i.extents(); err != nil {
		return err
	}
	switch mode {
	case FallocPunchHole | FallocKeepSize:
		return i.punch(off, n)
	case FallocZeroRange, FallocZeroRange | FallocKeepSize:
		if err := i.zeroRange(off, n); err != nil {
			return err
		}
	case 0, FallocKeepSize:
		if err := i.fill(off, n); err != nil {
			return err
		}
	default:
		return fmt.Errorf("mode %#x: %w", mode, EOPNOTSUPP)
	}
	if mode&FallocKeepSize == 0 && uint64(off+n) > i.d.Size {
		if err := i.zeroGap(off + n); err != nil {
			return err
		}
		return i.setSize(off+n, nil)
	}
	return i.setSize(int64(i.d.Size), nil)
}

// punch frees whole blocks and zeroes what is left at the edges.
func (i *Inode) punch(off, n int64) error {
	bs := int64(i.fs.g.BlockSize)
	end := off + n
	i.invalidate(off, n)
	first, last := (off+bs-1)/bs, end/bs
	if first > last { // within one block
		return i.edge(off, end)
	}
	if err := i.edge(off, first*bs); err != nil {
		return err
	}
	if err := i.edge(last*bs, end); err != nil {
		return err
	}
	if first < last {
		i.dropWindow()
		if err := i.unmapRange(uint64(first), uint64(last), nil); err != nil {
			return err
		}
	}
	return i.setSize(int64(i.d.Size), nil)
}

// edge zeroes part of a block.
func (i *Inode) edge(from, to int64) error {
	if from >= to {
		return nil
	}
	return i.zeroWritten(from, to)
}

// zeroRange frees the whole blocks of a range and takes unwritten ones in
// their place.
func (i *Inode) zeroRange(off, n int64) error {
	if err := i.punch(off, n); err != nil {
		return err
	}
	return i.fill(off, n)
}

// fill maps the holes of a range with unwritten blocks.
func (i *Inode) fill(off, n int64) error {
	bs := int64(i.fs.g.BlockSize)
	end := uint64((off + n + bs - 1) / bs)
	for at := uint64(off / bs); at < end; {
		e, ok, err := i.find(uint32(at))
		if err != nil {
			return err
		}
		if ok {
			at = e.End()
			continue
		}
		want := min(e.End(), end) - at
		goal, err := i.goal(uint32(at))
		if err != nil {
			return err
		}
		i.dropWindow()
		r, err := i.fs.a.Reserve(goal, i.group(), min(want, disk.MaxUnwrittenLen))
		if err != nil {
			return err
		}
		h, err := i.fs.start(i.fs.mapCredits() + 1)
		if err != nil {
			i.fs.a.Unreserve(r)
			return err
		}
		err = i.mapReserved(h, uint32(at), r, true)
		h.Stop()
		if err != nil {
			return err
		}
		at += r.N
	}
	return nil
}

// SeekData gives the first offset from off on that holds data. At the end of
// the file it is ENXIO.
func (i *Inode) SeekData(off int64) (int64, error) { return i.seek(off, true) }

// SeekHole gives the first offset from off on that lies in a hole; the end of
// the file counts as one.
func (i *Inode) SeekHole(off int64) (int64, error) { return i.seek(off, false) }

func (i *Inode) seek(off int64, data bool) (int64, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if err := i.regular("seek"); err != nil {
		return 0, err
	}
	size, bs := int64(i.d.Size), int64(i.fs.g.BlockSize)
	if off < 0 || off >= size {
		return 0, fail("seek", i.ino, ENXIO)
	}
	for at := off; at < size; {
		e, ok, err := i.find(uint32(at / bs))
		if err != nil {
			return 0, fail("seek", i.ino, err)
		}
		if (ok && !e.Unwritten) == data {
			return at, nil
		}
		at = int64(e.End()) * bs
	}
	if data {
		return 0, fail("seek", i.ino, ENXIO)
	}
	return size, nil
}
