// SPDX-License-Identifier: Apache-2.0

// Growing: within a group, by groups, past the room for descriptors; with
// files in the volume that stay as they are.

package ext4lite_test

import (
	"errors"
	"fmt"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

func TestGrow(t *testing.T) {
	for _, c := range []struct {
		bs       int
		from, to int64
	}{
		{4096, 50 << 20, 90 << 20}, {4096, 100 << 20, 1 << 30}, {4096, 200 << 20, 20 << 30}, {1024, 20 << 20, 500 << 20}, {1024, 100 << 20, 101 << 20},
	} {
		t.Run(fmt.Sprintf("%d-%d-%d", c.bs, c.from>>20, c.to>>20), func(t *testing.T) {
			path := newVolume(t, c.from, ext4lite.MkfsOptions{BlockSize: c.bs})
			fs := open(t, path, ext4lite.Options{Durability: ext4lite.Process})
			m := newModel()
			work(t, fs, m, 400, 200)
			before := fs.Statfs()
			closeFS(t, fs)
			must(t, ext4lite.Grow(path, c.to))
			check(t, path)
			fs = open(t, path, ext4lite.Options{Durability: ext4lite.Process})
			compare(t, "after growing", m.dump(), (&ours{t, fs}).dump())
			if after := fs.Statfs(); after.Free <= before.Free {
				t.Errorf("%d blocks free after growing, %d before", after.Free, before.Free)
			}
			must(t, fs.WriteFile("new", make([]byte, min(c.to/4, 100<<20)), ext4lite.NewInode{Mode: 0o644}))
			closeFS(t, fs)
			check(t, path)
			umount(t, mount(t, path))
			if err := ext4lite.Grow(path, c.from); !errors.Is(err, ext4lite.EINVAL) {
				t.Errorf("shrinking: %v", err)
			}
		})
	}
}
