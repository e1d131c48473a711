// SPDX-License-Identifier: Apache-2.0

// The writer, read back by the reader.

package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRichImage(t *testing.T) {
	path, s := build(t, BuilderOptions{VolumeName: "rich"}, func(b *Builder) { fillRich(t, b) })
	im := openFile(t, path)
	tree, err := imageTree(im)
	if err != nil {
		t.Fatal(err)
	}
	st := im.StatFS()
	if int(st.Inodes) != s.Inodes || int64(st.Blocks)*st.BlockSize != s.Bytes || st.UUID != s.UUID || st.VolumeName != "rich" || !st.Checksummed {
		t.Errorf("StatFS %+v, summary %+v", st, s)
	}
	if s.Entries != len(tree)-1 {
		t.Errorf("%d entries, the tree has %d names", s.Entries, len(tree)-1)
	}
	for p, want := range map[string]file{
		"/dev/null":     {Mode: ModeChar | 0o666, Nlink: 2, Major: 1, Minor: 3},
		"/dev/big":      {Mode: ModeBlock | 0o660, GID: 6, Nlink: 1, Major: 4095, Minor: 1<<20 - 1},
		"/dev/whiteout": {Mode: ModeChar, Nlink: 1},
		"/dev/fifo":     {Mode: ModeFIFO | 0o600, Nlink: 1},
	} {
		got := tree[p]
		want.Ino, want.Mtime, want.Xattrs = got.Ino, got.Mtime, "map[]"
		if got != want {
			t.Errorf("%s: %+v, want %+v", p, got, want)
		}
	}
	if got := tree["/bin/su"]; got.Mtime != -5e9+999999999 || got.UID != 1<<31 || got.GID != 1<<32-2 || got.Mode != ModeRegular|0o4755 {
		t.Errorf("/bin/su: %+v", got)
	}
	if a, b := tree["/sizes/4097"], tree["/hard/two"]; a != b || a.Nlink != 3 {
		t.Errorf("hard links differ: %+v, %+v", a, b)
	}
	if _, ok := tree["/removed"]; ok || tree["/gone"].Mode != ModeRegular|0o644 {
		t.Error("a removed or replaced tree is still there")
	}
	if s.DeadBytes != roundUp(100000, blockSize)+blockSize {
		t.Errorf("%d dead bytes", s.DeadBytes)
	}
}

// TestDeterministic builds twice, with names added in another order, and once
// with other content.
func TestDeterministic(t *testing.T) {
	make := func(last string, reverse bool) ([]byte, Summary) {
		path, s := build(t, BuilderOptions{}, func(b *Builder) {
			a := adder{t, b}
			a.file("data", pattern(100000, 1))
			for i := range 300 {
				if reverse {
					i = 299 - i
				}
				a.add(fmt.Sprintf("d/%d", i), Entry{Mode: ModeDir | 0o755, Xattrs: map[string]string{"user.b": "1", "user.a": "2"}}, nil)
			}
			a.file("last", []byte(last))
		})
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b, s
	}
	first, s1 := make("x", false)
	second, s2 := make("x", true)
	_, s3 := make("y", false)
	if !bytes.Equal(first, second) || s1 != s2 {
		t.Error("the same tree gives different images")
	}
	if s1.UUID == s3.UUID || s1.UUID[6]>>4 != 8 {
		t.Errorf("UUIDs %x and %x", s1.UUID, s3.UUID)
	}
}

func TestExtentsOfWrittenFiles(t *testing.T) {
	path, s := build(t, BuilderOptions{UUID: [16]byte{1}}, func(b *Builder) {
		a := adder{t, b}
		a.file("plain", pattern(200001, 1))
		holes := make([]byte, 4<<20)
		copy(holes[1<<20:], pattern(1<<20, 2))
		a.file("holes", holes)
	})
	if s.HoleBytes != 3<<20 || s.UUID != [16]byte{1} {
		t.Errorf("summary %+v", s)
	}
	im := openFile(t, path)
	plain, holes := resolve(t, im, "plain"), resolve(t, im, "holes")
	for _, c := range []struct {
		ino  *Inode
		off  int64
		want Extent
	}{
		{plain, 0, Extent{0, 200001, 4096, true}},
		{plain, 200000, Extent{0, 200001, 4096, true}},
		{holes, 5, Extent{0, 1 << 20, -1, false}},
		{holes, 1<<20 + 7, Extent{1 << 20, 1 << 20, 4096 + 49*4096, true}},
		{holes, 2<<20 + 70000, Extent{2<<20 + 65536, 2<<20 - 65536, -1, false}},
	} {
		if got, err := im.Extent(c.ino, c.off); err != nil || got != c.want {
			t.Errorf("extent at %d: %+v, %v; want %+v", c.off, got, err, c.want)
		}
	}
	if _, err := im.Extent(plain, 200001); err != io.EOF {
		t.Errorf("extent at the end: %v", err)
	}
}

func TestPathsStayInside(t *testing.T) {
	path, _ := build(t, BuilderOptions{}, func(b *Builder) {
		a := adder{t, b}
		a.add("abs", Entry{Mode: ModeSymlink | 0o777, Linkname: "/../../usr/./lib"}, nil)
		a.add("a/b/up", Entry{Mode: ModeSymlink | 0o777, Linkname: "../../../../x"}, nil)
		a.file("abs/f", []byte("1"))
		a.file("../../etc/passwd", []byte("2"))
		a.file("a/b/up/g", []byte("3"))
		a.link("a/b/up/h", "abs/f")
		a.add("loop", Entry{Mode: ModeSymlink | 0o777, Linkname: "loop"}, nil)
		if err := b.Add("loop/x", Entry{Mode: ModeRegular}, nil); !errors.Is(err, ErrLimit) {
			t.Errorf("a loop of links: %v", err)
		}
		if err := b.Add("etc/passwd/x", Entry{Mode: ModeRegular}, nil); !errors.Is(err, ErrNotDir) {
			t.Errorf("below a file: %v", err)
		}
		if e, ok := b.Lookup("/usr/lib/f"); !ok || e.Size != 1 {
			t.Errorf("Lookup: %+v, %v", e, ok)
		}
	})
	tree, err := imageTree(openFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/usr/lib/f", "/etc/passwd", "/x/g", "/x/h", "/abs", "/a/b/up", "/loop"} {
		if _, ok := tree[p]; !ok {
			t.Errorf("%s is missing", p)
		}
	}
}

func TestReplaceKeepsWhatTarKeeps(t *testing.T) {
	path, s := build(t, BuilderOptions{}, func(b *Builder) {
		a := adder{t, b}
		a.file("d/child", []byte("kept"))
		x := map[string]string{"user.k": "v", "trusted.overlay.opaque": "y"}
		a.add("d", Entry{Mode: ModeDir | 0o700, UID: 7, Xattrs: x}, nil)
		if e, ok := b.Lookup("d"); !ok || e.UID != 7 || !reflect.DeepEqual(e.Xattrs, x) {
			t.Errorf("Lookup: %+v", e)
		}
		// A link whose target lies in what it replaces.
		a.file("tree/in/side", []byte("target"))
		a.link("tree", "tree/in/side")
		a.link("tree", "tree")
		a.file("f", []byte("old"))
		a.link("g", "f")
		a.file("f", []byte("new!"))
	})
	tree, err := imageTree(openFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if f := tree["/d"]; f.Mode != ModeDir|0o700 || tree["/d/child"].Size != 4 {
		t.Errorf("d: %+v", f)
	}
	if f := tree["/tree"]; f.Size != 6 || f.Nlink != 1 {
		t.Errorf("tree: %+v", f)
	}
	if f, g := tree["/f"], tree["/g"]; f.Size != 4 || g.Size != 3 || g.Nlink != 1 {
		t.Errorf("f %+v, g %+v", f, g)
	}
	if s.Inodes != 6 || s.DeadBytes != 0 {
		t.Errorf("summary %+v", s)
	}
}

func TestBadEntries(t *testing.T) {
	build(t, BuilderOptions{}, func(b *Builder) {
		for _, c := range []struct {
			path string
			e    Entry
			want error
		}{
			{"a", Entry{}, ErrInvalid},
			{"a", Entry{Mode: 1<<16 | ModeRegular}, ErrInvalid},
			{"a", Entry{Mode: ModeRegular, Size: -1}, ErrLimit},
			{"a", Entry{Mode: ModeRegular, Size: MaxFileSize + 1}, ErrLimit},
			{"a", Entry{Mode: ModeSymlink}, ErrInvalid},
			{"a", Entry{Mode: ModeSymlink, Linkname: "a\x00"}, ErrInvalid},
			{"a", Entry{Mode: ModeSymlink, Linkname: strings.Repeat("x", 4096)}, ErrLimit},
			{"a", Entry{Mode: ModeChar, Major: 4096}, ErrInvalid},
			{"a", Entry{Mode: ModeBlock, Minor: 1 << 20}, ErrInvalid},
			{"/", Entry{Mode: ModeRegular}, ErrInvalid},
			{"a\x00", Entry{Mode: ModeRegular}, ErrInvalid},
			{strings.Repeat("n", 256), Entry{Mode: ModeRegular}, ErrLimit},
			{strings.Repeat("n", 256) + "/a", Entry{Mode: ModeRegular}, ErrLimit},
			{strings.Repeat("n/", 2048), Entry{Mode: ModeRegular}, ErrLimit},
			{"a", Entry{Mode: ModeRegular, Xattrs: map[string]string{"system.other": ""}}, ErrInvalid},
			{"a", Entry{Mode: ModeRegular, Xattrs: map[string]string{"user.": ""}}, ErrInvalid},
			{"a", Entry{Mode: ModeRegular, Xattrs: map[string]string{"user.a": strings.Repeat("x", 65536)}}, ErrLimit},
			{"a", Entry{Mode: ModeRegular, Xattrs: map[string]string{"user." + strings.Repeat("x", 251): ""}}, ErrInvalid},
		} {
			if err := b.Add(c.path, c.e, nil); !errors.Is(err, c.want) {
				t.Errorf("Add(%.20q, %+v): %v, want %v", c.path, c.e, err, c.want)
			}
		}
		for _, err := range []error{b.Link("x", "missing"), b.Remove("missing"), b.Remove("missing/x")} {
			if !errors.Is(err, ErrNotExist) {
				t.Errorf("%v, want ErrNotExist", err)
			}
		}
		if err := b.Link("x", "/"); !errors.Is(err, ErrInvalid) {
			t.Errorf("link to a directory: %v", err)
		}
		if err := b.Remove("/"); !errors.Is(err, ErrInvalid) {
			t.Errorf("remove the root: %v", err)
		}
	})
}

// TestBrokenData: an image whose data ended early can never be finished.
func TestBrokenData(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := NewBuilder(f, BuilderOptions{Time: time.Unix(1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Add("a", Entry{Mode: ModeRegular, Size: 10}, strings.NewReader("short"))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short data: %v", err)
	}
	if err := b.Add("b", Entry{Mode: ModeRegular}, nil); !errors.Is(err, ErrFinished) {
		t.Errorf("Add after a failure: %v", err)
	}
	if _, err := b.Finish(context.Background()); !errors.Is(err, ErrFinished) {
		t.Errorf("Finish after a failure: %v", err)
	}
	if _, err := NewBuilder(f, BuilderOptions{VolumeName: strings.Repeat("x", 17)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("long volume name: %v", err)
	}
}
