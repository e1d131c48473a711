// SPDX-License-Identifier: Apache-2.0

// The checked-in images of mkfs.erofs, one small tree in all the forms we
// read, and images broken on purpose, each with the report it must give.

package erofs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func seedImages(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/images/*.img")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	images := make(map[string][]byte)
	for _, p := range paths {
		b, err := os.ReadFile(p)
		must(t, err)
		images[filepath.Base(p)] = b
	}
	return images
}

func TestSeedImages(t *testing.T) {
	h := append(make([]byte, 3000), 'z')
	for name, image := range seedImages(t) {
		t.Run(name, func(t *testing.T) {
			r := bytes.NewReader(image)
			must(t, Verify(context.Background(), r, r.Size()))
			im, err := Open(r, r.Size())
			must(t, err)
			tree, err := imageTree(im)
			must(t, err)
			if len(tree) != 1+7+2+25 {
				t.Errorf("%d names", len(tree))
			}
			f, d := tree["/f"], tree["/d"]
			if f != tree["/d/hard"] || f.Nlink != 2 || f.Content != sha256.Sum256([]byte("abc")) || f.Xattrs != `map["user.long.name":"1" "user.own":"f"]` {
				t.Errorf("f: %+v", f)
			}
			if d.Xattrs != `map["trusted.overlay.opaque":"y"]` || d.Nlink != 2 || d.Mtime != 1e9 {
				t.Errorf("d: %+v", d)
			}
			if got := tree["/h"]; got.Content != sha256.Sum256(h) {
				t.Errorf("h: %+v", got)
			}
			if got := tree["/g"]; got.Content != sha256.Sum256(bytes.Repeat([]byte("x"), 1500)) || got.Xattrs != `map["user.long.name":"1"]` {
				t.Errorf("g: %+v", got)
			}
			if tree["/d/l"].Link != "../f" || tree["/p"].Mode != ModeFIFO|0o644 || tree["/c"].Major != 1 || tree["/c"].Minor != 3 {
				t.Errorf("l %+v, p %+v, c %+v", tree["/d/l"], tree["/p"], tree["/c"])
			}
		})
	}
}

// brokenBase is an image of ours with a directory "d", its file "f" of 5000
// bytes with an attribute, a link "l" and a file "s" with holes.
func brokenBase(t *testing.T) []byte {
	path, _ := build(t, BuilderOptions{UUID: [16]byte{1}}, func(b *Builder) {
		a := adder{t, b}
		a.add("d/f", Entry{Mode: ModeRegular | 0o644, Xattrs: map[string]string{"user.a": "value"}}, pattern(5000, 1))
		a.add("l", Entry{Mode: ModeSymlink | 0o777, Linkname: "target"}, nil)
		s := make([]byte, 1<<20)
		s[1<<19] = 1
		a.file("s", s)
	})
	image, err := os.ReadFile(path)
	must(t, err)
	return image
}

// at returns the bytes of the inode at a path.
func at(t *testing.T, image []byte, path string) []byte {
	t.Helper()
	im, err := Open(bytes.NewReader(image), int64(len(image)))
	must(t, err)
	return image[im.sb.metaOffset+int64(resolve(t, im, path).NID)<<slotBits:]
}

func TestBrokenImages(t *testing.T) {
	super := func(b []byte) []byte { return b[superOffset:] }
	// The first entry of a small directory, behind its inode.
	entries := func(b []byte, path string) []byte { return at(t, b, path)[inodeExtendedSize:] }
	for _, c := range []struct {
		name   string
		damage func(b []byte)
		kind   error
		report string
	}{
		{"magic", func(b []byte) { super(b)[0]++ }, ErrNotEROFS, "magic"},
		{"checksum", func(b []byte) { super(b)[200]++ }, ErrCorrupt, "checksum"},
		{"block size", func(b []byte) { super(b)[sbBlockBits] = 40 }, ErrCorrupt, "block size 2^40"},
		{"directory blocks", func(b []byte) { super(b)[sbDirBlockBits] = 1 }, ErrUnsupported, "directory blocks"},
		{"blocks", func(b []byte) { le.PutUint32(super(b)[sbBlocks:], 1<<31) }, ErrCorrupt, "truncated"},
		{"metadata", func(b []byte) { le.PutUint32(super(b)[sbMetaBlock:], 1<<31) }, ErrCorrupt, "metadata begins"},
		{"devices", func(b []byte) { super(b)[sbExtraDevices] = 3 }, ErrUnsupported, "extra devices (3)"},
		{"feature", func(b []byte) { le.PutUint32(super(b)[sbFeatureIncompat:], 1<<30) }, ErrUnsupported, "unknown feature bit 0x40000000"},
		{"features", func(b []byte) { le.PutUint32(super(b)[sbFeatureIncompat:], 0x112) }, ErrUnsupported, "compression (configurations, big physical clusters); compression (inline tail clusters); metabox"},
		{"inode count", func(b []byte) { super(b)[sbInodes] = 1 }, ErrCorrupt, "5 inodes, but the superblock counts 1"},
		{"root", func(b []byte) { super(b)[sbRootNID16+1] = 0xff }, ErrCorrupt, "root"},
		{"root is a file", func(b []byte) { le.PutUint16(at(t, b, "")[inodeMode:], ModeRegular) }, ErrCorrupt, "root inode 1 has mode"},
		{"mode", func(b []byte) { le.PutUint16(at(t, b, "d/f")[inodeMode:], 0o644) }, ErrCorrupt, "no file type"},
		{"inode format", func(b []byte) { at(t, b, "d/f")[inodeFormat+1] = 1 }, ErrUnsupported, "inode format"},
		{"compressed", func(b []byte) { at(t, b, "d/f")[inodeFormat] |= layoutFullIndex << 1 }, ErrUnsupported, "compressed"},
		{"layout", func(b []byte) { at(t, b, "d/f")[inodeFormat] |= 7 << 1 }, ErrUnsupported, "data layout 7"},
		{"file data", func(b []byte) { le.PutUint32(at(t, b, "d/f")[inodeU:], 1<<20) }, ErrCorrupt, "behind the end of the image"},
		{"file size", func(b []byte) { le.PutUint64(at(t, b, "d/f")[inodeSize:], 1<<40) }, ErrCorrupt, "outside the image"},
		{"huge size", func(b []byte) { le.PutUint64(at(t, b, "d/f")[inodeSize:], 1<<63) }, ErrCorrupt, "size 9223372036854775808"},
		{"nanoseconds", func(b []byte) { le.PutUint32(at(t, b, "d/f")[inodeMtimeNsec:], 1e9) }, ErrCorrupt, "nanoseconds"},
		{"link count", func(b []byte) { at(t, b, "d/f")[inodeNlink] = 2 }, ErrCorrupt, "1 names, but a link count of 2"},
		{"directory links", func(b []byte) { at(t, b, "d")[inodeNlink] = 9 }, ErrCorrupt, "link count of 9"},
		{"type", func(b []byte) { le.PutUint16(at(t, b, "d/f")[inodeMode:], ModeFIFO) }, ErrCorrupt, "entry of type 8"},
		{"xattr count", func(b []byte) { le.PutUint16(at(t, b, "d/f")[inodeXattrCount:], 65535) }, ErrCorrupt, "extended attributes"},
		{"xattr prefix", func(b []byte) { entries(b, "d/f")[xattrHeaderSize+1] = 99 }, ErrCorrupt, "name prefix 99"},
		{"xattr long prefix", func(b []byte) { entries(b, "d/f")[xattrHeaderSize+1] = 0x83 }, ErrCorrupt, "long name prefix 3 of 0"},
		{"xattr size", func(b []byte) { entries(b, "d/f")[xattrHeaderSize+2] = 99 }, ErrCorrupt, "ends behind its list"},
		{"xattr shared", func(b []byte) { entries(b, "d/f")[xattrSharedCount] = 99 }, ErrCorrupt, "99 shared attributes"},
		{"link size", func(b []byte) { le.PutUint64(at(t, b, "l")[inodeSize:], 4096) }, ErrCorrupt, "symbolic link of 4096 bytes"},
		{"link NUL", func(b []byte) { entries(b, "l")[3] = 0 }, ErrCorrupt, "NUL"},
		{"inline tail", func(b []byte) { le.PutUint64(at(t, b, "l")[inodeSize:], 4095) }, ErrCorrupt, "cross a block boundary"},
		{"chunk format", func(b []byte) { at(t, b, "s")[inodeU+1] = 1 }, ErrUnsupported, "chunk format"},
		{"chunk count", func(b []byte) { le.PutUint64(at(t, b, "s")[inodeSize:], 1<<50) }, ErrCorrupt, "chunk indexes"},
		{"chunk", func(b []byte) { le.PutUint32(entries(b, "s"), 1<<25) }, ErrCorrupt, "chunk 0"},
		{"names offset", func(b []byte) { le.PutUint16(entries(b, "d")[direntNameOff:], 13) }, ErrCorrupt, "names begin at 13"},
		{"name offset", func(b []byte) { le.PutUint16(entries(b, "d")[direntSize+direntNameOff:], 9) }, ErrCorrupt, "directory entry"},
		{"slash", func(b []byte) { entries(b, "d")[3*direntSize+3] = '/' }, ErrCorrupt, `bad name "/"`},
		{"order", func(b []byte) { entries(b, "d")[3*direntSize+3] = '!' }, ErrCorrupt, `"!" follows ".."`},
		{"dot", func(b []byte) { entries(b, "d")[direntNID]++ }, ErrCorrupt, `"." is inode`},
		{"dot dot", func(b []byte) { entries(b, "d")[direntSize+direntNID]++ }, ErrCorrupt, `".." is inode`},
		{"no dot", func(b []byte) { le.PutUint64(at(t, b, "d")[inodeSize:], 0) }, ErrCorrupt, `"." or ".." is missing`},
		{"loop", func(b []byte) {
			e := entries(b, "d")[2*direntSize:]
			le.PutUint64(e, 1)
			e[direntType] = 2
		}, ErrCorrupt, "directory 1 has a second name"},
		{"far inode", func(b []byte) { entries(b, "d")[2*direntSize+7] = 0x80 }, ErrCorrupt, "behind the end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := brokenBase(t)
			c.damage(image)
			s := super(image)[:blockSize-superOffset]
			if c.name != "checksum" {
				le.PutUint32(s[sbChecksum:], 0)
				le.PutUint32(s[sbChecksum:], superChecksum(s))
			}
			err := Verify(context.Background(), bytes.NewReader(image), int64(len(image)))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.report) {
				t.Errorf("got  %v\nwant %v: %s", err, c.kind, c.report)
			}
		})
	}
}

// TestTruncatedImages: every length that is too short must be noticed.
func TestTruncatedImages(t *testing.T) {
	image := brokenBase(t)
	for size := int64(0); size < int64(len(image)); size += 97 {
		if err := Verify(context.Background(), bytes.NewReader(image), size); err == nil {
			t.Errorf("%d of %d bytes verify", size, len(image))
		}
		// The same when only the reader ends early.
		err := Verify(context.Background(), bytes.NewReader(image[:size]), int64(len(image)))
		if size < superOffset+superSize && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a reader of %d bytes: %v", size, err)
		}
	}
}

// TestReadAtRandomly compares reads at random places with the data.
func TestReadAtRandomly(t *testing.T) {
	data := pattern(3<<20+1234, 1)
	clear(data[70000:400000])
	clear(data[1<<20 : 2<<20])
	path, _ := build(t, BuilderOptions{UUID: [16]byte{1}}, func(b *Builder) { adder{t, b}.file("f", data) })
	im := openFile(t, path)
	ino := resolve(t, im, "f")
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		off, p := rnd.Int64N(int64(len(data))), make([]byte, rnd.IntN(300000))
		n, err := im.ReadAt(ino, p, off)
		if want := min(len(p), len(data)-int(off)); n != want || (err == io.EOF) != (want < len(p)) {
			t.Fatalf("read of %d at %d: %d, %v", len(p), off, n, err)
		}
		if !bytes.Equal(p[:n], data[off:int(off)+n]) {
			t.Fatalf("read of %d at %d differs", len(p), off)
		}
	}
}

// TestConcurrentReaders lets the race detector look at one Image in many hands.
func TestConcurrentReaders(t *testing.T) {
	path, _ := build(t, BuilderOptions{}, func(b *Builder) {
		for i := range 2000 {
			must(t, b.Add(strings.Repeat("n", i%100+1)+string(rune('a'+i%26))+"/x", Entry{Mode: ModeRegular, Xattrs: map[string]string{"user.a": "b"}}, nil))
		}
	})
	im := openFile(t, path)
	want, err := imageTree(im)
	must(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := imageTree(im)
			if err != nil || len(got) != len(want) {
				t.Errorf("%d names, %v", len(got), err)
			}
		})
	}
	wg.Wait()
}
