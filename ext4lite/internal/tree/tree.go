// SPDX-License-Identifier: Apache-2.0

// Package tree maps a file's blocks: extent trees for reading and writing,
// indirect block maps for reading, and the way from the second to the first.
//
// A [Tree] is a view of one inode's map. It owns nothing: its root lies in the
// inode, its other nodes in cached metadata blocks. The caller holds the
// inode's lock, shared for lookups and alone for changes, and a handle for
// changes. Every node read from the volume is checked before it is used.
package tree

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// EditCredits is what one Insert, or one step of Remove or MarkWritten, may
// dirty: the path, a split of every level, bitmaps and descriptors.
const EditCredits = 2*(disk.MaxExtentDepth+1) + 2*(disk.MaxExtentDepth+1) + 4

// Env is what all trees of a volume share.
type Env struct {
	G *disk.Geometry
	M *journal.Manager
	A *alloc.Allocator
}

// Tree is the block map of one inode.
type Tree struct {
	*Env
	Ino     uint32
	Gen     uint32
	Root    disk.Node // the inode's i_block
	Sectors *uint64   // the inode's i_blocks, which counts tree blocks too
}

// level is a node on the way to a leaf; at is the entry that was followed, or
// in the leaf the last entry that starts at or before the target.
type level struct {
	node disk.Node
	buf  *journal.Buf // nil for the root
	at   int
}

func (t *Tree) seed() uint32 { return t.G.InodeSeed(t.Ino, t.Gen) }

// seal is the checksum of this inode's tree blocks.
func (t *Tree) seal() func([]byte) {
	if !t.G.Csum {
		return nil
	}
	seed := t.seed()
	return func(p []byte) { disk.Node(p).SetSum(seed) }
}

// node reads a tree block that must have the given depth.
func (t *Tree) node(block uint64, depth int) (*journal.Buf, error) {
	b, err := t.M.Get(block, func(p []byte) error {
		n := disk.Node(p)
		if err := t.check(n, depth); err != nil {
			return err
		}
		if t.G.Csum {
			return n.CheckSum(t.Ino, t.seed())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("extent tree of inode %d: block %d: %w", t.Ino, block, err)
	}
	// A block in the cache passed the check as some node, not as this one:
	// a crafted volume may use one block in two places.
	if n := disk.Node(b.Data); n.Depth() != depth || n.Max() > len(n)/12-1 || n.Entries() > n.Max() {
		return nil, disk.Corrupt(fmt.Sprintf("extent tree of inode %d", t.Ino), "block %d is used twice", block)
	}
	return b, nil
}

// check validates a node and that no extent covers the volume's own structures.
func (t *Tree) check(n disk.Node, depth int) error {
	if err := n.Check(t.Ino, depth, t.G); err != nil {
		return err
	}
	z := t.A.Zones()
	for i := range n.Entries() {
		start, k := uint64(0), uint64(1)
		if n.Depth() == 0 {
			e := n.Extent(i)
			start, k = e.Physical, uint64(e.Len)
		} else {
			start = n.Child(i)
		}
		if z.Overlaps(start, k) {
			return disk.Corrupt(fmt.Sprintf("extent tree of inode %d", t.Ino), "maps %d blocks at %d, which are the volume's own", k, start)
		}
	}
	return nil
}

// CheckRoot validates the root as read from an inode.
func (t *Tree) CheckRoot() error { return t.check(t.Root, -1) }

// path walks to the leaf that covers a logical block. The levels are appended
// to buf, so that lookups need no allocation.
func (t *Tree) path(logical uint32, buf []level) ([]level, error) {
	n := t.Root
	buf = append(buf, level{node: n, at: n.Search(logical)})
	for d := n.Depth(); d > 0; d-- {
		top := &buf[len(buf)-1]
		if top.at < 0 {
			top.at = 0
		}
		if top.node.Entries() == 0 {
			return nil, disk.Corrupt(fmt.Sprintf("extent tree of inode %d", t.Ino), "empty index")
		}
		b, err := t.node(top.node.Child(top.at), d-1)
		if err != nil {
			return nil, err
		}
		n = disk.Node(b.Data)
		buf = append(buf, level{node: n, buf: b, at: n.Search(logical)})
	}
	return buf, nil
}

// noNext says that no extent follows.
const noNext = disk.MaxLogical + 1

// Find looks up a logical block. Where none is mapped, ok is false and e is
// the hole from there to the next extent, with Len cut to what fits.
func (t *Tree) Find(logical uint32) (e disk.Extent, ok bool, err error) {
	var store [disk.MaxExtentDepth + 1]level
	p, err := t.path(logical, store[:0])
	if err != nil {
		return e, false, err
	}
	leaf := &p[len(p)-1]
	if leaf.at >= 0 {
		if e = leaf.node.Extent(leaf.at); e.End() > uint64(logical) {
			return e, true, nil
		}
	}
	return disk.Extent{Logical: logical, Len: nextKey(p) - logical}, false, nil
}

// nextKey is where the first extent after a path's position begins.
func nextKey(p []level) uint32 {
	for i := len(p) - 1; i >= 0; i-- {
		if k := p[i].at + 1; k < p[i].node.Entries() {
			return p[i].node.Key(k)
		}
	}
	return noNext
}

// Last gives the last extent of the file.
func (t *Tree) Last() (e disk.Extent, ok bool, err error) {
	p, err := t.path(disk.MaxLogical, nil)
	if err != nil {
		return e, false, err
	}
	if leaf := p[len(p)-1]; leaf.at >= 0 {
		return leaf.node.Extent(leaf.at), true, nil
	}
	return e, false, nil
}

// Walk calls fn for every extent from a logical block on, until it answers
// false. The first may begin before.
func (t *Tree) Walk(from uint32, fn func(disk.Extent) (bool, error)) error {
	for {
		e, ok, err := t.Find(from)
		if err != nil {
			return err
		}
		next := e.End()
		if ok {
			more, err := fn(e)
			if err != nil || !more {
				return err
			}
		}
		if next > disk.MaxLogical {
			return nil
		}
		from = uint32(next)
	}
}

// Blocks calls fn for every tree block, parents first.
func (t *Tree) Blocks(fn func(block uint64) error) error { return t.blocks(t.Root, fn) }

func (t *Tree) blocks(n disk.Node, fn func(block uint64) error) error {
	if n.Depth() == 0 {
		return nil
	}
	for i := range n.Entries() {
		if err := fn(n.Child(i)); err != nil {
			return err
		}
		b, err := t.node(n.Child(i), n.Depth()-1)
		if err != nil {
			return err
		}
		if err := t.blocks(disk.Node(b.Data), fn); err != nil {
			return err
		}
	}
	return nil
}

// Init makes an empty extent root.
func (t *Tree) Init() { t.Root.Init(0, t.G) }
