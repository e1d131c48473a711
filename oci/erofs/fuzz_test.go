// SPDX-License-Identifier: Apache-2.0

// Fuzz targets: hostile images for the reader, hostile entries for the writer.
// The seeds in testdata are images of mkfs.erofs 1.9.4 with 512-byte blocks.

package erofs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"
)

// rawImage makes an image whose metadata area is given, with node 0 as root.
// It has no checksum, so that a fuzzer can get behind the superblock.
func rawImage(blockBits uint8, incompat uint32, meta, data []byte) []byte {
	size := 1 << blockBits
	pad := func(b []byte) []byte { return append(b, make([]byte, (size-len(b)%size)%size)...) }
	b := pad(make([]byte, superOffset+superSize))
	s := b[superOffset:]
	le.PutUint32(s[sbMagic:], superMagic)
	s[sbBlockBits] = blockBits
	le.PutUint32(s[sbFeatureIncompat:], incompat)
	le.PutUint32(s[sbMetaBlock:], uint32(len(b)/size))
	b = pad(append(b, meta...))
	le.PutUint32(b[superOffset+sbXattrBlock:], uint32(len(b)/size))
	b = pad(append(b, data...))
	le.PutUint32(b[superOffset+sbBlocks:], uint32(len(b)/size))
	le.PutUint64(b[superOffset+sbInodes:], 1<<20)
	return b
}

// rawInode makes an extended inode.
func rawInode(mode uint16, layout uint16, xattrCount uint16, size uint64, u uint32) []byte {
	b := make([]byte, inodeExtendedSize)
	le.PutUint16(b[inodeFormat:], formatExtended|layout<<formatLayoutShift)
	le.PutUint16(b[inodeXattrCount:], xattrCount)
	le.PutUint16(b[inodeMode:], mode)
	le.PutUint64(b[inodeSize:], size)
	le.PutUint32(b[inodeU:], u)
	le.PutUint32(b[inodeNlink:], 2)
	return b
}

// checkError fails on an error that is none of those a broken image may give.
func checkError(t *testing.T, err error) {
	t.Helper()
	for _, ok := range []error{nil, ErrCorrupt, ErrUnsupported, ErrNotEROFS, ErrNotExist, ErrNoXattr, ErrLimit, ErrInvalid, io.EOF} {
		if errors.Is(err, ok) {
			return
		}
	}
	t.Fatalf("unexpected kind of error: %v", err)
}

// exercise calls everything an inode offers, each within small bounds.
func exercise(t *testing.T, im *Image, ino *Inode) {
	buf := make([]byte, 700)
	for _, off := range []int64{0, 1, 511, 512, 4096, ino.Size / 2, ino.Size - 1, ino.Size, 1 << 61} {
		if off < 0 {
			continue
		}
		e, err := im.Extent(ino, off)
		checkError(t, err)
		if err == nil && (off < e.Logical || off >= e.Logical+e.Length || e.Physical < -1 || e.Physical >= im.size) {
			t.Fatalf("extent at %d: %+v", off, e)
		}
		n, err := im.ReadAt(ino, buf, off)
		checkError(t, err)
		if n < len(buf) && err == nil {
			t.Fatalf("short read of %d without an error", n)
		}
	}
	_, err := im.Readlink(ino)
	checkError(t, err)
	names, err := im.ListXattr(ino)
	checkError(t, err)
	for _, name := range append(names[:min(len(names), 20)], "user.x") {
		_, err := im.GetXattr(ino, name)
		checkError(t, err)
	}
	if ino.Mode&ModeType != ModeDir {
		return
	}
	count := 0
	_, err = im.ReadDir(ino, 0, func(d Dirent) bool {
		_, _, err := im.Lookup(ino, d.Name)
		checkError(t, err)
		count++
		return count < 100
	})
	checkError(t, err)
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add(rawImage(9, incompatRead, rawInode(ModeDir, layoutInline, 0, 27, 0), nil))
	for _, image := range seedImages(f) {
		// Without its checksum a mutated superblock gets further.
		image[superOffset+sbFeatureCompat] &^= compatChecksum
		f.Add(image)
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		r := bytes.NewReader(image)
		checkError(t, Verify(context.Background(), r, int64(len(image))))
		im, err := Open(r, int64(len(image)))
		checkError(t, err)
		if err != nil {
			return
		}
		nids := []uint64{im.Root(), 0, 1, 1 << 63, 1<<64 - 1}
		for i := 0; i < len(nids) && i < 100; i++ {
			ino, err := im.Inode(nids[i])
			checkError(t, err)
			if err != nil {
				continue
			}
			exercise(t, im, &ino)
			if ino.Mode&ModeType == ModeDir && len(nids) < 100 {
				_, err := im.ReadDir(&ino, 0, func(d Dirent) bool {
					nids = append(nids, d.NID)
					return len(nids) < 100
				})
				checkError(t, err)
			}
		}
	})
}

func FuzzInode(f *testing.F) {
	f.Add(rawInode(ModeRegular, layoutPlain, 0, 700, 2), uint8(12), false)
	f.Add(append(rawInode(ModeRegular, layoutChunked, 0, 3000, 0), "\x04\x00\x00\x00\xff\xff\xff\xff"...), uint8(9), true)
	f.Add(append(rawInode(ModeRegular, layoutChunked, 0, 3000, chunkIndexes|chunk48Bit), make([]byte, 64)...), uint8(9), true)
	f.Add(append(rawInode(ModeSymlink, layoutInline, 0, 6, 0), "target"...), uint8(12), false)
	f.Add(rawInode(ModeChar, 0, 0, 0, 0x12345678), uint8(10), true)
	compact := make([]byte, inodeCompactSize)
	le.PutUint16(compact[inodeMode:], ModeRegular|0o644)
	le.PutUint32(compact[inodeSize:], 10)
	compact[inodeFormat] = layoutInline<<formatLayoutShift | formatNlink1OrDot
	f.Add(append(compact, "0123456789"...), uint8(12), false)
	f.Fuzz(func(t *testing.T, inode []byte, blockBits uint8, wide bool) {
		if blockBits < minBlockBits || blockBits > 13 || len(inode) > 1<<16 {
			return
		}
		incompat := uint32(incompatChunked)
		if wide {
			incompat |= incompat48Bit
		}
		root := append(rawInode(ModeDir, layoutPlain, 0, 512, 2), inode...)
		image := rawImage(blockBits, incompat, root, make([]byte, 4096))
		im, err := Open(bytes.NewReader(image), int64(len(image)))
		if err != nil {
			t.Fatal(err)
		}
		ino, err := im.Inode(inodeExtendedSize / slotSize)
		checkError(t, err)
		if err == nil {
			exercise(t, im, &ino)
		}
	})
}

func FuzzDir(f *testing.F) {
	n := &node{mode: ModeDir, dir: &directory{children: map[string]*node{"a": {mode: ModeRegular, nid: 5}, "bb": {mode: ModeSymlink, nid: 6}}}}
	n.dir.parent = n
	n.sortNames()
	block := make([]byte, blockSize)
	n.encodeBlock(block, n.dir.sorted)
	f.Add(block[:n.dir.measure()], "a", int64(0))
	f.Add(block[:n.dir.measure()], "zz", int64(25))
	f.Add(append(bytes.Clone(block[:512]), block[:n.dir.measure()]...), "..", int64(512))
	f.Fuzz(func(t *testing.T, data []byte, name string, pos int64) {
		if len(data) == 0 || len(data) > 1<<14 {
			return
		}
		image := rawImage(9, 0, rawInode(ModeDir, layoutPlain, 0, uint64(len(data)), 4), data)
		im, err := Open(bytes.NewReader(image), int64(len(image)))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := im.Inode(0)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = im.Lookup(&dir, name)
		checkError(t, err)
		_, err = im.ReadDir(&dir, pos, func(Dirent) bool { return true })
		checkError(t, err)

		// Reading one by one must give what reading in one go gives.
		var all, single []Dirent
		_, allErr := im.ReadDir(&dir, 0, func(d Dirent) bool { all = append(all, d); return true })
		for at := int64(0); ; {
			var got *Dirent
			next, err := im.ReadDir(&dir, at, func(d Dirent) bool {
				if got != nil {
					return false
				}
				got = &d
				return true
			})
			if got == nil {
				break
			}
			if single = append(single, *got); len(single) > len(all) {
				break
			}
			if err == nil && next != got.Next || got.Next <= at {
				t.Fatalf("position %d after %+v", next, *got)
			}
			at = got.Next
		}
		if allErr == nil && len(all) != len(single) {
			t.Fatalf("%d entries in one go, %d one by one", len(all), len(single))
		}
		for i := range min(len(all), len(single)) {
			if all[i] != single[i] {
				t.Fatalf("entry %d: %+v, %+v", i, all[i], single[i])
			}
		}
	})
}

func FuzzXattr(f *testing.F) {
	list, err := encodeXattrs(map[string]string{"user.a": "1", "security.capability": "\x01\x02", "system.posix_acl_access": ""})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(list), []byte{}, "user.a")
	f.Add([]byte("\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00"), []byte("\x01\x01\x01\x00nv\x00\x00\x01\x81\x00\x00n\x00\x00\x00\x04\x00\x01long"), "user.n")
	f.Fuzz(func(t *testing.T, inline, shared []byte, name string) {
		if len(inline) < xattrHeaderSize || len(inline) > maxXattrBody || len(shared) > 1<<16 {
			return
		}
		count := uint16((len(inline)-xattrHeaderSize)/4 + 1)
		root := append(rawInode(ModeDir, layoutPlain, count, 0, 0), inline...)
		image := rawImage(9, incompatPrefixes, root, shared)
		s := image[superOffset:]
		s[sbPrefixCount] = 1
		le.PutUint32(s[sbPrefixStart:], le.Uint32(s[sbXattrBlock:])*512/4+4)
		im, err := Open(bytes.NewReader(image), int64(len(image)))
		checkError(t, err)
		if err != nil {
			return
		}
		ino, err := im.Inode(0)
		if err != nil {
			t.Fatal(err)
		}
		names, err := im.ListXattr(&ino)
		checkError(t, err)
		_, err = im.GetXattr(&ino, name)
		checkError(t, err)
		for i := 0; i < len(names) && i < 50; i++ {
			if _, err := im.GetXattr(&ino, names[i]); err != nil {
				t.Fatalf("%q is listed: %v", names[i], err)
			}
		}
	})
}

// FuzzBuilder interprets bytes as calls of a builder. Whatever they are, the
// image must verify, and hold the names that a model of the tree holds.
func FuzzBuilder(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x10\x11\x12\x20\x21\x22\x30\x31\x32\x40\x41\x42\x50\x51\x52"))
	f.Add([]byte("\x01\x50\x00\x12\x50\x05\x33\x70\x50\x44\x71\x12\x55\x00\x00"))
	names := []string{"a", "a/b", "a/b/c", "d", "d/../e", "/", "a/l", "a/l/x", "l", "l/y", "../z", ".", "zz/q", "a/b/c/d", "d/e/f", "x"}
	f.Fuzz(func(t *testing.T, calls []byte) {
		if len(calls) > 3000 {
			return
		}
		file, err := os.CreateTemp(t.TempDir(), "image")
		must(t, err)
		defer file.Close()
		b, err := NewBuilder(file, BuilderOptions{UUID: [16]byte{1}})
		must(t, err)
		for ; len(calls) >= 3; calls = calls[3:] {
			p, q := names[calls[1]%16], names[calls[1]>>4]
			e := Entry{Mode: ModeRegular | 0o644, Size: int64(calls[2])}
			switch calls[0] % 8 {
			case 0, 1:
				e.Mode = ModeDir | 0o755
			case 2:
				e.Mode, e.Linkname = ModeSymlink|0o777, q
			case 3:
				e.Mode, e.Minor = ModeChar|0o600, uint32(calls[2])
			case 4:
				e.Xattrs = map[string]string{"user." + q: p}
			case 5:
				e.Size = int64(calls[2]) << 10
			case 6:
				err = b.Link(p, q)
			case 7:
				err = b.Remove(p)
			}
			if calls[0]%8 < 6 {
				err = b.Add(p, e, strings.NewReader(strings.Repeat(string(calls[2]%3), int(e.Size))))
			}
			if err != nil && !errors.Is(err, ErrNotDir) {
				checkError(t, err)
			}
		}
		cost, count := b.modelCost(b.root, map[*node]bool{})
		if cost != b.metaBytes || count != b.entries {
			t.Fatalf("accounts: %d bytes, %d entries; the tree: %d, %d", b.metaBytes, b.entries, cost, count)
		}
		s, err := b.Finish(context.Background())
		must(t, err)
		tree, err := imageTree(openFile(t, file.Name()))
		must(t, err)
		if len(tree) != s.Entries+1 {
			t.Fatalf("%d names, summary %+v", len(tree), s)
		}
		for p := range tree {
			if p != "" && path.Clean(p) != p {
				t.Fatalf("name %q", p)
			}
		}
	})
}

// modelCost counts a tree's names and metadata from scratch.
func (b *Builder) modelCost(dir *node, seen map[*node]bool) (cost int64, count int) {
	if dir == b.root {
		cost = int64(len(dir.xattrs))
	}
	for name, n := range dir.dir.children {
		count++
		if seen[n] {
			cost += direntSize + int64(len(name))
			continue
		}
		seen[n] = true
		cost += n.metaCost(name)
		if n.sparse != nil {
			cost += 4 * n.sparse.chunks(n.size)
		}
		if n.dir != nil {
			c, k := b.modelCost(n, seen)
			cost, count = cost+c, count+k
		}
	}
	return cost, count
}
