// SPDX-License-Identifier: Apache-2.0

package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// stream makes a tar stream. A header's Linkname doubles as the content of
// regular files.
func stream(t testing.TB, hdrs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range hdrs {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: content}
}
func dir(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}
func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
}
func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// convert converts into a real image and opens it.
func convert(t testing.TB, c Converter, raw []byte) (*erofs.Image, Stats, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stats, err := c.Convert(context.Background(), bytes.NewReader(raw), b)
	if err != nil {
		return nil, stats, err
	}
	sum, err := b.Finish(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := erofs.Verify(context.Background(), f, sum.Bytes); err != nil {
		t.Fatal(err)
	}
	im, err := erofs.Open(f, sum.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return im, stats, nil
}

// tree prints an image, one line for each path.
func tree(t testing.TB, im *erofs.Image) map[string]string {
	t.Helper()
	out := map[string]string{}
	var visit func(path string, nid uint64)
	visit = func(path string, nid uint64) {
		ino, err := im.Inode(nid)
		if err != nil {
			t.Fatal(err)
		}
		line := ""
		switch ino.Mode & erofs.ModeType {
		case erofs.ModeDir:
			line = "dir"
			var children []erofs.Dirent
			if _, err := im.ReadDir(&ino, 0, func(d erofs.Dirent) bool {
				children = append(children, d)
				return true
			}); err != nil {
				t.Fatal(err)
			}
			for _, d := range children {
				if d.Name != "." && d.Name != ".." {
					visit(join(path, d.Name), d.NID)
				}
			}
		case erofs.ModeSymlink:
			to, err := im.Readlink(&ino)
			if err != nil {
				t.Fatal(err)
			}
			line = "-> " + to
		case erofs.ModeChar:
			line = fmt.Sprintf("char %d:%d", ino.Major, ino.Minor)
		case erofs.ModeBlock:
			line = fmt.Sprintf("block %d:%d", ino.Major, ino.Minor)
		case erofs.ModeFIFO:
			line = "fifo"
		case erofs.ModeRegular:
			b := make([]byte, min(ino.Size, 100))
			if _, err := im.ReadAt(&ino, b, 0); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			line = fmt.Sprintf("file %s links=%d", b, ino.Nlink)
		}
		names, err := im.ListXattr(&ino)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(slices.Values(names)) {
			v, err := im.GetXattr(&ino, name)
			if err != nil {
				t.Fatal(err)
			}
			line += fmt.Sprintf(" %s=%q", name, v)
		}
		out[path] = line
	}
	visit("", im.Root())
	return out
}

const opq = ` trusted.overlay.opaque="y"`

func TestConvert(t *testing.T) {
	long := strings.Repeat("n", 255)
	for name, c := range map[string]struct {
		in   []tar.Header
		want map[string]string
	}{
		"empty": {nil, map[string]string{"": "dir"}},
		"plain": {
			[]tar.Header{dir("./"), dir("./d/"), file("./d/f", "x"), symlink("./d/l", "../../f"), {Typeflag: tar.TypeFifo, Name: "p"},
				{Typeflag: tar.TypeChar, Name: "c", Devmajor: 5, Devminor: 300}, {Typeflag: tar.TypeBlock, Name: "b", Devmajor: 259, Devminor: 70000}},
			map[string]string{"": "dir", "d": "dir", "d/f": "file x links=1", "d/l": "-> ../../f", "p": "fifo", "c": "char 5:300", "b": "block 259:70000"},
		},
		"whiteouts": {
			[]tar.Header{dir("d"), file("d/.wh.gone", ""), file(".wh.top", ""), dir("o"), file("o/.wh..wh..opq", ""), file("o/new", "n"), file(".wh..wh.plnk/x.1", ""), file(".wh..wh.aufs", "")},
			map[string]string{"": "dir", "d": "dir", "d/gone": "char 0:0", "top": "char 0:0", "o": "dir" + opq, "o/new": "file n links=1"},
		},
		"opaque before its directory": {
			[]tar.Header{file("o/.wh..wh..opq", ""), dir("o"), file("o/f", "1")},
			map[string]string{"": "dir", "o": "dir" + opq, "o/f": "file 1 links=1"},
		},
		"opaque root": {[]tar.Header{file(".wh..wh..opq", ""), dir("./")}, map[string]string{"": "dir" + opq}},
		"whiteout and entry": {
			[]tar.Header{file(".wh.a", ""), file("a", "1"), file("b", "2"), file(".wh.b", ""), file(".wh.c", ""), dir("c"), dir("e"), file(".wh.e", ""), file(".wh.i", ""), file("i/f", "3")},
			map[string]string{"": "dir", "a": "file 1 links=1", "b": "file 2 links=1", "c": "dir" + opq, "e": "dir" + opq, "i": "dir" + opq, "i/f": "file 3 links=1"},
		},
		"last wins": {
			[]tar.Header{file("a", "1"), file("a", "2"), dir("d"), file("d/x", "1"), dir("d"), file("t", "1"), dir("t"), dir("u"), file("u/v", "1"), file("u", "2")},
			map[string]string{"": "dir", "a": "file 2 links=1", "d": "dir", "d/x": "file 1 links=1", "t": "dir", "u": "file 2 links=1"},
		},
		"parents": {
			[]tar.Header{file("a/b/c", "1"), symlink("lib", "usr/lib"), file("lib/so", "2"), symlink("abs", "/a/b"), file("abs/d", "3"), symlink("up", "../../../a"), file("up/e", "4")},
			map[string]string{"": "dir", "a": "dir", "a/b": "dir", "a/b/c": "file 1 links=1", "lib": "-> usr/lib", "usr": "dir", "usr/lib": "dir", "usr/lib/so": "file 2 links=1",
				"abs": "-> /a/b", "a/b/d": "file 3 links=1", "up": "-> ../../../a", "a/e": "file 4 links=1"},
		},
		"parent replaced": {
			[]tar.Header{symlink("l", "a"), file("l/x", "1"), dir("l"), file("l/y", "2"), symlink("m", "a"), file("m/p", "3"), symlink("m", "b"), file("m/q", "4")},
			map[string]string{"": "dir", "a": "dir", "a/x": "file 1 links=1", "l": "dir", "l/y": "file 2 links=1", "m": "-> b", "a/p": "file 3 links=1", "b": "dir", "b/q": "file 4 links=1"},
		},
		"names": {
			[]tar.Header{file("/abs", "1"), file("x/../y", "2"), file(long, "3"), file("..a", "4"), file("a..", "5"), dir("//")},
			map[string]string{"": "dir", "abs": "file 1 links=1", "y": "file 2 links=1", long: "file 3 links=1", "..a": "file 4 links=1", "a..": "file 5 links=1"},
		},
		"hard links": {
			[]tar.Header{file("a", "1"), link("b", "a"), link("c", "./b"), symlink("s", "d"), file("s/f", "2"), link("g", "s/f"), link("a", "a"), symlink("y", "nowhere"), link("z", "y"), dir("r"), file("r/k", "9"), link("r", "r/k")},
			map[string]string{"": "dir", "a": "file 1 links=3", "b": "file 1 links=3", "c": "file 1 links=3", "s": "-> d", "d": "dir", "d/f": "file 2 links=2", "g": "file 2 links=2", "y": "-> nowhere", "z": "-> nowhere", "r": "file 9 links=1"},
		},
		"attributes": {
			[]tar.Header{
				{Typeflag: tar.TypeReg, Name: "f", PAXRecords: map[string]string{
					"SCHILY.xattr.security.capability":      "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
					"SCHILY.xattr.user.a":                   "",
					"SCHILY.xattr.com.apple.quarantine":     "dropped",
					"SCHILY.xattr.trusted.overlay.redirect": "/etc",
					"SCHILY.xattr.trusted.x":                "kept",
				}},
				{Typeflag: tar.TypeDir, Name: "o", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}},
				{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "git"}},
			},
			map[string]string{"": "dir", "o": "dir" + opq,
				"f": `file  links=1 security.capability="\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" trusted.x="kept" user.a=""`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.in {
				if c.in[i].Typeflag == tar.TypeXGlobalHeader {
					c.in[i].Mode = 0
				}
			}
			im, _, err := convert(t, Converter{}, streamWithGlobal(t, c.in))
			if err != nil {
				t.Fatal(err)
			}
			got := tree(t, im)
			for _, path := range slices.Sorted(maps.Keys(c.want)) {
				if got[path] != c.want[path] {
					t.Errorf("%.40q is %q, want %q", path, got[path], c.want[path])
				}
			}
			for path, line := range got {
				if _, ok := c.want[path]; !ok {
					t.Errorf("%.40q is %q, want nothing", path, line)
				}
			}
		})
	}
}

// streamWithGlobal is stream for headers among which global ones may be, which
// the tar writer wants bare.
func streamWithGlobal(t testing.TB, hdrs []tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, h := range hdrs {
		if h.Typeflag == tar.TypeXGlobalHeader {
			tw := tar.NewWriter(&b)
			if err := tw.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			tw.Flush()
			continue
		}
		raw := stream(t, h)
		b.Write(raw[:len(raw)-1024])
	}
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

func TestMetadata(t *testing.T) {
	when := time.Unix(1_700_000_000, 123456789)
	im, _, err := convert(t, Converter{}, stream(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o6755, Uid: 3_000_000, Gid: maxID, ModTime: when, Format: tar.FormatPAX},
		tar.Header{Typeflag: tar.TypeReg, Name: "old", ModTime: time.Unix(-5, 0), Format: tar.FormatPAX},
		tar.Header{Typeflag: tar.TypeReg, Name: "far", ModTime: time.Unix(1<<40, 0), Format: tar.FormatPAX}))
	if err != nil {
		t.Fatal(err)
	}
	root, err := im.Inode(im.Root())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Time{"f": when, "old": time.Unix(0, 0), "far": time.Unix(0, 0)} {
		nid, _, err := im.Lookup(&root, name)
		if err != nil {
			t.Fatal(err)
		}
		ino, err := im.Inode(nid)
		if err != nil {
			t.Fatal(err)
		}
		if !ino.Mtime.Equal(want) {
			t.Errorf("%s: mtime %v, want %v", name, ino.Mtime, want)
		}
		if name == "f" && (ino.Mode != erofs.ModeRegular|0o6755 || ino.UID != 3_000_000 || ino.GID != maxID) {
			t.Errorf("f: mode %#o, owner %d:%d", ino.Mode, ino.UID, ino.GID)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	deep := strings.Repeat("d/", DefaultDepth) + "f"
	loop := []tar.Header{symlink("a", "b"), symlink("b", "a"), file("a/f", "")}
	xattrs := map[string]string{"SCHILY.xattr.user.a": strings.Repeat("x", 40<<10), "SCHILY.xattr.user.b": strings.Repeat("x", 40<<10)}
	whole := stream(t, file("one", "1"), file("two", strings.Repeat("2", 5000)))
	for name, c := range map[string]struct {
		raw   []byte
		kind  api.Kind
		texts []string
	}{
		"traversal":        {stream(t, file("ok", ""), file("../../etc/passwd", "")), api.KindImage, []string{"entry 2", "../../etc/passwd", "traversal"}},
		"hidden traversal": {stream(t, file("a/../../b", "")), api.KindImage, []string{"traversal"}},
		"link traversal":   {stream(t, link("a", "../b")), api.KindImage, []string{"traversal", "hard link"}},
		"link to nothing":  {stream(t, link("a", "b")), api.KindImage, []string{`"b"`, "not in this layer"}},
		"link to whiteout": {stream(t, file(".wh.b", ""), link("a", "b")), api.KindImage, []string{"not in this layer"}},
		"link to dir":      {stream(t, dir("b"), link("a", "b")), api.KindImage, []string{"directory"}},
		"file as parent":   {stream(t, file("a", ""), file("a/b", "")), api.KindImage, []string{"entry 2", `"a"`, "not a directory"}},
		"symlink loop":     {stream(t, loop...), api.KindLimit, []string{"symlinks"}},
		"root a file":      {header('0', "./", 0), api.KindImage, []string{"root"}},
		"long name":        {stream(t, file(strings.Repeat("n", 256), "")), api.KindLimit, []string{"255"}},
		"long path":        {stream(t, file(strings.Repeat("n/", 2500)+"f", "")), api.KindLimit, []string{"4095"}},
		"deep":             {stream(t, file(deep, "")), api.KindLimit, []string{"Depth"}},
		"whiteout dots":    {stream(t, file("a/.wh...", "")), api.KindImage, []string{"whiteout"}},
		"whiteout nothing": {stream(t, file(".wh.", "")), api.KindImage, []string{"whiteout"}},
		"in a whiteout":    {stream(t, file(".wh.a/b", "")), api.KindImage, []string{"reserved"}},
		"xattrs":           {stream(t, tar.Header{Typeflag: tar.TypeReg, Name: "f", PAXRecords: xattrs}), api.KindLimit, []string{"XattrBytes"}},
		"owner":            {stream(t, tar.Header{Typeflag: tar.TypeReg, Name: "f", Uid: math.MaxUint32}), api.KindImage, []string{"owner"}},
		"device":           {stream(t, tar.Header{Typeflag: tar.TypeChar, Name: "f", Devmajor: 1 << 20}), api.KindImage, []string{"device"}},
		"type":             {stream(t, tar.Header{Typeflag: 'V', Name: "f"}), api.KindUnsupported, []string{"'V'"}},
		"truncated":        {whole[:3000], api.KindImage, []string{"entry 2", `"two"`, "truncated"}},
		"truncated header": {whole[:1300], api.KindImage, []string{"truncated", "after entry 1"}},
		"garbage":          {bytes.Repeat([]byte("garbage "), 200), api.KindImage, []string{"not a tar stream at its beginning"}},
		"late garbage":     {append(bytes.Clone(whole[:1024]), bytes.Repeat([]byte("garbage "), 200)...), api.KindImage, []string{"not a tar stream after entry 1", "one"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := convert(t, Converter{}, c.raw)
			checkError(t, err, c.kind, c.texts...)
		})
	}
}

func checkError(t *testing.T, err error, kind api.Kind, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", kind)
	}
	if api.KindOf(err) != kind {
		t.Errorf("kind %s, want %s: %v", api.KindOf(err), kind, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error does not say %q: %v", text, err)
		}
	}
}

func TestLimits(t *testing.T) {
	raw := stream(t, file("a", "1"), file("b", strings.Repeat("x", 10_000)), file("c", "3"))
	_, _, err := convert(t, Converter{Limits: Limits{Entries: 2}}, raw)
	checkError(t, err, api.KindLimit, "Entries", "2")
	_, _, err = convert(t, Converter{Limits: Limits{Bytes: 5000}}, raw)
	checkError(t, err, api.KindLimit, "Bytes")
}

// TestSparse: a file that is nearly all hole costs neither stream nor image,
// but counts with its whole size against the limit.
func TestSparse(t *testing.T) {
	const size = 1 << 30
	raw := sparseTar("s", size)
	im, stats, err := convert(t, Converter{}, raw)
	if err != nil {
		t.Fatal(err)
	}
	if stats.DataBytes != size || stats.Bytes != int64(len(raw)) {
		t.Errorf("%d bytes of data in %d", stats.DataBytes, stats.Bytes)
	}
	if st := im.StatFS(); int64(st.Blocks)*st.BlockSize > 4<<20 {
		t.Errorf("the image has %d blocks", st.Blocks)
	}
	_, _, err = convert(t, Converter{Limits: Limits{Bytes: 1 << 29}}, raw)
	checkError(t, err, api.KindLimit, "Bytes")
}

// sparseTar makes a PAX 1.0 sparse file with one block of data at its end.
func sparseTar(name string, size int64) []byte {
	var b bytes.Buffer
	pax := ""
	for _, kv := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", name}, {"GNU.sparse.realsize", fmt.Sprint(size)}} {
		rec := fmt.Sprintf(" %s=%s\n", kv[0], kv[1])
		n := len(rec) + 2
		if len(fmt.Sprint(n)) > 2 {
			n++
		}
		pax += fmt.Sprint(n) + rec
	}
	b.Write(header('x', "pax", int64(len(pax))))
	b.WriteString(pax)
	b.Write(make([]byte, 512-len(pax)))
	sparse := fmt.Sprintf("1\n%d\n512\n", size-512)
	b.Write(header('0', "GNUSparseFile.0/"+name, 1024))
	b.WriteString(sparse)
	b.Write(make([]byte, 512-len(sparse)))
	b.Write(bytes.Repeat([]byte("d"), 512))
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

// header makes a ustar header, which tar.Writer would not let us make.
func header(typ byte, name string, size int64) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00        ", size, 0))
	h[156] = typ
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

func TestLower(t *testing.T) {
	lower := map[string]erofs.Entry{
		"tmp": {Mode: erofs.ModeDir | 0o1777, UID: 7, Xattrs: map[string]string{"user.k": "v", opaqueXattr: "y"}},
		"lib": {Mode: erofs.ModeSymlink | 0o777, Linkname: "usr/lib"},
	}
	c := Converter{Lower: func(p string) (erofs.Entry, bool) { e, ok := lower[p]; return e, ok }}
	im, stats, err := convert(t, c, stream(t, file("tmp/x", "1"), file("lib/y", "2"), file("new/z", "3")))
	if err != nil {
		t.Fatal(err)
	}
	if !stats.LowerUsed || stats.ImplicitDirs != 4 {
		t.Errorf("stats: %+v", stats)
	}
	got := tree(t, im)
	if got["tmp"] != `dir user.k="v"` || got["usr/lib/y"] != "file 2 links=1" || got["lib"] != "" {
		t.Errorf("tree: %q", got)
	}
	if _, stats, err = convert(t, c, stream(t, dir("tmp"), file("tmp/x", "1"))); err != nil || stats.LowerUsed {
		t.Errorf("lower layers were used without need: %+v, %v", stats, err)
	}
}

// failingSink fails like a full disk.
type failingSink struct{}

func (failingSink) Add(string, erofs.Entry, io.Reader) error  { return fullDisk }
func (failingSink) Link(string, string) error                 { return fullDisk }
func (failingSink) Lookup(string) (e erofs.Entry, found bool) { return e, false }

var fullDisk = &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}

func TestSinkAndSourceErrors(t *testing.T) {
	raw := stream(t, file("a", "1"))
	_, err := Convert(context.Background(), bytes.NewReader(raw), failingSink{}, Limits{})
	checkError(t, err, api.KindNoSpace, `"a"`)

	own := api.Errorf(api.KindUnavailable, "the line is dead")
	for cut := 0; cut < len(raw); cut += 300 {
		_, err = Convert(context.Background(), io.MultiReader(bytes.NewReader(raw[:cut]), errReader{own}), nullSink{}, Limits{})
		checkError(t, err, api.KindUnavailable, "the line is dead")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Convert(ctx, bytes.NewReader(raw), nullSink{}, Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// nullSink reads data and keeps nothing but the root.
type nullSink struct{}

func (nullSink) Add(_ string, e erofs.Entry, data io.Reader) error {
	if e.Size == 0 || data == nil {
		return nil
	}
	_, err := io.CopyN(io.Discard, data, e.Size)
	return err
}
func (nullSink) Link(string, string) error { return nil }
func (nullSink) Lookup(p string) (erofs.Entry, bool) {
	return erofs.Entry{Mode: erofs.ModeDir | 0o755}, p == ""
}
