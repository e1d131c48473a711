// SPDX-License-Identifier: Apache-2.0

// Package delta makes clones of a volume that cost nothing until they are
// written: a sparse file that holds the blocks that differ from a base.
//
// A delta is a [device.Device] as large as its base. Block N lies at a fixed
// place in the file, and one bit per block of 4 KiB says whether the delta or
// the base holds it; there are no other tables, so a delta is created in the
// same time whatever its size. Unchanged pages are the base's: all clones share
// them in the host's page cache. FORMAT.md has the layout.
//
// # Life of a clone
//
//	Create   base is checked: a clean volume, not in use for writing
//	Open     base is locked shared and compared with what Create saw, the
//	         delta is locked alone
//	write    a block's first write copies what it does not cover, then its
//	         bit is set in memory
//	Order    bits go to the file after the data they speak of and before
//	         whatever relies on them; Sync makes both durable
//	Flatten  a plain volume out of base and delta
//	Commit   the delta's blocks go into its base, when no other clone uses it
//
// A base must not change while a delta exists: Open refuses one that did.
// Deltas may be bases of deltas, to a depth of [MaxDepth].
//
// # Locks, in order
//
//	stripes   one block's copying at a time
//	order     bits going to the file
//	mu        pages of the bitmap
//
// The package knows of ext4 only what tells a clean volume from a dirty one.
package delta

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
)

const (
	// BlockSize is the unit of copying: a page, which is what guests map.
	BlockSize = 4096
	// MaxDepth bounds how many deltas may lie on a plain base: each level is
	// an open file and a look at a bitmap for every read.
	MaxDepth = 4
	// MaxSize bounds the bitmap to 512 MiB.
	MaxSize = 16 << 40

	stripes      = 64
	pageBits     = BlockSize * 8 // blocks that one page of the bitmap speaks of
	pageWords    = BlockSize / 8
	bitmapOffset = 2 * BlockSize // after the two headers
	dataAlign    = 2 << 20       // so that huge pages can be mapped
)

// Delta is an open delta.
type Delta struct {
	f        *os.File
	h        header
	base     device.Device
	baseFile *os.File // nil unless the base is one file
	data     int64    // where block 0 lies
	readonly bool

	copying [stripes]sync.Mutex
	order   sync.Mutex // bits go to the file one copy after the other
	mu      sync.Mutex
	pages   []atomic.Pointer[page]
	err     atomic.Pointer[error] // bits that could not be stored
}

// page is a part of the bitmap.
type page struct {
	bits  [pageWords]atomic.Uint64
	dirty atomic.Bool
	some  atomic.Bool // any bit is set
}

func dataOffset(size int64) int64 {
	bitmap := (size/BlockSize + 7) / 8
	return (bitmapOffset + bitmap + dataAlign - 1) / dataAlign * dataAlign
}

// Options say how a delta is made.
type Options struct {
	// File takes the delta, instead of a new file: an unlinked one, for a
	// clone that the end of the process removes.
	File *os.File
}

// Create makes a delta on a base volume, which must be clean. The base is
// named in the delta relative to the delta's directory where both are in one.
func Create(path, basePath string, o Options) error {
	base, err := OpenAny(basePath, device.ReadOnly)
	if err != nil {
		return fmt.Errorf("create delta: base: %w", err)
	}
	defer base.Close()
	h, err := newHeader(base, basePath, path)
	if err != nil {
		return fmt.Errorf("create delta on %s: %w", basePath, err)
	}
	f := o.File
	if f == nil {
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return fmt.Errorf("create delta: %w", err)
		}
		defer f.Close()
	}
	if err := h.begin(f); err != nil {
		if o.File == nil {
			os.Remove(path)
		}
		return fmt.Errorf("create delta %s: %w", path, err)
	}
	return nil
}

// begin gives a new file its length and its headers.
func (h *header) begin(f *os.File) error {
	if err := f.Truncate(dataOffset(h.size) + h.size); err != nil {
		return err
	}
	for k := range 2 {
		if _, err := f.WriteAt(h.encode(), int64(k)*BlockSize); err != nil {
			return err
		}
	}
	return nil
}

// IsDelta tells whether a file begins like a delta.
func IsDelta(f io.ReaderAt) bool {
	p := make([]byte, len(magic))
	_, err := f.ReadAt(p, 0)
	return err == nil && string(p) == magic
}

// OpenAny opens a plain volume's file or a delta with its bases.
func OpenAny(path string, access device.Access) (device.Device, error) {
	return openAny(path, access, 0)
}

func openAny(path string, access device.Access, depth int) (device.Device, error) {
	d, err := device.OpenFile(path, access)
	if err != nil {
		return nil, err
	}
	if !IsDelta(d) {
		return d, nil
	}
	v, err := open(d.Host(), path, access, depth)
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("open delta %s: %w", path, err)
	}
	return v, nil
}

// Open opens a delta by an open file, which it takes over and locks. dir is
// where a relative base is looked for.
func Open(f *os.File, path string, access device.Access) (*Delta, error) {
	if _, err := device.NewFile(f, access); err != nil {
		return nil, fmt.Errorf("open delta: %w", err)
	}
	return open(f, path, access, 0)
}

func open(f *os.File, path string, access device.Access, depth int) (*Delta, error) {
	if depth >= MaxDepth {
		return nil, fmt.Errorf("more than %d deltas on one another: flatten one: %w", MaxDepth, errno.ELOOP)
	}
	h, err := readHeader(f)
	if err != nil {
		return nil, err
	}
	basePath := h.basePath
	if !filepath.IsAbs(basePath) {
		basePath = filepath.Join(filepath.Dir(path), basePath)
	}
	base, err := openAny(basePath, device.ReadOnly, depth+1)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	if h.flags&flagMerging != 0 {
		base.Close()
		return nil, fmt.Errorf("base %s: %w", basePath, ErrCommitCut)
	}
	if err := h.matches(base); err != nil {
		base.Close()
		return nil, fmt.Errorf("base %s: %w", basePath, err)
	}
	return assemble(f, h, base, access)
}

func assemble(f *os.File, h header, base device.Device, access device.Access) (*Delta, error) {
	d := &Delta{f: f, h: h, base: base, data: dataOffset(h.size), readonly: access == device.ReadOnly}
	if p, ok := base.(*device.File); ok {
		d.baseFile = p.Host()
	}
	d.pages = make([]atomic.Pointer[page], (h.size/BlockSize+pageBits-1)/pageBits)
	return d, nil
}

// page reads a part of the bitmap.
func (d *Delta) page(k int64) (*page, error) {
	if p := d.pages[k].Load(); p != nil {
		return p, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pages[k].Load(); p != nil {
		return p, nil
	}
	buf := make([]byte, BlockSize)
	if _, err := d.f.ReadAt(buf, bitmapOffset+k*BlockSize); err != nil {
		return nil, fmt.Errorf("read delta's bitmap: %w", err)
	}
	p := &page{}
	for w := range p.bits {
		v := le.Uint64(buf[8*w:])
		p.bits[w].Store(v)
		if v != 0 {
			p.some.Store(true)
		}
	}
	d.pages[k].Store(p)
	return p, nil
}

// has tells whether the delta holds a block.
func (d *Delta) has(block int64) (bool, error) {
	p, err := d.page(block / pageBits)
	if err != nil {
		return false, err
	}
	return p.some.Load() && p.bits[block%pageBits/64].Load()>>(block%64)&1 != 0, nil
}

// mark says that the delta holds blocks. Their bytes are written already.
func (d *Delta) mark(from, to int64) error {
	for b := from; b < to; {
		p, err := d.page(b / pageBits)
		if err != nil {
			return err
		}
		w := b % pageBits / 64
		end := min(to, (b/64+1)*64)
		mask := ^uint64(0) << (b % 64)
		if k := end % 64; k != 0 {
			mask &= 1<<k - 1
		}
		if old := p.bits[w].Load(); old&mask != mask {
			p.bits[w].Or(mask)
			p.some.Store(true)
			p.dirty.Store(true)
		}
		b = end
	}
	return nil
}

// run is how many of the blocks from one on are where it is.
func (d *Delta) run(block, end int64) (here bool, n int64, err error) {
	if here, err = d.has(block); err != nil {
		return false, 0, err
	}
	for n = 1; block+n < end; n++ {
		h, err := d.has(block + n)
		if err != nil {
			return false, 0, err
		}
		if h != here {
			break
		}
	}
	return here, n, nil
}

// split calls fn for the parts of a range that lie in one place each.
func (d *Delta) split(off, n int64, fn func(here bool, off, n int64) error) error {
	end := off + n
	for off < end {
		first := off / BlockSize
		here, k, err := d.run(first, (end+BlockSize-1)/BlockSize)
		if err != nil {
			return err
		}
		m := min((first+k)*BlockSize, end) - off
		if err := fn(here, off, m); err != nil {
			return err
		}
		off += m
	}
	return nil
}

// ReadAt reads from wherever each block is.
func (d *Delta) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= d.h.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), d.h.size-off)
	err := d.split(off, n, func(here bool, at, k int64) error {
		part := p[at-off : at-off+k]
		var err error
		if here {
			_, err = d.f.ReadAt(part, d.data+at)
		} else {
			_, err = d.base.ReadAt(part, at)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// WriteAt writes into the delta. Blocks that are written in part, for the
// first time, are filled from the base.
func (d *Delta) WriteAt(p []byte, off int64) (int, error) {
	if d.readonly {
		return 0, fmt.Errorf("write delta: opened read-only: %w", errno.EROFS)
	}
	if off < 0 || off+int64(len(p)) > d.h.size {
		return 0, fmt.Errorf("write delta: past its end: %w", errno.EFBIG)
	}
	done := 0
	for done < len(p) {
		at := off + int64(done)
		rest := int64(len(p) - done)
		if at%BlockSize != 0 || rest < BlockSize {
			k := min(rest, BlockSize-at%BlockSize)
			if err := d.writePart(p[done:done+int(k)], at); err != nil {
				return done, err
			}
			done += int(k)
			continue
		}
		k := rest / BlockSize * BlockSize
		if _, err := d.f.WriteAt(p[done:done+int(k)], d.data+at); err != nil {
			return done, err
		}
		if err := d.mark(at/BlockSize, (at+k)/BlockSize); err != nil {
			return done, err
		}
		done += int(k)
	}
	return done, nil
}

// writePart writes within one block.
func (d *Delta) writePart(p []byte, off int64) error {
	block := off / BlockSize
	here, err := d.has(block)
	if err != nil {
		return err
	}
	if !here {
		l := &d.copying[block%stripes]
		l.Lock()
		defer l.Unlock()
		if here, err = d.has(block); err != nil {
			return err
		}
		if !here {
			buf := make([]byte, BlockSize)
			if _, err := d.base.ReadAt(buf, block*BlockSize); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			copy(buf[off%BlockSize:], p)
			if _, err := d.f.WriteAt(buf, d.data+block*BlockSize); err != nil {
				return err
			}
			return d.mark(block, block+1)
		}
	}
	_, err = d.f.WriteAt(p, d.data+off)
	return err
}

// Size is the base's length.
func (d *Delta) Size() int64 { return d.h.size }

// Truncate refuses: a delta is as long as its base.
func (d *Delta) Truncate(size int64) error {
	if size == d.h.size {
		return nil
	}
	return fmt.Errorf("resize delta: it is as large as its base: flatten it first: %w", errno.EOPNOTSUPP)
}

// stored is a copy of a page of the bitmap on its way to the file.
type stored struct {
	k int
	p []byte
}

// collect copies the pages of the bitmap that changed.
func (d *Delta) collect() []stored {
	var out []stored
	for k := range d.pages {
		p := d.pages[k].Load()
		if p == nil || !p.dirty.Swap(false) {
			continue
		}
		buf := make([]byte, BlockSize)
		for w := range p.bits {
			le.PutUint64(buf[8*w:], p.bits[w].Load())
		}
		out = append(out, stored{k, buf})
	}
	return out
}

func (d *Delta) store(list []stored) error {
	for _, s := range list {
		if _, err := d.f.WriteAt(s.p, bitmapOffset+int64(s.k)*BlockSize); err != nil {
			err = fmt.Errorf("write delta's bitmap: %w", err)
			d.err.CompareAndSwap(nil, &err) // bits are lost: nothing later may be relied on
			return err
		}
	}
	return nil
}

// Order stores the bits of all writes so far.
func (d *Delta) Order() error {
	d.order.Lock()
	defer d.order.Unlock()
	if e := d.err.Load(); e != nil {
		return *e
	}
	return d.store(d.collect())
}

// Sync makes data and bits durable, the bits after the data they speak of: a
// bit without its data would hide what the base holds.
func (d *Delta) Sync() error {
	if d.readonly {
		return nil
	}
	d.order.Lock()
	defer d.order.Unlock()
	if e := d.err.Load(); e != nil {
		return *e
	}
	bits := d.collect()
	if err := d.syncData(); err != nil || len(bits) == 0 {
		return err
	}
	if err := d.store(bits); err != nil {
		return err
	}
	return d.syncData()
}

func (d *Delta) syncData() error { return device.Datasync(d.f) }

// Punch makes a range read as zero: its blocks are holes of the delta.
func (d *Delta) Punch(off, n int64) error {
	if d.readonly {
		return fmt.Errorf("punch delta: opened read-only: %w", errno.EROFS)
	}
	first, last := (off+BlockSize-1)/BlockSize, (off+n)/BlockSize
	if first >= last {
		return device.WriteZeros(d, off, n)
	}
	if err := device.WriteZeros(d, off, first*BlockSize-off); err != nil {
		return err
	}
	if err := device.WriteZeros(d, last*BlockSize, off+n-last*BlockSize); err != nil {
		return err
	}
	if err := device.PunchFile(d.f, d.data+first*BlockSize, (last-first)*BlockSize); err != nil {
		return err
	}
	return d.mark(first, last)
}

// Locate tells which file holds a range. With write set, blocks of the base
// are copied first.
func (d *Delta) Locate(off, n int64, write bool) (device.Place, error) {
	first, end := off/BlockSize, (off+n+BlockSize-1)/BlockSize
	if write {
		if d.readonly {
			return device.Place{}, fmt.Errorf("map delta for writing: opened read-only: %w", errno.EROFS)
		}
		for b := first; b < end; b++ {
			if err := d.writePart(nil, b*BlockSize); err != nil {
				return device.Place{}, err
			}
		}
		return device.Place{File: d.f, Offset: d.data + off, Len: n, Owned: true}, nil
	}
	here, k, err := d.run(first, end)
	if err != nil {
		return device.Place{}, err
	}
	m := min((first+k)*BlockSize, off+n) - off
	if here {
		return device.Place{File: d.f, Offset: d.data + off, Len: m, Owned: !d.readonly}, nil
	}
	l, ok := d.base.(device.Locator)
	if !ok {
		return device.Place{}, fmt.Errorf("map delta: its base is no file: %w", errno.EOPNOTSUPP)
	}
	p, err := l.Locate(off, m, false)
	p.Owned = false
	return p, err
}

// Moves tells whether any block of a range is still the base's.
func (d *Delta) Moves(off, n int64) bool {
	for b, end := off/BlockSize, (off+n+BlockSize-1)/BlockSize; b < end; b++ {
		if here, err := d.has(b); err != nil || !here {
			return true
		}
	}
	return false
}

// Close stores the bits and releases both files.
func (d *Delta) Close() error {
	var err error
	if !d.readonly {
		err = d.Order()
	}
	return errors.Join(err, d.f.Close(), d.base.Close())
}

// Base is the path the delta names its base by.
func (d *Delta) Base() string { return d.h.basePath }

// Blocks tells how many blocks the delta holds.
func (d *Delta) Blocks() (n int64, err error) {
	err = d.split(0, d.h.size, func(here bool, off, k int64) error {
		if here {
			n += (k + BlockSize - 1) / BlockSize
		}
		return nil
	})
	return n, err
}
