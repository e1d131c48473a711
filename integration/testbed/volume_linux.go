// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"os/exec"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// EmptyVolume makes a file that is an ext4 volume with nothing in it.
func EmptyVolume(t testing.TB, path string, sizeBytes int64) {
	t.Helper()
	d, err := device.CreateFile(path, sizeBytes)
	if err == nil {
		err = mkfs.Format(d, mkfs.Options{})
	}
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		t.Fatalf("make volume %s: %v", path, err)
	}
}

// MountXFS makes an XFS of sizeBytes, whose files can share blocks, in the file
// image, and mounts it on the directory dir until the test ends. It belongs to
// the home's user.
func (h *Home) MountXFS(t testing.TB, image, dir string, sizeBytes int64) {
	t.Helper()
	NeedRoot(t, "loop mounts")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, sizeBytes); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(NeedCommand(t, "mkfs.xfs"), "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, output)
	}
	if output, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		Missing(t, "a loop mount of an XFS: %v: %s", err, output)
	}
	t.Cleanup(func() {
		if output, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", dir, err, output)
		}
	})
	h.Chown(t, dir)
}
