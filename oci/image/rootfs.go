// SPDX-License-Identifier: Apache-2.0

package image

// Root file systems as images: a directory or a tar file becomes one layer
// under a configuration that says no more than "run a shell".

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// defaultPath is what docker gives to images that set no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// oneLayer serves a rootfs: nothing but its layer is ever asked for after the
// image is made.
type oneLayer struct {
	config []byte
	open   func(context.Context) (io.ReadCloser, error)
}

func (b *oneLayer) manifest(_ context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	return nil, api.Errorf(api.KindInternal, "rootfs: manifest %s was asked for", desc.Digest)
}

func (b *oneLayer) blob(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	if desc.Digest == digest.FromBytes(b.config) {
		return bytesReader(b.config), nil
	}
	return b.open(ctx)
}

func (b *oneLayer) Close() error { return nil }

// rootfsImage makes the image of one layer.
func (s Source) rootfsImage(ctx context.Context, o Options, desc ispec.Descriptor, diffID digest.Digest, open func(context.Context) (io.ReadCloser, error)) (*Image, error) {
	config, err := json.Marshal(ispec.Image{
		Platform: ispec.Platform{OS: o.Platform.OS, Architecture: o.Platform.Architecture, Variant: o.Platform.Variant},
		Config:   ispec.ImageConfig{Env: []string{defaultPath}, Cmd: []string{"/bin/sh"}},
		RootFS:   ispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
	})
	if err != nil {
		return nil, fmt.Errorf("make configuration: %w", err)
	}
	raw, mdesc, err := synthesize(config, []ispec.Descriptor{desc})
	if err != nil {
		return nil, err
	}
	r := &resolver{blobs: &oneLayer{config: config, open: open}, o: o, name: s.String()}
	return r.fromManifest(ctx, raw, mdesc, 0)
}

// resolveRootfsTar hashes the file once, as stored and uncompressed.
func (s Source) resolveRootfsTar(ctx context.Context, o Options) (*Image, error) {
	f, err := openRegular(s.path)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	var head [6]byte
	n, _ := f.ReadAt(head[:], 0) // an unreadable file fails below
	kind := layer.Detect(head[:n])
	src := &hasher{sum: digest.SHA256.Digester()}
	src.ReadCloser = &observer{ReadCloser: f, ctx: ctx, report: o.Progress, event: Event{Phase: PhaseScan, Name: s.path, Total: fi.Size()}}
	if kind == layer.Plain {
		src.sum = nil // the diff ID says it all
	}
	diffID, err := uncompressedDigest(ctx, src, o.Limits, o.Scanned)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	desc := ispec.Descriptor{MediaType: mediaOCILayer, Digest: diffID, Size: src.size}
	if kind != layer.Plain {
		desc.MediaType += "+" + string(kind)
		desc.Digest = src.sum.Digest()
	}
	return s.rootfsImage(ctx, o, desc, diffID, func(context.Context) (io.ReadCloser, error) { return openRegular(s.path) })
}

// hasher counts what is read, and hashes it if sum is not nil.
type hasher struct {
	io.ReadCloser
	sum  digest.Digester
	size int64
}

func (h *hasher) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.size += int64(n)
	if h.sum != nil {
		h.sum.Hash().Write(p[:n])
	}
	return n, err
}

// resolveRootfsDir writes the directory's tar stream into a hash. Each time the
// layer is opened the directory is read again, and a change shows as a wrong
// digest.
func (s Source) resolveRootfsDir(ctx context.Context, o Options) (*Image, error) {
	fi, err := os.Stat(s.path)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "image %s: %w", s, err)
	}
	if !fi.IsDir() {
		return nil, api.Errorf(api.KindInvalid, "image %s: not a directory (for a tar file, write rootfs-tar:)", s)
	}
	open := func(ctx context.Context) (io.ReadCloser, error) { return streamDir(ctx, s.path), nil }
	rc, _ := open(ctx)
	src := &hasher{sum: digest.SHA256.Digester()}
	src.ReadCloser = &observer{ReadCloser: rc, ctx: ctx, report: o.Progress, event: Event{Phase: PhaseScan, Name: s.path}}
	defer src.Close()
	if _, err := io.CopyBuffer(io.Discard, src, make([]byte, 256<<10)); err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	diffID := src.sum.Digest()
	desc := ispec.Descriptor{MediaType: mediaOCILayer, Digest: diffID, Size: src.size}
	img, err := s.rootfsImage(ctx, o, desc, diffID, open)
	if err != nil {
		return nil, err
	}
	img.Layers[0].note = " of " + s.String() + ", which was changed since it was first read"
	return img, nil
}

// streamDir returns the tar stream of a directory.
func streamDir(ctx context.Context, dir string) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(writeDir(ctx, pw, dir)) }()
	return pr
}
