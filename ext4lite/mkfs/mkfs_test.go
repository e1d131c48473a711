// SPDX-License-Identifier: Apache-2.0

// Volumes of many shapes are made and handed to e2fsck.

package mkfs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

func e2fsck(t *testing.T, path string) {
	t.Helper()
	tool, err := exec.LookPath("e2fsck")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("e2fsck is not installed")
		}
		t.Skip("e2fsck is not installed")
	}
	if out, err := exec.Command(tool, "-fn", path).CombinedOutput(); err != nil {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
}

func TestShapes(t *testing.T) {
	for _, bs := range []int{1024, 2048, 4096} {
		for _, size := range []int64{8 << 20, 9<<20 + 5, 65 << 20, 129 << 20, 1 << 30, 5<<30 + 4096*77} {
			for _, isize := range []int{128, 256} {
				t.Run(fmt.Sprintf("%d-%d-%d", bs, size, isize), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "v.ext4")
					d, err := device.CreateFile(path, size)
					if err != nil {
						t.Fatal(err)
					}
					if err := mkfs.Format(d, mkfs.Options{BlockSize: bs, InodeSize: isize, Label: "shape"}); err != nil {
						t.Fatal(err)
					}
					d.Close()
					e2fsck(t, path)
				})
			}
		}
	}
}

func TestNoLostFound(t *testing.T) {
	for _, bs := range []int{1024, 4096} {
		path := filepath.Join(t.TempDir(), "v.ext4")
		d, err := device.CreateFile(path, 300<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := mkfs.Format(d, mkfs.Options{BlockSize: bs, NoLostFound: true}); err != nil {
			t.Fatal(err)
		}
		d.Close()
		e2fsck(t, path)
	}
}

func TestOldChecksums(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.ext4")
	d, err := device.CreateFile(path, 300<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := mkfs.Format(d, mkfs.Options{OldChecksums: true}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	e2fsck(t, path)
}

func BenchmarkFormat64GiB(b *testing.B) {
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "v.ext4")
		d, err := device.CreateFile(path, 64<<30)
		if err != nil {
			b.Fatal(err)
		}
		if err := mkfs.Format(d, mkfs.Options{}); err != nil {
			b.Fatal(err)
		}
		d.Close()
		os.Remove(path)
	}
}
