// SPDX-License-Identifier: Apache-2.0

// Extended attributes of an image: inline behind the inode, or shared, and
// named by a short prefix index or by one of the image's long prefixes.

package erofs

import (
	"fmt"
	"io"
)

// xattrEntry is one attribute as found in an image.
type xattrEntry struct {
	name      string
	valueOff  int64
	valueSize int
}

// ListXattr returns the names of all attributes of an inode.
func (im *Image) ListXattr(ino *Inode) ([]string, error) {
	var names []string
	total := 0
	err := im.eachXattr(ino, func(e xattrEntry) (bool, error) {
		if total += len(e.name) + 1; total > MaxXattrListBytes {
			return false, corrupt("more than %d bytes of names", MaxXattrListBytes)
		}
		names = append(names, e.name)
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list attributes of inode %d: %w", ino.NID, err)
	}
	return names, nil
}

// GetXattr returns the value of one attribute, or ErrNoXattr.
func (im *Image) GetXattr(ino *Inode, name string) ([]byte, error) {
	var value []byte
	err := im.eachXattr(ino, func(e xattrEntry) (bool, error) {
		if e.name != name {
			return true, nil
		}
		value = make([]byte, e.valueSize) // at most MaxXattrValueBytes
		return false, im.read(value, e.valueOff)
	})
	if err == nil && value == nil {
		err = ErrNoXattr
	}
	if err != nil {
		return nil, fmt.Errorf("get attribute %q of inode %d: %w", name, ino.NID, err)
	}
	return value, nil
}

// eachXattr calls fn for every attribute until it returns false.
func (im *Image) eachXattr(ino *Inode, fn func(xattrEntry) (bool, error)) error {
	if ino.xattrSize == 0 {
		return nil
	}
	var head [xattrHeaderSize]byte
	if err := im.read(head[:], ino.xattrOff); err != nil {
		return err
	}
	shared := int64(head[xattrSharedCount])
	pos, end := ino.xattrOff+xattrHeaderSize+4*shared, ino.xattrOff+ino.xattrSize
	if pos > end {
		return corrupt("%d shared attributes in a list of %d bytes", shared, ino.xattrSize)
	}
	for pos < end {
		e, next, err := im.xattrEntry(pos, end)
		if err != nil {
			return err
		}
		if more, err := fn(e); err != nil || !more {
			return err
		}
		pos = next
	}
	for i := range shared {
		var id [4]byte
		if err := im.read(id[:], ino.xattrOff+xattrHeaderSize+4*i); err != nil {
			return err
		}
		e, _, err := im.xattrEntry(im.sb.xattrOffset+4*int64(le.Uint32(id[:])), im.size)
		if err != nil {
			return fmt.Errorf("shared attribute %d: %w", le.Uint32(id[:]), err)
		}
		if more, err := fn(e); err != nil || !more {
			return err
		}
	}
	return nil
}

// xattrEntry decodes the entry at pos, which must end before end, and returns
// where the next one begins.
func (im *Image) xattrEntry(pos, end int64) (xattrEntry, int64, error) {
	var b [xattrEntrySize + MaxXattrNameBytes]byte
	if end-pos < xattrEntrySize {
		return xattrEntry{}, 0, corrupt("attribute at %d ends behind its list", pos)
	}
	n := min(int64(len(b)), end-pos)
	if err := im.read(b[:n], pos); err != nil {
		return xattrEntry{}, 0, err
	}
	nameLen, valueSize := int64(b[0]), int64(le.Uint16(b[2:]))
	next := roundUp(pos+xattrEntrySize+nameLen+valueSize, 4)
	if next > end {
		return xattrEntry{}, 0, corrupt("attribute at %d ends behind its list", pos)
	}
	prefix, err := im.xattrPrefix(b[1])
	if err != nil {
		return xattrEntry{}, 0, err
	}
	e := xattrEntry{
		name:      prefix + string(b[xattrEntrySize:xattrEntrySize+nameLen]),
		valueOff:  pos + xattrEntrySize + nameLen,
		valueSize: int(valueSize),
	}
	return e, next, nil
}

// xattrPrefix resolves a prefix index.
func (im *Image) xattrPrefix(index uint8) (string, error) {
	if index&xattrLongPrefix != 0 {
		if i := int(index &^ xattrLongPrefix); i < len(im.prefixes) {
			return im.prefixes[i], nil
		}
		return "", corrupt("attribute with long name prefix %d of %d", index&^xattrLongPrefix, len(im.prefixes))
	}
	if int(index) >= len(shortPrefixes) || index == 0 {
		return "", corrupt("attribute with name prefix %d", index)
	}
	return shortPrefixes[index], nil
}

// loadPrefixes reads the table of long name prefixes: records of a 16-bit
// length, a short prefix index and the rest of the prefix, each aligned to 4
// bytes, in the image itself or in the packed inode.
func (im *Image) loadPrefixes() error {
	if im.sb.incompat&incompatPrefixes == 0 || im.sb.prefixCount == 0 {
		return nil
	}
	if im.sb.prefixCount > xattrLongPrefix {
		return corrupt("%d long attribute name prefixes", im.sb.prefixCount)
	}
	read := im.read
	if im.sb.incompat&incompatFragments != 0 && im.sb.compat&compatPlainPrefix == 0 && im.sb.packedNID != 0 {
		packed, err := im.Inode(im.sb.packedNID)
		if err != nil {
			return fmt.Errorf("long attribute name prefixes: packed inode: %w", err)
		}
		read = func(p []byte, off int64) error {
			n, err := im.ReadAt(&packed, p, off)
			if err == io.EOF {
				err = corrupt("the packed inode ends after %d bytes", off+int64(n))
			}
			return err
		}
	}
	pos := im.sb.prefixStart
	for i := range im.sb.prefixCount {
		var head [3]byte
		if err := read(head[:], pos); err != nil {
			return fmt.Errorf("long attribute name prefix %d: %w", i, err)
		}
		n := int(le.Uint16(head[:])) - 1
		if n < 0 || n > MaxXattrNameBytes {
			return corrupt("long attribute name prefix %d has %d bytes", i, n)
		}
		if head[2]&xattrLongPrefix != 0 {
			return corrupt("long attribute name prefix %d is based on another long one", i)
		}
		base, err := im.xattrPrefix(head[2])
		if err != nil {
			return err
		}
		infix := make([]byte, n)
		if err := read(infix, pos+3); err != nil {
			return fmt.Errorf("long attribute name prefix %d: %w", i, err)
		}
		im.prefixes = append(im.prefixes, base+string(infix))
		pos = roundUp(pos+3+int64(n), 4)
	}
	return nil
}
