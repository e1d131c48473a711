// SPDX-License-Identifier: Apache-2.0

//go:build unix

// How much room a volume takes on the host's disk.

package mkfs_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

func TestLargeVolumeIsSmallOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.ext4")
	d, err := device.CreateFile(path, 64<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := mkfs.Format(d, mkfs.Options{}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Blocks*512 > 300<<10 {
		t.Errorf("a 64 GiB volume takes %d bytes on disk, at most %d are promised", st.Blocks*512, 300<<10)
	}
	e2fsck(t, path)
}
