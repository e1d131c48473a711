// SPDX-License-Identifier: Apache-2.0

// Pass 1: inodes and what they map.

package fsck

import (
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// scanInodes reads every inode that its bitmap or its contents say is in use.
func (c *checker) scanInodes() error {
	per := c.g.BlockSize / c.g.InodeSize
	for gr := range c.g.Groups {
		d := &c.desc[gr]
		if d.Flags&disk.GroupInodeUninit != 0 {
			continue
		}
		n := c.g.InodesPerGroup - d.ItableUnused
		var block []byte
		for i := range n {
			if int(i)%per == 0 {
				var err error
				if block, err = c.read(d.InodeTable + uint64(int(i)/per)); err != nil {
					return err
				}
			}
			at := int(i) % per * c.g.InodeSize
			if err := c.inode(gr*c.g.InodesPerGroup+i+1, block[at:at+c.g.InodeSize]); err != nil {
				return err
			}
		}
	}
	for block, x := range c.xblock {
		if x.refs != x.seen {
			if err := c.problem(XattrRefs, 0, block, "says %d inodes use it, %d do", x.refs, x.seen); err != nil {
				return err
			}
		}
	}
	return nil
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func (c *checker) inode(ino uint32, p []byte) error {
	if allZero(p) {
		return nil
	}
	d, err := disk.DecodeInode(p, ino, c.g, c.s)
	if err != nil {
		return c.damage(InodeBad, ino, 0, err)
	}
	special := ino < c.g.FirstIno && ino != disk.RootIno || ino == c.s.OrphanFileInum && ino != 0
	if d.Links == 0 && !special {
		if d.Mode != 0 && d.DTime == 0 {
			return c.problem(InodeBad, ino, 0, "has no links and was not deleted")
		}
		return nil
	}
	if ino == disk.BadBlocksIno {
		m := &mapper{c: c, ino: ino, sectors: new(uint64)}
		return m.indirect(d.Block[:])
	}
	if special && d.Mode == 0 && d.Blocks == 0 {
		return nil
	}
	if d.DTime != 0 && !special {
		return c.problem(InodeBad, ino, 0, "is in use and has a time of deletion")
	}
	if fragment := disk.InodeFragment(p); fragment != 0 {
		return c.problem(InodeBad, ino, 0, "names a fragment, %d, which ext4 has none of", fragment)
	}
	if high := disk.InodeFileACLHigh(p); high != 0 && c.s.Incompat&disk.Incompat64Bit == 0 {
		return c.problem(XattrBad, ino, 0, "the upper half of its attribute block's number is %d, without 64bit", high)
	}
	f := &found{mode: d.Mode, links: d.Links, flags: d.Flags, gen: d.Generation, size: d.Size}
	if !special {
		c.inodes[ino] = f
	} else if ino == disk.ResizeIno {
		// Its blocks are descriptors kept for growth, and one that lists them.
		if b := uint64(binary.LittleEndian.Uint32(d.Block[4*13:])); b != 0 && c.g.ValidRange(b, 1) {
			return c.claim(b, 1, ino)
		}
		return nil
	}
	switch d.Type() {
	case disk.ModeReg, disk.ModeDir:
	case disk.ModeLink, disk.ModeChar, disk.ModeBlock, disk.ModeFifo, disk.ModeSocket:
	default:
		return c.problem(InodeBad, ino, 0, "mode %#o", d.Mode)
	}
	if f := d.Flags & (disk.FlInlineData | disk.FlEncrypt | disk.FlCasefold | disk.FlVerity | disk.FlEAInode); f != 0 {
		return c.problem(InodeBad, ino, 0, "flags %#x, without their features", f)
	}
	if d.Type() == disk.ModeDir {
		c.r.Directories++
	} else {
		c.r.Files++
	}
	sectors := uint64(0)
	if err := c.xattrs(ino, &d, &sectors); err != nil {
		return err
	}
	if err := c.content(ino, &d, f, &sectors); err != nil {
		return err
	}
	if sectors != d.Blocks {
		return c.problem(BlocksCount, ino, 0, "says %d sectors, maps %d", d.Blocks, sectors)
	}
	return nil
}

// content checks what i_block holds: a map, a link's target or a device.
func (c *checker) content(ino uint32, d *disk.Inode, f *found, sectors *uint64) error {
	fast := d.Type() == disk.ModeLink && d.Flags&disk.FlExtents == 0 && d.Size < disk.MapSize
	if fast {
		if d.Size == 0 || d.Block[d.Size] != 0 {
			return c.problem(SizeBad, ino, 0, "link of %d bytes", d.Size)
		}
		return nil
	}
	switch d.Type() {
	case disk.ModeReg, disk.ModeDir, disk.ModeLink:
	default:
		return nil
	}
	m := &mapper{c: c, ino: ino, seed: c.g.InodeSeed(ino, d.Generation), sectors: sectors}
	var err error
	if d.Flags&disk.FlExtents != 0 {
		err = m.node(disk.Node(d.Block[:]), -1, 0, disk.MaxLogical)
	} else {
		err = m.indirect(d.Block[:])
	}
	if err != nil {
		return err
	}
	if ino == disk.JournalIno {
		if err := c.journal(m, d); err != nil {
			return err
		}
	}
	bs := uint64(c.g.BlockSize)
	if d.Type() == disk.ModeDir {
		f.blocks = m.extents
		if m.end*bs != d.Size || m.holes || d.Size == 0 {
			return c.problem(SizeBad, ino, 0, "directory of %d bytes maps %d blocks", d.Size, m.end)
		}
	}
	if d.Type() == disk.ModeReg && m.written > (d.Size+bs-1)/bs {
		return c.problem(SizeBad, ino, 0, "%d bytes long, has data up to block %d", d.Size, m.written)
	}
	if d.Type() == disk.ModeLink && (d.Size == 0 || d.Size >= bs || m.end != 1) {
		return c.problem(SizeBad, ino, 0, "link of %d bytes in %d blocks", d.Size, m.end)
	}
	return nil
}

// mapper walks a map and claims what it finds.
type mapper struct {
	c       *checker
	ino     uint32
	seed    uint32
	sectors *uint64
	extents []disk.Extent
	end     uint64 // the first block after the last that is mapped
	written uint64 // and after the last that is written
	holes   bool
}

func (m *mapper) data(e disk.Extent) error {
	c := m.c
	if uint64(e.Logical) != m.end {
		m.holes = true
	}
	m.end = e.End()
	if !e.Unwritten {
		m.written = e.End()
	}
	m.extents = append(m.extents, e)
	c.r.Extents++
	*m.sectors += uint64(e.Len) * uint64(c.g.BlockSize/512)
	return c.claim(e.Physical, uint64(e.Len), m.ino)
}

func (m *mapper) meta(block uint64) error {
	*m.sectors += uint64(m.c.g.BlockSize / 512)
	return m.c.claim(block, 1, m.ino)
}

// node checks an extent node whose entries must lie in [from, to].
func (m *mapper) node(n disk.Node, depth int, from, to uint32) error {
	c := m.c
	if err := n.Check(m.ino, depth, c.g); err != nil {
		return c.damage(MapBad, m.ino, 0, err)
	}
	for i := range n.Entries() {
		if k := n.Key(i); k < from || k > to {
			return c.problem(MapBad, m.ino, 0, "extent at %d in a node for %d to %d", k, from, to)
		}
		if n.Depth() == 0 {
			if err := m.data(n.Extent(i)); err != nil {
				return err
			}
			continue
		}
		block := n.Child(i)
		if err := m.meta(block); err != nil {
			return err
		}
		p, err := c.read(block)
		if err != nil {
			return err
		}
		child := disk.Node(p)
		if err := child.Check(m.ino, n.Depth()-1, c.g); err != nil {
			if err := c.damage(MapBad, m.ino, block, err); err != nil {
				return err
			}
			continue
		}
		if c.g.Csum {
			if err := child.CheckSum(m.ino, m.seed); err != nil {
				if err := c.damage(MapBad, m.ino, block, err); err != nil {
					return err
				}
				continue
			}
		}
		if child.Key(0) != n.Key(i) {
			if err := c.problem(MapBad, m.ino, block, "begins at %d, its index says %d", child.Key(0), n.Key(i)); err != nil {
				return err
			}
		}
		last := to
		if i+1 < n.Entries() {
			last = n.Key(i+1) - 1
		}
		if err := m.node(child, n.Depth()-1, n.Key(i), last); err != nil {
			return err
		}
	}
	return nil
}

// indirect walks a map of the older kind.
func (m *mapper) indirect(root []byte) error {
	logical := uint32(0)
	for i := range 12 {
		if err := m.pointer(binary.LittleEndian.Uint32(root[4*i:]), &logical); err != nil {
			return err
		}
	}
	for depth := 1; depth <= 3; depth++ {
		if err := m.pointers(binary.LittleEndian.Uint32(root[4*(11+depth):]), depth, &logical); err != nil {
			return err
		}
	}
	return nil
}

func (m *mapper) pointer(block uint32, logical *uint32) error {
	at := *logical
	*logical++
	if block == 0 {
		return nil
	}
	if !m.c.g.ValidRange(uint64(block), 1) {
		return m.c.problem(MapBad, m.ino, uint64(block), "outside the volume")
	}
	return m.data(disk.Extent{Logical: at, Len: 1, Physical: uint64(block)})
}

func (m *mapper) pointers(block uint32, depth int, logical *uint32) error {
	per := uint32(m.c.g.BlockSize / 4)
	if block == 0 {
		span := uint64(1)
		for range depth {
			span *= uint64(per)
		}
		*logical = uint32(min(uint64(*logical)+span, disk.MaxLogical))
		return nil
	}
	if !m.c.g.ValidRange(uint64(block), 1) {
		return m.c.problem(MapBad, m.ino, uint64(block), "outside the volume")
	}
	if err := m.meta(uint64(block)); err != nil {
		return err
	}
	p, err := m.c.read(uint64(block))
	if err != nil {
		return err
	}
	for i := range per {
		b := binary.LittleEndian.Uint32(p[4*i:])
		if depth == 1 {
			err = m.pointer(b, logical)
		} else {
			err = m.pointers(b, depth-1, logical)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// xattrs checks the attributes in an inode and in its block.
func (c *checker) xattrs(ino uint32, d *disk.Inode, sectors *uint64) error {
	if _, err := disk.DecodeInodeXattrs(d.Xattrs, ino); err != nil {
		if err := c.damage(XattrBad, ino, 0, err); err != nil {
			return err
		}
	}
	if d.FileACL == 0 {
		return nil
	}
	if c.s.Compat&disk.CompatExtAttr == 0 {
		return c.problem(XattrBad, ino, d.FileACL, "an attribute block, without ext_attr")
	}
	if !c.g.ValidRange(d.FileACL, 1) || c.zones.Overlaps(d.FileACL, 1) {
		return c.problem(XattrBad, ino, d.FileACL, "attribute block outside the volume's files")
	}
	*sectors += uint64(c.g.BlockSize / 512)
	if x := c.xblock[d.FileACL]; x != nil {
		x.seen++
		return nil
	}
	if err := c.claim(d.FileACL, 1, ino); err != nil {
		return err
	}
	p, err := c.read(d.FileACL)
	if err != nil {
		return err
	}
	_, refs, err := disk.DecodeXattrBlock(p, d.FileACL, ino, c.g)
	if err != nil {
		return c.damage(XattrBad, ino, d.FileACL, fmt.Errorf("attributes: %w", err))
	}
	c.xblock[d.FileACL] = &xref{refs, 1}
	return nil
}
