// SPDX-License-Identifier: Apache-2.0

// Hash tree nodes: the root in a directory's block 0 and the index blocks
// below it.

package disk

const (
	dxInfoOffset = 0x18
	dxRootStart  = 0x20
	dxNodeStart  = 8
	dxEntrySize  = 8
	dxTailSize   = 8
)

// DX is a hash tree node within a directory block. Entry 0 has no hash of its
// own: it covers everything below entry 1.
type DX struct {
	P     []byte
	start int
}

// DXRoot is the root node in block 0 of an indexed directory.
func DXRoot(block []byte) DX { return DX{block, dxRootStart} }

// DXNode is an index node.
func DXNode(block []byte) DX { return DX{block, dxNodeStart} }

// IsRoot tells whether the node is a root.
func (n DX) IsRoot() bool { return n.start == dxRootStart }

// Limit is the number of entries that fit.
func (n DX) Limit() int { return int(le.Uint16(n.P[n.start:])) }

// Count is the number of entries in use.
func (n DX) Count() int { return int(le.Uint16(n.P[n.start+2:])) }

// SetCount stores the number of entries in use.
func (n DX) SetCount(v int) { le.PutUint16(n.P[n.start+2:], uint16(v)) }

// Hash is the smallest hash entry i covers; its low bit says that the bucket
// began in the block before.
func (n DX) Hash(i int) uint32 {
	if i == 0 {
		return 0
	}
	return le.Uint32(n.P[n.start+dxEntrySize*i:])
}

// Block is the logical block entry i points at.
func (n DX) Block(i int) uint32 { return le.Uint32(n.P[n.start+dxEntrySize*i+4:]) & 0x0fffffff }

// Set stores entry i. The hash of entry 0 is not stored.
func (n DX) Set(i int, hash, block uint32) {
	if i > 0 {
		le.PutUint32(n.P[n.start+dxEntrySize*i:], hash)
	}
	le.PutUint32(n.P[n.start+dxEntrySize*i+4:], block)
}

// Insert adds an entry after i. The caller knows there is room.
func (n DX) Insert(i int, hash, block uint32) {
	c := n.Count()
	at := n.start + dxEntrySize*(i+1)
	copy(n.P[at+dxEntrySize:], n.P[at:n.start+dxEntrySize*c])
	n.SetCount(c + 1)
	n.Set(i+1, hash, block)
}

// Search finds the entry that covers a hash.
func (n DX) Search(hash uint32) int {
	lo, hi := 1, n.Count()
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if n.Hash(m) <= hash {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1
}

// limit is the count that fits in a node of this kind.
func (n DX) limit(g *Geometry) int {
	space := g.BlockSize - n.start
	if g.Csum {
		space -= dxTailSize
	}
	return space / dxEntrySize
}

// Info is what a root says about its tree.
type Info struct {
	HashVersion uint8
	Levels      int // index levels below the root
}

// Info reads and checks a root's description.
func (n DX) Info(ino uint32, maxLevels int) (Info, error) {
	p := n.P[dxInfoOffset:]
	in := Info{HashVersion: p[4], Levels: int(p[6])}
	switch {
	case le.Uint32(p) != 0 || p[5] != 8 || p[7]&1 != 0:
		return in, Corrupt("hash tree of directory "+utoa(ino), "unreadable root")
	case in.HashVersion > HashTEAUnsigned:
		return in, Corrupt("hash tree of directory "+utoa(ino), "unknown hash version %d", in.HashVersion)
	case in.Levels >= maxLevels:
		return in, Corrupt("hash tree of directory "+utoa(ino), "%d index levels", in.Levels)
	}
	return in, nil
}

// SetLevels stores the number of index levels below the root.
func (n DX) SetLevels(v int) { n.P[dxInfoOffset+6] = byte(v) }

// Check validates a node's counts and block numbers. blocks is the length of
// the directory in blocks. It is done whole when a node comes from the volume.
func (n DX) Check(ino uint32, blocks uint64, g *Geometry) error { return n.check(ino, blocks, g, true) }

// CheckCounts validates the counts alone, which keep every access within the
// block: a cached node was checked, but perhaps as something else.
func (n DX) CheckCounts(ino uint32, g *Geometry) error { return n.check(ino, 0, g, false) }

func (n DX) check(ino uint32, blocks uint64, g *Geometry, all bool) error {
	if l := n.Limit(); l != n.limit(g) {
		return Corrupt("hash tree of directory "+utoa(ino), "node has room for %d entries, want %d", l, n.limit(g))
	}
	c := n.Count()
	if c == 0 || c > n.Limit() {
		return Corrupt("hash tree of directory "+utoa(ino), "node has %d entries of %d", c, n.Limit())
	}
	if !all {
		return nil
	}
	prev := uint32(0)
	for i := range c {
		if b := n.Block(i); b == 0 || uint64(b) >= blocks {
			return Corrupt("hash tree of directory "+utoa(ino), "index to block %d of %d", b, blocks)
		}
		if h := n.Hash(i); h < prev {
			return Corrupt("hash tree of directory "+utoa(ino), "hashes out of order")
		} else {
			prev = h
		}
	}
	return nil
}

// InitDXRoot turns block into the root of a fresh tree with one leaf.
func InitDXRoot(block []byte, self, parent uint32, version uint8, leaf uint32, g *Geometry) {
	clear(block)
	PutDirent(block, 0, 12, self, FtDir, ".")
	PutDirent(block, 12, g.BlockSize-12, parent, FtDir, "..")
	p := block[dxInfoOffset:]
	p[4], p[5] = version, 8
	n := DXRoot(block)
	le.PutUint16(block[dxRootStart:], uint16(n.limit(g)))
	n.SetCount(1)
	n.Set(0, 0, leaf)
}

// InitDXNode turns block into an empty index node.
func InitDXNode(block []byte, g *Geometry) DX {
	clear(block)
	putRecLen(block, g.BlockSize)
	n := DXNode(block)
	le.PutUint16(block[dxNodeStart:], uint16(n.limit(g)))
	return n
}

func (n DX) sum(seed uint32) (uint32, int) {
	at := n.start + dxEntrySize*n.Limit()
	c := CRC32C(seed, n.P[:n.start+dxEntrySize*n.Count()])
	c = CRC32C(c, n.P[at:at+4])
	return CRC32C(c, zero8[:4]), at + 4
}

// SetSum stores a node's checksum.
func (n DX) SetSum(seed uint32) {
	c, at := n.sum(seed)
	le.PutUint32(n.P[at:], c)
}

// CheckSum verifies the checksum of a node that [DX.Check] accepted.
func (n DX) CheckSum(ino, seed uint32) error {
	got, at := n.sum(seed)
	if want := le.Uint32(n.P[at:]); got != want {
		return Corrupt("hash tree of directory "+utoa(ino), "node checksum %#08x, computed %#08x", want, got)
	}
	return nil
}

// IsDXNode tells whether a directory block that is not block 0 looks like an
// index node rather than a leaf.
func IsDXNode(block []byte, g *Geometry) bool {
	return le.Uint32(block) == 0 && recLen(block, g.BlockSize) == g.BlockSize && block[6] == 0 &&
		int(le.Uint16(block[dxNodeStart:])) == DXNode(block).limit(g)
}
