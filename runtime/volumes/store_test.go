// SPDX-License-Identifier: Apache-2.0

//go:build unix

package volumes

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

const testSize = 64 << 20

// bed is a store and a directory for files outside it.
type bed struct {
	*testing.T
	s   *Store
	dir string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	s := New(filepath.Join(dir, "store"), Options{
		Holder: func(string) string { return "container web" },
		Warn:   t.Logf,
	})
	return &bed{t, s, dir}
}

func (b *bed) ref(name string) Ref {
	b.Helper()
	r, err := b.s.Resolve(name)
	b.ok(err)
	return r
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// fails checks kind and words of an error.
func (b *bed) fails(err error, kind api.Kind, words ...string) {
	b.Helper()
	if api.KindOf(err) != kind {
		b.Fatalf("kind %q, want %q: %v", api.KindOf(err), kind, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.Errorf("%q does not say %q", err, w)
		}
	}
}

// open opens a mount and closes it at the end of the test.
func (b *bed) open(v convert.VolumeMount) *Opened {
	b.Helper()
	o, err := b.s.Open(&v)
	b.ok(err)
	b.Cleanup(o.Close)
	return o
}

// make makes a volume with a file in it.
func (b *bed) make(name string) Ref {
	b.Helper()
	r := b.ref(name)
	b.ok(b.s.Create(r, CreateOptions{SizeBytes: testSize}))
	b.write(r, "/f", "first")
	return r
}

func (b *bed) write(r Ref, path, data string) {
	b.Helper()
	fs, err := b.s.OpenFS(r, true)
	b.ok(err)
	b.ok(fs.WriteFile(path, []byte(data), ext4lite.NewInode{Mode: 0o644}))
	b.ok(fs.Close())
}

func (b *bed) read(r Ref, path string) string {
	b.Helper()
	fs, err := b.s.OpenFS(r, false)
	b.ok(err)
	defer fs.Close()
	p, err := fs.ReadFile(path, 1<<20)
	b.ok(err)
	return string(p)
}

func (b *bed) hash(path string) string {
	b.Helper()
	f, err := os.Open(path)
	b.ok(err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	b.ok(err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestNamesAndPaths(t *testing.T) {
	b := newBed(t)
	for ref, want := range map[string]Ref{
		"data":                             {Name: "data", Path: filepath.Join(b.s.root, "data.ext4")},
		"/a/b":                             {Path: "/a/b"},
		"/a/../x.delta":                    {Path: "/x.delta"},
		filepath.Join(b.s.root, "vv.ext4"): {Name: "vv", Path: filepath.Join(b.s.root, "vv.ext4")},
	} {
		if got := b.ref(ref); got != want {
			t.Errorf("%q: %+v, want %+v", ref, got, want)
		}
	}
	for _, bad := range []string{"", "x", "-x", "a b", "ä1", strings.Repeat("x", 201)} {
		if _, err := b.s.Resolve(bad); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAMissingVolumeIsMade(t *testing.T) {
	b := newBed(t)
	file := filepath.Join(b.dir, "golden.ext4")
	o := b.open(convert.VolumeMount{Source: file, Target: "/v", UID: 5, GID: 6})
	if !o.Created || len(o.Files) != 1 || o.Title() != file {
		t.Errorf("%+v", o)
	}
	in, err := b.s.Inspect(b.ref(file))
	b.ok(err)
	if in.SizeBytes != DefaultSizeBytes || in.DiskBytes > 1<<20 || in.Problem != "" {
		t.Errorf("%+v", in)
	}
	_, err = b.s.Open(&convert.VolumeMount{Source: file, Target: "/v"})
	b.fails(err, api.KindState, "in use by container web", "clone=ephemeral")
	_, err = b.s.Open(&convert.VolumeMount{Source: file, Target: "/v", ReadOnly: true})
	b.fails(err, api.KindState, "in use")
	_, err = b.s.Open(&convert.VolumeMount{Source: file, Target: "/v", Clone: convert.CloneEphemeral})
	b.fails(err, api.KindState, "in use")
	o.Close()
	fs, err := b.s.OpenFS(b.ref(file), false)
	b.ok(err)
	root, err := fs.Root()
	b.ok(err)
	if a := root.Attr(); a.UID != 5 || a.GID != 6 {
		t.Errorf("root belongs to %d:%d", a.UID, a.GID)
	}
	root.Release()
	b.ok(fs.Close())

	// Two that only read are welcome; a larger one was not what is there.
	b.open(convert.VolumeMount{Source: file, Target: "/v", ReadOnly: true})
	b.open(convert.VolumeMount{Source: file, Target: "/v", ReadOnly: true})
	_, err = b.s.Open(&convert.VolumeMount{Source: file, Target: "/v", ReadOnly: true, SizeBytes: DefaultSizeBytes + 1<<30})
	b.fails(err, api.KindInvalid, "volume resize")

	named := b.open(convert.VolumeMount{Source: "data", Target: "/v", SizeBytes: testSize, Labels: map[string]string{"tier": "x"}})
	in, err = b.s.Inspect(b.ref("data"))
	b.ok(err)
	if named.Name != "data" || in.SizeBytes != testSize || in.Labels["tier"] != "x" {
		t.Errorf("%+v of %+v", in, named)
	}
	_, err = b.s.Open(&convert.VolumeMount{Source: filepath.Join(b.dir, "no", "dir.ext4"), Target: "/v"})
	b.fails(err, api.KindNotFound, "directory is missing")
	_, err = b.s.Open(&convert.VolumeMount{Source: "small", Target: "/v", SizeBytes: 1})
	b.fails(err, api.KindInvalid, "size")
	if b.ref("small").Exists() {
		t.Error("what could not be made has a file")
	}
}

func TestEphemeralClones(t *testing.T) {
	b := newBed(t)
	golden := b.make("golden")
	before := b.hash(golden.Path)
	var clones []*Opened
	for range 200 {
		o := b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: convert.CloneEphemeral})
		if len(o.Files) != 2 || o.Paths[0] != golden.Path || o.Paths[1] != "" {
			t.Fatalf("%+v", o)
		}
		clones = append(clones, o)
	}
	_, err := b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v"})
	b.fails(err, api.KindState, "in use")
	entries, err := os.ReadDir(b.s.root)
	b.ok(err)
	if len(entries) != 1 {
		t.Errorf("%d entries beside the volume: %v", len(entries), entries)
	}
	for _, o := range clones {
		o.Close()
	}
	if b.hash(golden.Path) != before {
		t.Error("the base changed")
	}
	// A writer has it again, and while it writes nobody clones.
	w := b.open(convert.VolumeMount{Source: "golden", Target: "/v"})
	_, err = b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v", Clone: convert.CloneEphemeral})
	b.fails(err, api.KindState, "in use")
	w.Close()
	_, err = b.s.Open(&convert.VolumeMount{Source: "nothere", Target: "/v", Clone: convert.CloneEphemeral})
	b.fails(err, api.KindNotFound, "no such volume")
}

func TestKeptClones(t *testing.T) {
	b := newBed(t)
	golden := b.make(filepath.Join(b.dir, "golden.ext4"))
	ep := filepath.Join(b.dir, "ep.delta")
	v := convert.VolumeMount{Source: golden.Path, Target: "/v", Clone: ep}
	o := b.open(v)
	if !o.Created || o.Title() != ep || len(o.Files) != 2 {
		t.Fatalf("%+v", o)
	}
	_, err := b.s.Open(&v)
	b.fails(err, api.KindState, "in use")
	o.Close()
	b.write(b.ref(ep), "/f", "second")
	if o = b.open(v); o.Created {
		t.Error("made twice")
	}
	o.Close()
	if x, y := b.read(golden, "/f"), b.read(b.ref(ep), "/f"); x != "first" || y != "second" {
		t.Errorf("base has %q, clone %q", x, y)
	}

	// While the clone is good, its base stays.
	_, err = b.s.Open(&convert.VolumeMount{Source: golden.Path, Target: "/v"})
	b.fails(err, api.KindState, ep, "flatten")
	_, err = b.s.Remove(golden)
	b.fails(err, api.KindState, ep)
	_, err = b.s.OpenFS(golden, true)
	b.fails(err, api.KindState, ep)
	b.fails(b.s.Resize(golden, 2*testSize), api.KindState, ep)
	b.open(convert.VolumeMount{Source: golden.Path, Target: "/v", ReadOnly: true}).Close()

	other := b.make(filepath.Join(b.dir, "other.ext4"))
	_, err = b.s.Open(&convert.VolumeMount{Source: other.Path, Target: "/v", Clone: ep})
	b.fails(err, api.KindInvalid, "it is a clone of "+golden.Path)
	_, err = b.s.Open(&convert.VolumeMount{Source: golden.Path, Target: "/v", Clone: other.Path})
	b.fails(err, api.KindInvalid, "volume of its own")

	_, err = b.s.Remove(b.ref(ep))
	b.ok(err)
	b.open(convert.VolumeMount{Source: golden.Path, Target: "/v"}).Close()
	if left, _ := os.ReadDir(filepath.Join(b.s.root, dirClones)); len(left) != 0 {
		t.Errorf("notes about clones that are gone: %v", left)
	}
}

func TestDeepClones(t *testing.T) {
	b := newBed(t)
	last := b.make("v0")
	for k := 1; k <= 4; k++ {
		next := b.ref(fmt.Sprintf("v%d", k))
		b.ok(b.s.CloneDelta(last, next))
		b.write(next, fmt.Sprintf("/f%d", k), "x")
		last = next
	}
	o := b.open(convert.VolumeMount{Source: "v4", Target: "/v"})
	if len(o.Files) != 5 || o.Paths[0] != b.ref("v0").Path {
		t.Errorf("%v", o.Paths)
	}
	o.Close()
	_, err := b.s.Open(&convert.VolumeMount{Source: "v4", Target: "/v", Clone: convert.CloneEphemeral})
	b.fails(err, api.KindLimit, "flatten")
	b.fails(b.s.CloneDelta(last, b.ref("v5")), api.KindLimit, "flatten")
	b.ok(b.s.Flatten(last, nil))
	o = b.open(convert.VolumeMount{Source: "v4", Target: "/v", Clone: convert.CloneEphemeral})
	if len(o.Files) != 2 {
		t.Errorf("%v", o.Paths)
	}
	if b.read(last, "/f4")+b.read(last, "/f") != "xfirst" {
		t.Error("flattening lost something")
	}
}

func TestChangedAndDirtyBases(t *testing.T) {
	b := newBed(t)
	golden := b.make("golden")
	ep := b.ref(filepath.Join(b.dir, "ep.delta"))
	b.ok(b.s.CloneDelta(golden, ep))
	// Somebody who does not know of clones changes the base.
	fs, err := ext4lite.OpenFile(golden.Path, ext4lite.Options{})
	b.ok(err)
	b.ok(fs.WriteFile("/g", []byte("x"), ext4lite.NewInode{Mode: 0o644}))
	b.ok(fs.Close())
	_, err = b.s.Open(&convert.VolumeMount{Source: golden.Path, Target: "/v", Clone: ep.Path})
	b.fails(err, api.KindState, "changed since", "clone the base anew")
	// It is no obstacle then.
	b.open(convert.VolumeMount{Source: "golden", Target: "/v"}).Close()

	fs, err = ext4lite.OpenFile(golden.Path, ext4lite.Options{})
	b.ok(err)
	b.ok(fs.WriteFile("/h", []byte("x"), ext4lite.NewInode{Mode: 0o644}))
	b.ok(fs.Sync())
	b.ok(fs.Abandon())
	for _, clone := range []string{convert.CloneEphemeral, filepath.Join(b.dir, "new.delta")} {
		_, err = b.s.Open(&convert.VolumeMount{Source: "golden", Target: "/v", Clone: clone})
		b.fails(err, api.KindState, "not closed", "fsck --replay")
	}
	report, replayed, err := b.s.Check(golden, false)
	b.ok(err)
	if report.Clean() || replayed {
		t.Errorf("a dirty volume: %v", report.Problems)
	}
	report, replayed, err = b.s.Check(golden, true)
	b.ok(err)
	if !report.Clean() || !replayed {
		t.Errorf("a replayed volume: %v", report.Problems)
	}
	b.open(convert.VolumeMount{Source: "golden", Target: "/v", Clone: convert.CloneEphemeral}).Close()
}

func TestHostileFiles(t *testing.T) {
	b := newBed(t)
	path := filepath.Join(b.dir, "x.ext4")
	good := b.make(filepath.Join(b.dir, "good.ext4"))
	image, err := os.ReadFile(good.Path)
	b.ok(err)
	cut := image[:len(image)/2]
	unknown := append([]byte{}, image...)
	unknown[1024+0x60+2] |= 0x10 // an incompatible feature
	for name, c := range map[string]struct {
		data []byte
		say  string
	}{
		"empty": {nil, "not an ext4 volume"}, "short": {make([]byte, 1000), "not an ext4 volume"}, "zeros": {make([]byte, 1<<20), "not an ext4 volume"},
		"cut": {cut, "cut off"}, "delta": {append([]byte("gvxdelta"), make([]byte, 8192)...), "delta header"}, "features": {unknown, "features"},
	} {
		b.ok(os.WriteFile(path, c.data, 0o600))
		for _, v := range []convert.VolumeMount{
			{Source: path, Target: "/v"}, {Source: path, Target: "/v", ReadOnly: true}, {Source: path, Target: "/v", Clone: convert.CloneEphemeral},
		} {
			if name == "cut" && v.Clone != "" {
				continue // clones look at the superblock; the sandbox finds it
			}
			o, err := b.s.Open(&v)
			if err == nil {
				o.Close()
			}
			if k := api.KindOf(err); k != api.KindVolume && k != api.KindUnsupported || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%s: %+v: %v (%s)", name, v, err, k)
			}
		}
		if in, err := b.s.Inspect(b.ref(path)); err != nil || in.Problem == "" && name != "cut" {
			t.Errorf("%s: inspect: %v", name, err)
		}
	}
	for _, p := range []string{b.dir + "/", os.DevNull} {
		_, err := b.s.Open(&convert.VolumeMount{Source: p, Target: "/v"})
		b.fails(err, api.KindInvalid, "no file")
	}
}

func TestWritableLayers(t *testing.T) {
	b := newBed(t)
	for _, size := range []int64{0, 100 << 20, 5000} {
		files, err := b.s.OpenUpper(size)
		b.ok(err)
		if len(files) != 2 {
			t.Fatalf("%d files", len(files))
		}
		b.ok(verify(files))
		closeAll(files)
	}
	b.ok(os.WriteFile(b.dir+"/file", nil, 0o600))
	_, err := New(b.dir+"/file/x", Options{}).OpenUpper(0)
	b.fails(err, api.KindInternal, "file/x/empty", "--root")
	template := filepath.Join(b.s.root, dirEmpty, "104857600.ext4")
	b.ok(b.s.Tree(b.ref(template), "/", 0, false, func(e *TreeEntry) error {
		if e.Depth > 0 {
			t.Errorf("an empty layer has %s", e.Name)
		}
		return nil
	}))
	b.ok(os.Chmod(template, 0o600))
	b.ok(os.WriteFile(template, []byte("damage"), 0o600))
	files, err := b.s.OpenUpper(100 << 20)
	b.ok(err)
	defer closeAll(files)
	b.ok(verify(files))
	entries, err := os.ReadDir(filepath.Join(b.s.root, dirEmpty))
	b.ok(err)
	if len(entries) != 3 {
		t.Errorf("%v", entries)
	}
}

// TestSizesOfWritableLayersAreBounded: of many sizes the last ones' empty volumes stay,
// and layers on those that went are whole.
func TestSizesOfWritableLayersAreBounded(t *testing.T) {
	b := newBed(t)
	first, err := b.s.OpenUpper(minUpperBytes)
	b.ok(err)
	defer closeAll(first)
	dir := filepath.Join(b.s.root, dirEmpty)
	b.ok(os.Chtimes(first[0].Name(), time.Time{}, time.Now().Add(-time.Hour)))
	// What is none of ours stays, and keeps nobody from a layer.
	other := filepath.Join(dir, "1"+convert.VolumeExt)
	b.ok(os.MkdirAll(filepath.Join(other, "full"), 0o700))
	b.ok(os.Chtimes(other, time.Time{}, time.Now().Add(-2*time.Hour)))
	for n := range maxEmpties {
		files, err := b.s.OpenUpper(minUpperBytes + int64(n+1)<<20)
		b.ok(err)
		b.ok(verify(files))
		closeAll(files)
	}
	entries, err := os.ReadDir(dir)
	b.ok(err)
	if len(entries) != maxEmpties+1 {
		t.Errorf("%d empty volumes are kept, want %d", len(entries)-1, maxEmpties)
	}
	if _, err := os.Stat(first[0].Name()); !os.IsNotExist(err) {
		t.Errorf("the oldest is not the one that went: %v", err)
	}
	b.ok(verify(first))
}

func TestCopies(t *testing.T) {
	b := newBed(t)
	golden, ep, flat := b.make("golden"), b.ref("ep"), b.ref(filepath.Join(b.dir, "flat.ext4"))
	b.ok(b.s.CloneDelta(golden, ep))
	b.write(ep, "/g", "delta's")
	var done, total int64
	b.ok(b.s.Copy(ep, flat, func(d, n int64) { done, total = d, n }))
	if done != total || total != testSize {
		t.Errorf("progress ended at %d of %d", done, total)
	}
	if b.read(flat, "/f")+b.read(flat, "/g") != "firstdelta's" {
		t.Error("the copy lacks something")
	}
	in, err := b.s.Inspect(flat)
	b.ok(err)
	if in.DiskBytes > 2<<20 || len(in.Bases) != 0 {
		t.Errorf("%+v", in)
	}
	b.fails(b.s.Copy(ep, flat, nil), api.KindExists, "flat.ext4")
	b.fails(b.s.Reflink(ep, b.ref("other")), api.KindUnsupported, "--copy")
	b.fails(b.s.Copy(b.ref("nothere"), b.ref("other"), nil), api.KindNotFound, "no such volume")
	if b.ref("other").Exists() {
		t.Error("a failed copy left its file")
	}

	base, err := b.s.Commit(ep, nil)
	b.ok(err)
	if base.Name != "golden" || ep.Exists() || b.read(golden, "/g") != "delta's" {
		t.Errorf("after the commit into %v: clone exists: %v", base, ep.Exists())
	}
	_, err = b.s.Commit(golden, nil)
	b.fails(err, api.KindInvalid, "has no base")
	b.fails(b.s.Flatten(golden, nil), api.KindState, "plain volume already")

	one, two := b.ref("one"), b.ref("two")
	b.ok(b.s.CloneDelta(golden, one))
	b.ok(b.s.CloneDelta(golden, two))
	_, err = b.s.Commit(one, nil)
	b.fails(err, api.KindState, two.Path)
	_, err = b.s.Remove(two)
	b.ok(err)
	_, err = b.s.Commit(one, nil)
	b.ok(err)
}

func TestResizeAndCompact(t *testing.T) {
	b := newBed(t)
	v := b.make("data")
	b.write(v, "/big", strings.Repeat("x", 1<<20))
	fs, err := b.s.OpenFS(v, true)
	b.ok(err)
	root, err := fs.Root()
	b.ok(err)
	b.ok(root.Unlink("big"))
	root.Release()
	b.ok(fs.Close())
	before, after, err := b.s.Compact(v)
	b.ok(err)
	if after >= before || before == 0 {
		t.Errorf("compacted from %d to %d", before, after)
	}
	b.fails(b.s.Resize(v, testSize/2), api.KindUnsupported, "not made smaller")
	b.fails(b.s.Resize(v, 1<<62), api.KindInvalid, "resize volume") // What is asked for, not the volume.
	b.ok(b.s.Resize(v, 4*testSize))
	in, err := b.s.Inspect(v)
	b.ok(err)
	if in.Summary.SizeBytes != 4*testSize {
		t.Errorf("%+v", in.Summary)
	}
	report, _, err := b.s.Check(v, false)
	b.ok(err)
	if !report.Clean() {
		t.Errorf("%v", report.Problems)
	}
	ep := b.ref("ep")
	b.ok(b.s.CloneDelta(v, ep))
	b.fails(b.s.Resize(ep, 8*testSize), api.KindUnsupported, "flatten")
	w := b.open(convert.VolumeMount{Source: "ep", Target: "/v"})
	_, _, err = b.s.Compact(ep)
	b.fails(err, api.KindState, "in use by container web")
	_, err = b.s.Remove(ep)
	b.fails(err, api.KindState, "in use by container web")
	w.Close()
}
