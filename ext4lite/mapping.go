// SPDX-License-Identifier: Apache-2.0

// Mapping: where a file's bytes lie in host files, so that a sandbox can map
// the host's own page-cache pages into its guests.
//
// A range is answered held: its blocks are not given to another file before
// ReleaseMapping, even if this file is truncated or removed meanwhile. Before
// blocks of a file change their place or their owner, the function set with
// [Inode.OnInvalidate] is told, so that faults come back here.

package ext4lite

import (
	"fmt"
	"io"
	"os"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// PageSize is the granularity of mappings.
const PageSize = 4096

// Mapping is a run of a file's bytes.
type Mapping struct {
	Off, Len int64
	// Volume is where the run lies in the volume, for ReleaseMapping, or -1
	// for a hole, which is not held.
	Volume int64
	// File and FileOff are where it lies in a host file.
	File    *os.File
	FileOff int64
	// Writable says that stores to these pages are the file's: those of a
	// clone's base, and of blocks that were never written, are not.
	Writable bool
}

// Mappable tells whether files of the volume can be mapped: its blocks are
// pages, and its device is made of host files.
func (fs *FS) Mappable() bool {
	_, ok := fs.dev.(device.Locator)
	return ok && fs.g.BlockSize >= PageSize && !fs.overlaid
}

// MapForRead tells where the bytes of [off, off+n) are, as far as the file
// goes. Holes, and blocks that were never written, have no place.
func (i *Inode) MapForRead(off, n int64) ([]Mapping, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	m, err := i.mapRange(off, n, false)
	if err != nil {
		return nil, fail("map", i.ino, err)
	}
	return m, nil
}

// MapForWrite is MapForRead for stores: it allocates what is missing, so that
// every byte of the range within the file's last block has a writable place.
func (i *Inode) MapForWrite(off, n int64) ([]Mapping, error) {
	var out []Mapping
	err := i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		if err := i.populate(off, n); err != nil {
			return err
		}
		var err error
		out, err = i.mapRange(off, n, true)
		return err
	})
	if err != nil {
		return nil, fail("map for writing", i.ino, err)
	}
	return out, nil
}

// View calls fn for each run of the file's bytes in [off, off+n), in order, with
// the place in a host file where they are, or a nil file for zeros. While fn
// runs, the place is this file's: the inode is locked, and fn must not use the
// volume. Like io.ReaderAt, View ends with io.EOF at the end of the file.
func (i *Inode) View(off, n int64, fn func(f *os.File, fileOff, n int64) error) error {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if err := i.regular("read"); err != nil {
		return err
	}
	if !i.fs.Mappable() {
		return fail("read", i.ino, EOPNOTSUPP)
	}
	if off < 0 {
		return fail("read", i.ino, EINVAL)
	}
	size := int64(i.d.Size)
	end := size
	if off < size && n < size-off {
		end = off + n
	}
	if err := i.view(off, end, fn); err != nil {
		return fail("read", i.ino, err)
	}
	if end == size {
		return io.EOF
	}
	return nil
}

func (i *Inode) view(off, end int64, fn func(f *os.File, fileOff, n int64) error) error {
	bs := int64(i.fs.g.BlockSize)
	loc := i.fs.dev.(device.Locator)
	for off < end {
		e, ok, err := i.find(uint32(off / bs))
		if err != nil {
			return err
		}
		k := min(int64(e.End())*bs, end) - off
		if !ok || e.Unwritten {
			if err := fn(nil, 0, k); err != nil {
				return err
			}
			off += k
			continue
		}
		p, err := loc.Locate((int64(e.Physical)-int64(e.Logical))*bs+off, k, false)
		if err != nil {
			return err
		}
		if p.Len <= 0 || p.Len > k {
			return fmt.Errorf("device located %d bytes of %d: %w", p.Len, k, EIO)
		}
		if err := fn(p.File, p.Offset, p.Len); err != nil {
			return err
		}
		off += p.Len
	}
	return nil
}

// mapClip checks a range and cuts it to the file's blocks.
func (i *Inode) mapClip(off, n int64) (end int64, err error) {
	if err := i.regular("map"); err != nil {
		return 0, err
	}
	if off < 0 || n <= 0 || off%PageSize != 0 {
		return 0, EINVAL
	}
	if !i.fs.Mappable() {
		return 0, EOPNOTSUPP
	}
	bs := int64(i.fs.g.BlockSize)
	return min((min(off+n, int64(i.d.Size))+bs-1)/bs*bs, off+(n+bs-1)/bs*bs), nil
}

func (i *Inode) mapRange(off, n int64, write bool) ([]Mapping, error) {
	end, err := i.mapClip(off, n)
	if err != nil {
		return nil, err
	}
	fs, bs := i.fs, int64(i.fs.g.BlockSize)
	loc := fs.dev.(device.Locator)
	var out []Mapping
	undo := func(err error) ([]Mapping, error) {
		for _, m := range out {
			fs.ReleaseMapping(m)
		}
		return nil, err
	}
	for off < end {
		e, ok, err := i.find(uint32(off / bs))
		if err != nil {
			return undo(err)
		}
		k := min(int64(e.End())*bs, end) - off
		if !ok || e.Unwritten {
			out = append(out, Mapping{Off: off, Len: k, Volume: -1})
			off += k
			continue
		}
		at := (int64(e.Physical)-int64(e.Logical))*bs + off
		p, err := loc.Locate(at, k, write)
		if err != nil {
			return undo(err)
		}
		if p.Len <= 0 || p.Len > k {
			return undo(fmt.Errorf("device located %d bytes of %d: %w", p.Len, k, EIO))
		}
		fs.a.Hold(uint64(at/bs), uint64((p.Len+bs-1)/bs))
		out = append(out, Mapping{Off: off, Len: p.Len, Volume: at, File: p.File, FileOff: p.Offset, Writable: write || p.Owned})
		off += p.Len
	}
	return out, nil
}

// ReleaseMapping ends the hold of a mapping, or of a part of one that is made
// of whole blocks.
func (fs *FS) ReleaseMapping(m Mapping) {
	if m.Volume >= 0 {
		bs := int64(fs.g.BlockSize)
		fs.a.Release(uint64(m.Volume/bs), uint64((m.Len+bs-1)/bs))
	}
}

// HoldVolume takes one more hold of mapped blocks, by their place in the
// volume.
func (fs *FS) HoldVolume(off, n int64) {
	bs := int64(fs.g.BlockSize)
	fs.a.Hold(uint64(off/bs), uint64((n+bs-1)/bs))
}

// populate allocates the holes of a range and writes the zeros that holes and
// unwritten blocks read as.
func (i *Inode) populate(off, n int64) error {
	end, err := i.mapClip(off, n)
	if err != nil {
		return err
	}
	if i.fs.readonly.Load() {
		return EROFS
	}
	if err := i.extents(); err != nil {
		return err
	}
	bs := int64(i.fs.g.BlockSize)
	for at := off; at < end; {
		e, ok, err := i.find(uint32(at / bs))
		if err != nil {
			return err
		}
		k := min(int64(e.End())*bs, end) - at
		if ok && !e.Unwritten {
			at += k
			continue
		}
		i.invalidate(at, k) // pages of zeros that stood for the hole
		if k, err = i.zeroFill(at, k, e, ok); err != nil {
			return err
		}
		at += k
	}
	if i.moves(off, end-off) {
		i.invalidate(off, end-off)
	}
	return i.wrote(0, 1, nil)
}

// zeroFill makes [at, at+n), a hole or unwritten, into blocks of zeros, as far
// as one run goes.
func (i *Inode) zeroFill(at, n int64, e disk.Extent, mapped bool) (int64, error) {
	fs, bs := i.fs, int64(i.fs.g.BlockSize)
	n = min(n, populateChunk)
	logical, blocks := uint32(at/bs), n/bs
	if mapped {
		start := (int64(e.Physical) - int64(e.Logical)) * bs
		if err := device.WriteZeros(fs.dev, start+at, n); err != nil {
			return 0, err
		}
		return n, i.wrote(0, fs.mapCredits(), func(h *journal.Handle) error {
			fs.order(start+at, n)
			_, err := i.tree.MarkWritten(h, uint64(logical), uint64(logical)+uint64(blocks), 1)
			return err
		})
	}
	r, err := i.reserveData(logical, uint64(blocks), false)
	if err != nil {
		return 0, err
	}
	if err := device.WriteZeros(fs.dev, int64(r.Start)*bs, int64(r.N)*bs); err != nil {
		fs.a.Unreserve(r)
		return 0, err
	}
	return int64(r.N) * bs, i.wrote(0, fs.mapCredits(), func(h *journal.Handle) error {
		fs.order(int64(r.Start)*bs, int64(r.N)*bs)
		return i.mapReserved(h, logical, r, false)
	})
}

// populateChunk bounds what one step zeroes.
const populateChunk = 1 << 20

// moves tells whether a write to a written range changes its place in host
// files: the first write to a block of a clone does.
func (i *Inode) moves(off, n int64) bool {
	if i.inval == nil {
		return false
	}
	mover, ok := i.fs.dev.(device.Mover)
	if !ok {
		return false
	}
	bs := int64(i.fs.g.BlockSize)
	for end := off + n; off < end; {
		e, ok, err := i.find(uint32(off / bs))
		if err != nil {
			return true
		}
		k := min(int64(e.End())*bs, end) - off
		if ok && mover.Moves((int64(e.Physical)-int64(e.Logical))*bs+off, k) {
			return true
		}
		off += k
	}
	return false
}
