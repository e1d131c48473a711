// SPDX-License-Identifier: Apache-2.0

// Save: images as an archive, their layers as the tars they came from.

package images

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

// Save writes the images as one archive that docker load and others read. By a
// name, the image is saved under that name; by its ID, under none. Layers are
// written uncompressed and verified against the diff IDs; configurations, and
// so image IDs, are those that came in.
func (s *Store) Save(ctx context.Context, refs []string, w io.Writer) error {
	var out []*image.Image
	for _, ref := range refs {
		img, err := s.Get(ref)
		if err != nil {
			return err
		}
		// What is saved cannot be collected meanwhile.
		pin, err := s.Pin(img)
		if err != nil {
			return err
		}
		defer pin.Close()
		a, err := s.archived(img)
		if err != nil {
			return fmt.Errorf("save %s: %w", ref, err)
		}
		a.Name = string(img.ID)
		if len(img.Names) > 0 {
			a.Name = img.Names[0]
		}
		out = append(out, a)
	}
	return image.WriteArchive(ctx, w, out...)
}

// archived describes the image with its layers as plain tars.
func (s *Store) archived(img *Image) (*image.Image, error) {
	config, err := s.RawConfig(img)
	if err != nil {
		return nil, err
	}
	a := &image.Image{ConfigDigest: img.ID, RawConfig: config, MediaType: ispec.MediaTypeImageManifest}
	if err := json.Unmarshal(config, &a.Config); err != nil {
		return nil, api.Errorf(api.KindImage, "parse configuration: %w", err)
	}
	m := ispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: a.MediaType,
		Config:    ispec.Descriptor{MediaType: ispec.MediaTypeImageConfig, Digest: img.ID, Size: int64(len(config))},
		Layers:    []ispec.Descriptor{},
	}
	for n, d := range img.LayerDiffIDs {
		key := img.keys[n]
		rec, err := s.readLayer(key)
		if err != nil {
			return nil, err
		}
		desc := ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Digest: d, Size: rec.TarSize}
		m.Layers = append(m.Layers, desc)
		a.Layers = append(a.Layers, image.NewLayer(desc, d, func(context.Context) (io.ReadCloser, error) {
			return s.tarReader(key, rec), nil
		}))
	}
	if a.RawManifest, err = json.Marshal(m); err != nil {
		return nil, err
	}
	a.Digest = digest.FromBytes(a.RawManifest)
	return a, nil
}

// tarReader streams the layer's tar. Closing it ends its goroutine.
func (s *Store) tarReader(h hexDigest, rec *layerRecord) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(s.writeTar(pw, h, rec)) }()
	return pr
}
