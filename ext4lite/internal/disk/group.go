// SPDX-License-Identifier: Apache-2.0

// Group descriptors: where a group's bitmaps and inode table lie, what is
// free, and the checksums of descriptor and bitmaps.

package disk

// Group descriptor flags (bg_flags).
const (
	GroupInodeUninit = 1 // inode bitmap and table are not initialised
	GroupBlockUninit = 2 // block bitmap is not initialised
	GroupInodeZeroed = 4 // inode table reads as zero
)

// Group is a decoded group descriptor.
type Group struct {
	BlockBitmap     uint64
	InodeBitmap     uint64
	InodeTable      uint64
	FreeBlocks      uint32
	FreeInodes      uint32
	UsedDirs        uint32
	ItableUnused    uint32
	Flags           uint16
	BlockBitmapCsum uint32
	InodeBitmapCsum uint32
	Checksum        uint16
}

// DecodeGroup reads descriptor number group from its bytes and checks its
// checksum and every pointer in it.
func DecodeGroup(p []byte, group uint32, g *Geometry, s *Super) (Group, error) {
	var d Group
	d.BlockBitmap = uint64(le.Uint32(p[0:]))
	d.InodeBitmap = uint64(le.Uint32(p[4:]))
	d.InodeTable = uint64(le.Uint32(p[8:]))
	d.FreeBlocks = uint32(le.Uint16(p[0xC:]))
	d.FreeInodes = uint32(le.Uint16(p[0xE:]))
	d.UsedDirs = uint32(le.Uint16(p[0x10:]))
	d.Flags = le.Uint16(p[0x12:])
	d.BlockBitmapCsum = uint32(le.Uint16(p[0x18:]))
	d.InodeBitmapCsum = uint32(le.Uint16(p[0x1A:]))
	d.ItableUnused = uint32(le.Uint16(p[0x1C:]))
	d.Checksum = le.Uint16(p[0x1E:])
	if g.DescSize >= 64 {
		d.BlockBitmap |= uint64(le.Uint32(p[0x20:])) << 32
		d.InodeBitmap |= uint64(le.Uint32(p[0x24:])) << 32
		d.InodeTable |= uint64(le.Uint32(p[0x28:])) << 32
		d.FreeBlocks |= uint32(le.Uint16(p[0x2C:])) << 16
		d.FreeInodes |= uint32(le.Uint16(p[0x2E:])) << 16
		d.UsedDirs |= uint32(le.Uint16(p[0x30:])) << 16
		d.ItableUnused |= uint32(le.Uint16(p[0x32:])) << 16
		d.BlockBitmapCsum |= uint32(le.Uint16(p[0x38:])) << 16
		d.InodeBitmapCsum |= uint32(le.Uint16(p[0x3A:])) << 16
	}
	if want := groupCsum(p, group, g, s); s.HasUninit() && want != d.Checksum {
		return d, Corrupt("group descriptor", "group %d: checksum %#04x, computed %#04x", group, d.Checksum, want)
	}
	switch {
	case !g.ValidRange(d.BlockBitmap, 1):
		return d, Corrupt("group descriptor", "group %d: block bitmap at %d", group, d.BlockBitmap)
	case !g.ValidRange(d.InodeBitmap, 1):
		return d, Corrupt("group descriptor", "group %d: inode bitmap at %d", group, d.InodeBitmap)
	case !g.ValidRange(d.InodeTable, g.ItableBlocks):
		return d, Corrupt("group descriptor", "group %d: inode table at %d", group, d.InodeTable)
	case uint64(d.FreeBlocks) > g.GroupLen(group):
		return d, Corrupt("group descriptor", "group %d: %d free blocks of %d", group, d.FreeBlocks, g.GroupLen(group))
	case d.FreeInodes > g.InodesPerGroup:
		return d, Corrupt("group descriptor", "group %d: %d free inodes of %d", group, d.FreeInodes, g.InodesPerGroup)
	case d.ItableUnused > g.InodesPerGroup:
		return d, Corrupt("group descriptor", "group %d: %d unused inodes of %d", group, d.ItableUnused, g.InodesPerGroup)
	}
	if !s.HasUninit() {
		d.Flags, d.ItableUnused = 0, 0 // without a checksum the fields mean nothing
	}
	return d, nil
}

// Encode writes the descriptor over p, which holds its former bytes, with a
// fresh checksum.
func (d *Group) Encode(p []byte, group uint32, g *Geometry, s *Super) {
	le.PutUint32(p[0:], uint32(d.BlockBitmap))
	le.PutUint32(p[4:], uint32(d.InodeBitmap))
	le.PutUint32(p[8:], uint32(d.InodeTable))
	le.PutUint16(p[0xC:], uint16(d.FreeBlocks))
	le.PutUint16(p[0xE:], uint16(d.FreeInodes))
	le.PutUint16(p[0x10:], uint16(d.UsedDirs))
	if s.HasUninit() {
		le.PutUint16(p[0x12:], d.Flags)
		le.PutUint16(p[0x1C:], uint16(d.ItableUnused))
	}
	if g.Csum {
		le.PutUint16(p[0x18:], uint16(d.BlockBitmapCsum))
		le.PutUint16(p[0x1A:], uint16(d.InodeBitmapCsum))
	}
	if g.DescSize >= 64 {
		le.PutUint32(p[0x20:], uint32(d.BlockBitmap>>32))
		le.PutUint32(p[0x24:], uint32(d.InodeBitmap>>32))
		le.PutUint32(p[0x28:], uint32(d.InodeTable>>32))
		le.PutUint16(p[0x2C:], uint16(d.FreeBlocks>>16))
		le.PutUint16(p[0x2E:], uint16(d.FreeInodes>>16))
		le.PutUint16(p[0x30:], uint16(d.UsedDirs>>16))
		if s.HasUninit() {
			le.PutUint16(p[0x32:], uint16(d.ItableUnused>>16))
		}
		if g.Csum {
			le.PutUint16(p[0x38:], uint16(d.BlockBitmapCsum>>16))
			le.PutUint16(p[0x3A:], uint16(d.InodeBitmapCsum>>16))
		}
	}
	if s.HasUninit() {
		d.Checksum = groupCsum(p, group, g, s)
		le.PutUint16(p[0x1E:], d.Checksum)
	}
}

func groupCsum(p []byte, group uint32, g *Geometry, s *Super) uint16 {
	const at = 0x1E
	if g.Csum {
		c := CRC32CU32(g.Seed, group)
		c = CRC32C(c, p[:at])
		c = CRC32C(c, zero8[:2])
		if g.DescSize > at+2 {
			c = CRC32C(c, p[at+2:g.DescSize])
		}
		return uint16(c)
	}
	var num [4]byte
	le.PutUint32(num[:], group)
	c := CRC16(^uint16(0), s.UUID[:])
	c = CRC16(c, num[:])
	c = CRC16(c, p[:at])
	if g.DescSize > at+2 {
		c = CRC16(c, p[at+2:g.DescSize])
	}
	return c
}

// BlockBitmapSum is the checksum a group descriptor holds of its block bitmap.
func (g *Geometry) BlockBitmapSum(bitmap []byte) uint32 {
	return g.trimSum(CRC32C(g.Seed, bitmap[:g.BlocksPerGroup/8]))
}

// InodeBitmapSum is the checksum a group descriptor holds of its inode bitmap.
func (g *Geometry) InodeBitmapSum(bitmap []byte) uint32 {
	return g.trimSum(CRC32C(g.Seed, bitmap[:(g.InodesPerGroup+7)/8]))
}

// trimSum drops the half of a bitmap checksum that small descriptors lack.
func (g *Geometry) trimSum(c uint32) uint32 {
	if g.DescSize < 64 {
		return c & 0xffff
	}
	return c
}
