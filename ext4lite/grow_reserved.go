// SPDX-License-Identifier: Apache-2.0

// Volumes of mkfs.ext4 keep room for descriptors behind each copy of the
// superblock, in an inode of its own (resize_inode). Before such a volume grows
// that room is given up: the descriptors go to their groups (meta_bg), which
// has no bound, and the two do not go together.

package ext4lite

import (
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// Where an inode keeps the block that maps by two steps: 12 direct pointers and
// that of one step come first.
const (
	twoStepPointer = 13 * 4
)

// giveUpReserved plans the end of the resize inode: all it has is free.
func (w *growth) giveUpReserved() error {
	fs := w.fs
	if w.s.Compat&disk.CompatResizeInode == 0 {
		return nil
	}
	b, at, err := fs.table(nil, disk.ResizeIno, false)
	if err != nil {
		return err
	}
	d, err := disk.DecodeInode(b.Data[at:at+fs.g.InodeSize], disk.ResizeIno, fs.g, fs.s)
	if err != nil {
		return err
	}
	reserved := uint64(w.s.ReservedGDT)
	if block := uint64(binary.LittleEndian.Uint32(d.Block[twoStepPointer:])); block != 0 {
		if !fs.g.ValidRange(block, 1) || fs.a.Zones().Overlaps(block, 1) {
			return disk.Corrupt("resize inode", "its map is in block %d", block)
		}
		w.freed = append(w.freed, disk.Range{Start: block, N: 1})
	}
	for gr := range w.old {
		if reserved == 0 || !fs.g.HasSuper(gr) {
			continue
		}
		first := fs.g.GroupStart(gr) + 1 + uint64(fs.g.DescBlocks())
		if first+reserved > fs.g.GroupStart(gr)+fs.g.GroupLen(gr) {
			return disk.Corrupt("superblock", "%d blocks for descriptors do not fit in group %d", reserved, gr)
		}
		w.freed = append(w.freed, disk.Range{Start: first, N: reserved})
	}
	w.s.Compat &^= disk.CompatResizeInode
	w.s.ReservedGDT = 0
	return nil
}

// countFreed adds what was given up to the free blocks.
func (w *growth) countFreed() {
	for _, r := range w.freed {
		gr, _ := w.fs.g.GroupOf(r.Start)
		w.desc[gr].FreeBlocks += uint32(r.N)
		w.s.FreeBlocks += r.N
	}
}

// clearFreed clears the bits of what was given up and the inode that had it.
func (w *growth) clearFreed(h *journal.Handle) error {
	fs := w.fs
	for _, r := range w.freed {
		gr, index := fs.g.GroupOf(r.Start)
		d := &w.desc[gr]
		if d.Flags&disk.GroupBlockUninit != 0 {
			continue // the bitmap is computed, from what is reserved too
		}
		b, err := fs.m.Get(d.BlockBitmap, nil)
		if err != nil {
			return err
		}
		for i := index; i < index+r.N; i++ {
			if b.Data[i/8]&(1<<(i%8)) == 0 {
				return disk.Corrupt(fmt.Sprintf("block bitmap of group %d", gr), "block %d is the resize inode's, and free", r.Start+i-index)
			}
			b.Data[i/8] &^= 1 << (i % 8)
		}
		if w.g.Csum {
			d.BlockBitmapCsum = w.g.BlockBitmapSum(b.Data)
		}
		h.Dirty(b)
	}
	if len(w.freed) == 0 {
		return nil
	}
	b, at, err := fs.table(h, disk.ResizeIno, false)
	if err != nil {
		return err
	}
	clear(b.Data[at : at+fs.g.InodeSize])
	h.Dirty(b)
	return nil
}
