// SPDX-License-Identifier: Apache-2.0

// Speed: a layer's tar through the builder, beside mkfs.erofs on the directory
// that the same tar unpacks to.

package erofs

import (
	"archive/tar"
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// benchTar writes a tar of about 250 MiB, shaped like a distribution's layer:
// many small files, some of megabytes.
func benchTar(b *testing.B, path string) (bytes int64) {
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(out)
	data := pattern(16<<20, 7)
	for i := range 8000 {
		size := 1 << (i % 15) * 3 / 2
		if i%400 == 0 {
			size = 4<<20 + i
		}
		h := &tar.Header{Name: fmt.Sprintf("usr/share/d%d/s%d/file-%d", i%50, i%7, i), Mode: 0o644, Size: int64(size), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(data[i : i+size]); err != nil {
			b.Fatal(err)
		}
		bytes += int64(size)
	}
	for i := range 10 {
		h := &tar.Header{Name: fmt.Sprintf("usr/lib/big-%d", i), Mode: 0o755, Size: 15 << 20, Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(data[:h.Size]); err != nil {
			b.Fatal(err)
		}
		bytes += h.Size
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if err := out.Flush(); err != nil {
		b.Fatal(err)
	}
	return bytes
}

func buildFromTar(b *testing.B, archive, image string, o BuilderOptions) {
	in, err := os.Open(archive)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	f, err := os.Create(image)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	builder, err := NewBuilder(f, o)
	if err != nil {
		b.Fatal(err)
	}
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		if err := builder.Add(h.Name, Entry{Mode: ModeRegular | uint32(h.Mode), Mtime: h.ModTime, Size: h.Size}, r); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := builder.Finish(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkConvert(b *testing.B) {
	dir := b.TempDir()
	archive, image := filepath.Join(dir, "tar"), filepath.Join(dir, "image")
	size := benchTar(b, archive)
	for _, c := range []struct {
		name string
		o    BuilderOptions
	}{{"builder", BuilderOptions{UUID: [16]byte{1}}}, {"builder-hashing", BuilderOptions{}}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				buildFromTar(b, archive, image, c.o)
				os.Remove(image)
			}
		})
	}
	b.Run("mkfs.erofs", func(b *testing.B) {
		needTool(b, "mkfs.erofs")
		tree := filepath.Join(dir, "tree")
		if err := os.Mkdir(tree, 0o755); err != nil {
			b.Fatal(err)
		}
		if out, err := exec.Command("tar", "-C", tree, "-xf", archive).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		b.SetBytes(size)
		for b.Loop() {
			if out, err := exec.Command("mkfs.erofs", "--quiet", image, tree).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			os.Remove(image)
		}
	})
}

// BenchmarkLookup is one name in a directory of 100,000.
func BenchmarkLookup(b *testing.B) {
	path, _ := build(b, BuilderOptions{UUID: [16]byte{1}}, func(bl *Builder) {
		for i := range 100_000 {
			if err := bl.Add(fmt.Sprintf("file-%d", i), Entry{Mode: ModeRegular}, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	im := openFile(b, path)
	root, err := im.Inode(im.Root())
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		nid, _, err := im.Lookup(&root, fmt.Sprintf("file-%d", i%100_000))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := im.Inode(nid); err != nil {
			b.Fatal(err)
		}
		i += 7919
	}
}
