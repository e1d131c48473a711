// SPDX-License-Identifier: Apache-2.0

// Bases that are good but for a few bytes. Without metadata_csum, checksums do
// not keep them from being read.

package delta

import (
	"encoding/binary"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

func FuzzIdentity(f *testing.F) {
	good := device.NewMem(32 << 20)
	if err := mkfs.Format(good, mkfs.Options{OldChecksums: true}); err != nil {
		f.Fatal(err)
	}
	if _, err := identity(good); err != nil {
		f.Fatalf("a new volume: %v", err)
	}
	f.Add([]byte{0, 0, 4, 0x18, 6, 0, 0, 0})
	f.Add([]byte{0, 0, 0x10, 8, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, edits []byte) {
		m := good.Clone()
		for ; len(edits) >= 8; edits = edits[8:] {
			m.WriteAt(edits[4:8], int64(binary.BigEndian.Uint32(edits))%m.Size())
		}
		a, err := identity(m)
		if b, again := identity(m); a != b || (err == nil) != (again == nil) {
			t.Fatalf("one volume, two identities: %v, %v", err, again)
		}
	})
}
