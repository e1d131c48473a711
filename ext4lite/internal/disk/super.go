// SPDX-License-Identifier: Apache-2.0

// The superblock: decode, encode, checksum, and the checks that make its
// numbers safe to compute with.

package disk

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"

	"z.gfire.dev/gvx/ext4lite/errno"
)

const (
	// SuperOffset is where the superblock lies, whatever the block size.
	SuperOffset = 1024
	// SuperSize is the superblock's size in bytes.
	SuperSize = 1024
	// SuperMagic is s_magic of ext2, ext3 and ext4.
	SuperMagic = 0xEF53

	superCsumOffset = 0x3FC
	checksumCRC32C  = 1
)

// Superblock states (s_state).
const (
	StateValid = 1
	StateError = 2
)

// Superblock flags (s_flags).
const (
	FlagSignedHash   = 1
	FlagUnsignedHash = 2
)

// Reserved inode numbers.
const (
	BadBlocksIno = 1
	RootIno      = 2
	ResizeIno    = 7
	JournalIno   = 8
)

// Limits on what a superblock may claim. They bound memory: the group
// descriptors of the largest volume are 64 MiB.
const (
	// MaxBlockSize is the largest block size: a page of the largest host page
	// size Linux mounts with.
	MaxBlockSize = 65536
	// MaxGroups is the number of groups of a 128 TiB volume with 4 KiB blocks.
	MaxGroups = 1 << 20
)

// Super is a decoded superblock. Fields that ext4lite never changes and never
// reads stay in raw and survive a decode and encode unharmed.
type Super struct {
	InodesCount     uint32
	BlocksCount     uint64
	ReservedBlocks  uint64
	FreeBlocks      uint64
	FreeInodes      uint32
	FirstDataBlock  uint32
	LogBlockSize    uint32
	LogClusterSize  uint32
	BlocksPerGroup  uint32
	ClustersPerGrp  uint32
	InodesPerGroup  uint32
	MountTime       uint32
	WriteTime       uint32
	MountCount      uint16
	MaxMountCount   uint16
	State           uint16
	Errors          uint16
	LastCheck       uint32
	RevLevel        uint32
	FirstIno        uint32
	InodeSize       uint16
	BlockGroupNr    uint16
	Compat          uint32
	Incompat        uint32
	ROCompat        uint32
	UUID            [16]byte
	Label           string
	ReservedGDT     uint16
	JournalInum     uint32
	JournalDev      uint32
	LastOrphan      uint32
	HashSeed        [4]uint32
	DefHash         uint8
	JnlBackupType   uint8
	DescSize        uint16
	FirstMetaBG     uint32
	MkfsTime        uint32
	JnlBlocks       [17]uint32
	MinExtraIsize   uint16
	WantExtraIsize  uint16
	Flags           uint32
	LogGroupsFlex   uint8
	ChecksumType    uint8
	KBytesWritten   uint64
	BackupBGs       [2]uint32
	ChecksumSeed    uint32
	OrphanFileInum  uint32
	DefaultMountOpt uint32

	raw [SuperSize]byte
}

// ForgetOverhead clears the count of blocks that no file can have, which mkfs
// leaves for statfs: the kernel then counts again.
func (s *Super) ForgetOverhead() { clear(s.raw[0x248:0x24C]) }

// DecodeSuper reads and checks a superblock. The answer's numbers are safe to
// build a [Geometry] from. The size of the device is not known here.
func DecodeSuper(p []byte) (*Super, error) {
	s, torn, err := DecodeSuperTorn(p)
	if err == nil {
		err = torn
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// DecodeSuperTorn is DecodeSuper for a superblock that a power cut may have
// left half written: a wrong checksum is reported apart. Such a superblock
// serves to find the journal, which holds the whole one.
func DecodeSuperTorn(p []byte) (s *Super, torn, err error) {
	if len(p) < SuperSize {
		return nil, nil, Corrupt("superblock", "%d bytes, need %d", len(p), SuperSize)
	}
	if m := le.Uint16(p[0x38:]); m != SuperMagic {
		if mark, ok := DecodeCommitMark(p); ok {
			return nil, nil, fmt.Errorf("superblock: of clone %q: %w", mark.Clone, ErrCommitCut)
		}
		return nil, nil, fmt.Errorf("superblock: magic %#04x, want %#04x: not an ext4 volume: %w", m, SuperMagic, errno.EINVAL)
	}
	s = &Super{}
	copy(s.raw[:], p)
	s.decodeFields()
	if unknown := s.Incompat &^ SupportedIncompat; unknown != 0 {
		return nil, nil, fmt.Errorf("superblock: volume needs features that ext4lite does not have: %s: %w",
			strings.Join(FeatureNames(unknown, incompatNames), ", "), errno.EOPNOTSUPP)
	}
	if s.HasMetadataCsum() {
		if s.ChecksumType != checksumCRC32C {
			return nil, nil, Corrupt("superblock", "unknown checksum type %d", s.ChecksumType)
		}
		torn = s.checkSum()
	}
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	return s, torn, nil
}

// checkSum verifies the checksum. A superblock in which only the mark "journal
// in use" disagrees with it is taken as in use: the mark and the checksum lie in
// different sectors, of which a power cut may leave one unwritten.
func (s *Super) checkSum() error {
	p := s.raw[:]
	want := le.Uint32(p[superCsumOffset:])
	got := CRC32C(^uint32(0), p[:superCsumOffset])
	if got == want {
		return nil
	}
	le.PutUint32(p[0x60:], s.Incompat^IncompatRecover)
	if CRC32C(^uint32(0), p[:superCsumOffset]) == want {
		s.Incompat |= IncompatRecover
		return nil
	}
	return Corrupt("superblock", "checksum %#08x, computed %#08x", want, got)
}

func (s *Super) decodeFields() {
	p := s.raw[:]
	u16 := func(o int) uint16 { return le.Uint16(p[o:]) }
	u32 := func(o int) uint32 { return le.Uint32(p[o:]) }
	s.Incompat = u32(0x60)
	hi := func(o int) uint64 {
		if s.Incompat&Incompat64Bit == 0 {
			return 0
		}
		return uint64(u32(o)) << 32
	}
	s.InodesCount = u32(0)
	s.BlocksCount = hi(0x150) | uint64(u32(4))
	s.ReservedBlocks = hi(0x154) | uint64(u32(8))
	s.FreeBlocks = hi(0x158) | uint64(u32(0xC))
	s.FreeInodes, s.FirstDataBlock = u32(0x10), u32(0x14)
	s.LogBlockSize, s.LogClusterSize = u32(0x18), u32(0x1C)
	s.BlocksPerGroup, s.ClustersPerGrp, s.InodesPerGroup = u32(0x20), u32(0x24), u32(0x28)
	s.MountTime, s.WriteTime = u32(0x2C), u32(0x30)
	s.MountCount, s.MaxMountCount = u16(0x34), u16(0x36)
	s.State, s.Errors = u16(0x3A), u16(0x3C)
	s.LastCheck, s.RevLevel = u32(0x40), u32(0x4C)
	s.FirstIno, s.InodeSize, s.BlockGroupNr = u32(0x54), u16(0x58), u16(0x5A)
	if s.RevLevel == 0 {
		s.FirstIno, s.InodeSize = 11, 128
	}
	s.Compat, s.ROCompat = u32(0x5C), u32(0x64)
	copy(s.UUID[:], p[0x68:])
	s.Label = cString(p[0x78:0x88])
	s.ReservedGDT = u16(0xCE)
	s.JournalInum, s.JournalDev, s.LastOrphan = u32(0xE0), u32(0xE4), u32(0xE8)
	for i := range s.HashSeed {
		s.HashSeed[i] = u32(0xEC + 4*i)
	}
	s.DefHash, s.JnlBackupType, s.DescSize = p[0xFC], p[0xFD], u16(0xFE)
	s.DefaultMountOpt, s.FirstMetaBG, s.MkfsTime = u32(0x100), u32(0x104), u32(0x108)
	for i := range s.JnlBlocks {
		s.JnlBlocks[i] = u32(0x10C + 4*i)
	}
	s.MinExtraIsize, s.WantExtraIsize, s.Flags = u16(0x15C), u16(0x15E), u32(0x160)
	s.LogGroupsFlex, s.ChecksumType = p[0x174], p[0x175]
	s.KBytesWritten = le.Uint64(p[0x178:])
	s.BackupBGs = [2]uint32{u32(0x24C), u32(0x250)}
	s.ChecksumSeed, s.OrphanFileInum = u32(0x270), u32(0x280)
}

// check bounds every number that arithmetic or a loop depends on.
func (s *Super) check() error {
	bad := func(format string, args ...any) error { return Corrupt("superblock", format, args...) }
	if s.LogBlockSize > 6 {
		return bad("block size 2^%d KiB, at most %d bytes are allowed", s.LogBlockSize, MaxBlockSize)
	}
	bs := s.BlockSize()
	if s.RevLevel > 1 {
		return bad("revision %d", s.RevLevel)
	}
	if s.InodeSize < 128 || int(s.InodeSize) > bs || s.InodeSize&(s.InodeSize-1) != 0 {
		return bad("inode size %d", s.InodeSize)
	}
	if want := uint32(0); s.LogBlockSize == 0 {
		want = 1
		if s.FirstDataBlock != want {
			return bad("first data block %d with 1 KiB blocks", s.FirstDataBlock)
		}
	} else if s.FirstDataBlock != want {
		return bad("first data block %d", s.FirstDataBlock)
	}
	if s.ROCompat&ROCompatBigalloc == 0 {
		if s.BlocksPerGroup == 0 || s.BlocksPerGroup > uint32(bs*8) || s.BlocksPerGroup%8 != 0 {
			return bad("%d blocks per group", s.BlocksPerGroup)
		}
	} else if s.LogClusterSize < s.LogBlockSize || s.LogClusterSize > 20 || s.ClustersPerGrp == 0 || s.ClustersPerGrp > uint32(bs*8) ||
		uint64(s.BlocksPerGroup) != uint64(s.ClustersPerGrp)<<(s.LogClusterSize-s.LogBlockSize) {
		return bad("%d clusters of 2^%d KiB per group", s.ClustersPerGrp, s.LogClusterSize)
	}
	if s.InodesPerGroup == 0 || s.InodesPerGroup > uint32(bs*8) || s.InodesPerGroup%uint32(bs/int(s.InodeSize)) != 0 && s.InodesPerGroup%8 != 0 {
		return bad("%d inodes per group", s.InodesPerGroup)
	}
	if s.BlocksCount <= uint64(s.FirstDataBlock) || s.BlocksCount > 1<<48 {
		return bad("%d blocks", s.BlocksCount)
	}
	if s.Groups64() > MaxGroups {
		return bad("%d groups, at most %d are allowed", s.Groups64(), MaxGroups)
	}
	if want := uint64(s.Groups64()) * uint64(s.InodesPerGroup); uint64(s.InodesCount) != want {
		return bad("%d inodes, geometry gives %d", s.InodesCount, want)
	}
	if s.Incompat&Incompat64Bit != 0 {
		if s.DescSize < 64 || int(s.DescSize) > bs || bits.OnesCount16(s.DescSize) != 1 {
			return bad("group descriptor size %d", s.DescSize)
		}
	}
	if s.FirstIno < 11 || s.FirstIno > s.InodesCount {
		return bad("first ordinary inode %d", s.FirstIno)
	}
	if s.InodeSize > 128 && (int(s.WantExtraIsize) > int(s.InodeSize)-128 || int(s.MinExtraIsize) > int(s.InodeSize)-128) {
		return bad("extra inode size %d in inodes of %d bytes", s.WantExtraIsize, s.InodeSize)
	}
	if s.Incompat&IncompatMetaBG != 0 && uint64(s.FirstMetaBG) > s.Groups64() {
		return bad("first meta block group %d", s.FirstMetaBG)
	}
	if s.LogGroupsFlex > 31 {
		return bad("2^%d groups per flex group", s.LogGroupsFlex)
	}
	return nil
}

// BlockSize is the size of a block in bytes.
func (s *Super) BlockSize() int { return 1024 << s.LogBlockSize }

// Groups64 is the number of block groups before it is known to fit anything.
func (s *Super) Groups64() uint64 {
	bpg := uint64(s.BlocksPerGroup)
	return (s.BlocksCount - uint64(s.FirstDataBlock) + bpg - 1) / bpg
}

// HasMetadataCsum tells whether metadata carries CRC-32C checksums.
func (s *Super) HasMetadataCsum() bool { return s.ROCompat&ROCompatMetadataCsum != 0 }

// HasUninit tells whether group descriptors carry flags and a checksum.
func (s *Super) HasUninit() bool { return s.ROCompat&(ROCompatMetadataCsum|ROCompatGdtCsum) != 0 }

// CsumSeed is the seed of every metadata checksum.
func (s *Super) CsumSeed() uint32 {
	if s.Incompat&IncompatCsumSeed != 0 {
		return s.ChecksumSeed
	}
	return CRC32C(^uint32(0), s.UUID[:])
}

// UnknownROCompat names the features that force read-only, or is empty.
func (s *Super) UnknownROCompat() string {
	return strings.Join(FeatureNames(s.ROCompat&^SupportedROCompat, roCompatNames), ", ")
}

// OutsideJournal tells whether the superblock names a journal on a device of
// its own, by number or by UUID.
func (s *Super) OutsideJournal() bool {
	return s.JournalDev != 0 || [16]byte(s.raw[0xD0:0xE0]) != [16]byte{}
}

// UnknownCompat names compatible features nobody knows, or is empty.
func (s *Super) UnknownCompat() string {
	known := uint32(0)
	for _, f := range compatNames {
		known |= f.bit
	}
	return strings.Join(FeatureNames(s.Compat&^known, compatNames), ", ")
}

// Features names all features, as dumpe2fs does.
func (s *Super) Features() []string {
	out := FeatureNames(s.Compat, compatNames)
	out = append(out, FeatureNames(s.Incompat, incompatNames)...)
	return append(out, FeatureNames(s.ROCompat, roCompatNames)...)
}

// UnsignedHash tells how directory hashes treat bytes above 127.
func (s *Super) UnsignedHash() bool { return s.Flags&FlagUnsignedHash != 0 }

// Encode gives the superblock's bytes with a fresh checksum.
func (s *Super) Encode() []byte {
	p := s.raw[:]
	u16 := func(o int, v uint16) { le.PutUint16(p[o:], v) }
	u32 := func(o int, v uint32) { le.PutUint32(p[o:], v) }
	hi := func(o int, v uint64) {
		if s.Incompat&Incompat64Bit != 0 {
			u32(o, uint32(v>>32))
		}
	}
	u32(0, s.InodesCount)
	u32(4, uint32(s.BlocksCount))
	u32(8, uint32(s.ReservedBlocks))
	u32(0xC, uint32(s.FreeBlocks))
	hi(0x150, s.BlocksCount)
	hi(0x154, s.ReservedBlocks)
	hi(0x158, s.FreeBlocks)
	u32(0x10, s.FreeInodes)
	u32(0x14, s.FirstDataBlock)
	u32(0x18, s.LogBlockSize)
	u32(0x1C, s.LogClusterSize)
	u32(0x20, s.BlocksPerGroup)
	u32(0x24, s.ClustersPerGrp)
	u32(0x28, s.InodesPerGroup)
	u32(0x2C, s.MountTime)
	u32(0x30, s.WriteTime)
	for i, v := range [5]uint16{s.MountCount, s.MaxMountCount, SuperMagic, s.State, s.Errors} {
		u16(0x34+2*i, v)
	}
	u32(0x40, s.LastCheck)
	u32(0x4C, s.RevLevel)
	if s.RevLevel > 0 {
		u32(0x54, s.FirstIno)
		u16(0x58, s.InodeSize)
	}
	u16(0x5A, s.BlockGroupNr)
	u32(0x5C, s.Compat)
	u32(0x60, s.Incompat)
	u32(0x64, s.ROCompat)
	copy(p[0x68:0x78], s.UUID[:])
	clear(p[0x78:0x88])
	copy(p[0x78:0x88], s.Label)
	u16(0xCE, s.ReservedGDT)
	u32(0xE0, s.JournalInum)
	u32(0xE4, s.JournalDev)
	u32(0xE8, s.LastOrphan)
	for i, v := range s.HashSeed {
		u32(0xEC+4*i, v)
	}
	p[0xFC], p[0xFD] = s.DefHash, s.JnlBackupType
	u16(0xFE, s.DescSize)
	u32(0x100, s.DefaultMountOpt)
	u32(0x104, s.FirstMetaBG)
	u32(0x108, s.MkfsTime)
	for i, v := range s.JnlBlocks {
		u32(0x10C+4*i, v)
	}
	u16(0x15C, s.MinExtraIsize)
	u16(0x15E, s.WantExtraIsize)
	u32(0x160, s.Flags)
	p[0x174], p[0x175] = s.LogGroupsFlex, s.ChecksumType
	le.PutUint64(p[0x178:], s.KBytesWritten)
	for i, v := range s.BackupBGs {
		u32(0x24C+4*i, v)
	}
	u32(0x270, s.ChecksumSeed)
	u32(0x280, s.OrphanFileInum)
	if s.HasMetadataCsum() {
		u32(superCsumOffset, CRC32C(^uint32(0), p[:superCsumOffset]))
	}
	return bytes.Clone(p)
}

// Clone copies a superblock.
func (s *Super) Clone() *Super {
	c := *s
	return &c
}

func cString(p []byte) string {
	if i := bytes.IndexByte(p, 0); i >= 0 {
		p = p[:i]
	}
	return string(p)
}
