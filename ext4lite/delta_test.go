// SPDX-License-Identifier: Apache-2.0

// Clones: a base with many deltas, each with its own changes; flatten, commit,
// and what is refused.

package ext4lite_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
)

func fileHash(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// golden makes a volume with some files in it, and the model of it.
func golden(t testing.TB, seed uint64) (string, *model) {
	t.Helper()
	path := newVolume(t, 64<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	m := newModel()
	work(t, fs, m, seed, 300)
	must(t, fs.Compact())
	closeFS(t, fs)
	check(t, path)
	return path, m
}

// work runs random operations on a volume and a model.
func work(t testing.TB, fs *ext4lite.FS, m *model, seed uint64, n int) {
	t.Helper()
	us := &ours{t, fs}
	g := &generator{r: rand.New(rand.NewPCG(seed, 5)), names: 6, maxFile: 200000}
	for range n {
		o := g.next()
		if a, b := o.do(m), o.do(us); a != b {
			t.Fatalf("%s: the model says %d, we %d", o.what, a, b)
		}
	}
	compare(t, "model and ours", m.dump(), us.dump())
}

// copyModel makes an independent copy of a model by running its history again.
func replayModel(t testing.TB, seed uint64, n int) *model {
	t.Helper()
	m := newModel()
	g := &generator{r: rand.New(rand.NewPCG(seed, 5)), names: 6, maxFile: 200000}
	for range n {
		g.next().do(m)
	}
	return m
}

func TestClones(t *testing.T) {
	base, _ := golden(t, 7)
	dir := filepath.Dir(base)
	before := fileHash(t, base)
	var open1 []*ext4lite.FS
	var models []*model
	for k := range 5 {
		d := filepath.Join(dir, fmt.Sprintf("ep%d.delta", k))
		must(t, delta.Create(d, base, delta.Options{}))
		fs := open(t, d, ext4lite.Options{})
		m := replayModel(t, 7, 300)
		compare(t, "fresh clone", m.dump(), (&ours{t, fs}).dump())
		work(t, fs, m, 100+uint64(k), 300)
		open1, models = append(open1, fs), append(models, m)
	}
	if _, err := ext4lite.OpenFile(base, ext4lite.Options{}); !errors.Is(err, device.ErrLocked) {
		t.Fatalf("the base of open clones was opened for writing: %v", err)
	}
	for k, fs := range open1 {
		if k%2 == 0 {
			closeFS(t, fs)
		} else {
			must(t, fs.Sync())
			must(t, fs.Abandon())
		}
	}
	if fileHash(t, base) != before {
		t.Fatal("the base changed")
	}
	for k, m := range models {
		d := filepath.Join(dir, fmt.Sprintf("ep%d.delta", k))
		fs := open(t, d, ext4lite.Options{})
		compare(t, "reopened clone", m.dump(), (&ours{t, fs}).dump())
		closeFS(t, fs)
		flat := filepath.Join(dir, fmt.Sprintf("flat%d.ext4", k))
		must(t, delta.Flatten(d, flat, nil))
		check(t, flat)
		fs = open(t, flat, ext4lite.Options{ReadOnly: true})
		compare(t, "flattened clone", m.dump(), (&ours{t, fs}).dump())
		closeFS(t, fs)
	}
	must(t, delta.Commit(filepath.Join(dir, "ep0.delta"), nil))
	check(t, base)
	fs := open(t, base, ext4lite.Options{ReadOnly: true})
	compare(t, "committed clone", models[0].dump(), (&ours{t, fs}).dump())
	closeFS(t, fs)
	if _, err := ext4lite.OpenFile(filepath.Join(dir, "ep1.delta"), ext4lite.Options{}); !errors.Is(err, ext4lite.ESTALE) {
		t.Fatalf("a clone whose base changed was opened: %v", err)
	}
}

func TestCloneOfDirtyBaseIsRefused(t *testing.T) {
	base := newVolume(t, 16<<20, ext4lite.MkfsOptions{})
	fs := open(t, base, ext4lite.Options{})
	must(t, fs.WriteFile("f", []byte("x"), ext4lite.NewInode{}))
	must(t, fs.Sync())
	if err := delta.Create(base+".delta", base, delta.Options{}); !errors.Is(err, device.ErrLocked) {
		t.Fatalf("a clone of an open base: %v", err)
	}
	must(t, fs.Abandon())
	if err := delta.Create(base+".delta", base, delta.Options{}); !errors.Is(err, ext4lite.EBUSY) {
		t.Fatalf("a clone of a dirty base: %v", err)
	}
}

// TestBaseChangedWithinASecondIsNoticed changes a base so that its superblock
// stays the same to the byte: it tells times by the second.
func TestBaseChangedWithinASecondIsNoticed(t *testing.T) {
	noon := func() time.Time { return time.Unix(1<<30, 0) }
	for name, base := range map[string]string{"ours": newVolume(t, 64<<20, ext4lite.MkfsOptions{}), "ext4": kernelVolume(t, 64<<20), "indirect": kernelVolume(t, 64<<20, "-O", "^extent,^64bit")} {
		t.Run(name, func(t *testing.T) {
			if name == "indirect" { // opened read-only: what it is recognised by is found all the same
				d := base + ".delta"
				must(t, delta.Create(d, base, delta.Options{}))
				dev, err := delta.OpenAny(d, device.ReadOnly)
				must(t, err)
				must(t, dev.Close())
				return
			}
			change := func(mode uint16) []byte {
				fs := open(t, base, ext4lite.Options{Now: noon})
				root, err := fs.Root()
				must(t, err)
				must(t, root.SetAttr(ext4lite.SetAttr{Mode: &mode}))
				root.Release()
				closeFS(t, fs)
				f, err := os.Open(base)
				must(t, err)
				defer f.Close()
				p := make([]byte, 1024)
				_, err = f.ReadAt(p, 1024)
				must(t, err)
				return p
			}
			before := change(0o700)
			d := base + ".delta"
			must(t, delta.Create(d, base, delta.Options{}))
			closeFS(t, open(t, d, ext4lite.Options{}))
			if !bytes.Equal(before, change(0o750)) {
				t.Fatal("the superblock changed: this test no longer tests anything")
			}
			if _, err := ext4lite.OpenFile(d, ext4lite.Options{}); !errors.Is(err, ext4lite.ESTALE) {
				t.Errorf("a delta on a base that changed: %v", err)
			}
		})
	}
}

func TestCloneDepth(t *testing.T) {
	path, _ := golden(t, 9)
	m := replayModel(t, 9, 300)
	for k := range delta.MaxDepth {
		next := fmt.Sprintf("%s.%d", path, k)
		must(t, delta.Create(next, path, delta.Options{}))
		fs := open(t, next, ext4lite.Options{})
		work(t, fs, m, 50+uint64(k), 100)
		closeFS(t, fs)
		path = next
	}
	next := path + ".deep"
	if err := delta.Create(next, path, delta.Options{}); err == nil {
		if _, err = ext4lite.OpenFile(next, ext4lite.Options{}); !errors.Is(err, ext4lite.ELOOP) {
			t.Fatalf("delta number %d: %v", delta.MaxDepth+1, err)
		}
	}
}

func TestMappingOfClone(t *testing.T) {
	base := newVolume(t, 32<<20, ext4lite.MkfsOptions{})
	fs := open(t, base, ext4lite.Options{})
	data := make([]byte, 64<<10)
	for k := range data {
		data[k] = byte(k / 4096)
	}
	must(t, fs.WriteFile("f", data, ext4lite.NewInode{}))
	closeFS(t, fs)
	d := base + ".delta"
	must(t, delta.Create(d, base, delta.Options{}))
	fs = open(t, d, ext4lite.Options{})
	i, err := fs.Walk("f")
	must(t, err)
	told := 0
	i.OnInvalidate(func(off, n int64) { told++ })
	r, err := i.MapForRead(0, 64<<10)
	must(t, err)
	if len(r) != 1 || r[0].Writable || r[0].File.Name() != base {
		t.Fatalf("an unchanged file is not mapped from the base: %+v", r)
	}
	w, err := i.MapForWrite(8192, 4096)
	must(t, err)
	if len(w) != 1 || !w[0].Writable || w[0].File.Name() != d || told == 0 {
		t.Fatalf("a store is not mapped from the clone: %+v, told %d", w, told)
	}
	_, err = w[0].File.WriteAt([]byte("stored"), w[0].FileOff)
	must(t, err)
	p := make([]byte, 6)
	_, err = i.ReadAt(p, 8192)
	must(t, err)
	if string(p) != "stored" {
		t.Fatalf("read %q after a store", p)
	}
	// Blocks stay the file's while they are mapped, though it is cut.
	must(t, i.Truncate(0))
	must(t, fs.Sync())
	free := fs.Statfs().Free
	must(t, fs.WriteFile("g", make([]byte, 20<<20), ext4lite.NewInode{}))
	p = make([]byte, 6)
	_, err = w[0].File.ReadAt(p, w[0].FileOff)
	must(t, err)
	if string(p) != "stored" {
		t.Fatalf("a mapped block was given to another file: %q", p)
	}
	for _, m := range append(r, w...) {
		fs.ReleaseMapping(m)
	}
	if fs.Statfs().Free > free {
		t.Fatal("free space grew by writing")
	}
	i.Release()
	closeFS(t, fs)
}

func TestAWriteIntoAHoleInvalidatesWhatStoodForIt(t *testing.T) {
	fs := open(t, newVolume(t, 32<<20, ext4lite.MkfsOptions{}), ext4lite.Options{})
	defer closeFS(t, fs)
	root, err := fs.Root()
	must(t, err)
	defer root.Release()
	i, err := root.Create("f", ext4lite.NewInode{Mode: 0o644})
	must(t, err)
	defer i.Release()
	must(t, i.Truncate(64<<10))
	must(t, i.Fallocate(0, 32<<10, 8<<10))
	var told [][2]int64
	i.OnInvalidate(func(off, n int64) { told = append(told, [2]int64{off, n}) })
	for _, off := range []int64{8192, 32 << 10} { // a hole, and blocks never written
		told = nil
		_, err = i.WriteAt([]byte("data"), off)
		must(t, err)
		if len(told) != 1 || told[0] != [2]int64{off, 4096} {
			t.Errorf("a write at %d invalidated %v", off, told)
		}
	}
}

func TestViewGivesWhatReadAtReads(t *testing.T) {
	base := newVolume(t, 32<<20, ext4lite.MkfsOptions{})
	fs := open(t, base, ext4lite.Options{})
	must(t, fs.WriteFile("f", bytes.Repeat([]byte("base"), 20_000), ext4lite.NewInode{}))
	closeFS(t, fs)
	d := base + ".delta"
	must(t, delta.Create(d, base, delta.Options{}))
	fs = open(t, d, ext4lite.Options{})
	defer closeFS(t, fs)
	i, err := fs.Walk("f")
	must(t, err)
	defer i.Release()
	_, err = i.WriteAt([]byte("delta"), 20_000)
	must(t, err)
	must(t, i.Truncate(200_000))
	must(t, i.Fallocate(ext4lite.FallocPunchHole|ext4lite.FallocKeepSize, 40_960, 8192))
	for _, r := range [][2]int64{{0, 10}, {0, 300_000}, {19_990, 30}, {40_000, 20_000}, {199_999, 1}, {199_999, 2}, {200_000, 1}, {300_000, 5}} {
		want := make([]byte, r[1])
		n, werr := i.ReadAt(want, r[0])
		var got []byte
		err := i.View(r[0], r[1], func(f *os.File, off, n int64) error {
			p := make([]byte, n)
			if f != nil {
				if _, err := f.ReadAt(p, off); err != nil {
					return err
				}
			}
			got = append(got, p...)
			return nil
		})
		if !bytes.Equal(got, want[:n]) || err != nil && err != io.EOF || werr == io.EOF && err != io.EOF {
			t.Errorf("view of %v: %d bytes, %v; read %d, %v", r, len(got), err, n, werr)
		}
	}
}

func BenchmarkCreateDelta(b *testing.B) {
	base := newVolume(b, 64<<30, ext4lite.MkfsOptions{})
	n := 0
	for b.Loop() {
		n++
		must(b, delta.Create(fmt.Sprintf("%s.%d", base, n), base, delta.Options{}))
	}
}

func BenchmarkOpenDelta(b *testing.B) {
	base := newVolume(b, 64<<30, ext4lite.MkfsOptions{})
	d := base + ".delta"
	must(b, delta.Create(d, base, delta.Options{}))
	for b.Loop() {
		fs := open(b, d, ext4lite.Options{})
		must(b, fs.Close())
	}
}

func TestDonatedFiles(t *testing.T) {
	base, _ := golden(t, 21)
	m := replayModel(t, 21, 300)
	d1, d2 := base+".1", base+".2"
	must(t, delta.Create(d1, base, delta.Options{}))
	must(t, delta.Create(d2, d1, delta.Options{}))
	files, err := delta.OpenChain(d2, device.ReadWrite)
	must(t, err)
	if len(files) != 3 {
		t.Fatalf("%d files", len(files))
	}
	dev, err := delta.Donated(device.ReadWrite, files...)
	must(t, err)
	fs, err := ext4lite.Open(dev, ext4lite.Options{})
	must(t, err)
	compare(t, "clone by donated files", m.dump(), (&ours{t, fs}).dump())
	work(t, fs, m, 22, 100)
	if _, err := ext4lite.OpenFile(d2, ext4lite.Options{}); !errors.Is(err, device.ErrLocked) {
		t.Fatalf("a volume in use was opened: %v", err)
	}
	closeFS(t, fs)
	// A clone that the end of the process removes.
	f, err := os.OpenFile(filepath.Join(filepath.Dir(base), "ephemeral"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	must(t, delta.Create("", d2, delta.Options{File: f}))
	must(t, os.Remove(f.Name()))
	e, err := delta.Open(f, f.Name(), device.ReadWrite)
	must(t, err)
	fs, err = ext4lite.Open(e, ext4lite.Options{Durability: ext4lite.Process})
	must(t, err)
	compare(t, "ephemeral clone", m.dump(), (&ours{t, fs}).dump())
	closeFS(t, fs)
}
