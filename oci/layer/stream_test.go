// SPDX-License-Identifier: Apache-2.0

package layer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// compress makes the compressed form of b.
func compress(t testing.TB, kind Compression, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	switch kind {
	case Gzip:
		w = gzip.NewWriter(&out)
	case Zstd:
		zw, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		w = zw
	default:
		return b
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// inflate decompresses all of src.
func inflate(ctx context.Context, src io.Reader, want digest.Digest, limits Limits) ([]byte, error) {
	s, err := Decompress(ctx, io.NopCloser(src), want, limits)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return io.ReadAll(s)
}

func TestDecompress(t *testing.T) {
	random := make([]byte, 3*chunkBytes+17)
	rand.Read(random)
	ctx := context.Background()
	for _, kind := range []Compression{Plain, Gzip, Zstd} {
		for _, content := range [][]byte{{}, []byte("x"), random, make([]byte, 20<<20)} {
			packed := compress(t, kind, content)
			got, err := inflate(ctx, iotest.HalfReader(bytes.NewReader(packed)), digest.FromBytes(content), Limits{})
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s of %d bytes: got %d, %v", kind, len(content), len(got), err)
			}
			_, err = inflate(ctx, bytes.NewReader(packed), digest.FromString("other"), Limits{})
			checkError(t, err, api.KindImage, "diff ID", digest.FromBytes(content).String())
		}
		packed := compress(t, kind, random)
		if kind == Plain {
			continue
		}
		_, err := inflate(ctx, bytes.NewReader(packed[:len(packed)/2]), "", Limits{})
		checkError(t, err, api.KindImage, "truncated", string(kind))
		packed[len(packed)/2] ^= 1
		_, err = inflate(ctx, bytes.NewReader(packed), "", Limits{})
		checkError(t, err, api.KindImage, "broken", string(kind))
	}
	_, err := inflate(ctx, bytes.NewReader([]byte("BZh91AY&SY")), "", Limits{})
	checkError(t, err, api.KindUnsupported, "bzip2")
	_, err = inflate(ctx, bytes.NewReader(nil), "md5:00", Limits{})
	checkError(t, err, api.KindImage, "md5:00")
}

// TestMembers: both formats may be concatenated, as parallel compressors do.
func TestMembers(t *testing.T) {
	for _, kind := range []Compression{Gzip, Zstd} {
		two := append(compress(t, kind, []byte("one ")), compress(t, kind, []byte("two"))...)
		got, err := inflate(context.Background(), bytes.NewReader(two), "", Limits{})
		if err != nil || string(got) != "one two" {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
	}
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9}, compress(t, Zstd, []byte("x"))...)
	if got, err := inflate(context.Background(), bytes.NewReader(skippable), "", Limits{}); err != nil || string(got) != "x" {
		t.Errorf("skippable frame: %q, %v", got, err)
	}
}

func TestBombs(t *testing.T) {
	zeros := make([]byte, 32<<20)
	for _, kind := range []Compression{Gzip, Zstd} {
		bomb := compress(t, kind, zeros)
		_, err := inflate(context.Background(), bytes.NewReader(bomb), "", Limits{RatioFloor: 1 << 20})
		checkError(t, err, api.KindLimit, "bomb", "Ratio")
		_, err = inflate(context.Background(), bytes.NewReader(bomb), "", Limits{Bytes: 1 << 20})
		checkError(t, err, api.KindLimit, "Bytes")
		if _, err = inflate(context.Background(), bytes.NewReader(bomb), "", Limits{}); err != nil {
			t.Errorf("%s below the floor: %v", kind, err)
		}
	}
	if _, err := inflate(context.Background(), bytes.NewReader(zeros), "", Limits{RatioFloor: 1 << 20}); err != nil {
		t.Errorf("plain zeros: %v", err)
	}
}

// TestSourceErrorWins: a source that finds its digest wrong has the last word
// over the decompressor, which stumbles first.
func TestSourceErrorWins(t *testing.T) {
	packed := compress(t, Gzip, bytes.Repeat([]byte("abc"), 100_000))
	packed[len(packed)/3] ^= 0xff
	own := api.Errorf(api.KindImage, "digest is wrong")
	_, err := inflate(context.Background(), io.MultiReader(bytes.NewReader(packed), errReader{own}), "", Limits{})
	if !errors.Is(err, own) {
		t.Errorf("got %v", err)
	}
	// At the very end too, after the stream was complete.
	_, err = inflate(context.Background(), io.MultiReader(bytes.NewReader(compress(t, Zstd, []byte("x"))), errReader{own}), "", Limits{})
	if !errors.Is(err, own) {
		t.Errorf("at the end: got %v", err)
	}
}

// blocked is a source that hangs until it is closed.
type blocked struct{ closed chan struct{} }

func (b blocked) Read([]byte) (int, error) { <-b.closed; return 0, io.ErrClosedPipe }
func (b blocked) Close() error             { close(b.closed); return nil }

func TestCloseAndCancel(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Decompress(ctx, blocked{make(chan struct{})}, "", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read after cancel: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.Close()
	// A stream that is left in the middle.
	s, err = Decompress(context.Background(), io.NopCloser(bytes.NewReader(make([]byte, 50<<20))), "", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for i := 0; runtime.NumGoroutine() > before && i < 100; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines are left, %d at the start", n, before)
	}
}

// FuzzDecompress: whatever comes in, it ends, within limits, with an error of
// a kind or with bytes.
func FuzzDecompress(f *testing.F) {
	for _, kind := range []Compression{Plain, Gzip, Zstd} {
		f.Add(compress(f, kind, []byte("some bytes, some bytes, some bytes")))
	}
	f.Add([]byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := inflate(context.Background(), bytes.NewReader(in), "", Limits{Bytes: 1 << 20})
		if len(out) > 1<<20 {
			t.Fatalf("%d bytes came out", len(out))
		}
		if err != nil && api.KindOf(err) == api.KindInternal {
			t.Fatalf("error without a kind: %v", err)
		}
	})
}
