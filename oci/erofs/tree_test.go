// SPDX-License-Identifier: Apache-2.0

// What tests compare: a whole tree as plain values, read through an Image.

package erofs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// file is everything a tree says of one name.
type file struct {
	Ino          uint64
	Mode         uint32
	UID, GID     uint32
	Nlink        uint32
	Size         int64
	Mtime        int64 // nanoseconds
	Major, Minor uint32
	Link         string
	Content      [32]byte
	Xattrs       string
	Names        string // directories: in the order of readdir
}

// imageTree reads a whole image; every name is also looked up.
func imageTree(im *Image) (map[string]file, error) {
	tree := make(map[string]file)
	var visit func(p string, nid uint64) error
	visit = func(p string, nid uint64) error {
		ino, err := im.Inode(nid)
		if err != nil {
			return err
		}
		f := file{Ino: ino.Ino, Mode: ino.Mode, UID: ino.UID, GID: ino.GID, Nlink: ino.Nlink, Size: ino.Size, Mtime: ino.Mtime.UnixNano(), Major: ino.Major, Minor: ino.Minor}
		names, err := im.ListXattr(&ino)
		if err != nil {
			return err
		}
		values := make(map[string]string)
		for _, name := range names {
			v, err := im.GetXattr(&ino, name)
			if err != nil {
				return err
			}
			values[name] = string(v)
		}
		f.Xattrs = fmt.Sprintf("%q", values)
		var children []Dirent
		switch ino.Mode & ModeType {
		case ModeRegular:
			h := sha256.New()
			if _, err := io.Copy(h, io.NewSectionReader(inodeReader{im, &ino}, 0, ino.Size)); err != nil {
				return err
			}
			h.Sum(f.Content[:0])
		case ModeSymlink:
			if f.Link, err = im.Readlink(&ino); err != nil {
				return err
			}
		case ModeDir:
			var list []string
			if _, err := im.ReadDir(&ino, 0, func(d Dirent) bool {
				list = append(list, fmt.Sprintf("%s:%d", d.Name, d.Type))
				children = append(children, d)
				return true
			}); err != nil {
				return err
			}
			f.Names = strings.Join(list, "/")
		}
		tree[p] = f
		for _, d := range children {
			nid, typ, err := im.Lookup(&ino, d.Name)
			if err != nil {
				return err
			}
			if nid != d.NID || typ != d.Type {
				return fmt.Errorf("lookup of %q: %d, %d; readdir: %d, %d", d.Name, nid, typ, d.NID, d.Type)
			}
			if d.Name == "." || d.Name == ".." {
				continue
			}
			if err := visit(p+"/"+d.Name, d.NID); err != nil {
				return fmt.Errorf("%s: %w", d.Name, err)
			}
		}
		for _, name := range []string{"", "\x00", "zzzzzz~", "-", "no such name"} {
			if ino.Mode&ModeType != ModeDir {
				break
			}
			if _, _, err := im.Lookup(&ino, name); !errors.Is(err, ErrNotExist) {
				return fmt.Errorf("lookup of %q: %v", name, err)
			}
		}
		return nil
	}
	return tree, visit("", im.Root())
}

// need skips a test that lacks something, and fails it where all must be there.
func need(t testing.TB, ok bool, what string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("needs %s", what)
	}
	t.Skipf("needs %s", what)
}

func needTool(t testing.TB, name string) {
	t.Helper()
	_, err := exec.LookPath(name)
	need(t, err == nil, name)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// resolve returns the inode at a path.
func resolve(t testing.TB, im *Image, path string) *Inode {
	t.Helper()
	ino, err := im.Inode(im.Root())
	must(t, err)
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		nid, _, err := im.Lookup(&ino, name)
		must(t, err)
		ino, err = im.Inode(nid)
		must(t, err)
	}
	return &ino
}

// inodeReader is an io.ReaderAt of one file.
type inodeReader struct {
	im  *Image
	ino *Inode
}

func (r inodeReader) ReadAt(p []byte, off int64) (int, error) { return r.im.ReadAt(r.ino, p, off) }

// openFile opens an image file and verifies it.
func openFile(t testing.TB, path string) *Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(context.Background(), f, info.Size()); err != nil {
		t.Fatal(err)
	}
	return im
}

// build runs fill on a new builder and finishes it.
func build(t testing.TB, o BuilderOptions, fill func(b *Builder)) (string, Summary) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := NewBuilder(f, o)
	if err != nil {
		t.Fatal(err)
	}
	fill(b)
	s, err := b.Finish(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != s.Bytes {
		t.Fatalf("size %v, summary says %d (%v)", info.Size(), s.Bytes, err)
	}
	return f.Name(), s
}

// adder adds entries to a builder and fails the test on any error.
type adder struct {
	t testing.TB
	b *Builder
}

func (a adder) add(path string, e Entry, data []byte) {
	a.t.Helper()
	e.Size = int64(len(data))
	if e.Mtime.IsZero() {
		e.Mtime = time.Unix(1_700_000_000+int64(len(path)), int64(len(data))%1e9)
	}
	if err := a.b.Add(path, e, bytes.NewReader(data)); err != nil {
		a.t.Fatal(err)
	}
}

func (a adder) file(path string, data []byte) {
	a.t.Helper()
	a.add(path, Entry{Mode: ModeRegular | 0o644}, data)
}

func (a adder) link(path, target string) {
	a.t.Helper()
	if err := a.b.Link(path, target); err != nil {
		a.t.Fatal(err)
	}
}

// pattern is data without long runs of zeros.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// fillRich adds one of everything, and what lies on the edges of the layout.
func fillRich(t testing.TB, b *Builder) {
	a := adder{t, b}
	a.add("/", Entry{Mode: ModeDir | 0o755, UID: 1, GID: 2, Xattrs: map[string]string{"trusted.overlay.opaque": "y"}}, nil)
	for _, n := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 3<<20 + 123} {
		a.file(fmt.Sprintf("sizes/%d", n), pattern(n, byte(n)))
	}
	sparse := make([]byte, 5<<20+777)
	copy(sparse[1<<20:], pattern(100000, 1))
	copy(sparse[5<<20:], pattern(777, 2))
	a.file("sparse/middle", sparse)
	a.file("sparse/tail", sparse[:3<<20])
	a.file("sparse/hole", make([]byte, 10<<20+1))
	a.file("sparse/small", make([]byte, 5000))
	a.file("sparse/start", append(make([]byte, 200<<10), pattern(3, 9)...))
	a.add("dev/null", Entry{Mode: ModeChar | 0o666, Major: 1, Minor: 3}, nil)
	a.add("dev/big", Entry{Mode: ModeBlock | 0o660, UID: 0, GID: 6, Major: 4095, Minor: 1<<20 - 1}, nil)
	a.add("dev/whiteout", Entry{Mode: ModeChar}, nil)
	a.add("dev/fifo", Entry{Mode: ModeFIFO | 0o600}, nil)
	a.add("dev/sock", Entry{Mode: ModeSocket | 0o700}, nil)
	a.add("bin/su", Entry{Mode: ModeRegular | 0o4755, UID: 1 << 31, GID: 1<<32 - 2, Mtime: time.Unix(-5, 999999999)}, []byte("setuid"))
	a.add("bin/sh", Entry{Mode: ModeSymlink | 0o777, Linkname: "bash"}, nil)
	for _, n := range []int{1, 4000, 4032, 4033, 4095} {
		a.add(fmt.Sprintf("links/%d", n), Entry{Mode: ModeSymlink | 0o777, Linkname: strings.Repeat("x", n)}, nil)
	}
	acl := "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"
	all := map[string]string{
		"user.empty": "", "user.a": "1", "user." + strings.Repeat("n", 250): "long name",
		"user.large":             string(pattern(40000, 3)),
		"security.capability":    "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"trusted.overlay.opaque": "y",
	}
	a.add("xattr/file", Entry{Mode: ModeRegular | 0o644, Xattrs: all}, []byte("x"))
	a.add("xattr/dir", Entry{Mode: ModeDir | 0o700, Xattrs: map[string]string{"system.posix_acl_default": acl, "system.posix_acl_access": acl, "trusted.overlay.origin": "\x00\xfb"}}, nil)
	a.add("xattr/link", Entry{Mode: ModeSymlink | 0o777, Linkname: "file", Xattrs: map[string]string{"trusted.t": "v"}}, nil)
	a.add("xattr/dev", Entry{Mode: ModeChar | 0o600, Major: 5, Minor: 1, Xattrs: map[string]string{"trusted.t": "v"}}, nil)
	sp := make([]byte, 1<<20)
	sp[1<<19] = 1
	a.add("xattr/sparse", Entry{Mode: ModeRegular | 0o600, Xattrs: map[string]string{"user.s": "odd"}}, sp)
	for i := range 1500 {
		a.file(fmt.Sprintf("many/%04d-%s", i, strings.Repeat("n", i%200)), nil)
	}
	a.file("many/"+strings.Repeat("L", 255), []byte("long"))
	a.file("many/!before-dot", nil)
	a.file("many/ünïcödé \xff\n", nil)
	// Directories whose last block is nearly, or exactly, full.
	for n := 100; n <= 255; n++ {
		for i := range 15 {
			a.file(fmt.Sprintf("full/%d/%0*d", n, n, i), nil)
		}
	}
	a.link("hard/one", "sizes/4097")
	a.link("hard/two", "/hard/one")
	a.link("hard/dev", "dev/null")
	a.link("hard/link", "bin/sh")
	deep := "deep"
	for range 40 {
		deep += "/d"
	}
	a.file(deep+"/end", []byte("end"))
	// Replaced and removed.
	a.file("gone/a/b/c", pattern(100000, 4))
	a.add("gone", Entry{Mode: ModeRegular | 0o644}, []byte("now a file"))
	a.file("removed/x", pattern(10, 1))
	if err := b.Remove("removed"); err != nil {
		t.Fatal(err)
	}
}
