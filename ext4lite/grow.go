// SPDX-License-Identifier: Apache-2.0

// Grow: a volume that nobody has open becomes larger.
//
// New groups lie past the old end, so what they hold is written, or declared
// to be zero, before anything points at them. The step from old to new is one
// transaction: the superblock, the descriptors, the bitmap of the group that
// was cut short. Descriptors that do not fit behind the superblock go to the
// groups they describe (meta_bg); the room that mkfs.ext4 keeps for them is
// given up (grow_reserved.go).

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// Grow makes the volume in a host file larger. Volumes are not made smaller.
func Grow(path string, size int64) error {
	fs, err := OpenFile(path, Options{})
	if err != nil {
		return fmt.Errorf("grow volume: %w", err)
	}
	err = fs.Grow(size)
	if e := fs.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("grow volume %s: %w", path, err)
	}
	return nil
}

// growth is a volume on its way from one size to another.
type growth struct {
	fs     *FS
	s      *disk.Super    // as it will be
	g      *disk.Geometry // as it will be
	desc   []disk.Group   // all groups
	old    uint32         // groups before
	extend uint64         // blocks added to the last old group
	blocks map[uint64][]byte
	freed  []disk.Range // what only a volume of mkfs.ext4 keeps
}

// Grow is the function of that name for a volume that is open, and that nobody
// else uses.
func (fs *FS) Grow(size int64) error {
	if why := fs.ReadOnly(); why != nil {
		return fmt.Errorf("%w: %w", EROFS, why)
	}
	if !fs.s.HasUninit() {
		return fmt.Errorf("the volume has neither metadata_csum nor uninit_bg: tune2fs -O metadata_csum adds one, or use resize2fs: %w", EOPNOTSUPP)
	}
	if size > mkfs.MaxSize {
		return fmt.Errorf("%d bytes, at most %d are possible: %w", size, int64(mkfs.MaxSize), EFBIG)
	}
	w := &growth{fs: fs, s: fs.announced(), old: fs.g.Groups, blocks: map[uint64][]byte{}}
	if err := w.plan(uint64(size) >> fs.g.BlockShift); err != nil {
		return err
	}
	if err := fs.dev.Truncate(int64(w.g.Blocks) << fs.g.BlockShift); err != nil {
		return err
	}
	for b, p := range w.blocks {
		if _, err := fs.dev.WriteAt(p, int64(b)<<fs.g.BlockShift); err != nil {
			return fmt.Errorf("write block %d: %w", b, err)
		}
	}
	if err := fs.flush(); err != nil {
		return err
	}
	if err := w.commit(); err != nil {
		return err
	}
	return w.copies()
}

// plan computes the new geometry and what the new groups hold.
func (w *growth) plan(blocks uint64) error {
	old := w.fs.g
	if blocks <= old.Blocks {
		return fmt.Errorf("the volume has %d blocks, %d were asked for: volumes only grow: %w", old.Blocks, blocks, EINVAL)
	}
	if err := w.giveUpReserved(); err != nil {
		return err
	}
	w.s.ForgetOverhead()
	for {
		w.s.BlocksCount = blocks
		groups := uint32(w.s.Groups64())
		w.s.InodesCount = groups * w.s.InodesPerGroup
		if need := (groups + old.DescPerBlock - 1) / old.DescPerBlock; need > old.DescBlocks() && w.s.Incompat&disk.IncompatMetaBG == 0 {
			w.s.Incompat |= disk.IncompatMetaBG
			w.s.FirstMetaBG = old.DescBlocks()
		}
		w.g = disk.NewGeometry(w.s)
		last := groups - 1
		if n := w.g.GroupLen(last); last >= w.old && n < w.g.GroupOverhead(last)+2+w.g.ItableBlocks+minGrownTail {
			blocks -= n
			continue
		}
		break
	}
	if w.g.Blocks <= old.Blocks {
		return fmt.Errorf("too little for one more group: %w", EINVAL)
	}
	if w.g.Groups > disk.MaxGroups {
		return EFBIG
	}
	w.desc = append(w.fs.a.Descriptors(), make([]disk.Group, w.g.Groups-w.old)...)
	w.countFreed()
	w.extend = w.g.GroupLen(w.old-1) - old.GroupLen(w.old-1)
	w.desc[w.old-1].FreeBlocks += uint32(w.extend)
	w.s.FreeBlocks += w.extend
	for gr := w.old; gr < w.g.Groups; gr++ {
		w.group(gr)
	}
	return nil
}

// minGrownTail is how many blocks a last group must have for files.
const minGrownTail = 64

// group lays a new group out: its bitmaps and table at its start.
func (w *growth) group(gr uint32) {
	over := w.g.GroupOverhead(gr)
	at := w.g.GroupStart(gr) + over
	d := &w.desc[gr]
	*d = disk.Group{BlockBitmap: at, InodeBitmap: at + 1, InodeTable: at + 2, FreeInodes: w.g.InodesPerGroup, ItableUnused: w.g.InodesPerGroup,
		Flags: disk.GroupInodeUninit | disk.GroupInodeZeroed | disk.GroupBlockUninit}
	used := over + 2 + w.g.ItableBlocks
	d.FreeBlocks = uint32(w.g.GroupLen(gr) - used)
	w.s.FreeBlocks += uint64(d.FreeBlocks)
	w.s.FreeInodes += w.g.InodesPerGroup
	if gr < w.g.Groups-1 {
		return
	}
	m := make([]byte, w.g.BlockSize) // the last group's bitmap pads the volume's end
	for i := range uint64(len(m) * 8) {
		if i < used || i >= w.g.GroupLen(gr) {
			m[i/8] |= 1 << (i % 8)
		}
	}
	d.Flags &^= disk.GroupBlockUninit
	if w.g.Csum {
		d.BlockBitmapCsum = w.g.BlockBitmapSum(m)
	}
	w.blocks[d.BlockBitmap] = m
}

// commit makes the volume large in one transaction.
func (w *growth) commit() error {
	fs := w.fs
	h, err := fs.start(int(w.g.DescBlocks()) + len(w.freed) + 5)
	if err != nil {
		return err
	}
	err = w.edit(h)
	if err == nil {
		// From here on the commit must write the new superblock, not the old.
		fs.superMu.Lock()
		fs.s = w.s
		fs.superMu.Unlock()
		fs.st.Blocks = w.g.Blocks
		fs.touchSuper(h)
	}
	h.Stop()
	if err != nil {
		return fs.damaged(err)
	}
	return fs.Sync()
}

func (w *growth) edit(h *journal.Handle) error {
	fs := w.fs
	if err := w.clearFreed(h); err != nil {
		return err
	}
	// The last old group was padded to its end.
	d := &w.desc[w.old-1]
	if w.extend > 0 && d.Flags&disk.GroupBlockUninit == 0 {
		b, err := fs.m.Get(d.BlockBitmap, nil)
		if err != nil {
			return err
		}
		n := fs.g.GroupLen(w.old - 1)
		for i := n; i < n+w.extend; i++ {
			b.Data[i/8] &^= 1 << (i % 8)
		}
		if w.g.Csum {
			d.BlockBitmapCsum = w.g.BlockBitmapSum(b.Data)
		}
		h.Dirty(b)
	}
	fs.st.Blocks = w.g.Blocks // descriptor blocks may lie past the old end
	first := (w.old - 1) / w.g.DescPerBlock
	if len(w.freed) > 0 {
		first = 0
	}
	for i := first; i < w.g.DescBlocks(); i++ {
		var b *journal.Buf
		var err error
		if i < fs.g.DescBlocks() {
			b, err = fs.m.Get(w.g.DescBlock(i), nil)
		} else {
			b = h.GetNew(w.g.DescBlock(i))
		}
		if err != nil {
			return err
		}
		w.encode(b.Data, i)
		h.Dirty(b)
	}
	return nil
}

// encode writes the descriptors of a descriptor block.
func (w *growth) encode(p []byte, i uint32) {
	for k := range w.g.DescPerBlock {
		if gr := i*w.g.DescPerBlock + k; gr < w.g.Groups {
			at := int(k) * w.g.DescSize
			w.desc[gr].Encode(p[at:at+w.g.DescSize], gr, w.g, w.s)
		}
	}
}

// copies brings the superblock's and descriptors' copies up to date. Nothing
// but a repair reads them. Descriptors that are in their groups have no copy
// beside the superblock's, but in two groups of those they describe.
func (w *growth) copies() error {
	fs := w.fs
	together := w.g.DescBlocks()
	if w.s.Incompat&disk.IncompatMetaBG != 0 {
		together = min(together, w.s.FirstMetaBG)
	}
	for gr := uint32(1); gr < w.g.Groups; gr++ {
		if !w.g.HasSuper(gr) {
			continue
		}
		s := w.s.Clone()
		s.BlockGroupNr = uint16(gr)
		s.Incompat &^= disk.IncompatRecover
		if _, err := fs.dev.WriteAt(s.Encode(), int64(w.g.GroupStart(gr))<<fs.g.BlockShift); err != nil {
			return err
		}
		if gr/w.g.DescPerBlock >= together && together < w.g.DescBlocks() {
			continue // described in its own groups
		}
		for i := range together {
			p := make([]byte, w.g.BlockSize)
			w.encode(p, i)
			if err := fs.st.Write(w.g.GroupStart(gr)+1+uint64(i), p); err != nil {
				return err
			}
		}
	}
	for i := together; i < w.g.DescBlocks(); i++ {
		p := make([]byte, w.g.BlockSize)
		w.encode(p, i)
		first := i * w.g.DescPerBlock
		for _, gr := range []uint32{first + 1, first + w.g.DescPerBlock - 1} {
			if gr >= w.g.Groups {
				continue
			}
			at := w.g.GroupStart(gr)
			if w.g.HasSuper(gr) {
				at++
			}
			if err := fs.st.Write(at, p); err != nil {
				return err
			}
		}
	}
	return nil
}
