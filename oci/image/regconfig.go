// SPDX-License-Identifier: Apache-2.0

package image

// registries.json: mirrors, and which registries are exempt from TLS.
//
//	{
//	  "mirrors":    {"docker.io": ["https://mirror.example/hub", "http://127.0.0.1:5000"]},
//	  "plainHTTP":  ["registry.lab:5000"],
//	  "skipVerify": ["self-signed.lab"],
//	  "ca":         {"private.lab": "/etc/ssl/private-lab.pem"}
//	}
//
// Mirrors are asked in order, then the registry itself. A mirror's path comes
// before the repository's. Registries on loopback may always speak plain HTTP,
// as with docker; a mirror with an http:// address needs no other entry.

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxRegistryConfigBytes bounds registries.json; people write it by hand.
	maxRegistryConfigBytes = 1 << 20
	// maxMirrors bounds how long a pull can take to fail.
	maxMirrors = 16
	// hub is docker.io's canonical name in this package.
	hub = "docker.io"
)

// RegistryConfig is what registries.json says; the head of regconfig.go has the
// format. Registries go by the names that references show: docker.io, not
// index.docker.io. [LoadRegistryConfig] sees to that.
type RegistryConfig struct {
	// Mirrors maps a registry host to base addresses, tried in order.
	Mirrors map[string][]string `json:"mirrors,omitempty"`
	// PlainHTTP lists registries that speak no TLS.
	PlainHTTP []string `json:"plainHTTP,omitempty"`
	// SkipVerify lists registries whose certificates are not checked.
	SkipVerify []string `json:"skipVerify,omitempty"`
	// CA maps a registry to a PEM file of authorities trusted for it.
	CA map[string]string `json:"ca,omitempty"`
}

// RegistryConfigPaths lists where registries.json is looked for: below root
// (gvx's --root, may be empty), the user's configuration, the machine's.
func RegistryConfigPaths(root string) []string {
	var paths []string
	if root != "" {
		paths = append(paths, filepath.Join(root, "registries.json"))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "gvx", "registries.json"))
	} else if dir, err := os.UserConfigDir(); err == nil {
		paths = append(paths, filepath.Join(dir, "gvx", "registries.json"))
	}
	return append(paths, filepath.FromSlash("/etc/gvx/registries.json"))
}

// LoadRegistryConfig reads those of the files that exist. What an earlier file
// says of a registry hides what later ones say.
func LoadRegistryConfig(paths ...string) (*RegistryConfig, error) {
	merged := &RegistryConfig{Mirrors: map[string][]string{}, CA: map[string]string{}}
	for _, path := range paths {
		c, err := readRegistryConfig(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(c.Mirrors, merged.Mirrors)
		maps.Copy(c.CA, merged.CA)
		merged.Mirrors, merged.CA = c.Mirrors, c.CA
		merged.PlainHTTP = append(merged.PlainHTTP, c.PlainHTTP...)
		merged.SkipVerify = append(merged.SkipVerify, c.SkipVerify...)
	}
	return merged, nil
}

// readRegistryConfig reads and checks one file.
func readRegistryConfig(path string) (*RegistryConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "read registry configuration: %w", err)
	}
	defer f.Close()
	raw, err := readBounded(f, "registry configuration "+path, maxRegistryConfigBytes)
	if err != nil {
		return nil, err
	}
	c := &RegistryConfig{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		return nil, api.Errorf(api.KindInvalid, "registry configuration %s: %w", path, err)
	}
	if c, err = c.normalize(); err != nil {
		return nil, api.Errorf(api.KindInvalid, "registry configuration %s: %w", path, err)
	}
	return c, nil
}

// normalize checks a configuration and gives registries their canonical names.
func (c *RegistryConfig) normalize() (*RegistryConfig, error) {
	out := &RegistryConfig{Mirrors: map[string][]string{}, CA: map[string]string{}}
	for host, mirrors := range c.Mirrors {
		if len(mirrors) > maxMirrors {
			return nil, api.Errorf(api.KindLimit, "mirrors of %s: %d, more than the %d allowed", host, len(mirrors), maxMirrors)
		}
		for _, m := range mirrors {
			if _, err := parseMirror(m); err != nil {
				return nil, err
			}
		}
		out.Mirrors[canonicalHost(host)] = mirrors
	}
	for host, file := range c.CA {
		out.CA[canonicalHost(host)] = file
	}
	for _, host := range c.PlainHTTP {
		out.PlainHTTP = append(out.PlainHTTP, canonicalHost(host))
	}
	for _, host := range c.SkipVerify {
		out.SkipVerify = append(out.SkipVerify, canonicalHost(host))
	}
	for _, host := range slices.Concat(slices.Collect(maps.Keys(out.Mirrors)), slices.Collect(maps.Keys(out.CA)), out.PlainHTTP, out.SkipVerify) {
		if u, err := url.Parse("//" + host); host == "" || err != nil || u.Host != host {
			return nil, api.Errorf(api.KindInvalid, "%q is not a registry: want HOST or HOST:PORT", host)
		}
	}
	return out, nil
}

// parseMirror reads a mirror's address: URL, or HOST[:PORT][/PATH] for https.
func parseMirror(s string) (*url.URL, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "https://" + s
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, api.Errorf(api.KindInvalid, "mirror %q: want http://HOST[:PORT][/PATH] or https://…", s)
	}
	return u, nil
}

// canonicalHost gives docker's registry its one name.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	switch host {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return hub
	}
	return host
}

// endpoint is one server that may have an image.
type endpoint struct {
	// host is what to connect to; prefix comes before the repository.
	host, prefix string
	// plain: HTTP only. fallback: HTTPS, then HTTP.
	plain, fallback bool
	skipVerify      bool
	ca              string
}

// endpoints lists the servers for a registry, mirrors first.
func (c *RegistryConfig) endpoints(host string) ([]endpoint, error) {
	if c == nil {
		c = &RegistryConfig{}
	}
	host = canonicalHost(host)
	var eps []endpoint
	for _, m := range c.Mirrors[host] {
		u, err := parseMirror(m)
		if err != nil {
			return nil, err
		}
		ep := c.endpoint(u.Host)
		ep.prefix = strings.Trim(u.Path, "/")
		if u.Scheme == "http" {
			ep.plain = true
		} else {
			ep.plain, ep.fallback = false, false
		}
		eps = append(eps, ep)
	}
	return append(eps, c.endpoint(host)), nil
}

// endpoint applies the exceptions to one host.
func (c *RegistryConfig) endpoint(host string) endpoint {
	key := canonicalHost(host)
	return endpoint{
		host:       host,
		plain:      slices.Contains(c.PlainHTTP, key),
		fallback:   isLoopback(key),
		skipVerify: slices.Contains(c.SkipVerify, key),
		ca:         c.CA[key],
	}
}

// isLoopback tells registries on this machine.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// kindOfFile classifies what a file system call says.
func kindOfFile(err error) api.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.KindNotFound
	case errors.Is(err, fs.ErrPermission):
		return api.KindPermission
	}
	return api.KindInternal
}
