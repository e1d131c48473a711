// SPDX-License-Identifier: Apache-2.0

// Growing: within a group, by groups, past the room for descriptors; with
// files in the volume that stay as they are.

package ext4lite_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

// growFilled grows a volume with files in it, which stay as they are, and fills
// part of what is new.
func growFilled(t *testing.T, path string, to int64) {
	t.Helper()
	fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	m := newModel()
	work(t, fs, m, 400, 200)
	before := fs.Statfs()
	closeFS(t, fs)
	must(t, ext4lite.Grow(path, to))
	check(t, path)
	fs = open(t, path, ext4lite.Options{Durability: ext4lite.Process})
	compare(t, "after growing", m.dump(), (&ours{t, fs}).dump())
	if after := fs.Statfs(); after.Free <= before.Free {
		t.Errorf("%d blocks free after growing, %d before", after.Free, before.Free)
	}
	must(t, fs.WriteFile("new", make([]byte, min(to/4, 200<<20)), ext4lite.NewInode{Mode: 0o644}))
	closeFS(t, fs)
	check(t, path)
}

func TestGrow(t *testing.T) {
	for _, c := range []struct {
		bs       int
		from, to int64
	}{
		{4096, 50 << 20, 90 << 20}, {4096, 100 << 20, 1 << 30}, {4096, 200 << 20, 20 << 30}, {1024, 20 << 20, 500 << 20}, {1024, 100 << 20, 101 << 20},
	} {
		t.Run(fmt.Sprintf("%d-%d-%d", c.bs, c.from>>20, c.to>>20), func(t *testing.T) {
			path := newVolume(t, c.from, ext4lite.MkfsOptions{BlockSize: c.bs})
			growFilled(t, path, c.to)
			umount(t, mount(t, path))
			must(t, ext4lite.Grow(path, c.to+(300<<20))) // twice: descriptors in groups have no copies beside the superblock's
			check(t, path)
			if err := ext4lite.Grow(path, c.from); !errors.Is(err, ext4lite.EINVAL) {
				t.Errorf("shrinking: %v", err)
			}
		})
	}
}

// TestGrowVolumesOfMkfs grows what mkfs.ext4 made, whose room for descriptors
// is given up.
func TestGrowVolumesOfMkfs(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to int64
		args     []string
	}{
		{"defaults", 300 << 20, 2 << 30, nil},
		{"within a group", 100 << 20, 120 << 20, nil},
		{"past the descriptors", 1 << 30, 20 << 30, nil},
		{"small blocks", 64 << 20, 800 << 20, []string{"-b", "1024"}},
		{"no flex_bg", 300 << 20, 1 << 30, []string{"-O", "^flex_bg"}},
		{"no checksums", 300 << 20, 1 << 30, []string{"-O", "^metadata_csum,uninit_bg,^64bit"}},
		{"nothing reserved", 300 << 20, 1 << 30, []string{"-O", "^resize_inode"}},
		{"every copy", 300 << 20, 2 << 30, []string{"-O", "^sparse_super,^resize_inode"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := kernelVolume(t, c.from, c.args...)
			growFilled(t, path, c.to)
			must(t, ext4lite.Grow(path, c.to+(400<<20))) // and once more
			check(t, path)
			dir := mount(t, path)
			must(t, os.WriteFile(dir+"/theirs", make([]byte, 40<<20), 0o644))
			umount(t, dir)
			check(t, path)
		})
	}
}

func TestGrowWithoutUninitIsRefused(t *testing.T) {
	path := kernelVolume(t, 64<<20, "-O", "^metadata_csum,^uninit_bg,^64bit")
	err := ext4lite.Grow(path, 128<<20)
	if !errors.Is(err, ext4lite.EOPNOTSUPP) || !strings.Contains(err.Error(), "resize2fs") {
		t.Errorf("growing a volume without checksums of groups: %v", err)
	}
	check(t, path)
}
