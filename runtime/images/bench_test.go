// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkGetPin is what a run of a cached image pays.
func BenchmarkGetPin(b *testing.B) {
	reg := newRegistry(b)
	var layers [][]byte
	for i := range 12 {
		layers = append(layers, tarOf(b, member{name: fmt.Sprint("f", i), content: "x"}))
	}
	ref := reg.push(b, "test/many:1", imageOf(b, "many", layers...))
	root := scratch(b)
	pull(b, open(b, root), ref)
	for b.Loop() {
		s := open(b, root)
		img, err := s.Pull(context.Background(), ref, PullOptions{})
		if err != nil {
			b.Fatal(err)
		}
		pin, err := s.Pin(img)
		if err != nil {
			b.Fatal(err)
		}
		pin.Close()
	}
}

// BenchmarkImport converts a tar of 64 MiB in files of 16 KiB: hashing twice,
// framing, EROFS and the flush to disk.
func BenchmarkImport(b *testing.B) {
	src := rand.NewChaCha8([32]byte{2})
	var members []member
	for i := range 4096 {
		raw := make([]byte, 16<<10)
		_, _ = src.Read(raw)
		members = append(members, member{name: fmt.Sprint("f", i), content: string(raw)})
	}
	tar := tarOf(b, members...)
	b.SetBytes(int64(len(tar)))
	for b.Loop() {
		b.StopTimer()
		s := open(b, scratch(b))
		b.StartTimer()
		if _, err := s.Import(context.Background(), bytes.NewReader(tar), PullOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
