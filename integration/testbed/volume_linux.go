// SPDX-License-Identifier: Apache-2.0

package testbed

import (
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
