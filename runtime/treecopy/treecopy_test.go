// SPDX-License-Identifier: Apache-2.0

//go:build linux

package treecopy

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stream makes a tar stream of entries; a body belongs to a regular file.
func stream(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = "content"
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// tree lists what is below dir: name, type and, of files and links, content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(name)
			rel += " -> " + to
		case d.Type().IsRegular():
			content, _ := os.ReadFile(name)
			rel += " = " + string(content)
		}
		lines = append(lines, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// TestHostileStreamsStayInside: whatever names, links and orders a stream
// comes with, nothing is written, changed or linked outside of the destination.
func TestHostileStreamsStayInside(t *testing.T) {
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to} }
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	outside := t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"dot dot":                {reg("../evil")},
		"deep dot dot":           {dir("a"), reg("a/../../evil")},
		"absolute":               {reg(outside + "/evil")},
		"through a link":         {link("l", outside), reg("l/evil")},
		"through a link upwards": {link("l", "../"), reg("l/evil")},
		"link, then directory":   {link("l", outside), dir("l"), reg("l/evil")},
		"two links":              {link("a", "b"), link("b", outside), reg("a/evil")},
		"over a link":            {link("l", outside+"/victim"), reg("l")},
		"hard link outwards":     {hard("h", "../../../../../../etc/passwd"), reg("h")},
		"hard link to a link":    {link("l", outside+"/victim"), hard("h", "l"), reg("h")},
		"link in the parent":     {dir("d"), link("d/l", outside), dir("d/l/x"), reg("d/l/x/evil")},
		"proc":                   {link("l", "/proc/self/root"+outside), reg("l/evil")},
	} {
		base := t.TempDir()
		dest := filepath.Join(base, "dest")
		if err := os.Mkdir(dest, 0o755); err != nil {
			t.Fatal(err)
		}
		victim := filepath.Join(outside, "victim")
		if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Unpack(stream(t, entries...), dest, UnpackOptions{})
		if got := tree(t, outside); got != "victim = untouched" {
			t.Errorf("%s: outside there is now %q (%v)", name, got, err)
		}
		if got, _ := os.ReadDir(base); len(got) != 1 {
			t.Errorf("%s: beside the destination there is %v (%v)", name, got, err)
		}
	}
}

// TestHostNeverGetsDevicesOrSetUID: what a container could use against the
// host does not come out of it.
func TestHostNeverGetsDevicesOrSetUID(t *testing.T) {
	dest := t.TempDir()
	var skipped []string
	err := Unpack(stream(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "s", Mode: 0o6755},
		tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o2755},
		tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeBlock, Name: "b"},
		tar.Header{Typeflag: tar.TypeFifo, Name: "p"},
	), dest, UnpackOptions{Skipped: func(name, _ string) { skipped = append(skipped, name) }})
	if err != nil || strings.Join(skipped, " ") != "c b p" {
		t.Errorf("skipped %v, %v", skipped, err)
	}
	for _, name := range []string{"s", "d"} {
		if fi, err := os.Lstat(filepath.Join(dest, name)); err != nil || fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
}

func TestThereAndBackAgain(t *testing.T) {
	src, dest := filepath.Join(t.TempDir(), "src"), t.TempDir()
	when := time.Unix(1_600_000_000, 123_000_000)
	for _, d := range []string{"", "sub", "empty"} {
		if err := os.Mkdir(filepath.Join(src, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"f": "text", "sub/big": strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(src, "f"), filepath.Join(src, "sub/same")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../f", filepath.Join(src, "sub/link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "sub", "empty", ""} {
		if err := os.Chtimes(filepath.Join(src, name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := Pack(&b, src, "."); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(&b, dest, UnpackOptions{Name: "copy"}); err != nil {
		t.Fatal(err)
	}
	if got, want := tree(t, filepath.Join(dest, "copy")), tree(t, src); got != want {
		t.Errorf("got\n%.200s\nwant\n%.200s", got, want)
	}
	for name, mode := range map[string]fs.FileMode{"copy": 0o750 | fs.ModeDir, "copy/sub": 0o750 | fs.ModeDir, "copy/f": 0o640} {
		fi, err := os.Stat(filepath.Join(dest, name))
		if err != nil || fi.Mode() != mode || !fi.ModTime().Equal(when) {
			t.Errorf("%s: %v at %v, %v", name, fi.Mode(), fi.ModTime(), err)
		}
	}
	one, _ := os.Stat(filepath.Join(dest, "copy/f"))
	two, _ := os.Stat(filepath.Join(dest, "copy/sub/same"))
	if !os.SameFile(one, two) {
		t.Error("one file with two names became two")
	}
}

// TestDestinations are docker's rules, one by one.
func TestDestinations(t *testing.T) {
	file, dir := Source{Base: "s"}, Source{Base: "s", Dir: true}
	contents := Source{Base: "s", Dir: true, Contents: true}
	for _, c := range []struct {
		dest string
		s    Source
		want string // DIR NAME, empty for an error
	}{
		{"new", file, ". new"}, {"new/", file, ""}, {"no/new", file, ""},
		{"file", file, ". file"}, {"file/", file, ""}, {"dir", file, "dir s"}, {"dir/", file, "dir/ s"},
		{"link", file, ". file"}, {"dirlink", file, "dirlink s"},
		{"new", dir, ". new"}, {"new/", dir, ". new"}, {"file", dir, ""}, {"dir", dir, "dir s"},
		{"new", contents, ". new"}, {"dir", contents, "dir "}, {"file", contents, ""}, {"no/new", dir, ""},
	} {
		t.Chdir(t.TempDir())
		os.WriteFile("file", nil, 0o600)
		os.Mkdir("dir", 0o700)
		os.Symlink("file", "link")
		os.Symlink("dir", "dirlink")
		d, name, err := Resolve(c.dest, c.s)
		if got := d + " " + name; err == nil && got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s for %+v: %q, %v; want %q", c.dest, c.s, got, err, c.want)
		}
	}
}

func TestSources(t *testing.T) {
	t.Chdir(t.TempDir())
	os.Mkdir("dir", 0o700)
	os.WriteFile("file", nil, 0o600)
	os.Symlink("dir", "link")
	for p, want := range map[string]Source{
		"dir": {Base: "dir", Dir: true}, "dir/.": {Base: "dir", Dir: true, Contents: true}, "file": {Base: "file"},
		"link": {Base: "link"}, "link/": {Base: "link", Dir: true}, ".": {Base: ".", Dir: true, Contents: true},
	} {
		if _, s, err := Find(p, false); err != nil || s != want {
			t.Errorf("%s: %+v, %v, want %+v", p, s, err, want)
		}
	}
	if _, s, err := Find("link", true); err != nil || !s.Dir || s.Base != "link" {
		t.Errorf("followed: %+v, %v", s, err)
	}
	for _, p := range []string{"none", "file/", "file/."} {
		if _, _, err := Find(p, false); err == nil {
			t.Errorf("%s was found", p)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, tar.Header{Typeflag: tar.TypeReg, Name: "a"}).Bytes())
	f.Add(stream(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "l/a"}).Bytes())
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		base := t.TempDir()
		dest := filepath.Join(base, "dest")
		if err := os.Mkdir(dest, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = Unpack(bytes.NewReader(doc), dest, UnpackOptions{})
		if got, _ := os.ReadDir(base); len(got) != 1 {
			t.Errorf("beside the destination there is %v", got)
		}
	})
}
