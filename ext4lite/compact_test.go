// SPDX-License-Identifier: Apache-2.0

// What a volume takes on the host's disk before and after Compact.

//go:build unix

package ext4lite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// onDisk is what the host has allocated for a file.
func onDisk(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	must(t, syscall.Stat(path, &st))
	return st.Blocks * 512
}

// fillTree makes directories of small files.
func fillTree(t *testing.T, fs *ext4lite.FS, name string, dirs, files int) {
	t.Helper()
	data := make([]byte, 20000)
	for d := range dirs {
		dir, err := fs.MkdirAll(fmt.Sprintf("%s/d%d", name, d), ext4lite.NewInode{Mode: 0o755})
		must(t, err)
		for k := range files {
			i, err := dir.Create(fmt.Sprint("f", k), ext4lite.NewInode{Mode: 0o644})
			must(t, err)
			_, err = i.WriteAt(data[:500+k*997%19000], 0)
			must(t, err)
			i.Release()
		}
		dir.Release()
	}
}

// TestCompactGivesBack fills a volume, removes most of it, and compares what
// is left on the host's disk with a volume that never held more.
func TestCompactGivesBack(t *testing.T) {
	const size = 8 << 30
	path := newVolume(t, size, ext4lite.MkfsOptions{})
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	fillTree(t, fs, "gone", 60, 100)
	fillTree(t, fs, "kept", 6, 100)
	fillTree(t, fs, "gone too", 60, 100)
	root, err := fs.Root()
	must(t, err)
	must(t, root.RemoveAll("gone"))
	must(t, root.RemoveAll("gone too"))
	root.Release()
	must(t, fs.Sync())
	before := onDisk(t, path)
	must(t, fs.Compact())
	after := onDisk(t, path)
	closeFS(t, fs)
	check(t, path)

	fresh := newVolume(t, size, ext4lite.MkfsOptions{})
	fs = open(t, fresh, ext4lite.Options{Durability: ext4lite.Process})
	fillTree(t, fs, "kept", 6, 100)
	must(t, fs.Compact())
	closeFS(t, fs)
	least := onDisk(t, fresh)
	t.Logf("on the host's disk: %d KiB before, %d after; %d if the volume never held more", before>>10, after>>10, least>>10)
	if before < 10*least {
		t.Fatalf("the test does not fill the volume: %d bytes, %d are left in the end", before, least)
	}
	// What remains beside files: bitmaps of groups that were in use, and blocks
	// of inode tables and directories that are used in part.
	if limit := least + least/4 + 1<<20; after > limit {
		t.Errorf("%d bytes remain, at most %d are expected", after, limit)
	}
}

// TestCompactCutsWhatLiesBehindTheVolume has the volume's file be longer than
// the volume.
func TestCompactCutsWhatLiesBehindTheVolume(t *testing.T) {
	path := newVolume(t, 64<<20, ext4lite.MkfsOptions{})
	longer := filepath.Join(filepath.Dir(path), "longer")
	must(t, os.Rename(path, longer))
	f, err := os.OpenFile(longer, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 4<<20), 100<<20)
	must(t, err)
	must(t, f.Close())
	fs := open(t, longer, ext4lite.Options{})
	must(t, fs.WriteFile("f", []byte("x"), ext4lite.NewInode{Mode: 0o644}))
	must(t, fs.Compact())
	closeFS(t, fs)
	st, err := os.Stat(longer)
	must(t, err)
	if st.Size() != 64<<20 {
		t.Errorf("the file has %d bytes, the volume 64 MiB", st.Size())
	}
	check(t, longer)
}

// noHoles is a file on a host that has no holes, as NFS before 4.2.
type noHoles struct{ *device.File }

func (noHoles) Free(int64, int64) error { return errors.ErrUnsupported }

func (d noHoles) Punch(off, n int64) error { return device.WriteZeros(d, off, n) }

// TestCompactWithoutHoles: on a host that has none, a volume takes no more than it
// did: to fill what is free with zeros would take it all, and as long.
func TestCompactWithoutHoles(t *testing.T) {
	path := newVolume(t, 512<<20, ext4lite.MkfsOptions{})
	d, err := device.OpenFile(path, device.ReadWrite)
	must(t, err)
	fs, err := ext4lite.Open(noHoles{d}, ext4lite.Options{Discard: true})
	must(t, err)
	fillTree(t, fs, "gone", 6, 100)
	fillTree(t, fs, "kept", 6, 100)
	root, err := fs.Root()
	must(t, err)
	must(t, root.RemoveAll("gone"))
	root.Release()
	must(t, fs.Sync())
	before := onDisk(t, path)
	must(t, fs.Compact())
	closeFS(t, fs)
	check(t, path)
	if after := onDisk(t, path); after > before+1<<20 {
		t.Errorf("%d KiB on the host's disk, %d before", after>>10, before>>10)
	}
}
