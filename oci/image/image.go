// SPDX-License-Identifier: Apache-2.0

// Package image finds images and reads them: from registries, OCI layouts,
// archives of `docker save`, and plain root file systems.
//
// It owns references ([Parse], [Source]), the choice of a platform, and the
// rule that every byte is verified: a manifest against the digest it was asked
// for by, a configuration and a layer against their descriptors, uncompressed
// layers against the configuration's diff IDs. It also writes images back as
// archives that docker and others load ([WriteArchive]).
//
// It never stores anything, converts nothing and runs nothing: a resolved
// [Image] is metadata in memory and layers that open on demand. Archives are
// read in place. Everything it reads is hostile; documents are bounded before
// they are parsed ([MaxManifestBytes] and its neighbours).
//
// The life of an image:
//
//	src, err := image.Parse("debian:12")            // pure: no network, no disk
//	img, err := src.Resolve(ctx, image.Options{…})  // manifest and configuration
//	defer img.Close()
//	rc, err := img.Layers[i].Uncompressed(ctx)      // bytes, verified at their end
//
// Errors are [z.gfire.dev/gvx/runtime/api.Error]s: KindInvalid for references
// and configuration files, KindNotFound, KindPermission for credentials,
// KindUnsupported for formats and platforms, KindUnavailable for hosts that do
// not answer, KindImage for what is broken or tampered with.
package image

import (
	"context"
	"errors"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// Bounds on the documents of an image, each checked before parsing.
const (
	// MaxManifestBytes is the limit registries themselves enforce.
	MaxManifestBytes = 4 << 20
	// MaxConfigBytes bounds configurations: history makes them grow, yet 8 MiB
	// is a hundred times the largest known.
	MaxConfigBytes = 8 << 20
	// MaxLayers is what overlay stacks take (api.MaxLayers); docker stops at 127.
	MaxLayers = api.MaxLayers
	// MaxIndexEntries bounds the manifests of one index.
	MaxIndexEntries = 4096
	// MaxIndexDepth bounds indexes inside indexes; build tools nest once.
	MaxIndexDepth = 4
	// maxUnlabelled bounds how many manifests without a platform are opened
	// just to see which platform they are for.
	maxUnlabelled = 16
)

// Options say how to resolve a source. The zero value is an anonymous pull for
// this machine's architecture.
type Options struct {
	// Platform selects from an index; its zero value is linux on GOARCH.
	Platform Platform
	// Registries holds mirrors and exceptions from TLS; nil means none.
	Registries *RegistryConfig
	// Keychain finds credentials. Nil means docker's config.json with its
	// credential helpers, in $DOCKER_CONFIG or ~/.docker.
	Keychain authn.Keychain
	// Limits bound the uncompressed layers.
	Limits layer.Limits
	// Progress, if not nil, is called as things happen, from any goroutine.
	Progress func(Event)
	// Scanned, if not nil, is given the uncompressed layer of a rootfs-tar while
	// it is read for its digest, which nobody knows before: so that whoever wants
	// the layer need not read it again. It may stop early.
	Scanned func(ctx context.Context, tar io.Reader)
}

// Phase says what an [Event] is about.
type Phase string

const (
	// PhaseResolve begins to ask Host for Name.
	PhaseResolve Phase = "resolve"
	// PhaseFallback tells that Host failed with Err and the next one is asked.
	PhaseFallback Phase = "fallback"
	// PhaseScan reads a source of no known digest (rootfs:, compressed archives).
	PhaseScan Phase = "scan"
	// PhaseFetch reads the compressed bytes of layer Digest.
	PhaseFetch Phase = "fetch"
)

// Event is one step of progress.
type Event struct {
	Phase  Phase
	Name   string
	Host   string
	Digest digest.Digest
	// Current of Total bytes are done; Total is 0 if unknown.
	Current, Total int64
	Err            error
}

func (o *Options) report(e Event) {
	if o.Progress != nil {
		o.Progress(e)
	}
}

// Image is one image for one platform.
type Image struct {
	// Source is where it was found.
	Source Source
	// Name is the canonical name (docker.io/library/debian:12) that the source
	// gives it, or the source itself if it gives none.
	Name string
	// Digest is the manifest's. For docker-archive and rootfs sources, which
	// have no manifest, one is made, the same for the same content.
	Digest digest.Digest
	// IndexDigest is that of the index it was chosen from, or empty. It is
	// what docker prints as the image's repository digest.
	IndexDigest digest.Digest
	// ConfigDigest is docker's image ID.
	ConfigDigest digest.Digest
	// MediaType is the manifest's.
	MediaType string
	// RawManifest and RawConfig are the verified documents.
	RawManifest, RawConfig []byte
	// Config is RawConfig, parsed.
	Config ispec.Image
	// Layers are the image's, lowest first.
	Layers []Layer

	closers []io.Closer
}

// Platform is the platform the image's configuration names.
func (i *Image) Platform() Platform { return platformOf(&i.Config.Platform) }

// Close releases what layers are read from. Layers cannot be opened after it.
func (i *Image) Close() error {
	var errs []error
	for _, c := range i.closers {
		errs = append(errs, c.Close())
	}
	i.closers = nil
	return errors.Join(errs...)
}

// Layer is one layer of an image. It is safe for concurrent use.
type Layer struct {
	// Digest and Size are those of the bytes that Open gives.
	Digest digest.Digest
	Size   int64
	// DiffID is the digest of the uncompressed tar stream.
	DiffID digest.Digest
	// MediaType is the descriptor's; compression is detected, not believed.
	MediaType string

	open   func(context.Context) (io.ReadCloser, error)
	limits layer.Limits
	report func(Event)
	// note is added to what a failed verification says.
	note string
}

// NewLayer makes a layer of stored bytes: open gives what has the digest and
// size of desc. Stores use it to write images out again.
func NewLayer(desc ispec.Descriptor, diffID digest.Digest, open func(context.Context) (io.ReadCloser, error)) Layer {
	return Layer{Digest: desc.Digest, Size: desc.Size, MediaType: desc.MediaType, DiffID: diffID, open: open}
}

// Open returns the layer's bytes as they are stored, compressed or not. The
// last Read fails, instead of returning io.EOF, unless digest and size are
// right. Cancelling ctx fails reads under way.
func (l Layer) Open(ctx context.Context) (io.ReadCloser, error) {
	rc, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	return newVerifier(l.observe(ctx, rc), "layer"+l.note, l.Digest, l.Size), nil
}

// Uncompressed returns the layer's tar stream. The last Read fails unless both
// the stored bytes have the layer's digest and the stream its diff ID; what was
// read before that must not be used then. Decompression runs in goroutines of
// its own, which Close ends.
func (l Layer) Uncompressed(ctx context.Context) (*layer.Stream, error) {
	var rc io.ReadCloser
	var err error
	if l.Digest == l.DiffID {
		// Stored plain: one hash proves both.
		if rc, err = l.open(ctx); err == nil {
			rc = newSizeVerifier(l.observe(ctx, rc), "layer"+l.note, l.Digest, l.Size)
		}
	} else {
		rc, err = l.Open(ctx)
	}
	if err != nil {
		return nil, err
	}
	return layer.Decompress(ctx, rc, l.DiffID, l.limits)
}

// observe makes rc fail when ctx ends, and reports progress as it is read.
func (l Layer) observe(ctx context.Context, rc io.ReadCloser) io.ReadCloser {
	return &observer{ReadCloser: rc, ctx: ctx, report: l.report, event: Event{Phase: PhaseFetch, Digest: l.Digest, Total: l.Size}}
}

// reportBytes is how often an observer reports: often enough for a smooth bar.
const reportBytes = 256 << 10

// observer watches a reader.
type observer struct {
	io.ReadCloser
	ctx    context.Context
	report func(Event)
	event  Event
	next   int64
}

func (o *observer) Read(p []byte) (int, error) {
	if o.ctx.Err() != nil {
		return 0, context.Cause(o.ctx)
	}
	n, err := o.ReadCloser.Read(p)
	o.event.Current += int64(n)
	if o.report != nil && (o.event.Current >= o.next || err == io.EOF) {
		o.next = o.event.Current + reportBytes
		o.report(o.event)
	}
	return n, err
}
