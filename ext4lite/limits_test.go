// SPDX-License-Identifier: Apache-2.0

// The far ends: deep extent trees, huge offsets, many links, many names,
// orphans that outlive a crash, holes found by seek.

package ext4lite_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

// TestDeepExtentTree maps every other block of a file, in random order, so
// that nothing merges; then punches and fills it until it is one extent again.
func TestDeepExtentTree(t *testing.T) {
	path := newVolume(t, 128<<20, ext4lite.MkfsOptions{BlockSize: 1024})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	root, err := fs.Root()
	must(t, err)
	i, err := root.Create("f", ext4lite.NewInode{Mode: 0o644})
	must(t, err)
	const n = 30000
	r := rand.New(rand.NewPCG(1, 12))
	for _, k := range r.Perm(n) {
		_, err := i.WriteAt([]byte{byte(k), byte(k >> 8)}, int64(k)*2048)
		must(t, err)
	}
	list, err := i.Extents(0, 1<<40)
	must(t, err)
	if len(list) != n {
		t.Fatalf("%d extents of %d", len(list), n)
	}
	must(t, fs.Sync())
	for k := 0; k < n; k += 1 + r.IntN(9) {
		must(t, i.Fallocate(ext4lite.FallocPunchHole|ext4lite.FallocKeepSize, int64(k)*2048, 1024))
	}
	must(t, i.Fallocate(0, 0, n*2048)) // unwritten blocks between the written ones
	p := make([]byte, 1024)
	for k := range 2 * n {
		_, err := i.WriteAt(p, int64(k)*1024)
		must(t, err)
	}
	must(t, fs.Idle())
	buf := make([]byte, n*2048)
	_, err = i.ReadAt(buf, 0)
	must(t, err)
	for _, b := range buf {
		if b != 0 {
			t.Fatal("data is not what was written")
		}
	}
	must(t, i.Truncate(5000))
	i.Release()
	root.Release()
	closeFS(t, fs)
	check(t, path)
}

func TestHugeOffsets(t *testing.T) {
	path := newVolume(t, 32<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{})
	must(t, fs.WriteFile("f", []byte("start"), ext4lite.NewInode{Mode: 0o644}))
	i, err := fs.Walk("f")
	must(t, err)
	for _, off := range []int64{1 << 31, 1 << 32, 3 << 40, 15 << 40, (1<<32-3)*4096 + 100} {
		_, err := i.WriteAt([]byte("far"), off)
		must(t, err)
		p := make([]byte, 3)
		_, err = i.ReadAt(p, off)
		must(t, err)
		if string(p) != "far" {
			t.Fatalf("at %d: %q", off, p)
		}
		if at, err := i.SeekData(off - 1<<20); err != nil || at != off&^4095 {
			t.Fatalf("data at %d: %v, want %d", at, err, off&^4095)
		}
	}
	if _, err := i.WriteAt([]byte("x"), 1<<32*4096); !errors.Is(err, ext4lite.EFBIG) {
		t.Fatalf("a write past the largest file: %v", err)
	}
	i.Release()
	closeFS(t, fs)
	check(t, path)
}

func TestManySubdirectories(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 66,000 directories")
	}
	path := newVolume(t, 1<<30, ext4lite.MkfsOptions{BytesPerIno: 8192})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	d, err := fs.MkdirAll("d", ext4lite.NewInode{Mode: 0o755})
	must(t, err)
	const n = 66000
	for k := range n {
		i, err := d.Mkdir(fmt.Sprint(k), ext4lite.NewInode{Mode: 0o755})
		must(t, err)
		i.Release()
	}
	if l := d.Attr().Links; l != 1 {
		t.Errorf("%d links with %d sub-directories, want 1", l, n)
	}
	f, err := d.Create("file", ext4lite.NewInode{})
	must(t, err)
	for k := 1; k < 65000; k++ {
		must(t, d.Link(fmt.Sprint("l", k), f))
	}
	if err := d.Link("one-too-many", f); !errors.Is(err, ext4lite.EMLINK) {
		t.Errorf("65,001 links: %v", err)
	}
	f.Release()
	d.Release()
	closeFS(t, fs)
	check(t, path)
}

func TestMillionNames(t *testing.T) {
	if os.Getenv("GVX_NIGHTLY") == "" {
		t.Skip("a long test: set GVX_NIGHTLY=1")
	}
	path := newVolume(t, 4<<30, ext4lite.MkfsOptions{BytesPerIno: 4096})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	d, err := fs.MkdirAll("d", ext4lite.NewInode{Mode: 0o755})
	must(t, err)
	const n = 1000000
	for k := range n {
		i, err := d.Create(fmt.Sprintf("a-name-of-usual-length-%07d", k), ext4lite.NewInode{})
		must(t, err)
		i.Release()
	}
	count := 0
	must(t, d.ReadDir(0, func(ext4lite.DirEntry) bool { count++; return true }))
	if count != n+2 {
		t.Fatalf("%d names of %d", count, n+2)
	}
	d.Release()
	closeFS(t, fs)
	check(t, path)
}

func TestOrphansAfterCrash(t *testing.T) {
	path := newVolume(t, 64<<20, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{})
	root, err := fs.Root()
	must(t, err)
	free := fs.Statfs().Free
	for k := range 5 {
		i, err := root.Create("f", ext4lite.NewInode{})
		must(t, err)
		_, err = i.WriteAt(make([]byte, 1<<20), int64(k)<<21)
		must(t, err)
		must(t, root.Unlink("f")) // i stays open
		u, err := root.CreateUnnamed(ext4lite.NewInode{})
		must(t, err)
		_, err = u.WriteAt(make([]byte, 1<<20), 0)
		must(t, err)
	}
	must(t, fs.Sync())
	if now := fs.Statfs().Free; now+10*256 > free {
		t.Fatalf("open files without names take no space: %d blocks of %d free", now, free)
	}
	must(t, fs.Abandon())
	fs = open(t, path, ext4lite.Options{})
	if now := fs.Statfs().Free; now != free {
		t.Errorf("%d blocks free after the crash, %d before", now, free)
	}
	closeFS(t, fs)
	check(t, path)
}

func TestSeek(t *testing.T) {
	fs := memVolume(t)
	root, err := fs.Root()
	must(t, err)
	i, err := root.Create("f", ext4lite.NewInode{})
	must(t, err)
	for _, k := range []int64{2, 3, 8} {
		_, err := i.WriteAt(make([]byte, 4096), k*4096)
		must(t, err)
	}
	must(t, i.Fallocate(0, 5*4096, 4096)) // unwritten: counts as a hole
	must(t, i.Truncate(12*4096))
	for _, c := range []struct{ off, data, hole int64 }{{0, 2, 0}, {2, 2, 4}, {3, 3, 4}, {4, 8, 4}, {8, 8, 9}, {9, -1, 9}} {
		d, err := i.SeekData(c.off * 4096)
		if c.data < 0 {
			if !errors.Is(err, ext4lite.ENXIO) {
				t.Errorf("data from %d: %d, %v", c.off, d, err)
			}
		} else if d != c.data*4096 {
			t.Errorf("data from %d: %d, want %d", c.off, d/4096, c.data)
		}
		if h, err := i.SeekHole(c.off * 4096); err != nil || h != c.hole*4096 {
			t.Errorf("hole from %d: %d (%v), want %d", c.off, h/4096, err, c.hole)
		}
	}
	i.Release()
	root.Release()
	must(t, fs.Close())
}

// TestFeaturesThatFilesNeed: a volume made without them announces attributes and files
// of more than 2 GiB once it has any, as otherwise e2fsck wants both away.
func TestFeaturesThatFilesNeed(t *testing.T) {
	path := kernelVolume(t, 64<<20, "-O", "^ext_attr,^large_file,^huge_file", "-I", "128")
	has := func(feature string) bool {
		t.Helper()
		return strings.Contains(run(t, tool(t, "dumpe2fs"), "-h", path), feature)
	}
	use := func(do func(*ext4lite.Inode)) {
		t.Helper()
		fs := open(t, path, ext4lite.Options{})
		must(t, fs.WriteFile("f", []byte("start"), ext4lite.NewInode{Mode: 0o644}))
		i, err := fs.Walk("f")
		must(t, err)
		do(i)
		i.Release()
		closeFS(t, fs)
		check(t, path)
	}
	fs := open(t, path, ext4lite.Options{ReadOnly: true})
	closeFS(t, fs)
	if has("ext_attr") || has("large_file") {
		t.Fatal("made with them, or changed by reading")
	}
	use(func(i *ext4lite.Inode) {
		_, err := i.WriteAt([]byte("far"), 3<<30)
		must(t, err)
	})
	if !has("large_file") || has("ext_attr") || has("huge_file") {
		t.Error("a large file: want large_file, and neither ext_attr nor huge_file")
	}
	use(func(i *ext4lite.Inode) { must(t, i.SetXattr("user.name", []byte("value"), 0)) })
	if !has("ext_attr") {
		t.Error("an attribute: no ext_attr")
	}
}
