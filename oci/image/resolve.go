// SPDX-License-Identifier: Apache-2.0

package image

// From a descriptor to an image: the part that is the same for registries,
// layouts and archives.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// Docker's media types; the specification's are in ispec.
const (
	mediaDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	mediaDockerSchema1  = "application/vnd.docker.distribution.manifest.v1+json"
	mediaDockerSigned1  = "application/vnd.docker.distribution.manifest.v1+prettyjws"
	mediaDockerConfig   = "application/vnd.docker.container.image.v1+json"
	mediaDockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
	mediaDockerForeign  = "application/vnd.docker.image.rootfs.foreign.diff.tar"
	mediaOCILayer       = ispec.MediaTypeImageLayer
	mediaOCIForeign     = "application/vnd.oci.image.layer.nondistributable.v1.tar"
)

// blobs is where a resolution gets its bytes. Implementations verify nothing:
// resolver and Layer do.
type blobs interface {
	// manifest opens a manifest or index.
	manifest(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error)
	// blob opens a configuration or layer.
	blob(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error)
	// close releases what blob reads from.
	io.Closer
}

// resolver walks from an index to an image.
type resolver struct {
	blobs blobs
	o     Options
	// name is what errors call the image.
	name string
}

// document is what tells manifests and indexes apart.
type document struct {
	SchemaVersion int                `json:"schemaVersion"`
	MediaType     string             `json:"mediaType"`
	Config        *ispec.Descriptor  `json:"config"`
	Layers        []ispec.Descriptor `json:"layers"`
	Manifests     []ispec.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage    `json:"fsLayers"`
}

// resolve reads the manifest or index that desc describes, and what it leads to.
func (r *resolver) resolve(ctx context.Context, desc ispec.Descriptor) (*Image, error) {
	return r.walk(ctx, desc, 0)
}

// walk fetches one document and goes on from it.
func (r *resolver) walk(ctx context.Context, desc ispec.Descriptor, depth int) (*Image, error) {
	if depth > MaxIndexDepth {
		return nil, api.Errorf(api.KindLimit, "image %s: indexes are nested more than %d deep", r.name, MaxIndexDepth)
	}
	if err := checkDocument(r.what("manifest"), desc, MaxManifestBytes); err != nil {
		return nil, err
	}
	rc, err := r.blobs.manifest(ctx, desc)
	if err != nil {
		return nil, err
	}
	raw, err := readDocument(rc, r.what("manifest"), desc, MaxManifestBytes)
	if err != nil {
		return nil, err
	}
	return r.fromManifest(ctx, raw, desc, depth)
}

// fromManifest goes on from a verified manifest or index.
func (r *resolver) fromManifest(ctx context.Context, raw []byte, desc ispec.Descriptor, depth int) (*Image, error) {
	doc, err := parseDocument(raw, desc.MediaType)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", r.name, err)
	}
	if !isIndex(doc.MediaType) {
		return r.image(ctx, raw, desc, doc)
	}
	img, err := r.choose(ctx, doc.Manifests, depth)
	if err != nil {
		return nil, err
	}
	img.IndexDigest = desc.Digest
	return img, nil
}

// parseDocument decides what a document is, checks its shape and sets its
// media type.
func parseDocument(raw []byte, mediaType string) (*document, error) {
	var doc document
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, api.Errorf(api.KindImage, "manifest is not JSON: %w", err)
	}
	mediaType, _, _ = strings.Cut(mediaType, ";")
	if doc.MediaType == "" {
		doc.MediaType = strings.TrimSpace(mediaType)
	}
	if doc.SchemaVersion == 1 || doc.FSLayers != nil || doc.MediaType == mediaDockerSchema1 || doc.MediaType == mediaDockerSigned1 {
		return nil, api.Errorf(api.KindUnsupported, "manifest has docker's schema 1, which was withdrawn in 2019 and cannot be verified: pull and push the image with a current docker to convert it")
	}
	// One document that is both would be read differently by different tools.
	if doc.Manifests != nil && (doc.Config != nil || doc.Layers != nil) {
		return nil, api.Errorf(api.KindImage, "manifest is ambiguous: it has both manifests and layers")
	}
	switch {
	case isIndex(doc.MediaType) && doc.Config == nil:
	case isManifest(doc.MediaType) && doc.Manifests == nil:
	case known(doc.MediaType):
		return nil, api.Errorf(api.KindImage, "manifest says it is %s but has not its fields", doc.MediaType)
	case doc.Manifests != nil:
		// Plain file servers send no media type; the fields tell.
		doc.MediaType = ispec.MediaTypeImageIndex
	case doc.Config != nil:
		doc.MediaType = ispec.MediaTypeImageManifest
	default:
		return nil, api.Errorf(api.KindUnsupported, "manifest has the unknown media type %q: it is not an image", doc.MediaType)
	}
	if len(doc.Manifests) > MaxIndexEntries {
		return nil, api.Errorf(api.KindLimit, "index has %d manifests, more than the %d allowed", len(doc.Manifests), MaxIndexEntries)
	}
	if len(doc.Layers) > MaxLayers {
		return nil, api.Errorf(api.KindLimit, "manifest has %d layers, more than the %d allowed", len(doc.Layers), MaxLayers)
	}
	return &doc, nil
}

func isIndex(mediaType string) bool {
	return mediaType == ispec.MediaTypeImageIndex || mediaType == mediaDockerList
}

func isManifest(mediaType string) bool {
	return mediaType == ispec.MediaTypeImageManifest || mediaType == mediaDockerManifest
}

func known(mediaType string) bool { return isIndex(mediaType) || isManifest(mediaType) }

// choose picks the entry of an index for the platform that is wanted.
func (r *resolver) choose(ctx context.Context, entries []ispec.Descriptor, depth int) (*Image, error) {
	var candidates, unlabelled []ispec.Descriptor
	var available []string
	best := 0
	for _, d := range entries {
		if d.Platform == nil {
			unlabelled = append(unlabelled, d)
			continue
		}
		have := platformOf(d.Platform)
		if have.OS == "unknown" {
			continue // attestations of buildkit
		}
		available = append(available, have.String())
		switch m := r.o.Platform.match(have); {
		case m == 0 || m < best:
		case m == best:
			candidates = append(candidates, d)
		default:
			best, candidates = m, []ispec.Descriptor{d}
		}
	}
	if len(candidates) > 0 {
		// The first of equals, as docker does.
		return r.walk(ctx, candidates[0], depth+1)
	}
	for i, d := range unlabelled {
		if i == maxUnlabelled {
			break
		}
		img, err := r.walk(ctx, d, depth+1)
		if w := (*platformError)(nil); errors.As(err, &w) {
			available = append(available, w.available...)
			continue
		}
		return img, err
	}
	return nil, r.errPlatform(available)
}

// image reads the configuration of a manifest and assembles the result.
func (r *resolver) image(ctx context.Context, raw []byte, desc ispec.Descriptor, doc *document) (*Image, error) {
	if doc.Config == nil {
		return nil, api.Errorf(api.KindImage, "image %s: manifest names no configuration", r.name)
	}
	if t := doc.Config.MediaType; t != ispec.MediaTypeImageConfig && t != mediaDockerConfig && t != "" {
		return nil, api.Errorf(api.KindUnsupported, "image %s: its configuration is of type %q: this is an artifact, not a container image", r.name, t)
	}
	if err := checkDocument(r.what("configuration"), *doc.Config, MaxConfigBytes); err != nil {
		return nil, err
	}
	rc, err := r.blobs.blob(ctx, *doc.Config)
	if err != nil {
		return nil, err
	}
	rawConfig, err := readDocument(rc, r.what("configuration"), *doc.Config, MaxConfigBytes)
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(rawConfig, len(doc.Layers))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", r.name, err)
	}
	if err := r.checkPlatform(&config.Platform); err != nil {
		return nil, err
	}
	img := &Image{
		Digest: desc.Digest, ConfigDigest: doc.Config.Digest, MediaType: doc.MediaType,
		RawManifest: raw, RawConfig: rawConfig, Config: *config,
		closers: []io.Closer{r.blobs},
	}
	for i, d := range doc.Layers {
		if err := checkLayer(d); err != nil {
			return nil, fmt.Errorf("image %s: layer %d of %d: %w", r.name, i+1, len(doc.Layers), err)
		}
		img.Layers = append(img.Layers, r.layer(d, config.RootFS.DiffIDs[i]))
	}
	return img, nil
}

// layer makes a layer that opens from the resolver's blobs.
func (r *resolver) layer(d ispec.Descriptor, diffID digest.Digest) Layer {
	open := func(ctx context.Context) (io.ReadCloser, error) { return r.blobs.blob(ctx, d) }
	l := NewLayer(d, diffID, open)
	l.limits, l.report = r.o.Limits, r.o.Progress
	return l
}

// parseConfig parses a configuration whose manifest has the given layers.
func parseConfig(raw []byte, layers int) (*ispec.Image, error) {
	var c ispec.Image
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, api.Errorf(api.KindImage, "configuration is not JSON: %w", err)
	}
	if c.RootFS.Type != "layers" && (c.RootFS.Type != "" || layers > 0) {
		return nil, api.Errorf(api.KindUnsupported, "configuration has a root file system of type %q, want \"layers\"", c.RootFS.Type)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, api.Errorf(api.KindImage, "manifest has %d layers, its configuration %d diff IDs", layers, len(c.RootFS.DiffIDs))
	}
	for _, id := range c.RootFS.DiffIDs {
		if err := id.Validate(); err != nil || id.Algorithm() != digest.SHA256 {
			return nil, api.Errorf(api.KindImage, "configuration: diff ID %q is not a sha256 digest", id)
		}
	}
	return &c, nil
}

// checkLayer checks what can be known of a layer before it is opened.
func checkLayer(d ispec.Descriptor) error {
	if err := checkDigest("descriptor", d.Digest); err != nil {
		return err
	}
	if d.Size < 0 {
		return api.Errorf(api.KindImage, "descriptor %s: negative size", d.Digest)
	}
	base := d.MediaType
	for _, suffix := range []string{"+gzip", "+zstd", ".gzip", ".zstd"} {
		base = strings.TrimSuffix(base, suffix)
	}
	if slices.Contains([]string{mediaOCILayer, mediaOCIForeign, mediaDockerLayer, mediaDockerForeign}, base) {
		return nil
	}
	if strings.Contains(d.MediaType, "encrypted") {
		return api.Errorf(api.KindUnsupported, "%s is encrypted (%s): encrypted layers cannot be read", d.Digest, d.MediaType)
	}
	return api.Errorf(api.KindUnsupported, "%s has the unknown media type %q", d.Digest, d.MediaType)
}

// platformError is an image for other platforms than the wanted one.
type platformError struct{ available []string }

func (e *platformError) Error() string {
	if len(e.available) == 0 {
		return "it has no image for any platform"
	}
	return "available: " + strings.Join(e.available, ", ")
}

func (r *resolver) errPlatform(available []string) error {
	slices.Sort(available)
	return api.Errorf(api.KindUnsupported, "image %s: no image for platform %s (%w)", r.name, r.o.Platform, &platformError{slices.Compact(available)})
}

// checkPlatform holds a configuration against the wanted platform. One that
// names none (root file systems imported as images) is taken to fit.
func (r *resolver) checkPlatform(p *ispec.Platform) error {
	if p.OS == "" && p.Architecture == "" {
		return nil
	}
	have := platformOf(p)
	if r.o.Platform.match(have) == 0 {
		return r.errPlatform([]string{have.String()})
	}
	return nil
}

// what names a part of the image in errors.
func (r *resolver) what(part string) string { return "image " + r.name + ": " + part }

// synthesize makes the manifest that a source without one would have: the same
// bytes for the same configuration and layers.
func synthesize(config []byte, layers []ispec.Descriptor) ([]byte, ispec.Descriptor, error) {
	m := ispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ispec.MediaTypeImageManifest,
		Config:    descriptor(ispec.MediaTypeImageConfig, config),
		Layers:    layers,
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, ispec.Descriptor{}, fmt.Errorf("make manifest: %w", err)
	}
	return raw, descriptor(ispec.MediaTypeImageManifest, raw), nil
}

// descriptor describes a document.
func descriptor(mediaType string, raw []byte) ispec.Descriptor {
	return ispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
}

// bytesReader opens bytes in memory.
func bytesReader(raw []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(raw)) }
