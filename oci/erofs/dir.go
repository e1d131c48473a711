// SPDX-License-Identifier: Apache-2.0

// Directories: blocks of entries, sorted by name throughout.
//
//	block: | entry 0 | entry 1 | … | name 0 | name 1 | … | zeros |
//	         12 bytes each            entry 0's name offset / 12 is their number

package erofs

import (
	"bytes"
	"fmt"
)

// Dirent is one entry of a directory.
type Dirent struct {
	Name string
	NID  uint64
	Type uint8 // DT_* of getdents64
	Next int64 // the position behind this entry
}

// Lookup finds name in a directory, by binary search. It returns ErrNotExist
// when there is none.
func (im *Image) Lookup(dir *Inode, name string) (nid uint64, typ uint8, err error) {
	if err := checkDir(dir); err != nil {
		return 0, 0, fmt.Errorf("look up %q: %w", name, err)
	}
	if dir.dotOmitted && name == "." {
		return dir.NID, TypeDir, nil
	}
	nid, typ, err = im.lookup(dir, name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up %q in directory %d: %w", name, dir.NID, err)
	}
	return nid, typ, nil
}

func (im *Image) lookup(dir *Inode, name string) (uint64, uint8, error) {
	buf, best := im.blocks.Get().(*[]byte), im.blocks.Get().(*[]byte)
	defer func() { im.blocks.Put(buf); im.blocks.Put(best) }()

	// The last block whose first name is not greater than name.
	var found dirBlock
	lo, hi := int64(0), (dir.Size+im.blockSize()-1)>>im.sb.blockBits
	for lo < hi {
		mid := lo + (hi-lo)/2
		blk, err := im.dirBlock(dir, mid, *buf)
		if err != nil {
			return 0, 0, err
		}
		first, err := blk.name(0)
		if err != nil {
			return 0, 0, err
		}
		if compareName(first, name) > 0 {
			hi = mid
			continue
		}
		lo = mid + 1
		found = blk
		buf, best = best, buf
	}
	from, to := 0, found.count
	for from < to {
		mid := from + (to-from)/2
		got, err := found.name(mid)
		if err != nil {
			return 0, 0, err
		}
		switch c := compareName(got, name); {
		case c == 0:
			nid, typ := found.target(mid)
			return nid, typ, nil
		case c < 0:
			from = mid + 1
		default:
			to = mid
		}
	}
	return 0, 0, ErrNotExist
}

// ReadDir calls fn for each entry from position pos on, "." and ".." among
// them, until fn returns false. Position 0 is the beginning; each entry tells
// the position behind it. It returns the position to go on from: behind the
// last entry that fn accepted.
func (im *Image) ReadDir(dir *Inode, pos int64, fn func(d Dirent) bool) (int64, error) {
	if err := checkDir(dir); err != nil {
		return pos, fmt.Errorf("read directory: %w", err)
	}
	pos, err := im.readDir(dir, pos, fn)
	if err != nil {
		return pos, fmt.Errorf("read directory %d: %w", dir.NID, err)
	}
	return pos, nil
}

func (im *Image) readDir(dir *Inode, pos int64, fn func(d Dirent) bool) (int64, error) {
	if pos < 0 {
		return pos, fmt.Errorf("%w: position %d", ErrInvalid, pos)
	}
	buf := im.blocks.Get().(*[]byte)
	defer im.blocks.Put(buf)
	for pos < dir.Size {
		index := pos >> im.sb.blockBits
		start := index << im.sb.blockBits
		blk, err := im.dirBlock(dir, index, *buf)
		if err != nil {
			return pos, err
		}
		// A position is a hint from outside: anything else than the start
		// of an entry means the entry that begins at or before it.
		for i := int((pos - start) / direntSize); i < blk.count; i++ {
			name, err := blk.name(i)
			if err != nil {
				return pos, err
			}
			next := start + int64(i+1)*direntSize
			if i+1 == blk.count {
				next = start + im.blockSize()
			}
			nid, typ := blk.target(i)
			if !fn(Dirent{Name: string(name), NID: nid, Type: typ, Next: next}) {
				return pos, nil
			}
			pos = next
		}
		pos = start + im.blockSize()
	}
	// A "." that is not stored comes last, as the kernel has it.
	end := roundUp(dir.Size, im.blockSize())
	if dir.dotOmitted && pos <= end && fn(Dirent{Name: ".", NID: dir.NID, Type: TypeDir, Next: end + 1}) {
		pos = end + 1
	}
	return pos, nil
}

func checkDir(dir *Inode) error {
	if dir.Mode&ModeType != ModeDir {
		return fmt.Errorf("inode %d: %w", dir.NID, ErrNotDir)
	}
	return nil
}

// dirBlock is one block of entries; its bytes belong to the caller's buffer.
type dirBlock struct {
	b     []byte
	count int
}

// dirBlock reads block index of a directory into buf. Entries are checked one
// by one as they are used.
func (im *Image) dirBlock(dir *Inode, index int64, buf []byte) (dirBlock, error) {
	off := index << im.sb.blockBits
	b := buf[:min(im.blockSize(), dir.Size-off)]
	if _, err := im.ReadAt(dir, b, off); err != nil {
		return dirBlock{}, err
	}
	if len(b) < direntSize {
		return dirBlock{}, corrupt("directory block %d has %d bytes", index, len(b))
	}
	names := int(le.Uint16(b[direntNameOff:]))
	if names == 0 || names%direntSize != 0 || names >= len(b) {
		return dirBlock{}, corrupt("directory block %d: names begin at %d of %d", index, names, len(b))
	}
	return dirBlock{b: b, count: names / direntSize}, nil
}

// name returns the checked name of entry i.
func (d dirBlock) name(i int) ([]byte, error) {
	start := int(le.Uint16(d.b[i*direntSize+direntNameOff:]))
	end := len(d.b)
	last := i+1 == d.count
	if !last {
		end = int(le.Uint16(d.b[(i+1)*direntSize+direntNameOff:]))
	}
	if start < d.count*direntSize || end > len(d.b) || start >= end {
		return nil, corrupt("directory entry %d: name from %d to %d", i, start, end)
	}
	name := d.b[start:end]
	if n := bytes.IndexByte(name, 0); n >= 0 {
		if !last {
			return nil, corrupt("directory entry %d: name contains a NUL", i)
		}
		name = name[:n]
	}
	if len(name) == 0 || len(name) > MaxNameBytes || bytes.IndexByte(name, '/') >= 0 {
		return nil, corrupt("directory entry %d: bad name %.40q (%d bytes)", i, name, len(name))
	}
	return name, nil
}

// target returns what entry i points to.
func (d dirBlock) target(i int) (nid uint64, typ uint8) {
	b := d.b[i*direntSize:]
	if t := int(b[direntType]); t < len(direntTypes) {
		typ = direntTypes[t]
	}
	return le.Uint64(b[direntNID:]), typ
}

// compareName orders names as the format does: by bytes, shorter first. It is
// spelled with operators because those compare without a copy of a.
func compareName(a []byte, b string) int {
	switch {
	case string(a) == b:
		return 0
	case string(a) < b:
		return -1
	}
	return 1
}
