// SPDX-License-Identifier: Apache-2.0

package layer

// Conversion as the store does it: stored bytes, decompressed and hashed in the
// pipeline, into an image file; and, to compare, mkfs.erofs on the directory
// that the same tar unpacks to.

import (
	"archive/tar"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/oci/erofs"
)

// benchLayer makes a 250 MiB tar of a distribution's shape.
func benchLayer(b *testing.B) []byte {
	b.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 16<<20)
	for i := range text {
		text[i] = "abcdefghijklmnop"[rnd.Uint32()%16] // compresses as binaries do
	}
	hdrs := make([]tar.Header, 0, 10_000)
	for i := range 8000 {
		size := 1 << (i % 15) * 3 / 2
		if i%400 == 0 {
			size = 4 << 20
		}
		hdrs = append(hdrs, file(fmt.Sprintf("usr/share/d%d/s%d/file-%d", i%50, i%7, i), string(text[i:i+size])))
	}
	for i := range 10 {
		hdrs = append(hdrs, file(fmt.Sprintf("usr/lib/big-%d", i), string(text[i:i+15<<20])))
	}
	return stream(b, hdrs...)
}

func BenchmarkConvert(b *testing.B) {
	raw := benchLayer(b)
	want := digest.FromBytes(raw)
	for _, kind := range []Compression{Plain, Gzip, Zstd} {
		b.Run(string(kind), func(b *testing.B) {
			stored := filepath.Join(b.TempDir(), "layer")
			if err := os.WriteFile(stored, compress(b, kind, raw), 0o600); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				convertFile(b, stored, want)
			}
		})
	}
	b.Run("mkfs.erofs", func(b *testing.B) {
		if _, err := exec.LookPath("mkfs.erofs"); err != nil {
			b.Skip("mkfs.erofs is not installed")
		}
		dir := b.TempDir()
		cmd := exec.Command("tar", "-xf", "-", "-C", dir)
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		go func() { in.Write(raw); in.Close() }()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		image := filepath.Join(b.TempDir(), "image")
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			os.Remove(image)
			if out, err := exec.Command("mkfs.erofs", image, dir).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

// convertFile converts a stored layer.
func convertFile(b *testing.B, stored string, want digest.Digest) {
	src, err := os.Open(stored)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Decompress(context.Background(), src, want, Limits{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	f, err := os.Create(filepath.Join(b.TempDir(), "image"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	builder, err := erofs.NewBuilder(f, erofs.BuilderOptions{UUID: [16]byte{1}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := Convert(context.Background(), s, builder, Limits{}); err != nil {
		b.Fatal(err)
	}
	if _, err := builder.Finish(context.Background()); err != nil {
		b.Fatal(err)
	}
}
