// SPDX-License-Identifier: Apache-2.0

package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// FuzzConvert: any stream either becomes an image that verifies, or an error of
// a kind that blames the image.
func FuzzConvert(f *testing.F) {
	f.Add(stream(f, dir("d"), file("d/f", "x"), link("l", "d/f"), symlink("s", "d"), file("s/g", "y")))
	f.Add(stream(f, file(".wh.a", ""), dir("a"), file("a/.wh..wh..opq", ""), file("a/b", "z")))
	f.Add(stream(f, tar.Header{Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}, tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}))
	f.Add(sparseTar("s", 1<<20))
	f.Add(stream(f, symlink("a", "b"), symlink("b", "a"), file("a/../c", "")))
	scratch, err := os.CreateTemp(f.TempDir(), "fuzz")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { scratch.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := scratch.Truncate(0); err != nil {
			t.Fatal(err)
		}
		b, err := erofs.NewBuilder(scratch, erofs.BuilderOptions{UUID: [16]byte{1}})
		if err != nil {
			t.Fatal(err)
		}
		stats, err := Convert(context.Background(), bytes.NewReader(in), b, Limits{Bytes: 4 << 20, Entries: 1000})
		if err != nil {
			switch kind := api.KindOf(err); kind {
			case api.KindImage, api.KindLimit, api.KindUnsupported:
			default:
				t.Fatalf("kind %s: %v", kind, err)
			}
			return
		}
		if stats.Bytes != int64(len(in)) {
			t.Fatalf("read %d of %d bytes", stats.Bytes, len(in))
		}
		sum, err := b.Finish(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := erofs.Verify(context.Background(), scratch, sum.Bytes); err != nil {
			t.Fatal(err)
		}
	})
}

// TestManyEntries: a stream that never ends is refused after as many entries as
// the limit says: nightly, the default million.
func TestManyEntries(t *testing.T) {
	limit := 1 << 16
	if os.Getenv("GVX_NIGHTLY") != "" {
		limit = DefaultEntries
	}
	f, err := os.CreateTemp(t.TempDir(), "million")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := erofs.NewBuilder(f, erofs.BuilderOptions{UUID: [16]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	go func() {
		for i := 0; ; i++ {
			if _, err := pw.Write(header('0', fmt.Sprintf("d%d/e%d/f%d", i%1000, i%8, i), 0)); err != nil {
				return
			}
		}
	}()
	defer pr.Close()
	stats, err := Convert(context.Background(), pr, b, Limits{Entries: limit})
	checkError(t, err, api.KindLimit, "Entries", fmt.Sprint(limit))
	if stats.Entries != limit+1 {
		t.Errorf("%d entries", stats.Entries)
	}
}
