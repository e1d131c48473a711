// SPDX-License-Identifier: Apache-2.0

package image

// References: what a user may write for an image, and its canonical forms.

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// Transport is where a source's bytes come from.
type Transport string

// The transports, as they are written before the first colon; a registry
// reference has none.
const (
	Registry      Transport = "docker"
	OCILayout     Transport = "oci"
	OCIArchive    Transport = "oci-archive"
	DockerArchive Transport = "docker-archive"
	RootfsDir     Transport = "rootfs"
	RootfsTar     Transport = "rootfs-tar"
)

const (
	// maxRefBytes bounds what is parsed: a path and a reference.
	maxRefBytes = 8192
	// adviceRef ends each complaint about a reference.
	adviceRef = "want NAME[:TAG][@DIGEST], oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME:TAG], rootfs:DIR or rootfs-tar:FILE"
)

// layoutTag is what may select an image in a layout or an archive: a tag, or a
// whole reference. It is compiled when it is needed: this package is linked
// into programs that start hundreds of times a second.
var layoutTag = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+/:@-]{0,511}$`)
})

// Source is a parsed reference. Its zero value is not valid; use [Parse].
type Source struct {
	transport Transport
	// named is the registry reference, with a tag or a digest or both.
	named repoName
	// path, and tag or digest in it, are for the other transports.
	path   string
	tag    string
	digest digest.Digest
}

// Parse reads a reference as users write it. It looks at nothing but the text.
//
//	debian, debian:12, quay.io/a/b@sha256:…   a registry's image
//	oci:DIR[:TAG], oci:DIR@DIGEST             an OCI layout
//	oci-archive:FILE[:TAG]                    the same in a tar file
//	docker-archive:FILE[:NAME:TAG]            what docker save writes, old or new
//	rootfs:DIR, rootfs-tar:FILE               a root file system without metadata
//
// As in other tools, a path with a colon in it cannot be written (a Windows
// drive letter can).
func Parse(ref string) (Source, error) {
	switch {
	case ref == "":
		return Source{}, api.Errorf(api.KindInvalid, "image reference is empty: %s", adviceRef)
	case len(ref) > maxRefBytes:
		return Source{}, api.Errorf(api.KindInvalid, "image reference is longer than %d bytes", maxRefBytes)
	case strings.ContainsRune(ref, 0):
		return Source{}, api.Errorf(api.KindInvalid, "image reference %q contains a NUL byte", ref)
	}
	scheme, rest, _ := strings.Cut(ref, ":")
	switch t := Transport(scheme); t {
	case RootfsDir, RootfsTar:
		if strings.Contains(ref, ":") {
			return parsePath(t, ref, rest)
		}
	case OCILayout, OCIArchive, DockerArchive:
		if strings.Contains(ref, ":") {
			return parseSelected(t, ref, rest)
		}
	}
	if rest, ok := strings.CutPrefix(ref, "docker://"); ok {
		return parseNamed(ref, rest)
	}
	return parseNamed(ref, ref)
}

// parseNamed reads a registry reference.
func parseNamed(ref, s string) (Source, error) {
	named, err := parseName(s)
	if err != nil {
		if lower := strings.ToLower(s); lower != s {
			if _, lerr := parseName(lower); lerr == nil {
				return Source{}, api.Errorf(api.KindInvalid, "image reference %q: repository names are lower case: did you mean %q?", ref, lower)
			}
		}
		return Source{}, api.Errorf(api.KindInvalid, "image reference %q: %w: %s", ref, err, adviceRef)
	}
	return Source{transport: Registry, named: named.withTag()}, nil
}

// parsePath reads a path that nothing follows.
func parsePath(t Transport, ref, path string) (Source, error) {
	if path == "" {
		return Source{}, api.Errorf(api.KindInvalid, "image reference %q: no path after %s:", ref, t)
	}
	return Source{transport: t, path: filepath.Clean(path)}, nil
}

// parseSelected reads PATH[:TAG] or PATH@DIGEST.
func parseSelected(t Transport, ref, rest string) (Source, error) {
	var dgst digest.Digest
	for _, alg := range []string{"@sha256:", "@sha512:"} {
		if i := strings.LastIndex(rest, alg); i >= 0 && t != DockerArchive {
			dgst = digest.Digest(rest[i+1:])
			if err := dgst.Validate(); err != nil {
				return Source{}, api.Errorf(api.KindInvalid, "image reference %q: digest %q: %w", ref, dgst, err)
			}
			rest = rest[:i]
		}
	}
	path, tag := splitTag(rest)
	src, err := parsePath(t, ref, path)
	if err != nil {
		return Source{}, err
	}
	switch {
	case tag == "" && strings.HasSuffix(rest, ":"), tag != "" && !layoutTag().MatchString(tag):
		return Source{}, api.Errorf(api.KindInvalid, "image reference %q: %q is not a tag: %s", ref, tag, adviceRef)
	case tag != "" && dgst != "":
		return Source{}, api.Errorf(api.KindInvalid, "image reference %q: give a tag or a digest, not both", ref)
	}
	src.tag, src.digest = tag, dgst
	return src, nil
}

// splitTag splits at the first colon that is not a drive letter's.
func splitTag(s string) (path, tag string) {
	from := 0
	if len(s) >= 3 && s[1] == ':' && (s[2] == '\\' || s[2] == '/') && isLetter(s[0]) {
		from = 2
	}
	i := strings.IndexByte(s[from:], ':')
	if i < 0 {
		return s, ""
	}
	return s[:from+i], s[from+i+1:]
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// Transport tells where the source's bytes come from.
func (s Source) Transport() Transport { return s.transport }

// Path is the directory or file of a source that is not in a registry.
func (s Source) Path() string { return s.path }

// String is the canonical form, which Parse reads again as the same source.
func (s Source) String() string {
	switch {
	case s.transport == Registry:
		return s.named.String()
	case s.digest != "":
		return string(s.transport) + ":" + s.path + "@" + s.digest.String()
	case s.tag != "":
		return string(s.transport) + ":" + s.path + ":" + s.tag
	}
	return string(s.transport) + ":" + s.path
}

// Name is the repository without tag and digest (docker.io/library/debian), or
// the transport and path of a local source.
func (s Source) Name() string {
	if s.transport == Registry {
		return s.named.repository()
	}
	return string(s.transport) + ":" + s.path
}

// Familiar is docker's short form (debian:12).
func (s Source) Familiar() string {
	if s.transport == Registry {
		return s.named.familiar() + s.named.suffix()
	}
	return s.String()
}

// FamiliarName is docker's short form of Name (debian).
func (s Source) FamiliarName() string {
	if s.transport == Registry {
		return s.named.familiar()
	}
	return s.Name()
}

// Tag is the tag or layout selector, or empty.
func (s Source) Tag() string {
	if s.transport == Registry {
		return s.named.tag
	}
	return s.tag
}

// Digest is the digest the source pins, or empty.
func (s Source) Digest() digest.Digest {
	if s.transport == Registry {
		return s.named.digest
	}
	return s.digest
}

// Resolve finds the image: it reads indexes, the manifest and the
// configuration, and opens no layer (rootfs sources and docker archives, whose
// layers have no digest yet, are read once to compute them).
func (s Source) Resolve(ctx context.Context, o Options) (*Image, error) {
	o.Platform = o.Platform.orDefault()
	o.report(Event{Phase: PhaseResolve, Name: s.String()})
	var img *Image
	var err error
	switch s.transport {
	case Registry:
		img, err = s.resolveRegistry(ctx, o)
	case OCILayout:
		img, err = s.resolveLayout(ctx, o)
	case OCIArchive, DockerArchive:
		img, err = s.resolveArchive(ctx, o)
	case RootfsDir:
		img, err = s.resolveRootfsDir(ctx, o)
	case RootfsTar:
		img, err = s.resolveRootfsTar(ctx, o)
	default:
		return nil, api.Errorf(api.KindInternal, "resolve image: source was not made by Parse")
	}
	if err != nil {
		return nil, err
	}
	img.Source = s
	if img.Name == "" {
		img.Name = s.String()
	}
	return img, nil
}
