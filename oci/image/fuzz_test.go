// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"io"
	"io/fs"
	"testing"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// oneDocument answers every request with the same bytes.
type oneDocument struct{ raw []byte }

func (d oneDocument) manifest(context.Context, ispec.Descriptor) (io.ReadCloser, error) {
	return bytesReader(d.raw), nil
}
func (d oneDocument) blob(context.Context, ispec.Descriptor) (io.ReadCloser, error) {
	return bytesReader(d.raw), nil
}
func (d oneDocument) Close() error { return nil }

// open makes it files, too: every name is the document.
func (d oneDocument) open(name string) (io.ReadCloser, int64, error) {
	if name == ispec.ImageLayoutFile {
		raw := []byte(`{"imageLayoutVersion":"1.0.0"}`)
		return bytesReader(raw), int64(len(raw)), nil
	}
	if len(d.raw) == 0 {
		return nil, 0, fs.ErrNotExist
	}
	return bytesReader(d.raw), int64(len(d.raw)), nil
}

// FuzzManifest: any document as manifest, index and configuration ends with an
// image or an error of a kind.
func FuzzManifest(f *testing.F) {
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}`
	f.Add([]byte(`{"schemaVersion":2,"mediaType":"` + ispec.MediaTypeImageManifest + `","config":{"mediaType":"` + ispec.MediaTypeImageConfig + `","digest":"` + digest.FromString(config).String() + `","size":82},"layers":[]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"` + ispec.MediaTypeImageManifest + `","digest":"` + digest.FromString("x").String() + `","size":1,"platform":{"os":"linux","architecture":"amd64"},"annotations":{"org.opencontainers.image.ref.name":"t"}}]}`))
	f.Add([]byte(config))
	f.Add([]byte(`{"schemaVersion":1,"fsLayers":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		check := func(err error) {
			switch kind := api.KindOf(err); kind {
			case "", api.KindImage, api.KindLimit, api.KindUnsupported, api.KindInvalid, api.KindNotFound:
			default:
				t.Fatalf("kind %s: %v", kind, err)
			}
		}
		r := &resolver{blobs: oneDocument{raw}, o: amd64(), name: "fuzz"}
		_, err := r.resolve(context.Background(), descriptor("", raw))
		check(err)
		_, err = parseConfig(raw, 0)
		check(err)
		for _, src := range []Source{{transport: OCILayout, path: "x"}, {transport: OCILayout, path: "x", tag: "t"}, {transport: OCILayout, path: "x", digest: digest.FromBytes(raw)}} {
			_, err = src.resolveIndex(context.Background(), oneDocument{raw}, amd64())
			check(err)
		}
	})
}
