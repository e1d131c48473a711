// SPDX-License-Identifier: Apache-2.0

// Decoders on any bytes: they answer or refuse, they never panic or loop; and
// what is encoded decodes to the same.

package disk

import (
	"bytes"
	"errors"
	"testing"
)

func geometry() (*Geometry, *Super) {
	s := &Super{BlocksCount: 32768, BlocksPerGroup: 8192, ClustersPerGrp: 8192, InodesPerGroup: 1024, InodesCount: 4096, FirstDataBlock: 1,
		RevLevel: 1, FirstIno: 11, InodeSize: 256, DescSize: 64, ChecksumType: 1,
		Incompat: IncompatExtents | Incompat64Bit | IncompatFiletype, ROCompat: ROCompatHugeFile}
	return NewGeometry(s), s
}

func FuzzSuper(f *testing.F) {
	_, s := geometry()
	f.Add(s.Encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		s, _, err := DecodeSuperTorn(p)
		if err != nil {
			return
		}
		g := NewGeometry(s)
		for gr := uint32(0); gr < min(g.Groups, 100); gr++ {
			g.GroupOverhead(gr)
			g.GroupLen(gr)
		}
		if _, torn, err := DecodeSuperTorn(s.Encode()); err != nil || torn != nil {
			t.Fatalf("what was encoded does not decode: %v %v", err, torn)
		}
	})
}

func FuzzGroup(f *testing.F) {
	f.Add(make([]byte, 64), uint32(1))
	f.Fuzz(func(t *testing.T, p []byte, gr uint32) {
		g, s := geometry()
		if len(p) < g.DescSize {
			return
		}
		DecodeGroup(p, gr%g.Groups, g, s)
	})
}

func FuzzInode(f *testing.F) {
	f.Add(make([]byte, 256), uint32(12))
	f.Fuzz(func(t *testing.T, p []byte, ino uint32) {
		g, s := geometry()
		if len(p) < g.InodeSize {
			return
		}
		p = p[:g.InodeSize]
		d, err := DecodeInode(p, ino, g, s)
		if err != nil {
			return
		}
		q := make([]byte, g.InodeSize)
		d.Encode(q, ino, g, s)
		e, err := DecodeInode(q, ino, g, s)
		if err != nil {
			t.Fatal(err)
		}
		if e.Size != d.Size || e.Mode != d.Mode || e.Atime != d.Atime || e.Block != d.Block || !bytes.Equal(e.Xattrs, d.Xattrs) {
			t.Fatalf("inode changed: %+v, %+v", d, e)
		}
		DecodeInodeXattrs(d.Xattrs, ino)
		Node(d.Block[:]).Check(ino, -1, g)
		d.Rdev()
	})
}

func FuzzExtents(f *testing.F) {
	g, _ := geometry()
	n := Node(make([]byte, g.BlockSize))
	n.Init(0, g)
	n.Open(0)
	n.SetExtent(0, Extent{Logical: 5, Len: 3, Physical: 100})
	f.Add([]byte(n))
	f.Fuzz(func(t *testing.T, p []byte) {
		g, _ := geometry()
		n := Node(p)
		if n.Check(12, -1, g) != nil {
			return
		}
		for i := range n.Entries() {
			n.Key(i)
			if n.Depth() == 0 {
				n.Extent(i)
			}
		}
		n.Search(77)
		n.CheckSum(12, 1)
	})
}

func FuzzDirectory(f *testing.F) {
	g, _ := geometry()
	p := make([]byte, g.BlockSize)
	InitDirBlock(p, g)
	AddDirent(p, 12, FtReg, "name", g)
	f.Add(p, "other")
	f.Fuzz(func(t *testing.T, p []byte, name string) {
		g, _ := geometry()
		if len(p) < g.BlockSize || len(name) == 0 || len(name) > MaxNameLen {
			return
		}
		p = bytes.Clone(p[:g.BlockSize])
		EachDirent(p, g, func(Dirent) bool { return true })
		d, ok, err := FindDirent(p, name, g)
		if ok && err == nil {
			RemoveDirent(p, d.Offset, g)
		}
		if ok, _ := AddDirent(p, 12, FtReg, name, g); ok {
			if _, found, err := FindDirent(p, name, g); err == nil && !found {
				t.Fatalf("%q was added and is not there", name)
			}
		}
		CheckDirSum(p, 2, 1, g)
	})
}

func FuzzHashTree(f *testing.F) {
	g, _ := geometry()
	p := make([]byte, g.BlockSize)
	InitDXRoot(p, 2, 2, HashHalfMD4, 1, g)
	f.Add(p, uint32(77))
	f.Fuzz(func(t *testing.T, p []byte, hash uint32) {
		g, _ := geometry()
		if len(p) < g.BlockSize {
			return
		}
		p = p[:g.BlockSize]
		for _, n := range []DX{DXRoot(p), DXNode(p)} {
			if n.Check(2, 100, g) == nil {
				n.Block(n.Search(hash))
			}
			if n.CheckCounts(2, g) == nil {
				n.Block(n.Search(hash))
			}
		}
		DXRoot(p).Info(2, 2)
		IsDXNode(p, g)
	})
}

func FuzzXattrBlock(f *testing.F) {
	g, _ := geometry()
	p := make([]byte, g.BlockSize)
	EncodeXattrBlock(p, []Xattr{{XattrUser, "name", []byte("value")}, {XattrTrusted, "n", nil}})
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		g, _ := geometry()
		if len(p) < g.BlockSize {
			return
		}
		list, _, err := DecodeXattrBlock(p[:g.BlockSize], 5, 12, g)
		if err != nil || !FitXattrBlock(list, g) {
			return
		}
		q := make([]byte, g.BlockSize)
		EncodeXattrBlock(q, list)
		again, err := ParseXattrBlock(q, 12)
		if err != nil || len(again) != len(list) {
			t.Fatalf("%d attributes became %d: %v", len(list), len(again), err)
		}
	})
}

func FuzzCommitMark(f *testing.F) {
	m := CommitMark{BaseID: [32]byte{1, 2, 3}, Clone: "ep.delta"}
	f.Add(m.Encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		m, ok := DecodeCommitMark(p)
		if !ok {
			return
		}
		if again, ok := DecodeCommitMark(m.Encode()); !ok || again != m {
			t.Fatalf("%+v became %+v", m, again)
		}
		if _, err := DecodeSuper(append(m.Encode(), make([]byte, SuperSize)...)); !errors.Is(err, ErrCommitCut) {
			t.Fatalf("a marked volume was taken for one: %v", err)
		}
	})
}

func FuzzACL(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255})
	f.Add([]byte{2, 0, 0, 0, 1, 0, 7, 0, 0, 0, 0, 0, 4, 0, 5, 0, 0, 0, 0, 0, 32, 0, 5, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		ACLToUser(p)
		if d, err := ACLToDisk(p); err == nil {
			if _, err := ACLToUser(d); err != nil {
				t.Fatalf("stored list does not come back: %v", err)
			}
			p = d
		}
		// What a volume holds is any bytes.
		mode, _, err := ModeOfACL(p, 0o640)
		if changed, e := ChmodACL(p, mode); err == nil && (e != nil || !bytes.Equal(changed, p)) {
			t.Fatalf("a list changes with the mode it stands for: %v", e)
		}
		for _, m := range []uint16{0, 0o751, 0o777} {
			if got, own, err := InheritACL(p, m); err == nil && got&^m != 0 || len(own) > len(p) {
				t.Fatalf("mode %o became %o, list of %d bytes %d", m, got, len(p), len(own))
			}
		}
	})
}

// TestHashes compares with what debugfs's dx_hash says of the same names and
// seed.
func TestHashes(t *testing.T) {
	seed := [4]uint32{0x04030201, 0x08070605, 0x0c0b0a09, 0x100f0e0d}
	const long = "a-rather-long-file-name-that-needs-two-rounds.txt"
	for _, c := range []struct {
		name    string
		version uint8
		want    Hash
	}{
		{"lost+found", HashLegacy, Hash{0x5e2aba24, 0}},
		{long, HashLegacy, Hash{0x6e447d78, 0}},
		{"\u00fcml\u00e4ut", HashLegacy, Hash{0x249cfee8, 0}},
		{"lost+found", HashHalfMD4, Hash{0x694c8bb4, 0x74b39433}},
		{long, HashHalfMD4, Hash{0xa7dc9174, 0x359d85ab}},
		{"\u00fcml\u00e4ut", HashHalfMD4, Hash{0xaf2da3d2, 0xc92a5b18}},
		{"lost+found", HashTEA, Hash{0x3e95424c, 0xc33595ee}},
		{long, HashTEA, Hash{0x1f6dcfc0, 0xc95992b9}},
		{"\u00fcml\u00e4ut", HashTEA, Hash{0x554d9b9c, 0xd1dca6dc}},
	} {
		if h := HashName(c.name, c.version, seed); h != c.want {
			t.Errorf("%q, version %d: %#x, want %#x", c.name, c.version, h, c.want)
		}
	}
}
