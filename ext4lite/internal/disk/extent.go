// SPDX-License-Identifier: Apache-2.0

// Extent nodes: header, entries, index entries and the tail checksum.

package disk

const (
	// ExtentMagic is eh_magic.
	ExtentMagic = 0xF30A
	// MaxExtentDepth is the deepest tree: with 1 KiB blocks five levels map
	// 2^32 blocks one by one.
	MaxExtentDepth = 5
	// MaxExtentLen is the longest written extent; an unwritten one is one
	// block shorter because the length's top value marks it.
	MaxExtentLen = 32768
	// MaxUnwrittenLen is the longest unwritten extent.
	MaxUnwrittenLen = MaxExtentLen - 1
	// MaxLogical is the largest logical block number an extent can start at.
	MaxLogical = 1<<32 - 2

	extentSize = 12
)

// Extent maps Len blocks from Logical to Physical.
type Extent struct {
	Logical   uint32
	Len       uint32
	Physical  uint64
	Unwritten bool
}

// End is the first logical block after the extent.
func (e Extent) End() uint64 { return uint64(e.Logical) + uint64(e.Len) }

// Node is an extent node: the 60 bytes in an inode or a block. Its entries
// are edited in place; callers check a node once with [Node.Check].
type Node []byte

// Entries is the number of entries in use.
func (n Node) Entries() int { return int(le.Uint16(n[2:])) }

// Max is the number of entries that fit.
func (n Node) Max() int { return int(le.Uint16(n[4:])) }

// Depth is the distance to the leaves: 0 in a leaf.
func (n Node) Depth() int { return int(le.Uint16(n[6:])) }

// SetEntries stores the number of entries in use.
func (n Node) SetEntries(v int) { le.PutUint16(n[2:], uint16(v)) }

// SetDepth stores the depth.
func (n Node) SetDepth(v int) { le.PutUint16(n[6:], uint16(v)) }

// Init makes an empty node of the given depth.
func (n Node) Init(depth int, g *Geometry) {
	clear(n)
	le.PutUint16(n[0:], ExtentMagic)
	m := (len(n) - extentSize) / extentSize
	if len(n) > MapSize && g.Csum && len(n)%extentSize < 4 {
		m = (len(n) - extentSize - 4) / extentSize
	}
	le.PutUint16(n[4:], uint16(m))
	le.PutUint16(n[6:], uint16(depth))
}

func (n Node) at(i int) []byte { return n[extentSize*(i+1) : extentSize*(i+2)] }

// Key is the first logical block of entry i, in leaves and index nodes alike.
func (n Node) Key(i int) uint32 { return le.Uint32(n.at(i)) }

// SetKey changes the first logical block of entry i.
func (n Node) SetKey(i int, v uint32) { le.PutUint32(n.at(i), v) }

// Extent reads entry i of a leaf.
func (n Node) Extent(i int) Extent {
	p := n.at(i)
	l := uint32(le.Uint16(p[4:]))
	e := Extent{Logical: le.Uint32(p), Len: l, Physical: uint64(le.Uint16(p[6:]))<<32 | uint64(le.Uint32(p[8:]))}
	if l > MaxExtentLen {
		e.Len, e.Unwritten = l-MaxExtentLen, true
	}
	return e
}

// SetExtent stores entry i of a leaf.
func (n Node) SetExtent(i int, e Extent) {
	p := n.at(i)
	l := e.Len
	if e.Unwritten {
		l += MaxExtentLen
	}
	le.PutUint32(p, e.Logical)
	le.PutUint16(p[4:], uint16(l))
	le.PutUint16(p[6:], uint16(e.Physical>>32))
	le.PutUint32(p[8:], uint32(e.Physical))
}

// Child reads the block that entry i of an index node points at.
func (n Node) Child(i int) uint64 {
	p := n.at(i)
	return uint64(le.Uint16(p[8:]))<<32 | uint64(le.Uint32(p[4:]))
}

// SetChild stores entry i of an index node.
func (n Node) SetChild(i int, key uint32, block uint64) {
	p := n.at(i)
	le.PutUint32(p, key)
	le.PutUint32(p[4:], uint32(block))
	le.PutUint16(p[8:], uint16(block>>32))
	le.PutUint16(p[10:], 0)
}

// Open makes room for one entry at i. The caller knows there is room.
func (n Node) Open(i int) {
	c := n.Entries()
	copy(n[extentSize*(i+2):], n[extentSize*(i+1):extentSize*(c+1)])
	n.SetEntries(c + 1)
}

// Delete removes k entries from i on.
func (n Node) Delete(i, k int) {
	c := n.Entries()
	copy(n[extentSize*(i+1):], n[extentSize*(i+k+1):extentSize*(c+1)])
	clear(n[extentSize*(c-k+1) : extentSize*(c+1)])
	n.SetEntries(c - k)
}

// Search finds the last entry whose key is at most logical, or -1.
func (n Node) Search(logical uint32) int {
	lo, hi := 0, n.Entries()
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if n.Key(m) <= logical {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1
}

// Check validates a node that was read from a volume: header, order, ranges.
// depth is the depth it must have, or -1 for a root.
func (n Node) Check(ino uint32, depth int, g *Geometry) error {
	bad := func(format string, args ...any) error {
		return Corrupt("extent tree of inode "+utoa(ino), format, args...)
	}
	if len(n) < extentSize || le.Uint16(n) != ExtentMagic {
		return bad("no magic")
	}
	c, d := n.Entries(), n.Depth()
	if m := n.Max(); m > (len(n)-extentSize)/extentSize || m == 0 || c > m {
		return bad("%d entries, room for %d", c, m)
	}
	if d > MaxExtentDepth || depth >= 0 && d != depth {
		return bad("depth %d, want %d", d, depth)
	}
	if c == 0 && (d > 0 || depth >= 0) {
		return bad("empty node of depth %d", d)
	}
	prevEnd := uint64(0)
	for i := range c {
		if d > 0 {
			if !g.ValidRange(n.Child(i), 1) {
				return bad("index to block %d", n.Child(i))
			}
			if k := uint64(n.Key(i)); i > 0 && k < prevEnd {
				return bad("index keys out of order at %d", k)
			} else {
				prevEnd = k + 1
			}
			continue
		}
		e := n.Extent(i)
		if e.Len == 0 || e.End() > MaxLogical+1 || !g.ValidRange(e.Physical, uint64(e.Len)) {
			return bad("extent %d+%d to block %d", e.Logical, e.Len, e.Physical)
		}
		if uint64(e.Logical) < prevEnd {
			return bad("extents overlap at %d", e.Logical)
		}
		prevEnd = e.End()
	}
	return nil
}

// CheckSum verifies the tail checksum of a node in a block.
func (n Node) CheckSum(ino, seed uint32) error {
	at := extentSize * (n.Max() + 1)
	if at+4 > len(n) {
		return Corrupt("extent tree of inode "+utoa(ino), "no room for a checksum")
	}
	if got, want := CRC32C(seed, n[:at]), le.Uint32(n[at:]); got != want {
		return Corrupt("extent tree of inode "+utoa(ino), "checksum %#08x, computed %#08x", want, got)
	}
	return nil
}

// SetSum stores the tail checksum of a node in a block.
func (n Node) SetSum(seed uint32) {
	at := extentSize * (n.Max() + 1)
	if at+4 <= len(n) {
		le.PutUint32(n[at:], CRC32C(seed, n[:at]))
	}
}

func utoa(v uint32) string {
	var b [10]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + v%10)
		if v /= 10; v == 0 {
			return string(b[i:])
		}
	}
}
