// SPDX-License-Identifier: Apache-2.0

// Headers of any bytes, and one torn header of two.

package delta

import (
	"bytes"
	"testing"
)

func FuzzHeader(f *testing.F) {
	h := header{generation: 3, size: 1 << 30, baseSize: 1 << 30, basePath: "base.ext4"}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := decodeHeader(p)
		if err != nil {
			return
		}
		if again, err := decodeHeader(h.encode()); err != nil || again != h {
			t.Fatalf("header changed: %+v, %+v, %v", h, again, err)
		}
		if d := dataOffset(h.size); d%dataAlign != 0 || d < bitmapOffset+(h.size/BlockSize+7)/8 {
			t.Fatalf("data of %d bytes at %d", h.size, d)
		}
	})
}

func TestTornHeader(t *testing.T) {
	a := header{generation: 4, size: 1 << 20, baseSize: 1 << 20, basePath: "a"}
	b := a
	b.generation, b.basePath = 5, "b"
	file := append(a.encode(), b.encode()...)
	if h, err := readHeader(bytes.NewReader(file)); err != nil || h.basePath != "b" {
		t.Fatalf("newer header: %+v, %v", h, err)
	}
	file[headerSize+200] ^= 1
	if h, err := readHeader(bytes.NewReader(file)); err != nil || h.basePath != "a" {
		t.Fatalf("older header, the newer being torn: %+v, %v", h, err)
	}
	file[200] ^= 1
	if _, err := readHeader(bytes.NewReader(file)); err == nil {
		t.Fatal("two torn headers were taken")
	}
}
