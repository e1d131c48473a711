// SPDX-License-Identifier: Apache-2.0

// The same random operations on this package and on the model, then e2fsck.

package ext4lite_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

// seeds is how many seeds a test runs: a few by default, GVX_SEEDS for more.
func seeds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("GVX_SEEDS")); err == nil && n > 0 {
		return n
	}
	return few
}

// firstSeed lets a failing seed be run alone.
func firstSeed() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("GVX_SEED"), 10, 64)
	return n
}

var volumeKinds = []struct {
	name string
	make func(t testing.TB) string
}{
	{"own", func(t testing.TB) string { return newVolume(t, 64<<20, ext4lite.MkfsOptions{}) }},
	{"own1k", func(t testing.TB) string { return newVolume(t, 32<<20, ext4lite.MkfsOptions{BlockSize: 1024}) }},
	{"own128", func(t testing.TB) string { return newVolume(t, 32<<20, ext4lite.MkfsOptions{InodeSize: 128}) }},
	{"mkfs", func(t testing.TB) string { return kernelVolume(t, 64<<20) }},
	{"mkfs1k", func(t testing.TB) string { return kernelVolume(t, 32<<20, "-b", "1024", "-E", "lazy_itable_init=1") }},
	{"mkfs32", func(t testing.TB) string { return kernelVolume(t, 32<<20, "-O", "^64bit,^metadata_csum") }},
	{"orphanfile", func(t testing.TB) string { return kernelVolume(t, 32<<20, "-O", "orphan_file") }},
}

func TestMetamorphic(t *testing.T) {
	n := seeds(14)
	for s := range n {
		seed := firstSeed() + uint64(s)
		k := volumeKinds[seed%uint64(len(volumeKinds))]
		t.Run(fmt.Sprintf("%s-%d", k.name, seed), func(t *testing.T) {
			path := k.make(t)
			g := &generator{r: rand.New(rand.NewPCG(seed, 1)), names: 6, maxFile: 300000}
			m := newModel()
			us := &ours{t, open(t, path, ext4lite.Options{Durability: ext4lite.Process})}
			for i := range 1500 {
				o := g.next()
				a, b := o.do(m), o.do(us)
				if a != b {
					t.Fatalf("operation %d, %s: the model says %d, we %d (%v)\nread-only: %v", i, o.what, a, b, b, us.fs.ReadOnly())
				}
				switch g.r.IntN(300) {
				case 0:
					must(t, us.fs.Sync())
				case 1:
					closeFS(t, us.fs)
					check(t, path)
					us.fs = open(t, path, ext4lite.Options{Durability: ext4lite.Process, CacheBytes: 1 << 18})
				case 2:
					compare(t, "model and ours", m.dump(), us.dump())
				}
			}
			compare(t, "model and ours", m.dump(), us.dump())
			closeFS(t, us.fs)
			check(t, path)
			us.fs = open(t, path, ext4lite.Options{ReadOnly: true})
			compare(t, "model and ours reopened", m.dump(), us.dump())
			closeFS(t, us.fs)
		})
	}
}
