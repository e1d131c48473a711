// SPDX-License-Identifier: Apache-2.0

// Indirect block maps, the format before extents: twelve direct blocks and
// three trees of pointer blocks.

package tree

import (
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

const (
	directBlocks = 12
	pointerRoots = 3
)

// Indirect reads an indirect block map.
type Indirect struct {
	*Env
	Ino  uint32
	Root []byte // the inode's i_block
}

func pointer(p []byte, i int) uint64 { return uint64(binary.LittleEndian.Uint32(p[4*i:])) }

func (m *Indirect) valid(b uint64) error {
	if !m.G.ValidRange(b, 1) || m.A.Zones().Overlaps(b, 1) {
		return disk.Corrupt(fmt.Sprintf("block map of inode %d", m.Ino), "points at block %d", b)
	}
	return nil
}

// Find looks up a logical block like [Tree.Find]. Runs of blocks that lie one
// behind the other are answered as one extent, within one pointer block.
func (m *Indirect) Find(logical uint32) (e disk.Extent, ok bool, err error) {
	if logical < directBlocks {
		return m.run(m.Root, int(logical), directBlocks, logical)
	}
	per := uint64(m.G.BlockSize / 4)
	rest, span := uint64(logical)-directBlocks, per
	for depth := 1; depth <= pointerRoots; depth++ {
		if rest < span {
			return m.descend(pointer(m.Root, directBlocks+depth-1), depth, rest, span, logical)
		}
		rest -= span
		span *= per
	}
	return disk.Extent{Logical: logical, Len: noNext - logical}, false, nil
}

// descend follows pointer blocks; rest counts from the start of what block
// maps, span is how much that is.
func (m *Indirect) descend(block uint64, depth int, rest, span uint64, logical uint32) (e disk.Extent, ok bool, err error) {
	per := uint64(m.G.BlockSize / 4)
	for {
		if block == 0 {
			return disk.Extent{Logical: logical, Len: uint32(min(span-rest, uint64(noNext-logical)))}, false, nil
		}
		if err := m.valid(block); err != nil {
			return e, false, err
		}
		b, err := m.M.Get(block, nil)
		if err != nil {
			return e, false, fmt.Errorf("block map of inode %d: %w", m.Ino, err)
		}
		span /= per
		i := rest / span
		if depth == 1 {
			return m.run(b.Data, int(i), int(per), logical)
		}
		block, rest = pointer(b.Data, int(i)), rest%span
		depth--
	}
}

// run collects the blocks that follow one another from entry i on.
func (m *Indirect) run(p []byte, i, end int, logical uint32) (disk.Extent, bool, error) {
	first := pointer(p, i)
	e := disk.Extent{Logical: logical, Len: 1, Physical: first}
	if first != 0 {
		if err := m.valid(first); err != nil {
			return e, false, err
		}
	}
	for k := i + 1; k < end; k++ {
		b := pointer(p, k)
		if first == 0 && b != 0 || first != 0 && (b != first+uint64(e.Len) || m.valid(b) != nil) {
			break
		}
		e.Len++
	}
	return e, first != 0, nil
}

// Walk calls fn for every run from a logical block on, until it answers false.
func (m *Indirect) Walk(from uint32, fn func(disk.Extent) (bool, error)) error {
	per := uint64(m.G.BlockSize / 4)
	end := min(directBlocks+per+per*per+per*per*per, disk.MaxLogical)
	for at := uint64(from); at < end; {
		e, ok, err := m.Find(uint32(at))
		if err != nil {
			return err
		}
		if ok {
			more, err := fn(e)
			if err != nil || !more {
				return err
			}
		}
		at = e.End()
	}
	return nil
}

// Blocks calls fn for every pointer block, parents first.
func (m *Indirect) Blocks(fn func(block uint64) error) error {
	for d := range pointerRoots {
		if err := m.blocks(pointer(m.Root, directBlocks+d), d, fn); err != nil {
			return err
		}
	}
	return nil
}

func (m *Indirect) blocks(block uint64, below int, fn func(block uint64) error) error {
	if block == 0 {
		return nil
	}
	if err := m.valid(block); err != nil {
		return err
	}
	if err := fn(block); err != nil || below == 0 {
		return err
	}
	b, err := m.M.Get(block, nil)
	if err != nil {
		return err
	}
	for i := range m.G.BlockSize / 4 {
		if err := m.blocks(pointer(b.Data, i), below-1, fn); err != nil {
			return err
		}
	}
	return nil
}

// FreeBlocks gives the pointer blocks up. A pointer block named twice is
// found by the allocator, which refuses to free it again.
func (m *Indirect) FreeBlocks(h *journal.Handle) error {
	return m.Blocks(func(b uint64) error {
		h.Forget(b)
		return m.A.Free(h, b, 1)
	})
}
