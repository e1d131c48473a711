// SPDX-License-Identifier: Apache-2.0

package image

// Registries, spoken to over HTTP: go-containerregistry's server with the
// misbehaviour each test needs in front of it.

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// serve starts a registry; front may answer a request itself and say so.
func serve(t testing.TB, front func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	h := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if front == nil || !front(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	u, _ := url.Parse(srv.URL)
	return u.Host
}

// push puts an image or index where host/ref says.
func push(t testing.TB, ref string, what remote.Taggable) {
	t.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	switch v := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(r, v)
	case v1.Image:
		err = remote.Write(r, v)
	default:
		err = remote.Put(r, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// anonymous keeps the tests away from the user's credentials.
var anonymous = authn.NewMultiKeychain()

func amd64() Options {
	return Options{Platform: Platform{OS: "linux", Architecture: "amd64"}, Keychain: anonymous}
}

func TestRegistryImage(t *testing.T) {
	host := serve(t, nil)
	want := testImage(t, "amd64")
	push(t, host+"/a/b:1", want)
	d, _ := want.Digest()
	for _, ref := range []string{host + "/a/b:1", host + "/a/b@" + d.String(), host + "/a/b:gone@" + d.String()} {
		img := mustResolve(t, ref, amd64())
		checkImage(t, img)
		if img.Digest.String() != d.String() || img.Name != ref || img.Config.Config.Cmd[0] != "/bin/amd64" || len(img.Layers) != 3 {
			t.Errorf("%s: digest %s, name %s, command %q, %d layers", ref, img.Digest, img.Name, img.Config.Config.Cmd, len(img.Layers))
		}
	}
}

func TestRegistryIndex(t *testing.T) {
	host := serve(t, nil)
	add := func(arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: testImage(t, arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch, Variant: variant}}}
	}
	attestation := add("x", "")
	attestation.Platform = &v1.Platform{OS: "unknown", Architecture: "unknown"}
	index := mutate.AppendManifests(empty.Index, attestation, add("amd64", ""), add("arm64", "v8"), add("arm", "v6"))
	push(t, host+"/a:1", index)
	d, _ := index.Digest()
	for platform, cmd := range map[string]string{"linux/amd64": "/bin/amd64", "linux/arm64": "/bin/arm64", "linux/arm/v7": "/bin/arm"} {
		o := amd64()
		o.Platform, _ = ParsePlatform(platform)
		img := mustResolve(t, host+"/a:1", o)
		checkImage(t, img)
		if img.Config.Config.Cmd[0] != cmd || img.IndexDigest.String() != d.String() {
			t.Errorf("%s: got %s, index %s", platform, img.Config.Config.Cmd, img.IndexDigest)
		}
	}
	o := amd64()
	o.Platform.Architecture = "riscv64"
	_, err := mustParse(t, host+"/a:1").Resolve(context.Background(), o)
	wantError(t, err, api.KindUnsupported, "riscv64", "available: linux/amd64, linux/arm/v6, linux/arm64", host)
	push(t, host+"/single:1", testImage(t, "arm64"))
	_, err = mustParse(t, host+"/single:1").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindUnsupported, "linux/amd64", "available: linux/arm64")
}

func TestRegistryNotFound(t *testing.T) {
	host := serve(t, nil)
	_, err := mustParse(t, host+"/no/such:1").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindNotFound, host+"/no/such:1", "not found")
	_, err = mustParse(t, "127.0.0.1:1/x:1").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindUnavailable, "127.0.0.1:1", "refused")
}

// basicAuth is the user and password that TestRegistryAuth's server wants.
const basicAuth = "user:secret"

func TestRegistryAuth(t *testing.T) {
	var locked atomic.Bool
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !locked.Load() || r.Header.Get("Authorization") == "Basic "+base64.StdEncoding.EncodeToString([]byte(basicAuth)) {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	push(t, host+"/a:1", testImage(t, "amd64"))
	locked.Store(true)
	_, err := mustParse(t, host+"/a:1").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindPermission, "docker login "+host)

	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	write := func(config string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := amd64()
	o.Keychain = nil
	write(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(basicAuth))))
	checkImage(t, mustResolve(t, host+"/a:1", o))

	// A credential helper is a program on PATH.
	helper := filepath.Join(dir, "docker-credential-gvxtest")
	script := "#!/bin/sh\nread host\nprintf '{\"ServerURL\":\"%s\",\"Username\":\"user\",\"Secret\":\"secret\"}' \"$host\"\n"
	if err := os.WriteFile(helper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	write(fmt.Sprintf(`{"credHelpers":{%q:"gvxtest"}}`, host))
	checkImage(t, mustResolve(t, host+"/a:1", o))
}

func TestRegistryBearer(t *testing.T) {
	var locked atomic.Bool
	var host string
	host = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !locked.Load() {
			return false
		}
		if r.URL.Path == "/token" {
			fmt.Fprintf(w, `{"token":%q}`, r.URL.Query().Get("scope"))
			return true
		}
		if r.Header.Get("Authorization") == "Bearer repository:a:pull" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, host))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	push(t, host+"/a:1", testImage(t, "amd64"))
	locked.Store(true)
	checkImage(t, mustResolve(t, host+"/a:1", amd64()))
}

func TestMirrors(t *testing.T) {
	broken := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "out of order", http.StatusTeapot)
		return true
	})
	mirror, upstream := serve(t, nil), serve(t, nil)
	push(t, mirror+"/proxy/a/b:1", testImage(t, "amd64"))
	push(t, upstream+"/a/b:2", testImage(t, "amd64"))
	var failed []string
	o := amd64()
	o.Registries = &RegistryConfig{Mirrors: map[string][]string{upstream: {"http://" + broken, "http://" + mirror + "/proxy"}}}
	o.Progress = func(e Event) {
		if e.Phase == PhaseFallback {
			failed = append(failed, e.Host)
		}
	}
	checkImage(t, mustResolve(t, upstream+"/a/b:1", o))
	if fmt.Sprint(failed) != fmt.Sprint([]string{broken}) {
		t.Errorf("fell back from %v, want %s once", failed, broken)
	}
	checkImage(t, mustResolve(t, upstream+"/a/b:2", o))
	_, err := mustParse(t, upstream+"/a/b:3").Resolve(context.Background(), o)
	wantError(t, err, api.KindNotFound, "none of 3 servers", broken, mirror, upstream, "418")

	// Docker hub itself is never reached in tests: a mirror must do.
	o.Registries = &RegistryConfig{Mirrors: map[string][]string{"docker.io": {"http://" + mirror}}}
	push(t, mirror+"/library/tiny:1", testImage(t, "amd64"))
	if img := mustResolve(t, "tiny:1", o); img.Name != "docker.io/library/tiny:1" {
		t.Errorf("name is %s", img.Name)
	}
}

// TestTampering changes each document and blob in turn.
func TestTampering(t *testing.T) {
	var victim atomic.Value
	victim.Store("")
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		v := victim.Load().(string)
		if r.Method != http.MethodGet || v == "" || !strings.HasSuffix(r.URL.Path, v) {
			return false
		}
		victim.Store("") // the next request, our own, gets the truth
		resp, err := http.Get("http://" + r.Host + r.URL.Path)
		if err != nil {
			t.Error(err)
			return true
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		b[len(b)/2] ^= 1
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		w.Write(b)
		return true
	})
	want := testImage(t, "amd64")
	push(t, host+"/a:1", want)
	d, _ := want.Digest()
	c, _ := want.ConfigName()
	for _, v := range []string{d.String(), c.String()} {
		victim.Store(v)
		_, err := mustParse(t, host+"/a@"+d.String()).Resolve(context.Background(), amd64())
		wantError(t, err, api.KindImage, "tampered", v, host)
	}
	img := mustResolve(t, host+"/a:1", amd64())
	for i, l := range img.Layers {
		victim.Store(l.Digest.String())
		s, err := l.Uncompressed(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, s)
		s.Close()
		wantError(t, err, api.KindImage, "tampered", l.Digest.String())
		if victim.Load() != "" {
			t.Errorf("layer %d was not fetched", i)
		}
	}
}

// TestResume breaks each connection in the middle of the second layer.
func TestResume(t *testing.T) {
	var cut atomic.Value
	cut.Store("")
	var ranges atomic.Int32
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		v := cut.Load().(string)
		if r.Method != http.MethodGet || v == "" || !strings.HasSuffix(r.URL.Path, v) || r.Header.Get("X-Inner") != "" {
			return false
		}
		inner, _ := http.NewRequest(http.MethodGet, "http://"+r.Host+r.URL.Path, nil)
		inner.Header.Set("X-Inner", "1")
		resp, err := http.DefaultClient.Do(inner)
		if err != nil {
			t.Error(err)
			return true
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		status, from := http.StatusOK, 0
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
			ranges.Add(1)
			status = http.StatusPartialContent
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)-from))
		w.WriteHeader(status)
		w.Write(b[from : from+(len(b)-from+1)/2])
		if from < len(b)*3/4 {
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		w.Write(b[from+(len(b)-from+1)/2:])
		return true
	})
	push(t, host+"/a:1", testImage(t, "amd64"))
	img := mustResolve(t, host+"/a:1", amd64())
	cut.Store(img.Layers[1].Digest.String())
	checkImage(t, img)
	if ranges.Load() == 0 {
		t.Error("no range was asked for")
	}
}

func TestRegistryRefusals(t *testing.T) {
	docs := map[string][2]string{
		"schema1":  {mediaDockerSigned1, `{"schemaVersion":1,"fsLayers":[]}`},
		"artifact": {"application/vnd.oci.image.manifest.v1+json", `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","size":2,"digest":"` + digest.FromString("{}").String() + `"},"layers":[]}`},
		"garbage":  {"text/html", "<html>"},
		"both":     {"application/vnd.oci.image.index.v1+json", `{"schemaVersion":2,"manifests":[],"layers":[]}`},
		"huge":     {"application/vnd.oci.image.index.v1+json", strings.Repeat(" ", MaxManifestBytes+1)},
	}
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		doc, ok := docs[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		if ok {
			w.Header().Set("Content-Type", doc[0])
			io.WriteString(w, doc[1])
		}
		return ok
	})
	for tag, want := range map[string]struct {
		kind api.Kind
		text string
	}{
		"schema1":  {api.KindUnsupported, "schema 1"},
		"artifact": {api.KindUnsupported, "artifact"},
		"garbage":  {api.KindImage, "not JSON"},
		"both":     {api.KindImage, "ambiguous"},
		"huge":     {api.KindLimit, "larger than"},
	} {
		_, err := mustParse(t, host+"/x:"+tag).Resolve(context.Background(), amd64())
		wantError(t, err, want.kind, want.text, host)
	}
}

// TestTLS: an unknown authority is refused, unless the configuration says
// which one to trust or that any will do.
func TestTLS(t *testing.T) {
	h := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	u, _ := url.Parse(srv.URL)
	ref, err := name.ParseReference(u.Host + "/a:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, testImage(t, "amd64"), remote.WithTransport(srv.Client().Transport)); err != nil {
		t.Fatal(err)
	}
	_, err = mustParse(t, u.Host+"/a:1").Resolve(context.Background(), amd64())
	wantError(t, err, api.KindUnavailable, u.Host)
	pemFile := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}
	if err := os.WriteFile(pemFile, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*RegistryConfig{{CA: map[string]string{u.Host: pemFile}}, {SkipVerify: []string{u.Host}}} {
		o := amd64()
		o.Registries = c
		checkImage(t, mustResolve(t, u.Host+"/a:1", o))
	}
	o := amd64()
	o.Registries = &RegistryConfig{CA: map[string]string{u.Host: os.DevNull}}
	_, err = mustParse(t, u.Host+"/a:1").Resolve(context.Background(), o)
	wantError(t, err, api.KindInvalid, "no PEM certificate")
}

func TestPlainHTTPNeedsWord(t *testing.T) {
	g := &schemeGuard{ep: endpoint{}, host: "10.0.0.1"}
	req := httptest.NewRequest(http.MethodGet, "http://10.0.0.1/v2/", nil)
	if _, err := g.RoundTrip(req); err == nil || !strings.Contains(err.Error(), "plain HTTP refused") {
		t.Errorf("plain HTTP to a private address: %v", err)
	}
	s, err := newServer(endpoint{host: "registry.example"}, "x", anonymous, true)
	if err != nil {
		t.Fatal(err)
	}
	from := httptest.NewRequest(http.MethodGet, "https://registry.example/", nil)
	to := httptest.NewRequest(http.MethodGet, "http://169.254.169.254/latest", nil)
	wantError(t, s.checkRedirect(to, []*http.Request{from}), api.KindPermission, "169.254.169.254")
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet {
			return false
		}
		cancel()
		<-r.Context().Done()
		return true
	})
	push(t, host+"/a:1", testImage(t, "amd64"))
	_, err := mustParse(t, host+"/a:1").Resolve(ctx, amd64())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), host) {
		t.Errorf("got %v, want a cancellation that names %s", err, host)
	}
}

func TestRegistryConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := write("a.json", `{"mirrors":{"index.docker.io":["http://127.0.0.1:5000/x"]},"plainHTTP":["lab:5000"]}`)
	b := write("b.json", `{"mirrors":{"docker.io":["https://hidden"],"quay.io":["q"]},"skipVerify":["self"]}`)
	c, err := LoadRegistryConfig(filepath.Join(dir, "none.json"), a, b)
	if err != nil {
		t.Fatal(err)
	}
	eps, err := c.endpoints("docker.io")
	if err != nil || len(eps) != 2 || eps[0].host != "127.0.0.1:5000" || eps[0].prefix != "x" || !eps[0].plain || eps[1].plain {
		t.Errorf("endpoints of docker.io: %+v, %v", eps, err)
	}
	if eps, _ := c.endpoints("lab:5000"); !eps[0].plain {
		t.Errorf("lab:5000: %+v", eps)
	}
	if eps, _ := c.endpoints("quay.io"); eps[0].host != "q" || eps[0].plain {
		t.Errorf("quay.io: %+v", eps)
	}
	if eps, _ := c.endpoints("[::1]:5000"); !eps[0].fallback {
		t.Errorf("loopback: %+v", eps)
	}
	for content, text := range map[string]string{
		`{"mirror":{}}`:                               "unknown field",
		`{"mirrors":{"x":["ftp://y"]}}`:               "want http://",
		`{"mirrors":{"x":["https://u:p@y"]}}`:         "want http://",
		`{"plainHTTP":["http://x"]}`:                  "is not a registry",
		strings.Repeat(" ", maxRegistryConfigBytes+1): "larger",
	} {
		_, err := LoadRegistryConfig(write("bad.json", content))
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "bad.json") {
			t.Errorf("%.40s: %v, want %q", content, err, text)
		}
	}
}
