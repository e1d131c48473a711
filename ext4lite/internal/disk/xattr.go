// SPDX-License-Identifier: Apache-2.0

// Extended attributes: the entry tables in inodes and in attribute blocks.

package disk

import (
	"bytes"
	"cmp"
	"slices"
)

// Name indexes: the prefixes that entries do not spell out.
const (
	XattrUser       = 1
	XattrACLAccess  = 2
	XattrACLDefault = 3
	XattrTrusted    = 4
	XattrSecurity   = 6
	XattrSystem     = 7
)

const (
	xattrEntrySize   = 16
	xattrBlockHeader = 32
	xattrInodeHeader = 4
)

// Xattr is one attribute: a name without its prefix, and a value.
type Xattr struct {
	Index uint8
	Name  string
	Value []byte
}

// DecodeInodeXattrs reads the attribute area of an inode. An area without
// magic is empty.
func DecodeInodeXattrs(area []byte, ino uint32) ([]Xattr, error) {
	if len(area) < xattrInodeHeader || le.Uint32(area) != XattrMagic {
		return nil, nil
	}
	return decodeXattrs(area[xattrInodeHeader:], 0, ino)
}

// DecodeXattrBlock reads an attribute block and its reference count.
func DecodeXattrBlock(block []byte, number uint64, ino uint32, g *Geometry) (list []Xattr, refs uint32, err error) {
	where := "attribute block of inode " + utoa(ino)
	if le.Uint32(block) != XattrMagic || le.Uint32(block[8:]) != 1 {
		return nil, 0, Corrupt(where, "no magic in block %d", number)
	}
	if g.Csum {
		if got, want := xattrBlockSum(block, number, g), le.Uint32(block[0x10:]); got != want {
			return nil, 0, Corrupt(where, "checksum %#08x, computed %#08x", want, got)
		}
	}
	refs = le.Uint32(block[4:])
	if refs == 0 {
		return nil, 0, Corrupt(where, "no references")
	}
	list, err = decodeXattrs(block[xattrBlockHeader:], -xattrBlockHeader, ino)
	return list, refs, err
}

// ParseXattrBlock reads the list of a block that is cached: its checksum is
// stale while it is being changed.
func ParseXattrBlock(block []byte, ino uint32) ([]Xattr, error) {
	if le.Uint32(block) != XattrMagic || le.Uint32(block[4:]) == 0 {
		return nil, Corrupt("attribute block of inode "+utoa(ino), "no magic")
	}
	return decodeXattrs(block[xattrBlockHeader:], -xattrBlockHeader, ino)
}

// decodeXattrs reads entries from the start of area. Value offsets count from
// the first entry in inodes and from the block's start in blocks; bias is what
// turns one into an index into area.
func decodeXattrs(area []byte, bias int, ino uint32) ([]Xattr, error) {
	where := "attributes of inode " + utoa(ino)
	var out []Xattr
	for p := area; ; {
		if len(p) < 4 {
			return nil, Corrupt(where, "entries without end")
		}
		if le.Uint32(p) == 0 {
			return out, nil
		}
		if len(p) < xattrEntrySize {
			return nil, Corrupt(where, "entry cut off")
		}
		n := int(p[0])
		off, size := int(le.Uint16(p[2:])), int64(le.Uint32(p[8:]))
		if le.Uint32(p[4:]) != 0 {
			return nil, Corrupt(where, "value in another inode, without the ea_inode feature")
		}
		next := (xattrEntrySize + n + 3) &^ 3
		if next > len(p) {
			return nil, Corrupt(where, "name of %d bytes cut off", n)
		}
		x := Xattr{Index: p[1], Name: string(p[xattrEntrySize : xattrEntrySize+n])}
		if size > 0 {
			at := int64(off + bias)
			if at < 0 || at+size > int64(len(area)) {
				return nil, Corrupt(where, "value of %d bytes at %d", size, off)
			}
			x.Value = bytes.Clone(area[at : at+size])
		}
		out = append(out, x)
		p = p[next:]
	}
}

func pad4(n int) int { return (n + 3) &^ 3 }

// Space is the room an attribute takes: entry, name and value.
func (x Xattr) Space() int { return pad4(xattrEntrySize+len(x.Name)) + pad4(len(x.Value)) }

func xattrSpace(list []Xattr) int {
	n := 4 // the end mark
	for _, x := range list {
		n += x.Space()
	}
	return n
}

// FitInode tells whether a list fits an inode's attribute area.
func FitInode(list []Xattr, area int) bool { return xattrInodeHeader+xattrSpace(list) <= area }

// FitXattrBlock tells whether a list fits an attribute block.
func FitXattrBlock(list []Xattr, g *Geometry) bool {
	return xattrBlockHeader+xattrSpace(list) <= g.BlockSize
}

// EncodeInodeXattrs fills an inode's attribute area. The list fits.
func EncodeInodeXattrs(area []byte, list []Xattr) {
	clear(area)
	if len(list) == 0 {
		return
	}
	le.PutUint32(area, XattrMagic)
	encodeXattrs(area[xattrInodeHeader:], 0, list)
}

// EncodeXattrBlock fills an attribute block. The list fits.
func EncodeXattrBlock(block []byte, list []Xattr) {
	clear(block)
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Xattr) int { // the order the kernel searches by
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	le.PutUint32(block, XattrMagic)
	le.PutUint32(block[4:], 1)
	le.PutUint32(block[8:], 1)
	le.PutUint32(block[0xC:], encodeXattrs(block[xattrBlockHeader:], xattrBlockHeader, list))
}

// encodeXattrs writes entries from the front and values from the back, and
// answers with the hash of all entries.
func encodeXattrs(area []byte, bias int, list []Xattr) uint32 {
	p, end, all := area, len(area)&^3, uint32(0)
	for _, x := range list {
		p[0], p[1] = byte(len(x.Name)), x.Index
		if len(x.Value) > 0 {
			end -= pad4(len(x.Value))
			copy(area[end:], x.Value)
			le.PutUint16(p[2:], uint16(end+bias))
		}
		le.PutUint32(p[8:], uint32(len(x.Value)))
		h := xattrHash(x.Name, area[end:end+pad4(len(x.Value))])
		le.PutUint32(p[0xC:], h)
		copy(p[xattrEntrySize:], x.Name)
		p = p[pad4(xattrEntrySize+len(x.Name)):]
		all = all<<16 ^ all>>16 ^ h
	}
	return all
}

func xattrHash(name string, value []byte) uint32 {
	h := uint32(0)
	for i := range len(name) {
		h = h<<5 ^ h>>27 ^ uint32(name[i])
	}
	for ; len(value) >= 4; value = value[4:] {
		h = h<<16 ^ h>>16 ^ le.Uint32(value)
	}
	return h
}

// XattrRefs reads the reference count of an attribute block.
func XattrRefs(block []byte) uint32 { return le.Uint32(block[4:]) }

// SetXattrRefs changes the reference count of an attribute block.
func SetXattrRefs(block []byte, refs uint32) { le.PutUint32(block[4:], refs) }

// SetXattrSum stores an attribute block's checksum.
func SetXattrSum(block []byte, number uint64, g *Geometry) {
	le.PutUint32(block[0x10:], xattrBlockSum(block, number, g))
}

func xattrBlockSum(block []byte, number uint64, g *Geometry) uint32 {
	c := CRC32CU64(g.Seed, number)
	c = CRC32C(c, block[:0x10])
	c = CRC32C(c, zero8[:4])
	return CRC32C(c, block[0x14:])
}
