// SPDX-License-Identifier: Apache-2.0

// Single operations, for profiles.

package ext4lite_test

import (
	"fmt"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

func benchDir(b *testing.B, n int) (*ext4lite.FS, *ext4lite.Inode) {
	path := newVolume(b, 1<<30, ext4lite.MkfsOptions{BytesPerIno: 4096})
	fs := open(b, path, ext4lite.Options{Durability: ext4lite.Process})
	b.Cleanup(func() { fs.Close() })
	d, err := fs.MkdirAll("d", ext4lite.NewInode{Mode: 0o755})
	must(b, err)
	for k := range n {
		i, err := d.Create(fmt.Sprintf("file%06d", k), ext4lite.NewInode{})
		must(b, err)
		i.Release()
	}
	return fs, d
}

func BenchmarkStat(b *testing.B) {
	_, d := benchDir(b, 100000)
	k := 0
	for b.Loop() {
		k = (k + 7919) % 100000
		i, err := d.Lookup(fmt.Sprintf("file%06d", k))
		must(b, err)
		i.Attr()
		i.Release()
	}
}

func BenchmarkCreate(b *testing.B) {
	_, d := benchDir(b, 0)
	k := 0
	for b.Loop() {
		k++
		i, err := d.Create(fmt.Sprintf("file%06d", k), ext4lite.NewInode{})
		must(b, err)
		i.Release()
		if k%50000 == 0 {
			b.StopTimer()
			for j := k - 49999; j <= k; j++ {
				must(b, d.Unlink(fmt.Sprintf("file%06d", j)))
			}
			b.StartTimer()
		}
	}
}

func BenchmarkCreateUnlink(b *testing.B) {
	_, d := benchDir(b, 10000)
	for b.Loop() {
		i, err := d.Create("one", ext4lite.NewInode{})
		must(b, err)
		i.Release()
		must(b, d.Unlink("one"))
	}
}
