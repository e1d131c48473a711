// SPDX-License-Identifier: Apache-2.0

// Image: an open image, and the inode decoder.
// An Image is immutable after Open; all methods may run concurrently.

package erofs

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Image reads one EROFS image.
type Image struct {
	r        io.ReaderAt
	size     int64
	sb       super
	prefixes []string  // long xattr name prefixes, by index
	blocks   sync.Pool // *[]byte, for one directory block or a piece of a chunk index
}

// StatFS is what statfs(2) and the tools want to know of an image.
type StatFS struct {
	BlockSize  int64
	Blocks     uint64
	Inodes     uint64
	UUID       [16]byte
	VolumeName string
	BuildTime  time.Time
	// Checksummed says whether the superblock carries a checksum.
	Checksummed bool
}

// Inode is a decoded inode. It holds no reference to the image's bytes, and is
// only meaningful with the Image that returned it.
type Inode struct {
	NID             uint64
	Ino             uint64 // as the kernel reports it: the NID
	Mode            uint32 // Linux's st_mode
	UID, GID, Nlink uint32
	Size            int64
	Mtime           time.Time
	Major, Minor    uint32 // character and block devices only

	layout     uint8
	dotOmitted bool
	chunkWide  bool  // 8-byte chunk indexes
	chunk48    bool  // 48-bit chunk addresses
	chunkBits  uint8 // log2 of the chunk size in bytes
	xattrOff   int64 // of the inline attributes
	xattrSize  int64 // 0: none
	dataOff    int64 // plain, inline: of the first block; -1 is a hole
	tailOff    int64 // inline: of the tail; chunked: of the first index
}

// Open reads and checks the superblock of the image of size bytes in r. It
// refuses images that need features this package does not read.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	sb, err := readSuper(r, size)
	if err != nil {
		return nil, fmt.Errorf("open EROFS image: %w", err)
	}
	im := &Image{r: r, size: size, sb: sb}
	im.blocks.New = func() any {
		b := make([]byte, max(1<<sb.blockBits, mergeChunks*8))
		return &b
	}
	if err := im.loadPrefixes(); err != nil {
		return nil, fmt.Errorf("open EROFS image: %w", err)
	}
	root, err := im.Inode(sb.rootNID)
	if err != nil {
		return nil, fmt.Errorf("open EROFS image: root: %w", err)
	}
	if root.Mode&ModeType != ModeDir {
		return nil, fmt.Errorf("open EROFS image: %w", corrupt("root inode %d has mode %#o", root.NID, root.Mode))
	}
	return im, nil
}

// Root is the node number of the root directory.
func (im *Image) Root() uint64 { return im.sb.rootNID }

// StatFS describes the image as a whole.
func (im *Image) StatFS() StatFS {
	return StatFS{
		BlockSize:   im.blockSize(),
		Blocks:      im.sb.blocks,
		Inodes:      im.sb.inodes,
		UUID:        im.sb.uuid,
		VolumeName:  im.sb.volumeName,
		BuildTime:   time.Unix(im.sb.buildTime, int64(im.sb.fixedNsec)),
		Checksummed: im.sb.compat&compatChecksum != 0,
	}
}

func (im *Image) blockSize() int64 { return 1 << im.sb.blockBits }

// read fills p from the image, inside its bounds or not at all.
func (im *Image) read(p []byte, off int64) error {
	if off < 0 || off > im.size-int64(len(p)) {
		return corrupt("%d bytes at %d lie outside the image of %d bytes", len(p), off, im.size)
	}
	return readFull(im.r, p, off)
}

// inside reports whether n bytes at off lie in the image.
func (im *Image) inside(off, n int64) bool {
	return off >= 0 && n >= 0 && n <= im.size && off <= im.size-n
}

// Inode reads and checks inode nid.
func (im *Image) Inode(nid uint64) (Inode, error) {
	ino, err := im.inode(nid)
	if err != nil {
		return Inode{}, fmt.Errorf("read inode %d: %w", nid, err)
	}
	return ino, nil
}

func (im *Image) inode(nid uint64) (Inode, error) {
	if nid > uint64(im.size-im.sb.metaOffset)>>slotBits {
		return Inode{}, corrupt("the node number lies behind the end of the image")
	}
	off := im.sb.metaOffset + int64(nid<<slotBits)
	// Extended inodes are the common case: one read brings them whole, and
	// the image may end behind a compact one.
	var raw [inodeExtendedSize]byte
	b := raw[:min(int64(len(raw)), im.size-off)]
	if len(b) < inodeCompactSize {
		return Inode{}, corrupt("the image ends within the inode")
	}
	if err := im.read(b, off); err != nil {
		return Inode{}, err
	}
	ino := Inode{NID: nid, Ino: nid}
	var err error
	if le.Uint16(b[inodeFormat:])&formatExtended != 0 {
		if len(b) < inodeExtendedSize {
			return Inode{}, corrupt("the image ends within the inode")
		}
		err = im.decodeExtended(&ino, b, off)
	} else {
		err = im.decodeCompact(&ino, b, off)
	}
	return ino, err
}

func (im *Image) decodeExtended(ino *Inode, b []byte, off int64) error {
	size := le.Uint64(b[inodeSize:])
	if size > 1<<62 {
		return corrupt("size %d", size)
	}
	nsec := le.Uint32(b[inodeMtimeNsec:])
	if nsec >= 1e9 {
		return corrupt("modification time has %d nanoseconds", nsec)
	}
	ino.Mode = uint32(le.Uint16(b[inodeMode:]))
	ino.Size = int64(size)
	ino.UID = le.Uint32(b[inodeUID:])
	ino.GID = le.Uint32(b[inodeGID:])
	ino.Nlink = le.Uint32(b[inodeNlink:])
	ino.Mtime = time.Unix(int64(le.Uint64(b[inodeMtime:])), int64(nsec))
	return im.decodeBody(ino, b, off+inodeExtendedSize, uint64(le.Uint16(b[inodeNB:])))
}

func (im *Image) decodeCompact(ino *Inode, b []byte, off int64) error {
	ino.Mode = uint32(le.Uint16(b[inodeMode:]))
	ino.Size = int64(le.Uint32(b[inodeSize:]))
	ino.UID = uint32(le.Uint16(b[inodeUID:]))
	ino.GID = uint32(le.Uint16(b[inodeCompactGID:]))
	// Before the 48-bit feature the field of the time was reserved and zero.
	ino.Mtime = time.Unix(im.sb.epoch+int64(le.Uint32(b[inodeCompactMtime:])), int64(im.sb.fixedNsec))
	nb := uint64(le.Uint16(b[inodeNB:]))
	if le.Uint16(b[inodeFormat:])&formatNlink1OrDot != 0 && ino.Mode&ModeType != ModeDir {
		ino.Nlink = 1
		return im.decodeBody(ino, b, off+inodeCompactSize, nb)
	}
	ino.Nlink = uint32(nb)
	return im.decodeBody(ino, b, off+inodeCompactSize, 0)
}

// decodeBody decodes what follows from the format, the mode and the union of
// both inode versions. end is where the fixed part ends, blockHigh the high
// half of a block address.
func (im *Image) decodeBody(ino *Inode, b []byte, end int64, blockHigh uint64) error {
	format := le.Uint16(b[inodeFormat:])
	if format&^formatKnown != 0 {
		return unsupported("inode format %#x", format)
	}
	if fileType(ino.Mode) == 0 {
		return corrupt("mode %#o has no file type", ino.Mode)
	}
	ino.layout = uint8(format >> formatLayoutShift & formatLayoutMask)
	ino.dotOmitted = format&formatNlink1OrDot != 0 && ino.Mode&ModeType == ModeDir
	if n := int64(le.Uint16(b[inodeXattrCount:])); n != 0 {
		ino.xattrOff, ino.xattrSize = end, xattrHeaderSize+4*(n-1)
		if !im.inside(ino.xattrOff, ino.xattrSize) {
			return corrupt("%d bytes of extended attributes at %d lie outside the image", ino.xattrSize, ino.xattrOff)
		}
		end += ino.xattrSize
	}
	u := le.Uint32(b[inodeU:])
	switch ino.Mode & ModeType {
	case ModeChar, ModeBlock:
		ino.Major, ino.Minor = decodeDev(u)
		return nil
	case ModeFIFO, ModeSocket:
		return nil
	case ModeSymlink:
		if ino.Size == 0 || ino.Size > MaxPathBytes {
			return corrupt("symbolic link of %d bytes", ino.Size)
		}
	}
	switch ino.layout {
	case layoutPlain, layoutInline:
		return im.decodeFlat(ino, u, blockHigh, end)
	case layoutChunked:
		return im.decodeChunked(ino, u, end)
	case layoutFullIndex, layoutCompactIndex:
		return unsupported("compressed file data (layout %d)", ino.layout)
	}
	return unsupported("data layout %d", ino.layout)
}

// decodeFlat checks that all data of a plain or inline inode lie in the image.
func (im *Image) decodeFlat(ino *Inode, blockLow uint32, blockHigh uint64, end int64) error {
	block, null := uint64(blockLow), uint64(nullBlock32)
	if im.sb.incompat&incompat48Bit != 0 {
		block, null = block|blockHigh<<32, nullBlock48
	}
	flat := ino.Size
	if ino.layout == layoutInline {
		ino.tailOff = end
		flat = 0
		if ino.Size > 0 {
			flat = (ino.Size - 1) &^ (im.blockSize() - 1)
		}
		tail := ino.Size - flat
		if end&(im.blockSize()-1)+tail > im.blockSize() {
			return corrupt("inline data of %d bytes at %d cross a block boundary", tail, end)
		}
		if !im.inside(end, tail) {
			return corrupt("inline data of %d bytes at %d lie outside the image", tail, end)
		}
	}
	if flat == 0 {
		return nil
	}
	if block == null && ino.layout == layoutPlain && ino.Mode&ModeType == ModeRegular {
		ino.dataOff = -1
		return nil
	}
	if block > uint64(im.size)>>im.sb.blockBits {
		return corrupt("data begin at block %d, behind the end of the image", block)
	}
	ino.dataOff = int64(block << im.sb.blockBits)
	if !im.inside(ino.dataOff, flat) {
		return corrupt("%d bytes of data at %d lie outside the image of %d bytes", flat, ino.dataOff, im.size)
	}
	return nil
}

// decodeChunked checks that the whole chunk index lies in the image, which
// bounds the number of chunks by the size of the image.
func (im *Image) decodeChunked(ino *Inode, format uint32, end int64) error {
	if ino.Mode&ModeType != ModeRegular {
		return unsupported("chunk-based data of a directory or symbolic link")
	}
	if format&0xffff&^chunkKnown != 0 {
		return unsupported("chunk format %#x", format&0xffff)
	}
	ino.chunkBits = im.sb.blockBits + uint8(format&chunkBitsMask)
	ino.chunkWide = format&chunkIndexes != 0
	ino.chunk48 = format&chunk48Bit != 0
	ino.tailOff = roundUp(end, ino.chunkUnit())
	if ino.Size == 0 {
		return nil
	}
	chunks := (ino.Size-1)>>ino.chunkBits + 1
	if chunks > im.size || !im.inside(ino.tailOff, chunks*ino.chunkUnit()) {
		return corrupt("%d chunk indexes at %d lie outside the image", chunks, ino.tailOff)
	}
	return nil
}

// chunkUnit is the size of one chunk index in bytes.
func (ino *Inode) chunkUnit() int64 {
	if ino.chunkWide {
		return 8
	}
	return 4
}
