// SPDX-License-Identifier: Apache-2.0

// Geometry: where things lie in a volume, computed once from a checked
// superblock.

package disk

// Geometry holds the numbers that place blocks, groups and inodes.
type Geometry struct {
	BlockSize      int
	BlockShift     uint
	Blocks         uint64
	FirstData      uint64
	BlocksPerGroup uint64
	InodesPerGroup uint32
	Inodes         uint32
	InodeSize      int
	DescSize       int
	DescPerBlock   uint32
	Groups         uint32
	ItableBlocks   uint64 // per group
	FirstIno       uint32
	Seed           uint32
	Csum           bool // metadata_csum

	sparseSuper, sparseSuper2 bool
	backups                   [2]uint32
	metaBG                    bool
	firstMetaBG               uint32
	descBlocks                uint32
	reservedGDT               uint64
}

// NewGeometry computes the geometry of a checked superblock.
func NewGeometry(s *Super) *Geometry {
	g := &Geometry{
		BlockSize: s.BlockSize(), BlockShift: uint(10 + s.LogBlockSize),
		Blocks: s.BlocksCount, FirstData: uint64(s.FirstDataBlock), BlocksPerGroup: uint64(s.BlocksPerGroup),
		InodesPerGroup: s.InodesPerGroup, Inodes: s.InodesCount, InodeSize: int(s.InodeSize), DescSize: 32,
		Groups: uint32(s.Groups64()), FirstIno: s.FirstIno, Seed: s.CsumSeed(), Csum: s.HasMetadataCsum(),
		sparseSuper:  s.ROCompat&ROCompatSparseSuper != 0,
		sparseSuper2: s.Compat&CompatSparseSuper2 != 0,
		backups:      s.BackupBGs,
		metaBG:       s.Incompat&IncompatMetaBG != 0,
		firstMetaBG:  s.FirstMetaBG,
		reservedGDT:  uint64(s.ReservedGDT),
	}
	if s.Incompat&Incompat64Bit != 0 {
		g.DescSize = int(s.DescSize)
	}
	g.DescPerBlock = uint32(g.BlockSize / g.DescSize)
	perBlock := uint64(g.BlockSize / g.InodeSize)
	g.ItableBlocks = (uint64(g.InodesPerGroup) + perBlock - 1) / perBlock
	g.descBlocks = (g.Groups + g.DescPerBlock - 1) / g.DescPerBlock
	return g
}

// GroupStart is the first block of a group.
func (g *Geometry) GroupStart(group uint32) uint64 {
	return g.FirstData + uint64(group)*g.BlocksPerGroup
}

// GroupLen is the number of blocks of a group; the last one may be short.
func (g *Geometry) GroupLen(group uint32) uint64 {
	if group == g.Groups-1 {
		return g.Blocks - g.GroupStart(group)
	}
	return g.BlocksPerGroup
}

// GroupOf tells which group a block is in, and where in it.
func (g *Geometry) GroupOf(block uint64) (group uint32, index uint64) {
	d := block - g.FirstData
	return uint32(d / g.BlocksPerGroup), d % g.BlocksPerGroup
}

// ValidRange tells whether n blocks from start can hold data or metadata.
func (g *Geometry) ValidRange(start, n uint64) bool {
	return start > g.FirstData && start < g.Blocks && n <= g.Blocks-start
}

// ValidIno tells whether an inode number exists.
func (g *Geometry) ValidIno(ino uint32) bool { return ino >= 1 && ino <= g.Inodes }

// InodeGroup tells which group an inode is in, and its index there.
func (g *Geometry) InodeGroup(ino uint32) (group, index uint32) {
	return (ino - 1) / g.InodesPerGroup, (ino - 1) % g.InodesPerGroup
}

// DescBlocks is the number of blocks the group descriptors take.
func (g *Geometry) DescBlocks() uint32 { return g.descBlocks }

// HasSuper tells whether a group begins with a copy of the superblock.
func (g *Geometry) HasSuper(group uint32) bool {
	if group == 0 {
		return true
	}
	if g.sparseSuper2 {
		return group == g.backups[0] || group == g.backups[1]
	}
	if group == 1 || !g.sparseSuper {
		return true
	}
	for _, base := range [3]uint64{3, 5, 7} {
		p := base
		for p < uint64(group) {
			p *= base
		}
		if p == uint64(group) {
			return true
		}
	}
	return false
}

// DescBlock is where block i of the group descriptors lies.
func (g *Geometry) DescBlock(i uint32) uint64 {
	if !g.metaBG || i < g.firstMetaBG {
		return g.GroupStart(0) + 1 + uint64(i)
	}
	group := i * g.DescPerBlock
	b := g.GroupStart(group)
	if g.HasSuper(group) {
		b++
	}
	return b
}

// GroupOverhead is how many blocks at the start of a group hold copies of the
// superblock and of descriptors, reserved descriptor blocks included.
func (g *Geometry) GroupOverhead(group uint32) uint64 {
	n := uint64(0)
	if g.HasSuper(group) {
		n = 1
	}
	meta := group / g.DescPerBlock
	if !g.metaBG || meta < g.firstMetaBG {
		if n == 0 {
			return 0
		}
		d := uint64(g.descBlocks)
		if g.metaBG {
			d = uint64(g.firstMetaBG)
		}
		return n + d + g.reservedGDT
	}
	if i := group % g.DescPerBlock; i == 0 || i == 1 || i == g.DescPerBlock-1 {
		n++
	}
	return n
}
