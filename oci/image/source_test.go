// SPDX-License-Identifier: Apache-2.0

package image

import (
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

func TestParse(t *testing.T) {
	const d = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	for _, c := range []struct{ in, canonical, familiar, name string }{
		{"debian", "docker.io/library/debian:latest", "debian:latest", "docker.io/library/debian"},
		{"docker://debian:12", "docker.io/library/debian:12", "debian:12", "docker.io/library/debian"},
		{"index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest", "docker.io/a/b"},
		{"localhost/x", "localhost/x:latest", "localhost/x:latest", "localhost/x"},
		{"quay.io:443/a/b/c:v1", "quay.io:443/a/b/c:v1", "quay.io:443/a/b/c:v1", "quay.io:443/a/b/c"},
		{"debian@" + d, "docker.io/library/debian@" + d, "debian@" + d, "docker.io/library/debian"},
		{"debian:12@" + d, "docker.io/library/debian:12@" + d, "debian:12@" + d, "docker.io/library/debian"},
		{"oci", "docker.io/library/oci:latest", "oci:latest", "docker.io/library/oci"},
		{"oci:dir/./x", "oci:dir/x", "oci:dir/x", "oci:dir/x"},
		{"oci:/d:tag", "oci:/d:tag", "oci:/d:tag", "oci:/d"},
		{"oci:/d:quay.io/a/b:1", "oci:/d:quay.io/a/b:1", "oci:/d:quay.io/a/b:1", "oci:/d"},
		{"oci:/d@" + d, "oci:/d@" + d, "oci:/d@" + d, "oci:/d"},
		{"oci-archive:f.tar:x", "oci-archive:f.tar:x", "oci-archive:f.tar:x", "oci-archive:f.tar"},
		{"docker-archive:f.tar:alpine:3", "docker-archive:f.tar:alpine:3", "docker-archive:f.tar:alpine:3", "docker-archive:f.tar"},
		{"rootfs:/a:b/", "rootfs:/a:b", "rootfs:/a:b", "rootfs:/a:b"},
		{"rootfs-tar:x.tar.gz", "rootfs-tar:x.tar.gz", "rootfs-tar:x.tar.gz", "rootfs-tar:x.tar.gz"},
	} {
		s, err := Parse(c.in)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.in, err)
			continue
		}
		norm := filepath.ToSlash
		if norm(s.String()) != c.canonical || norm(s.Familiar()) != c.familiar || norm(s.Name()) != c.name {
			t.Errorf("Parse(%q) = %q, %q, %q; want %q, %q, %q", c.in, s, s.Familiar(), s.Name(), c.canonical, c.familiar, c.name)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for in, text := range map[string]string{
		"":                         "empty",
		"Debian":                   `did you mean "debian"`,
		"a b":                      "want NAME",
		"-x":                       "want NAME",
		"debian:":                  "want NAME",
		"debian@sha256:12":         "want NAME",
		"oci:":                     "no path",
		"oci:/d:":                  "not a tag",
		"oci:/d@sha256:12":         "digest",
		"rootfs:":                  "no path",
		"x\x00y":                   "NUL",
		strings.Repeat("a/", 5000): "longer",
	} {
		_, err := Parse(in)
		wantError(t, err, api.KindInvalid, text)
	}
}

func TestWindowsPath(t *testing.T) {
	for in, want := range map[string][2]string{
		`C:\a\b:tag`: {`C:\a\b`, "tag"},
		`C:/a:x/y:1`: {`C:/a`, "x/y:1"},
		`C:\a`:       {`C:\a`, ""},
		`dir:tag`:    {`dir`, "tag"},
	} {
		if path, tag := splitTag(in); path != want[0] || tag != want[1] {
			t.Errorf("splitTag(%q) = %q, %q; want %q", in, path, tag, want)
		}
	}
}

// FuzzParse: no input panics, and what parses prints as something that parses
// to the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"debian", "a.b:1/c/d:e@sha256:00", "oci:x:y", "oci:C:\\x:y", "docker-archive:a:b:c", "rootfs:/", "docker://x", "oci:/d@sha256:" + strings.Repeat("0", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			if api.KindOf(err) != api.KindInvalid {
				t.Fatalf("Parse(%q): kind %s", in, api.KindOf(err))
			}
			return
		}
		again, err := Parse(s.String())
		if err != nil {
			t.Fatalf("Parse(%q) = %q, which does not parse: %v", in, s, err)
		}
		if again.String() != s.String() || again.Familiar() != s.Familiar() || again.Name() != s.Name() {
			t.Fatalf("Parse(%q) = %q, which parses as %q", in, s, again)
		}
	})
}

func TestPlatform(t *testing.T) {
	for in, want := range map[string]string{
		"linux/x86_64":   "linux/amd64",
		"linux/arm64/v8": "linux/arm64",
		"aarch64":        "linux/arm64",
		"linux/arm":      "linux/arm/v7",
		"linux/arm/v6":   "linux/arm/v6",
		"Windows/AMD64":  "windows/amd64",
		"linux":          DefaultPlatform().String(),
	} {
		p, err := ParsePlatform(in)
		if err != nil || p.String() != want {
			t.Errorf("ParsePlatform(%q) = %s, %v; want %s", in, p, err, want)
		}
	}
	for _, in := range []string{"", "a/b/c/d", "linux/", "li nux/amd64"} {
		_, err := ParsePlatform(in)
		wantError(t, err, api.KindInvalid, "linux/arm64")
	}
}
