// SPDX-License-Identifier: Apache-2.0

// The limits: what must work at their near side, what must stop at the far one.

package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// bytesPerEntry is what the builder may keep per name, as MaxEntries promises.
const bytesPerEntry = 400

func TestMillionEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const count = 1_000_000
	var before, after runtime.MemStats
	path, s := build(t, BuilderOptions{UUID: [16]byte{1}}, func(b *Builder) {
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range count / 2 {
			// One directory of half a million, and many small ones.
			for _, p := range []string{fmt.Sprintf("flat/f%d", i), fmt.Sprintf("tree/%d/f%d", i/100, i)} {
				if err := b.Add(p, Entry{Mode: ModeRegular | 0o644}, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
	})
	if s.Entries != count+2+count/2/100 {
		t.Errorf("%d entries", s.Entries)
	}
	if got := (after.HeapAlloc - before.HeapAlloc) / count; got > bytesPerEntry {
		t.Errorf("%d bytes of memory per entry, at most %d", got, bytesPerEntry)
	}
	im := openFile(t, path) // verifies it too
	flat := resolve(t, im, "flat")
	for i := 0; i < count/2; i += 9973 {
		if _, typ, err := im.Lookup(flat, fmt.Sprintf("f%d", i)); err != nil || typ != TypeRegular {
			t.Fatal(i, typ, err)
		}
	}
}

func TestEntryLimit(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	b, err := NewBuilder(f, BuilderOptions{})
	must(t, err)
	must(t, b.Add("dir/file", Entry{Mode: ModeRegular}, nil))
	b.entries = MaxEntries
	for _, err := range []error{
		b.Add("x", Entry{Mode: ModeRegular}, nil),
		b.Add("new/x", Entry{Mode: ModeRegular}, nil),
		b.Link("x", "dir/file"),
	} {
		if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), fmt.Sprint(MaxEntries)) {
			t.Errorf("beyond MaxEntries: %v", err)
		}
	}
	must(t, b.Add("dir/file", Entry{Mode: ModeRegular | 0o600}, nil)) // replaces
	b.entries = 2
	b.metaBytes = MaxMetadataBytes
	if err := b.Add("x", Entry{Mode: ModeRegular}, nil); !errors.Is(err, ErrLimit) {
		t.Errorf("beyond MaxMetadataBytes: %v", err)
	}
}

func TestChunkSizes(t *testing.T) {
	for _, c := range []struct {
		size   int64
		bits   uint8
		chunks int64
	}{
		{minHole, 16, 1},
		{16 << 30, 16, smallChunks},
		{16<<30 + 1, 17, smallChunks/2 + 1},
		{256 << 30, 20, smallChunks},
		{MaxFileSize, 20, MaxFileSize / writeBuffer},
	} {
		m := sparseMap{chunkBits: chunkBitsFor(c.size)}
		if m.chunkBits != c.bits || m.chunks(c.size) != c.chunks {
			t.Errorf("%d bytes: %d chunks of 2^%d, want %d of 2^%d", c.size, m.chunks(c.size), m.chunkBits, c.chunks, c.bits)
		}
	}
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestHugeHole: a large file without data takes one index entry.
func TestHugeHole(t *testing.T) {
	const size = 1 << 30
	path, s := build(t, BuilderOptions{}, func(b *Builder) {
		must(t, b.Add("hole", Entry{Mode: ModeRegular, Size: size}, zeros{}))
		data := io.MultiReader(io.LimitReader(zeros{}, size-1), bytes.NewReader([]byte{7}))
		must(t, b.Add("last", Entry{Mode: ModeRegular, Size: size}, data))
	})
	if s.DataBytes != minHole || s.MetadataBytes > 4*size/minHole+2*blockSize {
		t.Errorf("summary %+v", s)
	}
	im := openFile(t, path)
	ino := resolve(t, im, "last")
	var b [3]byte
	if n, err := im.ReadAt(ino, b[:], size-2); n != 2 || err != io.EOF || b[0] != 0 || b[1] != 7 {
		t.Errorf("read %d, %v, %v", n, err, b)
	}
}

func TestFinishStopsWithItsContext(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	b, err := NewBuilder(f, BuilderOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Finish(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Finish: %v", err)
	}
	must(t, f.Truncate(blockSize))
	if _, err := Open(f, blockSize); !errors.Is(err, ErrNotEROFS) {
		t.Errorf("Open of half an image: %v", err)
	}
	image, _ := build(t, BuilderOptions{}, func(b *Builder) { fillRich(t, b) })
	r, err := os.Open(image)
	must(t, err)
	defer r.Close()
	info, err := r.Stat()
	must(t, err)
	if err := Verify(ctx, r, info.Size()); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify: %v", err)
	}
}
