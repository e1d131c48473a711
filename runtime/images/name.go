// SPDX-License-Identifier: Apache-2.0

// Names of images: the canonical form that is stored, and docker's short form
// that is shown.

package images

import (
	"strings"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

// dockerHub is how Docker Hub is called in canonical names.
const dockerHub = "docker.io"

// NormalizeName returns the canonical form of an image name:
// "docker.io/library/debian:latest" for "debian". A name with tag and digest
// loses the tag, which the digest overrules.
func NormalizeName(ref string) (string, error) {
	src, err := image.Parse(ref)
	if err != nil {
		return "", err
	}
	if src.Transport() != image.Registry {
		return "", api.Errorf(api.KindInvalid, "image name %q: a name in the store has no transport", ref)
	}
	return sourceName(src)
}

// sourceName is the canonical name of a registry source.
func sourceName(src image.Source) (string, error) {
	n := src.String()
	if d := src.Digest(); d != "" {
		n = src.Name() + "@" + string(d)
	}
	if len(n) > maxNameBytes {
		return "", api.Errorf(api.KindInvalid, "image name %.40q…: longer than %d bytes", n, maxNameBytes)
	}
	return n, nil
}

// FamiliarName is the short form of a canonical name, as docker shows it:
// "debian:latest" for "docker.io/library/debian:latest".
func FamiliarName(canonical string) string {
	s, hub := strings.CutPrefix(canonical, dockerHub+"/")
	if hub {
		s = strings.TrimPrefix(s, "library/")
	}
	return s
}

// SplitName cuts a name into repository and tag or digest.
func SplitName(n string) (repository, tag, digest string) {
	if r, d, ok := strings.Cut(n, "@"); ok {
		return r, "", d
	}
	if i := strings.LastIndexByte(n, ':'); i > strings.LastIndexByte(n, '/') {
		return n[:i], n[i+1:], ""
	}
	return n, "", ""
}
