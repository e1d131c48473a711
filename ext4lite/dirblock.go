// SPDX-License-Identifier: Apache-2.0

// Blocks of directories: read, check, add.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/tree"
)

// maxDirBlocks bounds a directory: the kernel's own bound for hash trees
// without large_dir is far below.
const maxDirBlocks = 1 << 24

// kind is what a directory block is read as.
type kind int

const (
	leafBlock kind = iota
	rootBlock
	nodeBlock
	anyBlock // a linear walk over an indexed directory
)

func (i *Inode) dirBlocks() uint64 { return i.d.Size >> i.fs.g.BlockShift }

// indexed tells whether the directory has a hash tree that can be used.
func (i *Inode) indexed() bool {
	return i.d.Flags&disk.FlIndex != 0 && i.fs.s.Compat&disk.CompatDirIndex != 0
}

// dirBlock reads block n of a directory.
func (i *Inode) dirBlock(n uint32, k kind) (*journal.Buf, error) {
	e, ok, err := i.find(n)
	if err != nil {
		return nil, err
	}
	if !ok || e.Unwritten || uint64(n) >= i.dirBlocks() {
		return nil, disk.Corrupt(fmt.Sprintf("directory inode %d", i.ino), "hole at block %d", n)
	}
	at := e.Physical + uint64(n-e.Logical)
	b, err := i.fs.m.Get(at, func(p []byte) error { return i.checkDirBlock(p, k) })
	if err != nil {
		return nil, fmt.Errorf("directory inode %d: block %d: %w", i.ino, n, err)
	}
	return b, nil
}

func (i *Inode) checkDirBlock(p []byte, k kind) error {
	g := i.fs.g
	if k == anyBlock {
		k = leafBlock
		if disk.IsDXNode(p, g) {
			k = nodeBlock
		} else if i.d.Flags&disk.FlIndex != 0 {
			if r := disk.DXRoot(p); r.Check(i.ino, i.dirBlocks(), g) == nil {
				k = rootBlock
			}
		}
	}
	switch k {
	case rootBlock, nodeBlock:
		n := disk.DXRoot(p)
		if k == nodeBlock {
			n = disk.DXNode(p)
		}
		if err := n.Check(i.ino, i.dirBlocks(), g); err != nil || !g.Csum {
			return err
		}
		return n.CheckSum(i.ino, i.seed())
	}
	if !g.Csum {
		return nil
	}
	return disk.CheckDirSum(p, i.ino, i.seed(), g)
}

// seals for the three kinds of directory block; nil without checksums.
func (i *Inode) leafSeal() func([]byte) {
	if !i.fs.g.Csum {
		return nil
	}
	seed, g := i.seed(), i.fs.g
	return func(p []byte) { disk.SetDirSum(p, seed, g) }
}

func (i *Inode) dxSeal(root bool) func([]byte) {
	if !i.fs.g.Csum {
		return nil
	}
	seed := i.seed()
	if root {
		return func(p []byte) { disk.DXRoot(p).SetSum(seed) }
	}
	return func(p []byte) { disk.DXNode(p).SetSum(seed) }
}

func (i *Inode) dirtyLeaf(h *journal.Handle, b *journal.Buf) {
	b.Seal = i.leafSeal()
	h.Dirty(b)
}

// appendDirBlock adds a block of zeros to a directory.
func (i *Inode) appendDirBlock(h *journal.Handle) (*journal.Buf, uint32, error) {
	n := uint32(i.dirBlocks())
	if n >= maxDirBlocks {
		return nil, 0, fmt.Errorf("directory inode %d: too large: %w", i.ino, ENOSPC)
	}
	goal, err := i.goal(n)
	if err != nil {
		return nil, 0, err
	}
	r, err := i.fs.a.Reserve(goal, i.group(), 1)
	if err != nil {
		return nil, 0, err
	}
	if err := i.mapReserved(h, n, r, false); err != nil {
		return nil, 0, err
	}
	i.d.Size += uint64(i.fs.g.BlockSize)
	i.touch(h)
	return h.GetNew(r.Start), n, nil
}

// dirCredits is what adding a name may dirty: a leaf and every index level
// split, each with a new block in the directory's own map.
const dirCredits = 4*tree.EditCredits + 8
