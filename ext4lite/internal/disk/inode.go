// SPDX-License-Identifier: Apache-2.0

// Inodes: decode, encode, checksum, time stamps and device numbers.

package disk

import "time"

// File types in i_mode.
const (
	ModeType   = 0xF000
	ModeFifo   = 0x1000
	ModeChar   = 0x2000
	ModeDir    = 0x4000
	ModeBlock  = 0x6000
	ModeReg    = 0x8000
	ModeLink   = 0xA000
	ModeSocket = 0xC000
)

// Inode flags (i_flags).
const (
	FlSecrm       = 0x1
	FlCompr       = 0x4
	FlSync        = 0x8
	FlImmutable   = 0x10
	FlAppend      = 0x20
	FlNodump      = 0x40
	FlNoatime     = 0x80
	FlEncrypt     = 0x800
	FlIndex       = 0x1000
	FlDirsync     = 0x10000
	FlTopdir      = 0x20000
	FlHugeFile    = 0x40000
	FlExtents     = 0x80000
	FlVerity      = 0x100000
	FlEAInode     = 0x200000
	FlInlineData  = 0x10000000
	FlProjInherit = 0x20000000
	FlCasefold    = 0x40000000

	// FlUserModifiable are the flags chattr(1) may set here, those that
	// change no format.
	FlUserModifiable = FlSync | FlImmutable | FlAppend | FlNodump | FlNoatime | FlDirsync | FlTopdir
	// FlInherited are the flags a new inode takes from its directory.
	FlInherited = FlSync | FlNodump | FlNoatime | FlDirsync
)

// MapSize is the size of i_block, the root of the block map, in bytes.
const MapSize = 60

// XattrMagic begins an attribute area, in an inode or a block.
const XattrMagic = 0xEA020000

// Inode is a decoded inode.
type Inode struct {
	Mode       uint16
	Links      uint32
	UID, GID   uint32
	Size       uint64
	Blocks     uint64 // 512-byte sectors; without HugeFile scaling
	Flags      uint32
	Generation uint32
	FileACL    uint64
	DTime      uint32 // deletion time, or next orphan
	Atime      Time
	Ctime      Time
	Mtime      Time
	Crtime     Time
	Version    uint64
	Project    uint32
	ExtraIsize uint16
	Block      [MapSize]byte
	// Xattrs is the area after the extra fields, magic included. It is empty
	// in 128-byte inodes.
	Xattrs []byte
}

// Time is seconds and nanoseconds since 1970.
type Time struct {
	Sec  int64
	Nsec uint32
}

// TimeOf converts from the library's time.
func TimeOf(t time.Time) Time { return Time{t.Unix(), uint32(t.Nanosecond())} }

// Std converts to the library's time.
func (t Time) Std() time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// The range of seconds a 34-bit time stamp can hold.
const (
	minSec    = -1 << 31
	maxSec    = 1<<34 - 1<<31 - 1
	maxSec128 = 1<<31 - 1
)

// Clamp limits a time to what an inode can hold; wide tells whether it has
// the extra fields.
func (t Time) Clamp(wide bool) Time {
	hi := int64(maxSec)
	if !wide {
		hi, t.Nsec = maxSec128, 0
	}
	if t.Sec < minSec {
		return Time{Sec: minSec}
	}
	if t.Sec > hi {
		return Time{Sec: hi}
	}
	return t
}

func decodeTime(lo, extra uint32) Time {
	t := Time{Sec: int64(int32(lo)) + int64(extra&3)<<32, Nsec: extra >> 2}
	if t.Nsec >= 1e9 {
		t.Nsec = 0
	}
	return t
}

func (t Time) encode() (lo, extra uint32) {
	lo = uint32(t.Sec)
	epoch := uint32((t.Sec-int64(int32(lo)))>>32) & 3
	return lo, epoch | t.Nsec<<2
}

// Extra field offsets, from the start of the inode.
const (
	offExtraIsize = 0x80
	offCsumHi     = 0x82
	offCtimeX     = 0x84
	offMtimeX     = 0x88
	offAtimeX     = 0x8C
	offCrtime     = 0x90
	offCrtimeX    = 0x94
	offVersionHi  = 0x98
	offProjid     = 0x9C
	endProjid     = 0xA0
	offCsumLo     = 0x7C
)

// InodeSeed is the seed of the checksums of an inode and of the blocks that
// belong to it.
func (g *Geometry) InodeSeed(ino, generation uint32) uint32 {
	return CRC32CU32(CRC32CU32(g.Seed, ino), generation)
}

// InodeFileACLHigh is the upper half of the number of an inode's attribute block, which
// counts with 64bit only.
func InodeFileACLHigh(p []byte) uint16 { return le.Uint16(p[0x76:]) }

// InodeFragment is the address of an inode's fragment, a field that ext4 does not use.
func InodeFragment(p []byte) uint32 { return le.Uint32(p[0x70:]) }

// DecodeInode reads inode ino from its bytes. It checks the checksum and the
// fields that describe the inode's own layout; what the map points at is
// checked where it is followed.
func DecodeInode(p []byte, ino uint32, g *Geometry, s *Super) (Inode, error) {
	var d Inode
	d.Mode = le.Uint16(p[0:])
	d.UID = uint32(le.Uint16(p[2:])) | uint32(le.Uint16(p[0x78:]))<<16
	d.GID = uint32(le.Uint16(p[0x18:])) | uint32(le.Uint16(p[0x7A:]))<<16
	d.Links = uint32(le.Uint16(p[0x1A:]))
	d.Flags = le.Uint32(p[0x20:])
	d.Size = uint64(le.Uint32(p[4:])) | uint64(le.Uint32(p[0x6C:]))<<32
	d.Generation = le.Uint32(p[0x64:])
	d.FileACL = uint64(le.Uint32(p[0x68:]))
	if s.Incompat&Incompat64Bit != 0 {
		d.FileACL |= uint64(InodeFileACLHigh(p)) << 32
	}
	d.DTime = le.Uint32(p[0x14:])
	d.Blocks = uint64(le.Uint32(p[0x1C:]))
	if s.ROCompat&ROCompatHugeFile != 0 {
		d.Blocks |= uint64(le.Uint16(p[0x74:])) << 32
		if d.Flags&FlHugeFile != 0 {
			d.Blocks <<= g.BlockShift - 9
		}
	}
	copy(d.Block[:], p[0x28:0x28+MapSize])
	d.Version = uint64(le.Uint32(p[0x24:]))
	var ax, cx, mx uint32
	if g.InodeSize > 128 {
		d.ExtraIsize = le.Uint16(p[offExtraIsize:])
		if int(d.ExtraIsize) > g.InodeSize-128 || d.ExtraIsize%4 != 0 {
			return d, Corrupt("inode", "inode %d: extra size %d in %d bytes", ino, d.ExtraIsize, g.InodeSize)
		}
		end := 128 + int(d.ExtraIsize)
		field := func(off int) uint32 {
			if off+4 > end {
				return 0
			}
			return le.Uint32(p[off:])
		}
		cx, mx, ax = field(offCtimeX), field(offMtimeX), field(offAtimeX)
		d.Crtime = decodeTime(field(offCrtime), field(offCrtimeX))
		d.Version |= uint64(field(offVersionHi)) << 32
		d.Project = field(offProjid)
		d.Xattrs = append([]byte(nil), p[end:g.InodeSize]...)
	}
	d.Atime = decodeTime(le.Uint32(p[8:]), ax)
	d.Ctime = decodeTime(le.Uint32(p[0xC:]), cx)
	d.Mtime = decodeTime(le.Uint32(p[0x10:]), mx)
	if g.Csum {
		got, want := inodeCsum(p, ino, d.Generation, d.ExtraIsize, g), storedInodeCsum(p, d.ExtraIsize, g)
		if got != want {
			return d, Corrupt("inode", "inode %d: checksum %#08x, computed %#08x", ino, want, got)
		}
	}
	return d, nil
}

// Encode writes the inode over p with a fresh checksum. p holds the inode's
// former bytes or zeros.
func (d *Inode) Encode(p []byte, ino uint32, g *Geometry, s *Super) {
	le.PutUint16(p[0:], d.Mode)
	le.PutUint16(p[2:], uint16(d.UID))
	le.PutUint16(p[0x78:], uint16(d.UID>>16))
	le.PutUint16(p[0x18:], uint16(d.GID))
	le.PutUint16(p[0x7A:], uint16(d.GID>>16))
	le.PutUint16(p[0x1A:], uint16(d.Links))
	le.PutUint32(p[4:], uint32(d.Size))
	le.PutUint32(p[0x6C:], uint32(d.Size>>32))
	le.PutUint32(p[0x64:], d.Generation)
	le.PutUint32(p[0x68:], uint32(d.FileACL))
	le.PutUint16(p[0x76:], uint16(d.FileACL>>32))
	le.PutUint32(p[0x14:], d.DTime)
	le.PutUint32(p[0x24:], uint32(d.Version))
	flags, blocks := d.Flags&^FlHugeFile, d.Blocks
	if blocks >= 1<<48 {
		flags |= FlHugeFile
		blocks >>= g.BlockShift - 9
	}
	le.PutUint32(p[0x1C:], uint32(blocks))
	if s.ROCompat&ROCompatHugeFile != 0 {
		le.PutUint16(p[0x74:], uint16(blocks>>32))
	}
	le.PutUint32(p[0x20:], flags)
	copy(p[0x28:0x28+MapSize], d.Block[:])
	var ax, cx, mx, lo uint32
	lo, ax = d.Atime.encode()
	le.PutUint32(p[8:], lo)
	lo, cx = d.Ctime.encode()
	le.PutUint32(p[0xC:], lo)
	lo, mx = d.Mtime.encode()
	le.PutUint32(p[0x10:], lo)
	if g.InodeSize > 128 {
		le.PutUint16(p[offExtraIsize:], d.ExtraIsize)
		end := 128 + int(d.ExtraIsize)
		field := func(off int, v uint32) {
			if off+4 <= end {
				le.PutUint32(p[off:], v)
			}
		}
		field(offCtimeX, cx)
		field(offMtimeX, mx)
		field(offAtimeX, ax)
		lo, x := d.Crtime.encode()
		field(offCrtime, lo)
		field(offCrtimeX, x)
		field(offVersionHi, uint32(d.Version>>32))
		field(offProjid, d.Project)
		copy(p[end:g.InodeSize], d.Xattrs)
	}
	if g.Csum {
		c := inodeCsum(p, ino, d.Generation, d.ExtraIsize, g)
		le.PutUint16(p[offCsumLo:], uint16(c))
		if hasCsumHi(d.ExtraIsize, g) {
			le.PutUint16(p[offCsumHi:], uint16(c>>16))
		}
	}
}

func hasCsumHi(extra uint16, g *Geometry) bool { return g.InodeSize > 128 && extra >= 4 }

func storedInodeCsum(p []byte, extra uint16, g *Geometry) uint32 {
	c := uint32(le.Uint16(p[offCsumLo:]))
	if hasCsumHi(extra, g) {
		c |= uint32(le.Uint16(p[offCsumHi:])) << 16
	}
	return c
}

func inodeCsum(p []byte, ino, gen uint32, extra uint16, g *Geometry) uint32 {
	c := g.InodeSeed(ino, gen)
	c = CRC32C(c, p[:offCsumLo])
	c = CRC32C(c, zero8[:2])
	c = CRC32C(c, p[offCsumLo+2:128])
	if g.InodeSize > 128 {
		if hasCsumHi(extra, g) {
			c = CRC32C(c, p[128:offCsumHi])
			c = CRC32C(c, zero8[:2])
			return CRC32C(c, p[offCsumHi+2:g.InodeSize])
		}
		c = CRC32C(c, p[128:g.InodeSize])
	}
	if !hasCsumHi(extra, g) {
		c &= 0xffff
	}
	return c
}

// MaxExtraIsize is how many extra bytes a new inode uses of its tail.
func MaxExtraIsize(inodeSize int) uint16 {
	if inodeSize <= 128 {
		return 0
	}
	return uint16(min(inodeSize, endProjid) - 128)
}

// Rdev gives the device number a character or block inode holds.
func (d *Inode) Rdev() (major, minor uint32) {
	if v := le.Uint32(d.Block[0:]); v != 0 {
		return v >> 8 & 0xff, v & 0xff
	}
	v := le.Uint32(d.Block[4:])
	return v >> 8 & 0xfff, v&0xff | v>>12&0xfff00
}

// SetRdev stores a device number in an inode.
func (d *Inode) SetRdev(major, minor uint32) {
	clear(d.Block[:])
	if major < 256 && minor < 256 {
		le.PutUint32(d.Block[0:], major<<8|minor)
		return
	}
	le.PutUint32(d.Block[4:], minor&0xff|(major&0xfff)<<8|(minor&^0xff)<<12)
}

// Type is the file type of the inode.
func (d *Inode) Type() uint16 { return d.Mode & ModeType }
