// SPDX-License-Identifier: Apache-2.0

// The superblock: parsed and judged as a whole before anything else is read.

package erofs

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// incompatNames names every incompatible feature bit there is, for messages.
// Some bits have carried two meanings, told apart by nothing but the data.
var incompatNames = [...]string{
	"LZ4 compression (zero padding)",
	"compression (configurations, big physical clusters)",
	"chunk-based files",
	"extra devices (device table), or compression with a second algorithm",
	"compression (inline tail clusters)",
	"compression (fragments, deduplication)",
	"long xattr name prefixes",
	"48-bit addressing",
	"metabox (compressed metadata)",
}

// incompatRead are the features this reader reads. Fragments are only read as
// far as they place the xattr prefixes; see parseSuper.
const incompatRead = incompatChunked | incompatPrefixes | incompat48Bit

// super is a superblock that has passed all checks.
type super struct {
	blockBits   uint8
	compat      uint32
	incompat    uint32
	rootNID     uint64
	inodes      uint64
	epoch       int64
	fixedNsec   uint32
	blocks      uint64
	metaOffset  int64
	xattrOffset int64
	uuid        [16]byte
	volumeName  string
	buildTime   int64
	prefixCount int
	prefixStart int64
	packedNID   uint64
}

// readSuper reads and checks the superblock of an image of size bytes.
func readSuper(r io.ReaderAt, size int64) (super, error) {
	if size < superOffset+superSize {
		return super{}, fmt.Errorf("%w: %d bytes are too few for a superblock", ErrNotEROFS, size)
	}
	var b [superSize]byte
	if err := readFull(r, b[:], superOffset); err != nil {
		return super{}, fmt.Errorf("read superblock: %w", err)
	}
	if magic := le.Uint32(b[sbMagic:]); magic != superMagic {
		return super{}, fmt.Errorf("%w: magic %#08x, want %#08x", ErrNotEROFS, magic, uint32(superMagic))
	}
	sb, err := parseSuper(b[:], size)
	if err != nil {
		return super{}, err
	}
	if sb.compat&compatChecksum != 0 {
		if err := checkSuperChecksum(r, size, sb.blockBits, le.Uint32(b[sbChecksum:])); err != nil {
			return super{}, err
		}
	}
	return sb, nil
}

func parseSuper(b []byte, size int64) (super, error) {
	sb := super{
		blockBits:   b[sbBlockBits],
		compat:      le.Uint32(b[sbFeatureCompat:]),
		incompat:    le.Uint32(b[sbFeatureIncompat:]),
		rootNID:     uint64(le.Uint16(b[sbRootNID16:])),
		inodes:      le.Uint64(b[sbInodes:]),
		epoch:       int64(le.Uint64(b[sbEpoch:])),
		fixedNsec:   le.Uint32(b[sbFixedNsec:]),
		blocks:      uint64(le.Uint32(b[sbBlocks:])),
		volumeName:  string(bytes.TrimRight(b[sbVolumeName:sbVolumeName+16], "\x00")),
		prefixCount: int(b[sbPrefixCount]),
		prefixStart: int64(le.Uint32(b[sbPrefixStart:])) * 4,
		packedNID:   le.Uint64(b[sbPackedNID:]),
	}
	copy(sb.uuid[:], b[sbUUID:])
	if sb.blockBits < minBlockBits || sb.blockBits > maxBlockBits {
		return super{}, corrupt("superblock: block size 2^%d, want 2^%d to 2^%d", sb.blockBits, minBlockBits, maxBlockBits)
	}
	if b[sbDirBlockBits] != 0 {
		return super{}, unsupported("directory blocks of another size (2^%d blocks)", b[sbDirBlockBits])
	}
	if err := checkFeatures(sb.incompat, le.Uint16(b[sbCompression:])); err != nil {
		return super{}, err
	}
	if n := le.Uint16(b[sbExtraDevices:]); n != 0 {
		return super{}, unsupported("extra devices (%d)", n)
	}
	sb.buildTime = sb.epoch
	if sb.incompat&incompat48Bit != 0 {
		// The 16-bit field keeps its old meaning as long as the wide one
		// is not used.
		if nid := le.Uint64(b[sbRootNID64:]); nid != 0 {
			sb.rootNID = nid
			sb.blocks |= uint64(le.Uint16(b[sbRootNID16:])) << 32
		}
		sb.buildTime += int64(le.Uint32(b[sbBuildTime:]))
	}
	if sb.fixedNsec >= 1e9 {
		return super{}, corrupt("superblock: %d nanoseconds", sb.fixedNsec)
	}
	// blocks < 2^48 and blockBits <= 16, so the shift can leave int64.
	if sb.blocks > uint64(size)>>sb.blockBits {
		return super{}, corrupt("superblock: %d blocks of %d bytes in an image of %d bytes: it is truncated", sb.blocks, 1<<sb.blockBits, size)
	}
	sb.metaOffset = int64(le.Uint32(b[sbMetaBlock:])) << sb.blockBits
	sb.xattrOffset = int64(le.Uint32(b[sbXattrBlock:])) << sb.blockBits
	if sb.metaOffset >= size {
		return super{}, corrupt("superblock: metadata begins at %d, behind the end of the image (%d)", sb.metaOffset, size)
	}
	return sb, nil
}

// checkFeatures refuses what this reader lacks, by name.
func checkFeatures(incompat uint32, compression uint16) error {
	read := uint32(incompatRead)
	if incompat&incompatPrefixes != 0 {
		// mkfs.erofs keeps the prefixes in the packed inode and says so
		// with the fragments bit. Compressed inodes are refused one by one.
		read |= incompatFragments
	}
	if compression == 0 {
		// Zero padding only describes compressed clusters. Without any
		// algorithm there are none.
		read |= incompatZeroPadding
	}
	unknown := incompat &^ read
	if unknown == 0 {
		return nil
	}
	var names []string
	for bit := range 32 {
		if unknown&(1<<bit) == 0 {
			continue
		}
		name := fmt.Sprintf("unknown feature bit %#x", uint32(1)<<bit)
		if bit < len(incompatNames) {
			name = incompatNames[bit]
		}
		names = append(names, name)
	}
	return unsupported("%s (build the image uncompressed and in one file)", strings.Join(names, "; "))
}

// checkSuperChecksum compares the checksum over the superblock and what
// follows in its block.
func checkSuperChecksum(r io.ReaderAt, size int64, bits uint8, want uint32) error {
	n := int64(1) << bits
	if n > superOffset {
		n -= superOffset
	}
	if superOffset+n > size {
		return corrupt("superblock: the image ends within its first block")
	}
	b := make([]byte, n)
	if err := readFull(r, b, superOffset); err != nil {
		return fmt.Errorf("read superblock: %w", err)
	}
	le.PutUint32(b[sbChecksum:], 0)
	if got := superChecksum(b); got != want {
		return corrupt("superblock: checksum %#08x, want %#08x", got, want)
	}
	return nil
}

// readFull fills p from offset off. A short read is an error even where
// io.ReaderAt would allow io.EOF with it.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
}
