// SPDX-License-Identifier: Apache-2.0

package image

// Registries. go-containerregistry does the hard part, the handshake: which
// scheme, which credentials, which token for which scope, and renewing it. The
// two requests that are left, a manifest and a blob, are made here, so that
// answers are bounded as they arrive, hashed once, and resumed when a
// connection breaks in the middle of a large layer.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// maxResumes bounds how often one blob is continued after a broken connection
// without having made any progress in between.
const maxResumes = 4

// acceptManifests is what we ask for. Schema 1 is among it so that a registry
// sends it and we can say so, instead of "not found".
var acceptManifests = strings.Join([]string{
	ispec.MediaTypeImageIndex, mediaDockerList,
	ispec.MediaTypeImageManifest, mediaDockerManifest,
	mediaDockerSchema1, mediaDockerSigned1,
}, ", ")

// registry is the servers that may have one repository.
type registry struct {
	name    string
	servers []*server
	// first is the server that answered first, or nil.
	first atomic.Pointer[server]
	o     Options
}

// resolveRegistry asks the mirrors, then the registry.
func (s Source) resolveRegistry(ctx context.Context, o Options) (*Image, error) {
	host, path := s.named.domain, s.named.path
	eps, err := o.Registries.endpoints(host)
	if err != nil {
		return nil, err
	}
	reg := &registry{name: s.Familiar(), o: o}
	for i, ep := range eps {
		srv, err := newServer(ep, path, o.Keychain, i == len(eps)-1)
		if err != nil {
			return nil, err
		}
		reg.servers = append(reg.servers, srv)
	}
	var raw []byte
	desc := ispec.Descriptor{Digest: s.Digest()}
	id := s.Digest().String()
	if id == "" {
		id = s.Tag()
	}
	err = reg.each(ctx, "manifest "+id, func(srv *server) error {
		var err error
		raw, desc, err = srv.top(ctx, id, s.Digest())
		return err
	})
	if err != nil {
		reg.Close()
		return nil, err
	}
	r := &resolver{blobs: reg, o: o, name: s.Familiar()}
	img, err := r.fromManifest(ctx, raw, desc, 0)
	if err != nil {
		reg.Close()
		return nil, err
	}
	img.Name = s.String()
	return img, nil
}

// each tries the servers in order until one succeeds. That one becomes the
// first: its tag is the one we follow, so its blobs are the likely ones.
func (r *registry) each(ctx context.Context, what string, do func(*server) error) error {
	servers := r.order()
	var failures []error
	for i, srv := range servers {
		err := do(srv)
		if err == nil {
			r.prefer(srv)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("image %s: registry %s: %s: %w", r.name, srv.ep.host, what, context.Cause(ctx))
		}
		err = srv.explain(what, err)
		failures = append(failures, err)
		if i < len(servers)-1 {
			r.o.report(Event{Phase: PhaseFallback, Name: r.name, Host: srv.ep.host, Err: err})
		}
	}
	return r.combine(failures)
}

// order is the servers in the order to ask them.
func (r *registry) order() []*server {
	first := r.first.Load()
	if first == nil {
		return r.servers
	}
	servers := []*server{first}
	for _, srv := range r.servers {
		if srv != first {
			servers = append(servers, srv)
		}
	}
	return servers
}

// prefer remembers the first server that had something.
func (r *registry) prefer(srv *server) { r.first.CompareAndSwap(nil, srv) }

// combine makes one error of all servers' failures, of the kind of the
// registry itself, whose word counts most.
func (r *registry) combine(failures []error) error {
	if len(failures) == 1 {
		return api.Errorf(api.KindOf(failures[0]), "image %s: %w", r.name, failures[0])
	}
	kind := api.KindOf(failures[len(failures)-1])
	return api.Errorf(kind, "image %s: none of %d servers has it: %w", r.name, len(failures), serverErrors(failures))
}

// serverErrors is what each server said, on one line.
type serverErrors []error

func (e serverErrors) Error() string {
	text := make([]string, len(e))
	for i, err := range e {
		text[i] = err.Error()
	}
	return strings.Join(text, "; ")
}

func (e serverErrors) Unwrap() []error { return e }

// Close drops idle connections.
func (r *registry) Close() error {
	for _, srv := range r.servers {
		srv.close()
	}
	return nil
}

// manifest implements blobs.
func (r *registry) manifest(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	return r.open(ctx, "manifests", desc)
}

// blob implements blobs.
func (r *registry) blob(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
	return r.open(ctx, "blobs", desc)
}

func (r *registry) open(ctx context.Context, kind string, desc ispec.Descriptor) (io.ReadCloser, error) {
	var rc io.ReadCloser
	what := strings.TrimSuffix(kind, "s") + " " + desc.Digest.String()
	err := r.each(ctx, what, func(srv *server) error {
		resp, err := srv.get(ctx, kind, desc.Digest.String(), 0)
		if err != nil {
			return err
		}
		if resp.ContentLength >= 0 && resp.ContentLength != desc.Size {
			resp.Body.Close()
			return api.Errorf(api.KindImage, "%d bytes are offered, the descriptor says %d", resp.ContentLength, desc.Size)
		}
		rc = &resumer{ctx: ctx, srv: srv, kind: kind, desc: desc, body: resp.Body}
		return nil
	})
	return rc, err
}

// top fetches the manifest that the user named, by tag or by digest.
func (s *server) top(ctx context.Context, id string, want digest.Digest) ([]byte, ispec.Descriptor, error) {
	resp, err := s.get(ctx, "manifests", id, 0)
	if err != nil {
		return nil, ispec.Descriptor{}, err
	}
	defer resp.Body.Close()
	raw, err := readBounded(resp.Body, "manifest", MaxManifestBytes)
	if err != nil {
		return nil, ispec.Descriptor{}, err
	}
	desc := descriptor(resp.Header.Get("Content-Type"), raw)
	if want != "" {
		if got := want.Algorithm().FromBytes(raw); got != want {
			return nil, ispec.Descriptor{}, errDigest("manifest", got, want)
		}
		desc.Digest = want
	}
	return raw, desc, nil
}

// explain classifies a failure and says what to do about it.
func (s *server) explain(what string, err error) error {
	say := func(kind api.Kind, advice string) error {
		if advice != "" {
			advice = " (" + advice + ")"
		}
		return api.Errorf(kind, "registry %s: %s: %w%s", s.ep.host, what, err, advice)
	}
	var te *transport.Error
	if errors.As(err, &te) {
		switch {
		case te.StatusCode == http.StatusUnauthorized || te.StatusCode == http.StatusForbidden:
			return say(api.KindPermission, "the repository does not exist or needs credentials: docker login "+s.ep.host)
		case te.StatusCode == http.StatusNotFound:
			return say(api.KindNotFound, "not found: check the name and the tag")
		case te.StatusCode == http.StatusTooManyRequests:
			return say(api.KindUnavailable, "rate limit: wait, or docker login "+s.ep.host)
		}
		return say(api.KindUnavailable, "")
	}
	if kind := api.KindOf(err); kind != api.KindInternal {
		return say(kind, "")
	}
	switch text := err.Error(); {
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return say(api.KindUnavailable, "it speaks no TLS: list it under plainHTTP in registries.json")
	case strings.Contains(text, "x509:"):
		return say(api.KindUnavailable, "its certificate is not trusted: give its authority under ca in registries.json")
	}
	return say(api.KindUnavailable, "")
}

// resumer reads a body and continues it with a range request when the
// connection breaks. The verifier above it catches a server that continues
// with something else.
type resumer struct {
	ctx   context.Context
	srv   *server
	kind  string
	desc  ispec.Descriptor
	body  io.ReadCloser
	at    int64
	tries int
}

// Read implements io.Reader.
func (r *resumer) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.at += int64(n)
		if n > 0 {
			r.tries = 0
		}
		short := err == io.EOF && r.at < r.desc.Size
		if err == nil || (err == io.EOF && !short) {
			return n, err
		}
		if short {
			err = io.ErrUnexpectedEOF
		}
		if rerr := r.resume(); rerr != nil {
			if r.ctx.Err() != nil {
				return n, context.Cause(r.ctx)
			}
			return n, r.srv.explain(fmt.Sprintf("%s, after %d of %d bytes", r.desc.Digest, r.at, r.desc.Size), err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// resume asks for the rest.
func (r *resumer) resume() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if r.tries++; r.tries > maxResumes {
		return errors.New("too many attempts")
	}
	resp, err := r.srv.get(r.ctx, r.kind, r.desc.Digest.String(), r.at)
	if err != nil {
		return err
	}
	r.body.Close()
	r.body = resp.Body
	return nil
}

// Close closes the connection's body.
func (r *resumer) Close() error { return r.body.Close() }
