// SPDX-License-Identifier: Apache-2.0

// Changes to extent trees: insert, split, grow, remove, convert, collapse.

package tree

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// dirty makes a node part of the transaction. The root belongs to the inode,
// which the caller marks.
func (t *Tree) dirty(h *journal.Handle, l *level) {
	if l.buf != nil {
		l.buf.Seal = t.seal()
		h.Dirty(l.buf)
	}
}

// join puts two extents together where the second continues the first.
func join(a, b disk.Extent) (disk.Extent, bool) {
	limit := uint32(disk.MaxExtentLen)
	if a.Unwritten {
		limit = disk.MaxUnwrittenLen
	}
	if a.Unwritten != b.Unwritten || a.End() != uint64(b.Logical) || a.Physical+uint64(a.Len) != b.Physical || a.Len+b.Len > limit {
		return a, false
	}
	a.Len += b.Len
	return a, true
}

// Insert maps an extent where nothing is mapped. On ENOSPC the tree maps what
// it mapped before.
func (t *Tree) Insert(h *journal.Handle, e disk.Extent) error {
	for {
		p, err := t.path(e.Logical, nil)
		if err != nil {
			return err
		}
		leaf := &p[len(p)-1]
		i, n := leaf.at, leaf.node.Entries()
		if i >= 0 && leaf.node.Extent(i).End() > uint64(e.Logical) || uint64(nextKey(p)) < e.End() {
			return disk.Corrupt(fmt.Sprintf("extent tree of inode %d", t.Ino), "blocks %d to %d are mapped already", e.Logical, e.End())
		}
		if i >= 0 {
			if m, ok := join(leaf.node.Extent(i), e); ok {
				if i+1 < n {
					if m2, ok := join(m, leaf.node.Extent(i+1)); ok {
						m = m2
						leaf.node.Delete(i+1, 1)
					}
				}
				leaf.node.SetExtent(i, m)
				t.dirty(h, leaf)
				return nil
			}
		}
		if i+1 < n {
			if m, ok := join(e, leaf.node.Extent(i+1)); ok {
				leaf.node.SetExtent(i+1, m)
				t.dirty(h, leaf)
				t.fixKeys(h, p, len(p)-1)
				return nil
			}
		}
		if n < leaf.node.Max() {
			leaf.node.Open(i + 1)
			leaf.node.SetExtent(i+1, e)
			t.dirty(h, leaf)
			t.fixKeys(h, p, len(p)-1)
			return nil
		}
		if err := t.makeRoom(h, p); err != nil {
			return err
		}
	}
}

// fixKeys makes the keys above a node agree with its first entry.
func (t *Tree) fixKeys(h *journal.Handle, p []level, k int) {
	for ; k > 0; k-- {
		up := &p[k-1]
		key := p[k].node.Key(0)
		if up.node.Key(up.at) == key {
			return
		}
		up.node.SetKey(up.at, key)
		t.dirty(h, up)
		if up.at != 0 {
			return
		}
	}
}

// makeRoom splits the highest full node below one with room, or grows the
// tree. It takes one block; the caller looks again and repeats until its leaf
// has room.
func (t *Tree) makeRoom(h *journal.Handle, p []level) error {
	k := len(p) - 1
	for k >= 0 && p[k].node.Entries() >= p[k].node.Max() {
		k--
	}
	if k < 0 {
		return t.grow(h)
	}
	if k == len(p)-1 {
		return nil
	}
	up, full := &p[k], &p[k+1]
	n := full.node.Entries()
	move := n / 2
	if full.at == n-1 {
		move = 1 // appending: leave the old node full
	}
	block, fresh, err := t.newNode(h, full.node.Depth())
	if err != nil {
		return err
	}
	copy(fresh[12:], full.node[12*(n-move+1):12*(n+1)])
	fresh.SetEntries(move)
	full.node.Delete(n-move, move)
	up.node.Open(up.at + 1)
	up.node.SetChild(up.at+1, fresh.Key(0), block)
	t.dirty(h, full)
	t.dirty(h, up)
	return nil
}

// grow moves the root's entries into a block of their own.
func (t *Tree) grow(h *journal.Handle) error {
	d := t.Root.Depth()
	if d >= disk.MaxExtentDepth {
		return fmt.Errorf("extent tree of inode %d: too many extents: %w", t.Ino, errno.EFBIG)
	}
	block, n, err := t.newNode(h, d)
	if err != nil {
		return err
	}
	c := t.Root.Entries()
	copy(n[12:], t.Root[12:12*(c+1)])
	n.SetEntries(c)
	key := n.Key(0)
	t.Root.Init(d+1, t.G)
	t.Root.SetEntries(1)
	t.Root.SetChild(0, key, block)
	return nil
}

func (t *Tree) newNode(h *journal.Handle, depth int) (uint64, disk.Node, error) {
	near, _ := t.G.InodeGroup(t.Ino)
	block, err := t.A.Take(h, 0, near)
	if err != nil {
		return 0, nil, err
	}
	b := h.GetNew(block)
	b.Seal = t.seal()
	n := disk.Node(b.Data)
	n.Init(depth, t.G)
	*t.Sectors += uint64(t.G.BlockSize / 512)
	return block, n, nil
}

// Freer takes the blocks that a removed mapping leaves.
type Freer func(start, n uint64) error

// Remove unmaps [from, to) and hands the blocks to free. It handles at most
// limit extents, each within EditCredits and what free dirties, and answers
// where to go on: to, when it is done.
func (t *Tree) Remove(h *journal.Handle, from, to uint64, limit int, free Freer) (uint64, error) {
	to = min(to, disk.MaxLogical+1)
	for ; from < to; limit-- {
		p, err := t.path(uint32(from), nil)
		if err != nil {
			return from, err
		}
		leaf := &p[len(p)-1]
		if leaf.at < 0 || leaf.node.Extent(leaf.at).End() <= from {
			next := uint64(nextKey(p))
			if next >= to {
				return to, nil
			}
			from = next
			continue
		}
		if limit <= 0 {
			return from, nil
		}
		e := leaf.node.Extent(leaf.at)
		s, x := max(uint64(e.Logical), from), min(e.End(), to)
		if s > uint64(e.Logical) && x < e.End() && leaf.node.Entries() == leaf.node.Max() {
			if err := t.makeRoom(h, p); err != nil {
				return from, err
			}
			continue
		}
		if err := free(e.Physical+s-uint64(e.Logical), x-s); err != nil {
			return from, err
		}
		if err := t.cut(h, p, e, uint32(s), uint32(x)); err != nil {
			return from, err
		}
		from = x
	}
	return to, nil
}

// cut takes [s, x) out of the extent e at a path's end. There is room for one
// more entry if it is cut in two.
func (t *Tree) cut(h *journal.Handle, p []level, e disk.Extent, s, x uint32) error {
	leaf := &p[len(p)-1]
	i := leaf.at
	head := disk.Extent{Logical: e.Logical, Len: s - e.Logical, Physical: e.Physical, Unwritten: e.Unwritten}
	tail := disk.Extent{Logical: x, Len: uint32(e.End() - uint64(x)), Physical: e.Physical + uint64(x-e.Logical), Unwritten: e.Unwritten}
	t.dirty(h, leaf)
	switch {
	case head.Len > 0 && tail.Len > 0:
		leaf.node.SetExtent(i, head)
		leaf.node.Open(i + 1)
		leaf.node.SetExtent(i+1, tail)
	case head.Len > 0:
		leaf.node.SetExtent(i, head)
	case tail.Len > 0:
		leaf.node.SetExtent(i, tail)
		t.fixKeys(h, p, len(p)-1)
	default:
		leaf.node.Delete(i, 1)
		if leaf.node.Entries() > 0 {
			t.fixKeys(h, p, len(p)-1)
		} else if err := t.dropNode(h, p, len(p)-1); err != nil {
			return err
		}
		return t.collapse(h)
	}
	return nil
}

// dropNode frees an empty node and its entry above.
func (t *Tree) dropNode(h *journal.Handle, p []level, k int) error {
	for ; k > 0; k-- {
		if err := t.freeNode(h, p[k].buf.Block); err != nil {
			return err
		}
		up := &p[k-1]
		up.node.Delete(up.at, 1)
		t.dirty(h, up)
		if up.node.Entries() > 0 {
			if up.at == 0 {
				t.fixKeys(h, p, k-1)
			}
			return nil
		}
	}
	t.Init()
	return nil
}

func (t *Tree) freeNode(h *journal.Handle, block uint64) error {
	h.Forget(block)
	if n := uint64(t.G.BlockSize / 512); *t.Sectors >= n {
		*t.Sectors -= n
	}
	return t.A.Free(h, block, 1)
}

// collapse pulls an only child that fits into the root.
func (t *Tree) collapse(h *journal.Handle) error {
	for t.Root.Depth() > 0 && t.Root.Entries() == 1 {
		block := t.Root.Child(0)
		b, err := t.node(block, t.Root.Depth()-1)
		if err != nil {
			return err
		}
		n := disk.Node(b.Data)
		c := n.Entries()
		if c > t.Root.Max() {
			return nil
		}
		d := n.Depth()
		t.Root.Init(d, t.G)
		copy(t.Root[12:], n[12:12*(c+1)])
		t.Root.SetEntries(c)
		if err := t.freeNode(h, block); err != nil {
			return err
		}
	}
	return nil
}

// MarkWritten turns what is unwritten in [from, to) into written, at most
// limit extents of it, and answers where to go on.
func (t *Tree) MarkWritten(h *journal.Handle, from, to uint64, limit int) (uint64, error) {
	for from < to {
		p, err := t.path(uint32(from), nil)
		if err != nil {
			return from, err
		}
		leaf := &p[len(p)-1]
		if leaf.at < 0 || leaf.node.Extent(leaf.at).End() <= from {
			from = min(uint64(nextKey(p)), to)
			continue
		}
		e := leaf.node.Extent(leaf.at)
		s, x := max(uint64(e.Logical), from), min(e.End(), to)
		if !e.Unwritten {
			from = x
			continue
		}
		if limit <= 0 {
			return from, nil
		}
		if leaf.node.Max() > 4 && leaf.node.Max()-leaf.node.Entries() < 2 || leaf.node.Max() <= 4 && leaf.node.Entries() > 2 {
			// The pieces may need two more entries. A root of four is grown
			// rather than filled, for its entries may all be needed.
			if leaf.buf == nil {
				err = t.grow(h)
			} else {
				err = t.splitLeaf(h, p)
			}
			if err != nil {
				return from, err
			}
			continue
		}
		piece := func(a, b uint64, unwritten bool) disk.Extent {
			return disk.Extent{Logical: uint32(a), Len: uint32(b - a), Physical: e.Physical + a - uint64(e.Logical), Unwritten: unwritten}
		}
		leaf.node.Delete(leaf.at, 1)
		t.dirty(h, leaf)
		for _, n := range []disk.Extent{piece(uint64(e.Logical), s, true), piece(s, x, false), piece(x, e.End(), true)} {
			if n.Len == 0 {
				continue
			}
			if err := t.Insert(h, n); err != nil {
				return from, err
			}
		}
		from = x
		limit--
	}
	return to, nil
}

// splitLeaf halves a leaf that is not the root.
func (t *Tree) splitLeaf(h *journal.Handle, p []level) error {
	leaf, up := &p[len(p)-1], &p[len(p)-2]
	if up.node.Entries() >= up.node.Max() {
		return t.makeRoom(h, p[:len(p)-1])
	}
	n := leaf.node.Entries()
	move := n / 2
	block, fresh, err := t.newNode(h, 0)
	if err != nil {
		return err
	}
	copy(fresh[12:], leaf.node[12*(n-move+1):12*(n+1)])
	fresh.SetEntries(move)
	leaf.node.Delete(n-move, move)
	up.node.Open(up.at + 1)
	up.node.SetChild(up.at+1, fresh.Key(0), block)
	t.dirty(h, leaf)
	t.dirty(h, up)
	return nil
}
