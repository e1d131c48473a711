// SPDX-License-Identifier: Apache-2.0

// The journal's bytes: superblock, block headers, tags and checksums of JBD2.
// All numbers are big-endian. FORMAT.md has the tables.

package journal

import (
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

var be = binary.BigEndian

const (
	magic = 0xC03B3998

	blockDescriptor = 1
	blockCommit     = 2
	blockSuperV1    = 3
	blockSuperV2    = 4
	blockRevoke     = 5

	tagEscape   = 1
	tagSameUUID = 2
	tagLast     = 8

	incompatRevoke     = 0x1
	incompat64Bit      = 0x2
	incompatAsync      = 0x4
	incompatCsumV2     = 0x8
	incompatCsumV3     = 0x10
	incompatFastCommit = 0x20
	compatChecksum     = 0x1

	headerSize       = 12
	revokeHeaderSize = 16
	tailSize         = 4
	tag3Size         = 16
	uuidSize         = 16
	superCsumOffset  = 0xFC
	superSize        = 1024
	commitCsumOffset = 0x10
	commitSecOffset  = 0x30
	checksumCRC32C   = 4
)

// MinBlocks is the shortest journal JBD2 accepts.
const MinBlocks = 1024

// Super is a decoded journal superblock.
type Super struct {
	BlockSize uint32
	MaxLen    uint32 // in blocks, this one included
	First     uint32 // first block of the log
	Sequence  uint32 // first transaction expected in the log
	Start     uint32 // where it begins; 0 says the log is empty
	Errno     uint32
	Compat    uint32
	Incompat  uint32
	UUID      [16]byte
	FCBlocks  uint32
	Users     uint32 // volumes that log here; older journals do not say

	raw [superSize]byte
}

// NewSuper makes the superblock of an empty journal of a volume with the
// given features.
func NewSuper(blockSize int, blocks uint32, uuid [16]byte, wide, csum bool) *Super {
	s := &Super{BlockSize: uint32(blockSize), MaxLen: blocks, First: 1, Sequence: 1, UUID: uuid}
	be.PutUint32(s.raw[0:], magic)
	be.PutUint32(s.raw[4:], blockSuperV2)
	be.PutUint32(s.raw[0x40:], 1) // users
	s.SetFeatures(wide, csum)
	return s
}

// SetFeatures gives an empty journal the features this package writes.
func (s *Super) SetFeatures(wide, csum bool) {
	be.PutUint32(s.raw[4:], blockSuperV2)
	s.Compat, s.Incompat = 0, incompatRevoke
	if wide {
		s.Incompat |= incompat64Bit
	}
	if csum {
		s.Incompat |= incompatCsumV3
	}
	s.FCBlocks = 0
}

// DecodeSuper reads and checks a journal superblock. blocks is the length of
// the journal file.
func DecodeSuper(p []byte, blockSize int, blocks uint64) (*Super, error) {
	bad := func(format string, args ...any) (*Super, error) {
		return nil, disk.Corrupt("journal superblock", format, args...)
	}
	s := &Super{}
	copy(s.raw[:], p)
	p = s.raw[:]
	if be.Uint32(p) != magic {
		return bad("no magic")
	}
	s.BlockSize, s.MaxLen, s.First = be.Uint32(p[0xC:]), be.Uint32(p[0x10:]), be.Uint32(p[0x14:])
	s.Sequence, s.Start, s.Errno = be.Uint32(p[0x18:]), be.Uint32(p[0x1C:]), be.Uint32(p[0x20:])
	switch be.Uint32(p[4:]) {
	case blockSuperV1:
	case blockSuperV2:
		s.Compat, s.Incompat = be.Uint32(p[0x24:]), be.Uint32(p[0x28:])
		s.FCBlocks, s.Users = be.Uint32(p[0x54:]), be.Uint32(p[0x40:])
		copy(s.UUID[:], p[0x30:])
	default:
		return bad("block type %d", be.Uint32(p[4:]))
	}
	if s.hasCsum() {
		if p[0x50] != checksumCRC32C {
			return bad("unknown checksum type %d", p[0x50])
		}
		if got, want := superSum(p), be.Uint32(p[superCsumOffset:]); got != want {
			return bad("checksum %#08x, computed %#08x", want, got)
		}
	}
	const known = incompatRevoke | incompat64Bit | incompatAsync | incompatCsumV2 | incompatCsumV3 | incompatFastCommit
	if u := s.Incompat &^ known; u != 0 {
		return nil, fmt.Errorf("journal superblock: unknown features %#x: %w", u, errno.EOPNOTSUPP)
	}
	if s.Incompat&incompatCsumV2 != 0 && s.Incompat&incompatCsumV3 != 0 {
		return bad("two checksum versions at once")
	}
	if int(s.BlockSize) != blockSize {
		return bad("block size %d, the volume's is %d", s.BlockSize, blockSize)
	}
	if uint64(s.MaxLen) > blocks || s.MaxLen < 4 {
		return bad("%d blocks in a file of %d", s.MaxLen, blocks)
	}
	if s.Incompat&incompatFastCommit != 0 && s.FCBlocks == 0 {
		s.FCBlocks = 256 // JBD2's default
	}
	if s.FCBlocks > s.MaxLen/2 || s.First == 0 || s.First >= s.End() || s.Start != 0 && (s.Start < s.First || s.Start >= s.End()) {
		return bad("log from %d, starting at %d, of %d blocks", s.First, s.Start, s.End())
	}
	return s, nil
}

// End is the block after the log's last.
func (s *Super) End() uint32 {
	if s.Incompat&incompatFastCommit != 0 {
		return s.MaxLen - s.FCBlocks
	}
	return s.MaxLen
}

func (s *Super) hasCsum() bool { return s.Incompat&(incompatCsumV2|incompatCsumV3) != 0 }

// seed is the seed of all checksums in the log.
func (s *Super) seed() uint32 { return disk.CRC32C(^uint32(0), s.UUID[:]) }

// tagSize is the size of a tag without a UUID.
func (s *Super) tagSize() int {
	if s.Incompat&incompatCsumV3 != 0 {
		return tag3Size
	}
	n := 8
	if s.Incompat&incompat64Bit != 0 {
		n += 4
	}
	if s.Incompat&incompatCsumV2 != 0 {
		n += 2
	}
	return n
}

// Encode gives the superblock's 1024 bytes with a fresh checksum.
func (s *Super) Encode() []byte {
	p := s.raw[:]
	be.PutUint32(p[0xC:], s.BlockSize)
	be.PutUint32(p[0x10:], s.MaxLen)
	be.PutUint32(p[0x14:], s.First)
	be.PutUint32(p[0x18:], s.Sequence)
	be.PutUint32(p[0x1C:], s.Start)
	be.PutUint32(p[0x20:], s.Errno)
	if be.Uint32(p[4:]) == blockSuperV2 {
		be.PutUint32(p[0x24:], s.Compat)
		be.PutUint32(p[0x28:], s.Incompat)
		copy(p[0x30:0x40], s.UUID[:])
		be.PutUint32(p[0x54:], s.FCBlocks)
		p[0x50] = 0
		clear(p[superCsumOffset : superCsumOffset+4])
		if s.hasCsum() {
			p[0x50] = checksumCRC32C
			be.PutUint32(p[superCsumOffset:], superSum(p))
		}
	}
	return append([]byte(nil), p...)
}

func superSum(p []byte) uint32 {
	var zero [4]byte
	c := disk.CRC32C(^uint32(0), p[:superCsumOffset])
	c = disk.CRC32C(c, zero[:])
	return disk.CRC32C(c, p[superCsumOffset+4:superSize])
}

// blockSum is the checksum of a log block whose checksum field of 4 bytes is
// at off.
func blockSum(seed uint32, p []byte, off int) uint32 {
	var zero [4]byte
	c := disk.CRC32C(seed, p[:off])
	c = disk.CRC32C(c, zero[:])
	return disk.CRC32C(c, p[off+4:])
}

// dataSum is the checksum of a logged block in a transaction.
func dataSum(seed, sequence uint32, p []byte) uint32 {
	var b [4]byte
	be.PutUint32(b[:], sequence)
	return disk.CRC32C(disk.CRC32C(seed, b[:]), p)
}

func putHeader(p []byte, kind, sequence uint32) {
	be.PutUint32(p, magic)
	be.PutUint32(p[4:], kind)
	be.PutUint32(p[8:], sequence)
}
