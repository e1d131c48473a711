// SPDX-License-Identifier: Apache-2.0

//go:build linux

package volumes

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/runtime/api"
)

// hostTree makes files of every kind that an ordinary user can make.
func hostTree(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640))
	must(os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "sub", "hard")))
	must(os.Symlink("../file", filepath.Join(dir, "sub", "soft")))
	must(unix.Mkfifo(filepath.Join(dir, "sub", "pipe"), 0o622))
	must(os.WriteFile(filepath.Join(dir, "sub", "deep", "zeros"), make([]byte, 3<<20), 0o600))
	must(os.Chmod(filepath.Join(dir, "sub"), 0o555))
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "sub"), 0o755) })
	must(os.Chtimes(filepath.Join(dir, "file"), time.Time{}, time.Unix(1700000000, 123456789)))
	if err := unix.Setxattr(filepath.Join(dir, "file"), "user.tier", []byte("gold"), 0); err != nil && err != unix.ENOTSUP {
		t.Fatal(err)
	}
}

// sameTree compares two trees of the host.
func sameTree(t *testing.T, a, b string) {
	t.Helper()
	err := filepath.WalkDir(a, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(a, p)
		x, err := os.Lstat(p)
		if err != nil {
			return err
		}
		y, err := os.Lstat(filepath.Join(b, rel))
		if x.Mode()&os.ModeNamedPipe != 0 {
			if err == nil {
				t.Errorf("%s was made on the host", rel)
			}
			return nil
		}
		if err != nil {
			t.Error(err)
			return nil
		}
		if x.Mode() != y.Mode() || !x.IsDir() && x.Size() != y.Size() || x.Mode().IsRegular() && !x.ModTime().Equal(y.ModTime()) {
			t.Errorf("%s: %v %d %v, copied as %v %d %v", rel, x.Mode(), x.Size(), x.ModTime(), y.Mode(), y.Size(), y.ModTime())
		}
		if x.Mode().IsRegular() {
			p1, _ := os.ReadFile(p)
			p2, _ := os.ReadFile(filepath.Join(b, rel))
			if !bytes.Equal(p1, p2) {
				t.Errorf("%s has other bytes", rel)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCopyThereAndBack(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	from, to := filepath.Join(b.dir, "from"), filepath.Join(b.dir, "to")
	hostTree(t, from)
	b.ok(os.Mkdir(to, 0o755))
	b.ok(b.s.CopyIn(from, v, "/", CopyOptions{}))
	b.ok(b.s.CopyOut(v, "/from", to, CopyOptions{}))
	sameTree(t, from, filepath.Join(to, "from"))
	out := filepath.Join(to, "from")
	x, err := os.Stat(filepath.Join(out, "file"))
	b.ok(err)
	y, err := os.Stat(filepath.Join(out, "sub", "hard"))
	b.ok(err)
	if !os.SameFile(x, y) {
		t.Error("a hard link became a copy")
	}
	if z, err := os.Stat(filepath.Join(out, "sub", "deep", "zeros")); err != nil || diskBytes(z) > 1<<20 {
		t.Errorf("zeros take %d bytes, %v", diskBytes(z), err)
	}
	value := make([]byte, 16)
	n, err := unix.Getxattr(filepath.Join(from, "file"), "user.tier", value)
	if err == nil {
		got := make([]byte, 16)
		k, err := unix.Getxattr(filepath.Join(out, "file"), "user.tier", got)
		if err != nil || string(got[:k]) != string(value[:n]) {
			t.Errorf("attribute %q, %v", got[:max(k, 0)], err)
		}
	}
	os.Chmod(filepath.Join(out, "sub"), 0o755)
	fs, err := b.s.OpenFS(v, false)
	b.ok(err)
	i, err := fs.Walk("/from/file")
	b.ok(err)
	if a := i.Attr(); a.UID != 0 || a.GID != 0 || a.Mode&0o7777 != 0o640 {
		t.Errorf("in the volume: %+v", a)
	}
	i.Release()
	b.ok(fs.Close())
	report, _, err := b.s.Check(v, false)
	b.ok(err)
	if !report.Clean() {
		t.Errorf("%v", report.Problems)
	}
}

// TestCopyRules goes through docker's table of what a copy ends up as.
func TestCopyRules(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	src := filepath.Join(b.dir, "d")
	b.ok(os.Mkdir(src, 0o755))
	b.ok(os.WriteFile(filepath.Join(src, "x"), []byte("x"), 0o644))
	for _, c := range []struct{ from, to, finds string }{
		{src, "/new", "/new/x"},
		{src, "/new", "/new/d/x"},
		{src + "/.", "/new", "/new/x"},
		{src + "/x", "/new/d", "/new/d/x"},
		{src + "/x", "/y", "/y"},
		{src + "/x", "/f", "/f"},
		{src, "/new2/", "/new2/x"},
	} {
		b.ok(b.s.CopyIn(c.from, v, c.to, CopyOptions{}))
		if got := b.read(v, c.finds); got != "x" {
			t.Errorf("cp %s %s: %s has %q", c.from, c.to, c.finds, got)
		}
	}
	b.fails(b.s.CopyIn(src, v, "/y", CopyOptions{}), api.KindInvalid, "directory to the file")
	b.fails(b.s.CopyIn(src+"/x", v, "/nodir/", CopyOptions{}), api.KindNotFound, "no such directory")
	b.fails(b.s.CopyIn(src+"/x", v, "/nodir/x", CopyOptions{}), api.KindNotFound, "nodir")
	b.fails(b.s.CopyIn(src+"/nothing", v, "/", CopyOptions{}), api.KindNotFound, "nothing")

	out := filepath.Join(b.dir, "out")
	b.ok(os.Mkdir(out, 0o755))
	for _, c := range []struct{ from, to, finds string }{
		{"/new", out + "/a", out + "/a/x"},
		{"/new", out, out + "/new/x"},
		{"/new/.", out, out + "/x"},
		{"/y", out, out + "/y"},
		{"/y", out + "/z", out + "/z"},
		{"/", out + "/all", out + "/all/y"},
	} {
		b.ok(b.s.CopyOut(v, c.from, c.to, CopyOptions{}))
		if got, err := os.ReadFile(c.finds); err != nil || string(got) != "x" {
			t.Errorf("cp %s %s: %s has %q, %v", c.from, c.to, c.finds, got, err)
		}
	}
	b.fails(b.s.CopyOut(v, "/new", out+"/z", CopyOptions{}), api.KindInvalid, "directory to the file")
	b.fails(b.s.CopyOut(v, "/nothing", out, CopyOptions{}), api.KindNotFound, "nothing")
	b.fails(b.s.CopyOut(v, "/y", out+"/no/dir", CopyOptions{}), api.KindInvalid, "out/no")
}

func TestTarInAndOut(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []*tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 3, Gid: 4},
		{Name: "etc/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Name: "etc/sh", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 3, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.security.capability": "\x01\x00"}},
	} {
		b.ok(w.WriteHeader(h))
	}
	b.ok(w.Close())
	b.ok(b.s.ImportTar(bytes.NewReader(in.Bytes()), v, "/", CopyOptions{}))
	var out bytes.Buffer
	b.ok(b.s.ExportTar(&out, v, "/etc", CopyOptions{}))
	r := tar.NewReader(&out)
	found := map[string]*tar.Header{}
	for {
		h, err := r.Next()
		if err != nil {
			break
		}
		found[h.Name] = h
	}
	sh, null := found["etc/sh"], found["etc/null"]
	if sh == nil || null == nil || sh.Mode != 0o4755 || sh.Uid != 3 || null.Devminor != 3 ||
		sh.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] != "y" || sh.PAXRecords["SCHILY.xattr.security.capability"] != "\x01\x00" {
		t.Errorf("came out as %+v and %+v", sh, null)
	}
	b.fails(b.s.ImportTar(strings.NewReader("no archive at all, but of some length"), v, "/", CopyOptions{}), api.KindInvalid, "import")
	b.fails(b.s.ImportTar(bytes.NewReader(in.Bytes()), v, "/f", CopyOptions{}), api.KindInvalid, "no directory")

	// As nobody but root could have it: what needs rights is told, the rest is kept.
	var said []string
	b.s.opt.Warn = func(f string, a ...any) { said = append(said, f) }
	dest := filepath.Join(b.dir, "dest")
	b.ok(os.Mkdir(dest, 0o755))
	b.ok(b.s.CopyOut(v, "/etc/.", dest, CopyOptions{}))
	fi, err := os.Stat(filepath.Join(dest, "sh"))
	b.ok(err)
	if fi.Mode() != 0o755 {
		t.Errorf("set-ID without its owner: %v", fi.Mode())
	}
	if len(said) != 1 || !fileMissing(filepath.Join(dest, "null")) {
		t.Errorf("a device: said %q", said)
	}
}

func fileMissing(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

// TestHostileTreeStaysInside: a volume whose names and links lead out of the
// directory that it is copied to.
func TestHostileTreeStaysInside(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	outside := filepath.Join(b.dir, "outside")
	b.ok(os.Mkdir(outside, 0o755))
	b.ok(os.WriteFile(filepath.Join(outside, "victim"), []byte("whole"), 0o644))
	fs, err := b.s.OpenFS(v, true)
	b.ok(err)
	root, err := fs.Root()
	b.ok(err)
	link, err := root.Make("link", ext4lite.NewInode{Mode: 0o120777, Target: outside})
	b.ok(err)
	link.Release()
	root.Release()
	b.ok(fs.Close())
	dest := filepath.Join(b.dir, "dest")
	b.ok(os.Mkdir(dest, 0o755))
	// The link is there first; then a directory of its name, with a file in it.
	b.ok(b.s.CopyOut(v, "/link", dest, CopyOptions{}))
	fs, err = b.s.OpenFS(v, true)
	b.ok(err)
	root, err = fs.Root()
	b.ok(err)
	b.ok(root.Unlink("link"))
	root.Release()
	b.ok(fs.WriteFile("/victim", []byte("lost"), ext4lite.NewInode{Mode: 0o644}))
	dir, err := fs.MkdirAll("/link", ext4lite.NewInode{Mode: 0o755})
	b.ok(err)
	dir.Release()
	b.ok(fs.WriteFile("/link/victim", []byte("lost"), ext4lite.NewInode{Mode: 0o644}))
	b.ok(fs.Close())
	if err := b.s.CopyOut(v, "/link", dest, CopyOptions{}); err == nil {
		t.Error("a directory went over a link")
	}
	// A file over a link replaces the link.
	b.ok(os.Symlink(filepath.Join(outside, "victim"), filepath.Join(dest, "victim")))
	b.ok(b.s.CopyOut(v, "/victim", dest, CopyOptions{}))
	if p, _ := os.ReadFile(filepath.Join(outside, "victim")); string(p) != "whole" {
		t.Errorf("a file outside was written: %q", p)
	}
}

func TestCatPutTree(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	b.ok(b.s.Put(strings.NewReader("hello"), v, "/a/b/c", PutOptions{Mode: 0o600, UID: 7, GID: 8, Parents: true}))
	b.ok(b.s.Put(strings.NewReader("again"), v, "/a/b/c", PutOptions{Mode: 0o644}))
	var out bytes.Buffer
	b.ok(b.s.Cat(&out, v, "/a/b/c"))
	if out.String() != "again" {
		t.Errorf("%q", out.String())
	}
	b.fails(b.s.Cat(&out, v, "/a"), api.KindInvalid, "no regular file")
	b.fails(b.s.Cat(&out, v, "/no"), api.KindNotFound, "no")
	b.fails(b.s.Put(strings.NewReader(""), v, "/no/way", PutOptions{}), api.KindNotFound, "no")
	b.fails(b.s.Put(strings.NewReader(""), v, "/a/b", PutOptions{}), api.KindInvalid, "b")
	var names []string
	b.ok(b.s.Tree(v, "/", 0, false, func(e *TreeEntry) error {
		names = append(names, strings.Repeat(" ", e.Depth)+e.Name)
		return nil
	}))
	if got := strings.Join(names, "\n"); got != "/\n a\n  b\n   c\n f" {
		t.Errorf("tree:\n%s", got)
	}
	small := b.ref("small")
	b.ok(b.s.Create(small, CreateOptions{SizeBytes: 8 << 20}))
	b.fails(b.s.Put(bytes.NewReader(bytes.Repeat([]byte("x"), 16<<20)), small, "/big", PutOptions{Mode: 0o644}), api.KindNoSpace, "resize")
	if report, _, err := b.s.Check(small, false); err != nil || !report.Clean() {
		t.Errorf("after a full volume: %v, %v", report, err)
	}
}
