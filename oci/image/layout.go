// SPDX-License-Identifier: Apache-2.0

package image

// OCI image layouts, in a directory or in a tar file: oci-layout, index.json,
// blobs/ALGORITHM/HEX.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// annotationName is where containerd and docker put an entry's whole
	// reference; the specification's own annotation may hold just a tag.
	annotationName = "io.containerd.image.name"
	// maxNamesShown bounds the list of names in an error.
	maxNamesShown = 20
)

// files is a flat view of a directory or an archive.
type files interface {
	// open opens a regular file by its slash-separated name. It returns an
	// error that is fs.ErrNotExist if there is none.
	open(name string) (io.ReadCloser, int64, error)
	io.Closer
}

// dirFiles is a directory that nothing can lead out of.
type dirFiles struct{ root *os.Root }

func (d dirFiles) open(name string) (io.ReadCloser, int64, error) {
	// A FIFO would block Open for ever.
	fi, err := d.root.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !fi.Mode().IsRegular() {
		return nil, 0, api.Errorf(api.KindImage, "%s is not a regular file", name)
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, fi.Size(), nil
}

func (d dirFiles) Close() error { return d.root.Close() }

// layout reads blobs of an OCI layout.
type layout struct{ files }

func (l layout) manifest(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	return l.blob(ctx, desc)
}

func (l layout) blob(_ context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	// Preconditions of the caller: the digest is well formed, so is the path.
	rc, _, err := l.open(blobPath(desc.Digest))
	if err != nil {
		return nil, api.Errorf(kindOfBlob(err), "image layout: open blob %s: %w", desc.Digest, err)
	}
	return rc, nil
}

// kindOfBlob: what an index names and is not there makes the image broken.
func kindOfBlob(err error) api.Kind {
	if kind := kindOfFile(err); kind == api.KindPermission {
		return kind
	}
	return api.KindImage
}

// resolveLayout reads oci:DIR.
func (s Source) resolveLayout(ctx context.Context, o Options) (*Image, error) {
	root, err := os.OpenRoot(s.path)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "image %s: %w", s, err)
	}
	return s.resolveIndex(ctx, dirFiles{root}, o)
}

// resolveIndex picks from index.json. It takes over fs.
func (s Source) resolveIndex(ctx context.Context, fs files, o Options) (*Image, error) {
	img, err := s.fromIndex(ctx, fs, o)
	if err != nil {
		fs.Close()
	}
	return img, err
}

func (s Source) fromIndex(ctx context.Context, fs files, o Options) (*Image, error) {
	index, err := readIndex(fs)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	r := &resolver{blobs: layout{fs}, o: o, name: s.String()}
	entries, err := s.selectEntries(fs, index)
	if err != nil {
		return nil, err
	}
	var img *Image
	if len(entries) == 1 {
		img, err = r.walk(ctx, entries[0], 0)
	} else {
		img, err = r.choose(ctx, entries, 0)
	}
	if err != nil {
		return nil, err
	}
	img.Name = canonicalName(namesOf(entries[0]))
	return img, nil
}

// readIndex reads the two files that make a layout.
func readIndex(fs files) (*document, error) {
	raw, err := readFile(fs, ispec.ImageLayoutFile, MaxManifestBytes)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "not an OCI image layout: %w", err)
	}
	var version ispec.ImageLayout
	if err := json.Unmarshal(raw, &version); err != nil {
		return nil, api.Errorf(api.KindImage, "%s is not JSON: %w", ispec.ImageLayoutFile, err)
	}
	if !strings.HasPrefix(version.Version, "1.") {
		return nil, api.Errorf(api.KindUnsupported, "image layout has version %q, want 1.x", version.Version)
	}
	if raw, err = readFile(fs, ispec.ImageIndexFile, MaxManifestBytes); err != nil {
		return nil, api.Errorf(kindOfFile(err), "not an OCI image layout: %w", err)
	}
	return parseDocument(raw, ispec.MediaTypeImageIndex)
}

// readFile reads a whole bounded file.
func readFile(fs files, name string, maxBytes int64) ([]byte, error) {
	rc, _, err := fs.open(name)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return readBounded(rc, name, maxBytes)
}

// selectEntries applies the source's tag or digest.
func (s Source) selectEntries(fs files, index *document) ([]ispec.Descriptor, error) {
	entries := index.Manifests
	switch {
	case s.digest != "":
		return s.selectDigest(fs, entries)
	case s.tag != "":
		entries = slices.DeleteFunc(slices.Clone(entries), func(d ispec.Descriptor) bool { return !named(namesOf(d), s.tag) })
	}
	var names []string
	for _, d := range index.Manifests {
		names = append(names, strings.Join(namesOf(d), " "))
	}
	if len(entries) == 0 {
		return nil, errNoSuchName(s, names)
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(names)))
	if s.tag == "" && len(distinct) > 1 {
		return nil, api.Errorf(api.KindInvalid, "image %s: there are %d images, choose one by :NAME or @DIGEST: %s", s, len(distinct), list(distinct))
	}
	return entries, nil
}

// selectDigest finds a manifest by digest, in the index or just in the blobs.
func (s Source) selectDigest(fs files, entries []ispec.Descriptor) ([]ispec.Descriptor, error) {
	for _, d := range entries {
		if d.Digest == s.digest {
			return []ispec.Descriptor{d}, nil
		}
	}
	rc, size, err := fs.open(blobPath(s.digest))
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "image %s: %w", s, err)
	}
	rc.Close()
	return []ispec.Descriptor{{Digest: s.digest, Size: size}}, nil
}

// errNoSuchName lists what could have been asked for.
func errNoSuchName(s Source, names []string) error {
	if len(names) == 0 {
		return api.Errorf(api.KindNotFound, "image %s: it holds no image", s)
	}
	return api.Errorf(api.KindNotFound, "image %s: there is no image %q; there are: %s", s, s.tag, list(slices.Compact(slices.Sorted(slices.Values(names)))))
}

// list prints names, not too many.
func list(names []string) string {
	if len(names) > maxNamesShown {
		return strings.Join(names[:maxNamesShown], ", ") + fmt.Sprintf(" and %d more", len(names)-maxNamesShown)
	}
	return strings.Join(names, ", ")
}

// namesOf is what an entry of an index is called, or its digest.
func namesOf(d ispec.Descriptor) []string {
	var names []string
	for _, key := range []string{annotationName, ispec.AnnotationRefName} {
		if n := d.Annotations[key]; n != "" {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		names = append(names, d.Digest.String())
	}
	return names
}

// named tells whether one of names is what a user calls want: literally, as a
// reference with docker's defaults, or by the tag alone.
func named(names []string, want string) bool {
	for _, n := range names {
		if n == want {
			return true
		}
		have, err := parseName(n)
		if err != nil {
			continue
		}
		if w, err := parseName(want); err == nil && w.withTag() == have.withTag() {
			return true
		}
		if have.tag != "" && have.tag == want {
			return true
		}
	}
	return false
}

// canonicalName is the first of names that is a whole reference: a bare tag is
// none.
func canonicalName(names []string) string {
	for _, n := range names {
		if !strings.ContainsAny(n, ":/") {
			continue
		}
		if ref, err := parseName(n); err == nil {
			return ref.withTag().String()
		}
	}
	return ""
}
