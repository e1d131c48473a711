// SPDX-License-Identifier: Apache-2.0

// The on-disk format: offsets, feature bits and limits. FORMAT.md has the same
// as tables; nothing outside this file knows an offset by number.

package erofs

import (
	"encoding/binary"
	"hash/crc32"
)

// Superblock.
const (
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xE0F5E1E2

	sbMagic           = 0
	sbChecksum        = 4
	sbFeatureCompat   = 8
	sbBlockBits       = 12
	sbExtSlots        = 13
	sbRootNID16       = 14 // with sbRootNID64: high half of the block count
	sbInodes          = 16
	sbEpoch           = 24
	sbFixedNsec       = 32
	sbBlocks          = 36
	sbMetaBlock       = 40
	sbXattrBlock      = 44
	sbUUID            = 48
	sbVolumeName      = 64
	sbFeatureIncompat = 80
	sbCompression     = 84
	sbExtraDevices    = 86
	sbDirBlockBits    = 90
	sbPrefixCount     = 91
	sbPrefixStart     = 92
	sbPackedNID       = 96
	sbBuildTime       = 108
	sbRootNID64       = 112 // 48-bit feature only; 0 is unused
)

// Compatible features: a reader that ignores them still reads right.
const (
	compatChecksum    = 0x01
	compatMtime       = 0x02
	compatPlainPrefix = 0x10
)

// Incompatible features: a reader that does not know one must refuse.
const (
	incompatZeroPadding = 0x001
	incompatChunked     = 0x004
	incompatFragments   = 0x020
	incompatPrefixes    = 0x040
	incompat48Bit       = 0x080
)

// Inodes.
const (
	slotBits           = 5 // a node number counts slots of 32 bytes
	slotSize           = 1 << slotBits
	inodeCompactSize   = 32
	inodeExtendedSize  = 64
	inodeFormat        = 0
	inodeXattrCount    = 2
	inodeMode          = 4
	inodeNB            = 6 // nlink, or the high half of a block address
	inodeSize          = 8
	inodeCompactMtime  = 12
	inodeU             = 16 // block address, device number or chunk format
	inodeIno           = 20
	inodeUID           = 24
	inodeCompactGID    = 26
	inodeGID           = 28
	inodeMtime         = 32
	inodeMtimeNsec     = 40
	inodeNlink         = 44
	formatExtended     = 0x01
	formatLayoutShift  = 1
	formatLayoutMask   = 0x07
	formatNlink1OrDot  = 0x10 // compact non-directory: nlink is 1; directory: no "."
	formatKnown        = 0x1f
	layoutPlain        = 0
	layoutFullIndex    = 1 // compressed
	layoutInline       = 2
	layoutCompactIndex = 3 // compressed
	layoutChunked      = 4
	chunkBitsMask      = 0x1f
	chunkIndexes       = 0x20
	chunk48Bit         = 0x40
	chunkKnown         = 0x7f
	nullBlock32        = 1<<32 - 1
	nullBlock48        = 1<<48 - 1
)

// Extended attributes.
const (
	xattrHeaderSize    = 12 // name filter 4, shared count 1, reserved 7
	xattrSharedCount   = 4
	xattrEntrySize     = 4 // name length 1, prefix 1, value size 2
	xattrLongPrefix    = 0x80
	xattrIndexUser     = 1
	xattrIndexACL      = 2
	xattrIndexACLDef   = 3
	xattrIndexTrusted  = 4
	xattrIndexLustre   = 5
	xattrIndexSecurity = 6
)

// Directories.
const (
	direntSize    = 12
	direntNID     = 0
	direntNameOff = 8
	direntType    = 10
)

// What the writer uses. 4 KiB is the page size of every host and guest we
// run on with mmap; larger blocks would waste space, smaller ones could not
// be mapped.
const (
	blockBits = 12
	blockSize = 1 << blockBits
)

// Linux's file type bits in st_mode, spelled here because the package also
// builds where package syscall lacks them.
const (
	ModeType    = 0o170000
	ModeFIFO    = 0o010000
	ModeChar    = 0o020000
	ModeDir     = 0o040000
	ModeBlock   = 0o060000
	ModeRegular = 0o100000
	ModeSymlink = 0o120000
	ModeSocket  = 0o140000
)

// Directory entry types as getdents64 reports them.
const (
	TypeUnknown = 0
	TypeFIFO    = 1
	TypeChar    = 2
	TypeDir     = 4
	TypeBlock   = 6
	TypeRegular = 8
	TypeSymlink = 10
	TypeSocket  = 12
)

// Limits. Each bounds what one image may cost its writer or its reader.
const (
	// MaxEntries bounds the names of one image. The builder keeps about
	// 300 bytes per name in memory; two million are twice what the largest
	// known layers hold.
	MaxEntries = 2 << 20
	// MaxMetadataBytes bounds inodes, names, attributes and chunk indexes
	// together, so that a stream of tiny hostile entries cannot grow the
	// image without bound.
	MaxMetadataBytes = 1 << 30
	// MaxFileSize bounds one regular file. 2 TiB holds the largest sparse
	// file seen in real images (a lastlog indexed by 32-bit user IDs).
	MaxFileSize = 2 << 40
	// MaxNameBytes bounds one path component (NAME_MAX).
	MaxNameBytes = 255
	// MaxPathBytes bounds a path given to the builder and the target of a
	// symbolic link (PATH_MAX without its NUL).
	MaxPathBytes = 4095
	// MaxSymlinkHops bounds the links followed in the parents of one path,
	// as the kernel does.
	MaxSymlinkHops = 40
	// MaxXattrNameBytes bounds a full attribute name (XATTR_NAME_MAX).
	MaxXattrNameBytes = 255
	// MaxXattrValueBytes is what the format's 16-bit size field can say.
	MaxXattrValueBytes = 65535
	// MaxXattrListBytes bounds a name list (XATTR_LIST_MAX): few bytes in a
	// hostile image could otherwise name megabytes through long prefixes.
	MaxXattrListBytes = 65536
	// MaxVerifyEntries bounds the directory entries Verify looks at: many
	// directories of a hostile image can share one block of entries.
	MaxVerifyEntries = 4 * MaxEntries

	// maxXattrBody is what the 16-bit count in an inode can say.
	maxXattrBody = xattrHeaderSize + 4*(65535-1)
	minBlockBits = 9
	maxBlockBits = 16
	maxMajor     = 1<<12 - 1
	maxMinor     = 1<<20 - 1
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// superChecksum is the kernel's crc32c of a superblock and the rest of its
// block, whose checksum field must be zero: all ones at the start, no final
// inversion.
func superChecksum(b []byte) uint32 { return ^crc32.Checksum(b, castagnoli) }

// encodeDev packs a device number the way Linux's new_encode_dev does.
func encodeDev(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | (minor&^0xff)<<12
}

// decodeDev is the inverse of encodeDev.
func decodeDev(dev uint32) (major, minor uint32) {
	return dev >> 8 & 0xfff, dev&0xff | dev>>12&0xfff00
}

// direntTypes maps the format's file types, in order, to getdents64's.
var direntTypes = [...]uint8{TypeUnknown, TypeRegular, TypeDir, TypeChar, TypeBlock, TypeFIFO, TypeSocket, TypeSymlink}

// fileType is the format's file type of a mode, 0 when it has none.
func fileType(mode uint32) uint8 {
	switch mode & ModeType {
	case ModeRegular:
		return 1
	case ModeDir:
		return 2
	case ModeChar:
		return 3
	case ModeBlock:
		return 4
	case ModeFIFO:
		return 5
	case ModeSocket:
		return 6
	case ModeSymlink:
		return 7
	}
	return 0
}

// shortPrefixes are the attribute name prefixes of the format by index.
var shortPrefixes = [...]string{
	xattrIndexUser:     "user.",
	xattrIndexACL:      "system.posix_acl_access",
	xattrIndexACLDef:   "system.posix_acl_default",
	xattrIndexTrusted:  "trusted.",
	xattrIndexLustre:   "lustre.",
	xattrIndexSecurity: "security.",
}

// roundUp rounds n up to a multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }
