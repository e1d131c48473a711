// SPDX-License-Identifier: Apache-2.0

package image

// One server of a registry: connection, handshake, requests.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// dialTimeout is how long an address may be silent before the next mirror.
	dialTimeout = 20 * time.Second
	// headerTimeout is how long a server may think about a request: some
	// mirrors fetch the whole blob first.
	headerTimeout = 2 * time.Minute
	// maxRedirects is the usual number.
	maxRedirects = 10
	// maxCABytes bounds a PEM file of authorities.
	maxCABytes = 4 << 20
	// userAgent says who asks.
	userAgent = "gvx"
)

// server talks to one endpoint about one repository. It is safe for concurrent
// use; the handshake happens on the first request.
type server struct {
	ep       endpoint
	repo     name.Repository
	keychain authn.Keychain
	base     *http.Transport
	// patient servers have nobody to fall back to: failures are retried.
	patient bool

	mu     sync.Mutex
	client *http.Client
}

// newServer prepares a server; it does not connect.
func newServer(ep endpoint, repository string, keychain authn.Keychain, patient bool) (*server, error) {
	var opts []name.Option
	if ep.plain || ep.fallback {
		opts = append(opts, name.Insecure)
	}
	reg, err := name.NewRegistry(ep.host, opts...)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "registry %q: %w", ep.host, err)
	}
	tlsConfig, err := ep.tls()
	if err != nil {
		return nil, err
	}
	if keychain == nil {
		keychain = authn.DefaultKeychain
	}
	return &server{
		ep: ep, repo: reg.Repo(path.Join(ep.prefix, repository)), keychain: keychain, patient: patient,
		base: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:       tlsConfig,
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: headerTimeout,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   8,
			ForceAttemptHTTP2:     true,
			// Layers are compressed, and digests are of the bytes as stored.
			DisableCompression: true,
		},
	}, nil
}

// tls makes the endpoint's TLS configuration.
func (ep *endpoint) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: ep.skipVerify}
	if ep.ca == "" {
		return c, nil
	}
	f, err := os.Open(ep.ca)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "registry %s: read authorities: %w", ep.host, err)
	}
	defer f.Close()
	pem, err := readBounded(f, "authorities "+ep.ca, maxCABytes)
	if err != nil {
		return nil, err
	}
	if c.RootCAs, err = x509.SystemCertPool(); err != nil {
		c.RootCAs = x509.NewCertPool()
	}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, api.Errorf(api.KindInvalid, "registry %s: %s holds no PEM certificate", ep.host, ep.ca)
	}
	return c, nil
}

// connect does the handshake once; a failed one is tried again next time.
func (s *server) connect(ctx context.Context) (*http.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	auth, err := authn.Resolve(ctx, s.keychain, s.repo)
	if err != nil {
		return nil, api.Errorf(api.KindPermission, "find credentials: %w (check the credential helper named in docker's config.json)", err)
	}
	backoff := transport.Backoff{Duration: 500 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 1}
	if s.patient {
		backoff.Steps = 3
	}
	var rt http.RoundTripper = &schemeGuard{inner: s.base, ep: s.ep, host: s.repo.RegistryStr()}
	rt = transport.NewRetry(rt, transport.WithRetryBackoff(backoff))
	rt = transport.NewUserAgent(rt, userAgent)
	rt, err = transport.NewWithContext(ctx, s.repo.Registry, auth, rt, []string{s.repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	s.client = &http.Client{Transport: rt, CheckRedirect: s.checkRedirect}
	return s.client, nil
}

// get requests a manifest or blob, from an offset.
func (s *server) get(ctx context.Context, kind, id string, offset int64) (*http.Response, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The scheme is the handshake's business: the transport sets it.
	u := url.URL{Scheme: s.repo.Scheme(), Host: s.repo.RegistryStr(), Path: path.Join("/v2", s.repo.RepositoryStr(), kind, id)}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request for %s: %w", u.Redacted(), err)
	}
	if kind == "manifests" {
		req.Header.Set("Accept", acceptManifests)
	}
	status := http.StatusOK
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		status = http.StatusPartialContent
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, status); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// checkRedirect keeps a registry from pointing us at services that only this
// machine or its network can reach, such as a cloud's metadata address.
func (s *server) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("too many redirects")
	}
	from, to := via[0].URL, req.URL
	if from.Hostname() == to.Hostname() || inside(from.Hostname()) || !inside(to.Hostname()) {
		return nil
	}
	return api.Errorf(api.KindPermission, "redirect from %s to the private address %s refused", from.Host, to.Host)
}

// inside tells literal addresses of private networks and of this machine.
func inside(host string) bool {
	if isLoopback(host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified()
}

// close drops idle connections.
func (s *server) close() { s.base.CloseIdleConnections() }

// schemeGuard decides which scheme may reach the registry. The handshake below
// it would try plain HTTP for any private address; here that needs a word in
// the configuration.
type schemeGuard struct {
	inner http.RoundTripper
	ep    endpoint
	host  string
}

// RoundTrip implements http.RoundTripper.
func (g *schemeGuard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == g.host {
		switch {
		case req.URL.Scheme == "http" && !g.ep.plain && !g.ep.fallback:
			return nil, errors.New("plain HTTP refused")
		case req.URL.Scheme == "https" && g.ep.plain:
			return nil, errors.New("HTTPS skipped, the registry is listed as plain HTTP")
		}
	}
	return g.inner.RoundTrip(req)
}
