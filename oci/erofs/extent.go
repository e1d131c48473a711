// SPDX-License-Identifier: Apache-2.0

// File data: where it lies, and reading it.

package erofs

import (
	"fmt"
	"io"
)

// pageSize is the granularity of mmap on the hosts we map images on.
const pageSize = 4096

// mergeChunks bounds the chunk indexes one Extent call looks at.
const mergeChunks = 256

// Extent is a run of a file's bytes that lies contiguously in the image.
type Extent struct {
	Logical, Length int64
	Physical        int64 // offset in the image; -1 is a hole, which reads as zeros
	// Mappable says that the extent begins on a page boundary, in the file
	// and in the image, that it ends on one or at the end of the file, and
	// that all its pages lie whole inside the image.
	Mappable bool
}

// Extent returns the extent that covers byte off of a regular file, directory
// or symbolic link, and io.EOF at or behind the end.
func (im *Image) Extent(ino *Inode, off int64) (Extent, error) {
	switch ino.Mode & ModeType {
	case ModeRegular, ModeDir, ModeSymlink:
	default:
		return Extent{}, fmt.Errorf("map inode %d: %w: it has no data (mode %#o)", ino.NID, ErrInvalid, ino.Mode)
	}
	if off < 0 {
		return Extent{}, fmt.Errorf("map inode %d: %w: offset %d", ino.NID, ErrInvalid, off)
	}
	if off >= ino.Size {
		return Extent{}, io.EOF
	}
	e, err := im.extent(ino, off)
	if err != nil {
		return Extent{}, fmt.Errorf("map inode %d at %d: %w", ino.NID, off, err)
	}
	end := e.Logical + e.Length
	pages := roundUp(e.Length, pageSize)
	e.Mappable = e.Physical >= 0 && e.Physical%pageSize == 0 && e.Logical%pageSize == 0 &&
		(end%pageSize == 0 || end == ino.Size) && im.inside(e.Physical, pages)
	return e, nil
}

func (im *Image) extent(ino *Inode, off int64) (Extent, error) {
	switch ino.layout {
	case layoutChunked:
		return im.chunkExtent(ino, off)
	case layoutInline:
		flat := (ino.Size - 1) &^ (im.blockSize() - 1)
		if off >= flat {
			return Extent{Logical: flat, Length: ino.Size - flat, Physical: ino.tailOff}, nil
		}
		return Extent{Length: flat, Physical: ino.dataOff}, nil
	}
	return Extent{Length: ino.Size, Physical: ino.dataOff}, nil
}

// chunkExtent maps off by the chunk index, and joins the following chunks as
// long as they continue the first.
func (im *Image) chunkExtent(ino *Inode, off int64) (Extent, error) {
	first := off >> ino.chunkBits
	count := min((ino.Size-1)>>ino.chunkBits+1-first, mergeChunks)
	unit := ino.chunkUnit()
	buf := im.blocks.Get().(*[]byte)
	defer im.blocks.Put(buf)
	b := (*buf)[:count*unit]
	if err := im.read(b, ino.tailOff+first*unit); err != nil {
		return Extent{}, fmt.Errorf("chunk index: %w", err)
	}
	e := Extent{Logical: first << ino.chunkBits}
	for i := range count {
		physical, err := im.chunkPhysical(ino, b[i*unit:])
		if err != nil {
			return Extent{}, fmt.Errorf("chunk %d: %w", first+i, err)
		}
		if i == 0 {
			e.Physical = physical
		} else if !continues(e, physical) {
			break
		}
		n := min(int64(1)<<ino.chunkBits, ino.Size-e.Logical-e.Length)
		if physical >= 0 && !im.inside(physical, n) {
			if i > 0 {
				break // reported when it is asked for
			}
			return Extent{}, corrupt("chunk %d: %d bytes at %d lie outside the image", first, n, physical)
		}
		e.Length += n
	}
	return e, nil
}

// continues reports whether a chunk at physical goes on where e ends.
func continues(e Extent, physical int64) bool {
	if e.Physical < 0 || physical < 0 {
		return e.Physical < 0 && physical < 0
	}
	return physical == e.Physical+e.Length
}

// chunkPhysical decodes one chunk index: an offset in the image, or -1. The
// device number of an index is ignored, as the kernel does for images without
// a device table.
func (im *Image) chunkPhysical(ino *Inode, b []byte) (int64, error) {
	var block uint64
	null := uint64(nullBlock32)
	if ino.chunkWide {
		block = uint64(le.Uint32(b[4:]))
		if ino.chunk48 {
			block |= uint64(le.Uint16(b)) << 32
			null = nullBlock48
		}
	} else {
		block = uint64(le.Uint32(b))
	}
	if block == null {
		return -1, nil
	}
	if block > uint64(im.size)>>im.sb.blockBits {
		return 0, corrupt("block %d lies behind the end of the image", block)
	}
	return int64(block << im.sb.blockBits), nil
}

// ReadAt reads a file's bytes from off, as io.ReaderAt does: less than len(p)
// only with an error, which at the end of the file is io.EOF.
func (im *Image) ReadAt(ino *Inode, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		e, err := im.Extent(ino, off+int64(done))
		if err != nil {
			return done, err
		}
		skip := off + int64(done) - e.Logical
		part := p[done:]
		if left := e.Length - skip; int64(len(part)) > left {
			part = part[:left]
		}
		if e.Physical < 0 {
			clear(part)
		} else if err := im.read(part, e.Physical+skip); err != nil {
			return done, fmt.Errorf("read inode %d: %w", ino.NID, err)
		}
		done += len(part)
	}
	return done, nil
}

// Readlink returns the target of a symbolic link.
func (im *Image) Readlink(ino *Inode) (string, error) {
	if ino.Mode&ModeType != ModeSymlink {
		return "", fmt.Errorf("read link %d: %w: mode %#o", ino.NID, ErrInvalid, ino.Mode)
	}
	b := make([]byte, ino.Size) // at most MaxPathBytes, checked by Inode
	if _, err := im.ReadAt(ino, b, 0); err != nil {
		return "", fmt.Errorf("read link: %w", err)
	}
	for _, c := range b {
		if c == 0 {
			return "", fmt.Errorf("read link %d: %w", ino.NID, corrupt("the target contains a NUL"))
		}
	}
	return string(b), nil
}
