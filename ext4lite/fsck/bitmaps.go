// SPDX-License-Identifier: Apache-2.0

// Pass 5: bitmaps and counts against what was found in use.

package fsck

import (
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

func (c *checker) bitmaps() error {
	var freeBlocks uint64
	var freeInodes uint32
	for gr := range c.g.Groups {
		if err := c.blockBitmap(gr, &freeBlocks); err != nil {
			return err
		}
		if err := c.inodeBitmap(gr, &freeInodes); err != nil {
			return err
		}
	}
	c.r.BlocksUsed = c.g.Blocks - freeBlocks
	if c.s.FreeBlocks != freeBlocks {
		if err := c.problem(FreeCount, 0, 0, "superblock says %d free blocks, %d are", c.s.FreeBlocks, freeBlocks); err != nil {
			return err
		}
	}
	if c.s.FreeInodes != freeInodes {
		return c.problem(FreeCount, 0, 0, "superblock says %d free inodes, %d are", c.s.FreeInodes, freeInodes)
	}
	return nil
}

func bit(m []byte, i uint64) bool { return m[i/8]>>(i%8)&1 != 0 }

// padding checks the bits of a bitmap that stand for nothing.
func (c *checker) padding(code Code, m []byte, from, block uint64, gr uint32) error {
	for i := from; i < uint64(len(m)*8); i++ {
		if !bit(m, i) {
			return c.problem(code, 0, block, "padding of group %d is not set", gr)
		}
	}
	return nil
}

func (c *checker) blockBitmap(gr uint32, total *uint64) error {
	d := &c.desc[gr]
	start, n := c.g.GroupStart(gr), c.g.GroupLen(gr)
	var m []byte
	if d.Flags&disk.GroupBlockUninit == 0 {
		var err error
		if m, err = c.read(d.BlockBitmap); err != nil {
			return err
		}
		if c.g.Csum && c.g.BlockBitmapSum(m) != d.BlockBitmapCsum {
			if err := c.problem(BitmapSum, 0, d.BlockBitmap, "block bitmap of group %d", gr); err != nil {
				return err
			}
		}
	}
	free, wrong, first := uint64(0), 0, uint64(0)
	for i := range n {
		used := bit(c.used, start+i)
		if !used {
			free++
		}
		if m != nil && bit(m, i) != used {
			if wrong++; wrong == 1 {
				first = start + i
			}
		}
	}
	if m == nil {
		// Its contents are implied: nothing in it but its own tables.
		implied := c.g.GroupOverhead(gr)
		for _, r := range []disk.Range{{Start: d.BlockBitmap, N: 1}, {Start: d.InodeBitmap, N: 1}, {Start: d.InodeTable, N: c.g.ItableBlocks}} {
			if from, to := max(r.Start, start), min(r.Start+r.N, start+n); from < to {
				implied += to - from
			}
		}
		if n-free != implied {
			wrong = int(n - free - implied)
		}
	} else if err := c.padding(BlockBitmap, m, n, d.BlockBitmap, gr); err != nil {
		return err
	}
	*total += free
	if wrong != 0 {
		if err := c.problem(BlockBitmap, 0, first, "%d bits of group %d differ from what is in use", wrong, gr); err != nil {
			return err
		}
	}
	if uint64(d.FreeBlocks) != free {
		return c.problem(FreeCount, 0, 0, "group %d says %d free blocks, %d are", gr, d.FreeBlocks, free)
	}
	return nil
}

func (c *checker) inodeBitmap(gr uint32, total *uint32) error {
	d := &c.desc[gr]
	first := gr * c.g.InodesPerGroup
	used := func(i uint32) bool {
		ino := first + i + 1
		return c.inodes[ino] != nil || ino < c.g.FirstIno || ino == c.s.OrphanFileInum && ino != 0
	}
	free, dirs, wrong, at := uint32(0), uint32(0), 0, uint32(0)
	var m []byte
	if d.Flags&disk.GroupInodeUninit == 0 {
		var err error
		if m, err = c.read(d.InodeBitmap); err != nil {
			return err
		}
		if c.g.Csum && c.g.InodeBitmapSum(m) != d.InodeBitmapCsum {
			if err := c.problem(BitmapSum, 0, d.InodeBitmap, "inode bitmap of group %d", gr); err != nil {
				return err
			}
		}
		if err := c.padding(InodeBitmap, m, uint64(c.g.InodesPerGroup), d.InodeBitmap, gr); err != nil {
			return err
		}
	}
	for i := range c.g.InodesPerGroup {
		u := used(i)
		if !u {
			free++
		} else if f := c.inodes[first+i+1]; f != nil && f.mode&disk.ModeType == disk.ModeDir {
			dirs++
		}
		if m != nil && bit(m, uint64(i)) != u {
			if wrong++; wrong == 1 {
				at = first + i + 1
			}
		}
	}
	*total += free
	if wrong != 0 {
		if err := c.problem(InodeBitmap, at, 0, "%d bits of group %d differ from what is in use", wrong, gr); err != nil {
			return err
		}
	}
	if d.FreeInodes != free {
		if err := c.problem(FreeCount, 0, 0, "group %d says %d free inodes, %d are", gr, d.FreeInodes, free); err != nil {
			return err
		}
	}
	if d.UsedDirs != dirs {
		return c.problem(DirsCount, 0, 0, "group %d says %d directories, %d are", gr, d.UsedDirs, dirs)
	}
	return nil
}
