// SPDX-License-Identifier: Apache-2.0

package image

// What `docker save` wrote before it wrote OCI layouts: manifest.json with a
// configuration and layer files for each image. It has no manifests with
// digests, so one is made.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// dockerImage is one entry of manifest.json.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// hexName is a configuration's file name when it is its digest.
var hexName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{64})(\.json)?$`) })

// dockerBlobs serves the made-up manifest's parts from the archive.
type dockerBlobs struct {
	files
	config digest.Digest
	raw    []byte
	paths  map[digest.Digest]string
}

func (b *dockerBlobs) manifest(_ context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	return nil, api.Errorf(api.KindImage, "docker archive: manifest %s: there are none", desc.Digest)
}

func (b *dockerBlobs) blob(_ context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	if desc.Digest == b.config {
		return bytesReader(b.raw), nil
	}
	rc, _, err := b.open(b.paths[desc.Digest])
	if err != nil {
		return nil, api.Errorf(api.KindImage, "docker archive: open layer %s: %w", desc.Digest, err)
	}
	return rc, nil
}

// fromDockerArchive reads an archive without an OCI layout.
func (s Source) fromDockerArchive(ctx context.Context, t *tarFiles, o Options) (*Image, error) {
	if _, ok := t.entries["/manifest.json"]; !ok {
		if _, ok := t.entries["/repositories"]; ok {
			return s.fromRepositories(ctx, t, o)
		}
		return nil, api.Errorf(api.KindImage, "image %s: not a docker archive: it has neither manifest.json nor repositories", s)
	}
	raw, err := readFile(t, "manifest.json", MaxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	var images []dockerImage
	if err := json.Unmarshal(raw, &images); err != nil {
		return nil, api.Errorf(api.KindImage, "image %s: manifest.json is not what docker save writes: %w", s, err)
	}
	di, err := s.selectDocker(images)
	if err != nil {
		return nil, err
	}
	config, err := readFile(t, di.Config, MaxConfigBytes)
	if err != nil {
		return nil, api.Errorf(api.KindImage, "image %s: configuration: %w", s, err)
	}
	if m := hexName().FindStringSubmatch(path.Base(di.Config)); m != nil {
		if got := digest.FromBytes(config); got.Encoded() != m[1] {
			return nil, errDigest("image "+s.String()+": configuration", got, digest.NewDigestFromEncoded(digest.SHA256, m[1]))
		}
	}
	parsed, err := parseConfig(config, len(di.Layers))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	return s.assemble(ctx, t, o, config, parsed.RootFS.DiffIDs, di)
}

// selectDocker applies the source's name to manifest.json.
func (s Source) selectDocker(images []dockerImage) (*dockerImage, error) {
	if len(images) > MaxIndexEntries {
		return nil, api.Errorf(api.KindLimit, "image %s: %d images, more than the %d allowed", s, len(images), MaxIndexEntries)
	}
	var all []string
	for i := range images {
		all = append(all, images[i].RepoTags...)
		// ListArchive selects by the configuration: an image may have no name.
		if s.tag != "" && (named(images[i].RepoTags, s.tag) || images[i].Config == s.tag) {
			return &images[i], nil
		}
	}
	switch {
	case s.tag != "" || len(images) == 0:
		return nil, errNoSuchName(s, all)
	case len(images) > 1:
		return nil, api.Errorf(api.KindInvalid, "image %s: there are %d images, choose one by :NAME:TAG: %s", s, len(images), list(all))
	}
	return &images[0], nil
}

// assemble makes the manifest and resolves it.
// Preconditions: as many diffIDs as di.Layers.
func (s Source) assemble(ctx context.Context, t *tarFiles, o Options, config []byte, diffIDs []digest.Digest, di *dockerImage) (*Image, error) {
	if len(di.Layers) > MaxLayers {
		return nil, api.Errorf(api.KindLimit, "image %s: %d layers, more than the %d allowed", s, len(di.Layers), MaxLayers)
	}
	b := &dockerBlobs{files: t, raw: config, config: digest.FromBytes(config), paths: map[digest.Digest]string{}}
	var descs []ispec.Descriptor
	for i, name := range di.Layers {
		d, err := dockerLayer(ctx, t, name, diffIDs[i], o)
		if err != nil {
			return nil, fmt.Errorf("image %s: layer %d of %d: %w", s, i+1, len(di.Layers), err)
		}
		descs = append(descs, d)
		b.paths[d.Digest] = name
	}
	raw, desc, err := synthesize(config, descs)
	if err != nil {
		return nil, err
	}
	r := &resolver{blobs: b, o: o, name: s.String()}
	img, err := r.fromManifest(ctx, raw, desc, 0)
	if err != nil {
		return nil, err
	}
	names := di.RepoTags
	if i := slices.IndexFunc(names, func(n string) bool { return s.tag != "" && named([]string{n}, s.tag) }); i > 0 {
		names = names[i:]
	}
	img.Name = canonicalName(names)
	return img, nil
}

// dockerLayer describes a layer file. A plain one has its diff ID as digest,
// which reading it will prove; a compressed one is hashed now.
func dockerLayer(ctx context.Context, t *tarFiles, name string, diffID digest.Digest, o Options) (ispec.Descriptor, error) {
	rc, size, err := t.open(name)
	if err != nil {
		return ispec.Descriptor{}, api.Errorf(api.KindImage, "%w", err)
	}
	defer rc.Close()
	head := make([]byte, 6)
	n, err := io.ReadFull(rc, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return ispec.Descriptor{}, fmt.Errorf("read %s: %w", name, err)
	}
	mediaType := mediaOCILayer
	switch kind := layer.Detect(head[:n]); kind {
	case layer.Plain:
		return ispec.Descriptor{MediaType: mediaType, Digest: diffID, Size: size}, nil
	case layer.Gzip, layer.Zstd:
		mediaType += "+" + string(kind)
	}
	sum := digest.SHA256.Digester()
	sum.Hash().Write(head[:n])
	src := &observer{ReadCloser: rc, ctx: ctx, report: o.Progress, event: Event{Phase: PhaseScan, Name: name, Total: size}}
	if _, err := io.Copy(sum.Hash(), src); err != nil {
		return ispec.Descriptor{}, fmt.Errorf("read %s: %w", name, err)
	}
	return ispec.Descriptor{MediaType: mediaType, Digest: sum.Digest(), Size: size}, nil
}
