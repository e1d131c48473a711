// SPDX-License-Identifier: Apache-2.0

package image

// Writing images out: one layout that is both what `docker save` writes since
// docker 25 and an OCI image layout, so that docker load, ctr import, skopeo
// and this package read it.

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// WriteArchive writes images as a tar archive to w. Blobs that images share are
// written once, and an image given under several names is one image. The same
// images give the same bytes.
func WriteArchive(ctx context.Context, w io.Writer, images ...*Image) error {
	bw := bufio.NewWriterSize(w, 1<<20)
	tw := tar.NewWriter(bw)
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	if err := write(ctx, put, images); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("save images: %w", err)
	}
	if err := bw.Flush(); err != nil {
		return fmt.Errorf("save images: %w", err)
	}
	return nil
}

// WriteLayout writes images as an OCI layout to the directory dir, which must
// be empty or not exist. After an error dir holds no index.json.
func WriteLayout(ctx context.Context, dir string, images ...*Image) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return api.Errorf(api.KindExists, "save images: %s is not empty", dir)
	}
	put := func(name string, _ int64, r io.Reader) error {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, r); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	}
	return write(ctx, put, images)
}

// saver writes each blob once and remembers what the indexes need.
type saver struct {
	put    func(name string, size int64, r io.Reader) error
	done   map[digest.Digest]bool
	index  ispec.Index
	docker []*dockerImage
	byID   map[digest.Digest]*dockerImage
}

// write writes all files, the indexes last.
func write(ctx context.Context, put func(string, int64, io.Reader) error, images []*Image) error {
	s := &saver{put: put, done: map[digest.Digest]bool{}, byID: map[digest.Digest]*dockerImage{}}
	s.index = ispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ispec.MediaTypeImageIndex}
	for _, img := range images {
		if err := s.image(ctx, img); err != nil {
			return fmt.Errorf("save image %s: %w", img.Name, err)
		}
	}
	for _, f := range []struct {
		name string
		v    any
	}{
		{ispec.ImageLayoutFile, ispec.ImageLayout{Version: ispec.ImageLayoutVersion}},
		{"manifest.json", s.docker},
		{ispec.ImageIndexFile, s.index},
	} {
		raw, err := json.Marshal(f.v)
		if err != nil {
			return fmt.Errorf("save images: %s: %w", f.name, err)
		}
		if err := s.put(f.name, int64(len(raw)), bytesReader(raw)); err != nil {
			return fmt.Errorf("save images: %s: %w", f.name, err)
		}
	}
	return nil
}

// image writes one image's blobs and enters it into the indexes.
func (s *saver) image(ctx context.Context, img *Image) error {
	entry := &dockerImage{Config: blobPath(img.ConfigDigest), RepoTags: []string{}, Layers: []string{}}
	for _, l := range img.Layers {
		entry.Layers = append(entry.Layers, blobPath(l.Digest))
		if err := s.layer(ctx, l); err != nil {
			return err
		}
	}
	if err := s.document(img.ConfigDigest, img.RawConfig); err != nil {
		return err
	}
	if err := s.document(img.Digest, img.RawManifest); err != nil {
		return err
	}
	platform := img.Config.Platform
	desc := ispec.Descriptor{MediaType: img.MediaType, Digest: img.Digest, Size: int64(len(img.RawManifest)), Platform: &platform}
	if prev := s.byID[img.Digest]; prev != nil {
		entry = prev
	} else {
		s.byID[img.Digest] = entry
		s.docker = append(s.docker, entry)
	}
	if ref, err := parseName(img.Name); err == nil && ref.tag != "" {
		entry.RepoTags = append(entry.RepoTags, ref.familiar()+":"+ref.tag)
		desc.Annotations = map[string]string{
			annotationName:          ref.repository() + ":" + ref.tag,
			ispec.AnnotationRefName: ref.tag,
		}
	}
	s.index.Manifests = append(s.index.Manifests, desc)
	return nil
}

// layer writes a layer's blob as it is stored.
func (s *saver) layer(ctx context.Context, l Layer) error {
	if s.done[l.Digest] {
		return nil
	}
	rc, err := l.Open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	if err := s.put(blobPath(l.Digest), l.Size, rc); err != nil {
		return fmt.Errorf("layer %s: %w", l.Digest, err)
	}
	s.done[l.Digest] = true
	return nil
}

// document writes a configuration or manifest.
func (s *saver) document(d digest.Digest, raw []byte) error {
	if s.done[d] {
		return nil
	}
	if err := s.put(blobPath(d), int64(len(raw)), bytesReader(raw)); err != nil {
		return fmt.Errorf("document %s: %w", d, err)
	}
	s.done[d] = true
	return nil
}

// blobPath is where a layout keeps a blob.
func blobPath(d digest.Digest) string {
	return path.Join(ispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}
