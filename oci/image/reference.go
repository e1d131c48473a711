// SPDX-License-Identifier: Apache-2.0

package image

// Names in registries: docker's grammar and docker's defaults. They are parsed
// by hand: the usual library compiles a dozen regular expressions when a program
// starts, which every start of a sandbox would pay for twice.

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

const (
	// defaultDomain is the registry of names without one; legacyDomain is an
	// older name of it, and officialPrefix precedes its names without a slash.
	defaultDomain  = "docker.io"
	legacyDomain   = "index.docker.io"
	officialPrefix = "library/"
	defaultTag     = "latest"

	// maxNameBytes bounds a repository without its registry.
	maxNameBytes = 255
	// maxTagBytes bounds a tag.
	maxTagBytes = 128
	// idDigits is the length of an image's id, which is no name.
	idDigits = 64
)

var errReferenceFormat = errors.New("invalid reference format")

// repoName is a repository in a registry, with a tag, a digest, both or neither. Its
// zero value is none.
type repoName struct {
	domain, path string
	tag          string
	digest       digest.Digest
}

// parseName reads NAME[:TAG][@DIGEST] with docker's defaults for what is missing
// in NAME.
func parseName(s string) (repoName, error) {
	if len(s) == idDigits && strings.Trim(s, "0123456789abcdef") == "" {
		return repoName{}, fmt.Errorf("invalid repository name (%s), cannot specify 64-byte hexadecimal strings", s)
	}
	var n repoName
	rest, dgst, pinned := strings.Cut(s, "@")
	n.domain, rest = splitDomain(rest)
	var tagged bool
	n.path, n.tag, tagged = strings.Cut(rest, ":")
	// First of all: archives name their images as they like, at any length.
	if len(n.path) > maxNameBytes {
		return repoName{}, fmt.Errorf("repository name must not be more than %d characters", maxNameBytes)
	}
	if strings.ToLower(n.path) != n.path {
		return repoName{}, fmt.Errorf("%w: repository name (%s) must be lowercase", errReferenceFormat, n.path)
	}
	if !validDomain(n.domain) || !validPath(n.path) || tagged && !validTag(n.tag) {
		return repoName{}, errReferenceFormat
	}
	if pinned {
		n.digest = digest.Digest(dgst)
		if err := n.digest.Validate(); err != nil {
			return repoName{}, fmt.Errorf("%w: %w", errReferenceFormat, err)
		}
	}
	return n, nil
}

// splitDomain takes the registry off a name. What comes before the first slash
// is one only if it cannot be a part of the path.
func splitDomain(s string) (domain, rest string) {
	first, after, found := strings.Cut(s, "/")
	isDomain := found && (first == "localhost" || strings.ContainsAny(first, ".:") || strings.ToLower(first) != first)
	if !isDomain {
		first, after = defaultDomain, s
	}
	if first == legacyDomain {
		first = defaultDomain
	}
	if first == defaultDomain && !strings.Contains(after, "/") {
		after = officialPrefix + after
	}
	return first, after
}

// validDomain: host[:port], where the host is a name, an IPv4 address, or an
// IPv6 address in brackets.
func validDomain(s string) bool {
	host, port, hasPort := s, "", false
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 2 || !only(s[1:end], func(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' || c == ':' }) {
			return false
		}
		host, port = "v6", s[end+1:]
		if port != "" && port[0] != ':' {
			return false
		}
		hasPort, port = port != "", strings.TrimPrefix(port, ":")
	} else {
		host, port, hasPort = strings.Cut(s, ":")
	}
	if hasPort && !only(port, isDigit) {
		return false
	}
	for _, label := range strings.Split(host, ".") {
		if !only(label, func(c byte) bool { return isLetter(c) || isDigit(c) || c == '-' }) || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// validPath: components of lower case letters and digits, within which single
// dots, one or two underscores, and any number of dashes may separate them.
func validPath(s string) bool {
	for _, component := range strings.Split(s, "/") {
		separator := ""
		for i := range len(component) {
			c := component[i]
			if c >= 'a' && c <= 'z' || isDigit(c) {
				if separator != "" && (i == len(separator) || !validSeparator(separator)) {
					return false
				}
				separator = ""
				continue
			}
			separator += string(c)
		}
		if component == "" || separator != "" {
			return false
		}
	}
	return true
}

func validSeparator(s string) bool {
	return s == "." || s == "_" || s == "__" || strings.Trim(s, "-") == ""
}

func validTag(s string) bool {
	return len(s) <= maxTagBytes && only(s, func(c byte) bool { return isLetter(c) || isDigit(c) || c == '_' || c == '.' || c == '-' }) && s[0] != '.' && s[0] != '-'
}

// only tells whether s is one or more bytes for which ok holds.
func only(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return s != ""
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// withTag has docker's default tag where there is neither tag nor digest.
func (n repoName) withTag() repoName {
	if n.tag == "" && n.digest == "" {
		n.tag = defaultTag
	}
	return n
}

// repository is the name alone.
func (n repoName) repository() string { return n.domain + "/" + n.path }

// familiar is the shortest form of the repository that docker knows.
func (n repoName) familiar() string {
	if n.domain != defaultDomain {
		return n.repository()
	}
	if short := strings.TrimPrefix(n.path, officialPrefix); !strings.Contains(short, "/") {
		return short
	}
	return n.path
}

// suffix is the tag and the digest.
func (n repoName) suffix() string {
	s := ""
	if n.tag != "" {
		s = ":" + n.tag
	}
	if n.digest != "" {
		s += "@" + n.digest.String()
	}
	return s
}

// String is the canonical form.
func (n repoName) String() string { return n.repository() + n.suffix() }
