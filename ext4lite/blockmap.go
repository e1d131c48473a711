// SPDX-License-Identifier: Apache-2.0

// From file blocks to volume blocks: look up, allocate, unmap.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/tree"
)

const (
	// The window reserved behind a growing file: as much as the file has, in
	// these bounds. The lower keeps small files packed, the upper bounds what
	// is lost to others while the file is open.
	minWindow   = 64 << 10
	roomyWindow = 512 << 10 // instead of minWindow while a quarter of the volume is free
	maxWindow   = 8 << 20
)

// find looks up a logical block in whichever map the inode has.
func (i *Inode) find(logical uint32) (e disk.Extent, ok bool, err error) {
	if i.d.Flags&disk.FlExtents == 0 {
		e, ok, err = i.indirect().Find(logical)
	} else {
		e, ok, err = i.tree.Find(logical)
	}
	if err == nil && ok && !i.fs.g.ValidRange(e.Physical, uint64(e.Len)) {
		err = disk.Corrupt(fmt.Sprintf("inode %d", i.ino), "maps %d blocks at %d", e.Len, e.Physical)
	}
	if err == nil && e.End() <= uint64(logical) {
		err = disk.Corrupt(fmt.Sprintf("inode %d", i.ino), "block map does not go on at %d", logical)
	}
	return e, ok, err
}

func (i *Inode) indirect() *tree.Indirect {
	return &tree.Indirect{Env: &i.fs.env, Ino: i.ino, Root: i.d.Block[:]}
}

// endBlock is the first block past the end of the file.
func (i *Inode) endBlock() uint64 {
	bs := uint64(i.fs.g.BlockSize)
	return (i.d.Size + bs - 1) / bs
}

// extents makes sure that the inode has an extent tree: older volumes may hold
// files with indirect maps, which are turned into trees before a change.
func (i *Inode) extents() error {
	if i.d.Flags&disk.FlExtents != 0 {
		return nil
	}
	var list []disk.Extent
	blocks := 0
	m := i.indirect()
	if err := m.Walk(0, func(e disk.Extent) (bool, error) {
		for e.Len > 0 {
			part := e
			part.Len = min(e.Len, disk.MaxExtentLen)
			list = append(list, part)
			e.Logical, e.Physical, e.Len = e.Logical+part.Len, e.Physical+uint64(part.Len), e.Len-part.Len
		}
		return true, nil
	}); err != nil {
		return err
	}
	if err := m.Blocks(func(uint64) error { blocks++; return nil }); err != nil {
		return err
	}
	credits := tree.EditCredits*(1+len(list)/300) + blocks*3 + 1
	if credits > i.fs.m.MaxCredits() {
		return fmt.Errorf("file has an indirect map of %d blocks, too many for one transaction: convert it with e2fsck -E bmap2extent: %w",
			blocks, EOPNOTSUPP)
	}
	h, err := i.fs.start(credits)
	if err != nil {
		return err
	}
	defer h.Stop()
	old := i.d.Block
	oldBlocks := i.d.Blocks
	i.tree.Init()
	i.d.Blocks -= min(i.d.Blocks, uint64(blocks)*uint64(i.fs.g.BlockSize/512))
	for _, e := range list {
		if err := i.tree.Insert(h, e); err != nil {
			i.d.Block, i.d.Blocks = old, oldBlocks
			return i.fs.damaged(err)
		}
	}
	i.d.Flags |= disk.FlExtents
	i.touch(h)
	m.Root = old[:]
	if err := m.FreeBlocks(h); err != nil {
		return i.fs.damaged(err)
	}
	return nil
}

// freeCredits is what freeing one extent may dirty: a bitmap and a descriptor
// for each group it touches.
func (fs *FS) freeCredits() int { return 2*int(disk.MaxExtentLen/fs.g.BlocksPerGroup+2) + 4 }

// batch is how many extents a handle may free, and its credits.
func (fs *FS) batch() (limit, credits int) {
	room := fs.m.MaxCredits() - tree.EditCredits - finishCredits
	limit = max(1, min(room/fs.freeCredits(), 64))
	return limit, limit*fs.freeCredits() + tree.EditCredits + finishCredits
}

// unmapRange frees the blocks in [from, to), in as many handles as it takes.
// A crash in between leaves part of them mapped: the caller puts the inode on
// the orphan list if that matters. fin, if any, runs in the last handle.
func (i *Inode) unmapRange(from, to uint64, fin func(h *journal.Handle)) error {
	if err := i.extents(); err != nil {
		return err
	}
	limit, credits := i.fs.batch()
	for {
		h, err := i.fs.start(credits)
		if err != nil {
			return err
		}
		next, err := i.tree.Remove(h, from, to, limit, func(start, n uint64) error { return i.freeData(h, start, n) })
		i.touch(h)
		if err == nil && next >= min(to, disk.MaxLogical+1) && fin != nil {
			fin(h)
		}
		h.Stop()
		if err != nil {
			return i.fs.damaged(err)
		}
		if from = next; from >= min(to, disk.MaxLogical+1) {
			return nil
		}
	}
}

func (i *Inode) unmapFrom(from uint64) error { return i.unmapRange(from, disk.MaxLogical+1, nil) }

func (i *Inode) unmapAll() error { return i.unmapRange(0, disk.MaxLogical+1, nil) }

// freeData gives data blocks up.
func (i *Inode) freeData(h *journal.Handle, start, n uint64) error {
	if err := i.fs.a.Free(h, start, n); err != nil {
		return err
	}
	if i.d.Type() != disk.ModeReg { // directory blocks and long links are metadata
		for b := start; b < start+n; b++ {
			h.Forget(b)
		}
	}
	i.d.Blocks -= min(i.d.Blocks, n*uint64(i.fs.g.BlockSize/512))
	return nil
}

// goal is where the block at logical would continue what is mapped before it.
func (i *Inode) goal(logical uint32) (uint64, error) {
	if logical == 0 {
		return 0, nil
	}
	e, ok, err := i.find(logical - 1)
	if err != nil || !ok {
		return 0, err
	}
	return e.Physical + uint64(logical-e.Logical), nil
}

// reserveData reserves up to n blocks for a hole that begins at logical. tail
// says that nothing is mapped behind it: the file grows, and a window is kept
// for what comes next. The caller holds mu alone.
func (i *Inode) reserveData(logical uint32, n uint64, tail bool) (alloc.Run, error) {
	n = min(n, disk.MaxUnwrittenLen)
	goal, err := i.goal(logical)
	if err != nil {
		return alloc.Run{}, err
	}
	if i.win.N > 0 && (i.win.Start == goal || goal == 0 && !tail) {
		k := min(n, i.win.N)
		r := alloc.Run{Start: i.win.Start, N: k}
		i.win.Start, i.win.N = i.win.Start+k, i.win.N-k
		return r, nil
	}
	extra := uint64(0)
	if tail {
		i.dropWindow()
		if have := i.d.Blocks << 9 >> i.fs.g.BlockShift; have > 0 || n > alloc.SmallBlocks {
			lo, hi := uint64(minWindow>>i.fs.g.BlockShift), uint64(maxWindow>>i.fs.g.BlockShift)
			if free, _ := i.fs.a.Counts(); free > i.fs.g.Blocks/4 {
				lo = roomyWindow >> i.fs.g.BlockShift
			}
			extra = min(max(have+n, lo), hi)
		}
	}
	r, err := i.fs.a.Reserve(goal, i.group(), n+extra)
	if err != nil {
		return r, err
	}
	if r.N > n {
		if tail {
			i.win = alloc.Run{Start: r.Start + n, N: r.N - n}
		} else {
			i.fs.a.Unreserve(alloc.Run{Start: r.Start + n, N: r.N - n})
		}
		r.N = n
	}
	return r, nil
}

// mapCredits is what mapping one reserved run dirties, at most.
func (fs *FS) mapCredits() int { return tree.EditCredits + fs.freeCredits() }

// mapReserved makes a reserved run part of the file, within a handle.
func (i *Inode) mapReserved(h *journal.Handle, logical uint32, r alloc.Run, unwritten bool) error {
	e := disk.Extent{Logical: logical, Len: uint32(r.N), Physical: r.Start, Unwritten: unwritten}
	if err := i.tree.Insert(h, e); err != nil {
		i.fs.a.Unreserve(r)
		return i.fs.damaged(err)
	}
	if err := i.fs.a.Use(h, r); err != nil {
		return i.fs.damaged(err)
	}
	i.d.Blocks += r.N * uint64(i.fs.g.BlockSize/512)
	i.touch(h)
	return nil
}
