// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Variant imports a test bed image with another config into the store, and
// returns its name there.
func (h *Home) Variant(t testing.TB, image, name string, change func(*v1.Config)) string {
	t.Helper()
	base, err := LayoutImage(h.Layout(t, image))
	if err != nil {
		t.Fatalf("open image %s: %v", image, err)
	}
	config, err := base.ConfigFile()
	if err != nil {
		t.Fatalf("read config of image %s: %v", image, err)
	}
	config = config.DeepCopy()
	change(&config.Config)
	variant, err := mutate.ConfigFile(base, config)
	if err != nil {
		t.Fatal(err)
	}
	h.MustRungv(t, "image", "import", "--progress", "none", "oci:"+h.WriteLayout(t, name, variant)+":latest", name)
	return name
}

// LayoutImage opens the first image of a layout.
func LayoutImage(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// WriteLayout writes an image as an OCI layout that the home's user can read,
// with the tag "latest", and returns its folder.
func (h *Home) WriteLayout(t testing.TB, name string, image v1.Image) string {
	t.Helper()
	dir := h.Path("images", name)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatalf("write layout %s: %v", dir, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatalf("write layout %s: %v", dir, err)
	}
	err = path.AppendImage(image, layout.WithPlatform(*config.Platform()),
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "latest"}))
	if err != nil {
		t.Fatalf("write layout %s: %v", dir, err)
	}
	if err := ReadableTree(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// NewImage makes an image of one layer for this platform out of tar bytes, which
// may be as broken as a test likes.
func NewImage(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, data := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	return WithPlatform(t, image, "linux", Architecture)
}

// WithPlatform returns the image with another platform in its config.
func WithPlatform(t testing.TB, image v1.Image, system, architecture string) v1.Image {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = system, architecture
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// Tar packs headers into a tar; a regular file's body is its name, or zeros if
// its size is set.
func Tar(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, header := range headers {
		body := []byte(nil)
		if header.Typeflag == tar.TypeReg {
			if body = make([]byte, header.Size); header.Size == 0 {
				body = []byte(header.Name)
				header.Size = int64(len(body))
			}
		}
		if header.Mode == 0 {
			header.Mode = 0o755
		}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatalf("tar entry %q: %v", header.Name, err)
		}
		if _, err := writer.Write(body); err != nil {
			t.Fatalf("tar entry %q: %v", header.Name, err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}
