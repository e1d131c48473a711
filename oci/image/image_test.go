// SPDX-License-Identifier: Apache-2.0

package image

// Shared pieces of the tests: images made with go-containerregistry, and the
// checks each source must pass.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// tarOf makes a tar stream of regular files.
func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for name, content := range files {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// testLayer makes a layer with the given compression.
func testLayer(t testing.TB, raw []byte, c compression.Compression, mediaType types.MediaType) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil },
		tarball.WithCompression(c), tarball.WithMediaType(mediaType))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// testImage makes an image of three layers: gzip, zstd, and a second gzip.
func testImage(t testing.TB, arch string) v1.Image {
	return testImageOf(t, arch, compression.ZStd, types.OCILayerZStd)
}

// testImageOf makes such an image with another second layer.
func testImageOf(t testing.TB, arch string, second compression.Compression, secondType types.MediaType) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), &v1.ConfigFile{
		OS: "linux", Architecture: arch,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"/bin/" + arch}, Env: []string{"A=b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.AppendLayers(img,
		testLayer(t, tarOf(t, map[string]string{"a": strings.Repeat("first ", 1000)}), compression.GZip, types.OCILayer),
		testLayer(t, tarOf(t, map[string]string{"b": strings.Repeat("second ", 100_000)}), second, secondType),
		testLayer(t, tarOf(t, map[string]string{"c": arch}), compression.GZip, types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// mustParse parses a reference that is right.
func mustParse(t testing.TB, ref string) Source {
	t.Helper()
	s, err := Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustResolve resolves what must be there, and closes it when the test ends.
func mustResolve(t testing.TB, ref string, o Options) *Image {
	t.Helper()
	img, err := mustParse(t, ref).Resolve(context.Background(), o)
	if err != nil {
		t.Fatalf("resolve %s: %v", ref, err)
	}
	t.Cleanup(func() {
		if err := img.Close(); err != nil {
			t.Errorf("close %s: %v", ref, err)
		}
	})
	return img
}

// checkImage reads all layers both ways; every digest must hold.
func checkImage(t testing.TB, img *Image) {
	t.Helper()
	if img.Digest != digest.FromBytes(img.RawManifest) || img.ConfigDigest != digest.FromBytes(img.RawConfig) {
		t.Errorf("digests of the documents do not fit: %s %s", img.Digest, img.ConfigDigest)
	}
	for i, l := range img.Layers {
		rc, err := l.Open(context.Background())
		if err != nil {
			t.Fatalf("open layer %d: %v", i, err)
		}
		raw, err := io.ReadAll(rc)
		if err != nil {
			t.Fatalf("read layer %d: %v", i, err)
		}
		rc.Close()
		if digest.FromBytes(raw) != l.Digest || int64(len(raw)) != l.Size {
			t.Errorf("layer %d: %d bytes of digest %s, want %d of %s", i, len(raw), digest.FromBytes(raw), l.Size, l.Digest)
		}
		if got := digest.FromBytes(uncompressed(t, l)); got != l.DiffID {
			t.Errorf("layer %d: uncompressed digest %s, want %s", i, got, l.DiffID)
		}
	}
}

// uncompressed reads a layer.
func uncompressed(t testing.TB, l Layer) []byte {
	t.Helper()
	s, err := l.Uncompressed(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	raw, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// wantError checks kind and text of an error.
func wantError(t testing.TB, err error, kind api.Kind, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s with %q", kind, texts)
	}
	if got := api.KindOf(err); got != kind {
		t.Errorf("error is of kind %s, want %s: %v", got, kind, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error does not say %q: %v", text, err)
		}
	}
	var e *api.Error
	if !errors.As(err, &e) {
		t.Errorf("error is not an api.Error: %v", err)
	}
}

// tool finds an external program, or skips; CI must have it.
func tool(t testing.TB, name string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return p
}

// run runs a program that must succeed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// tarCompressed compresses as the layer maker does.
func tarCompressed(t testing.TB, raw []byte, c compression.Compression) []byte {
	t.Helper()
	rc, err := testLayer(t, raw, c, types.OCILayer).Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
