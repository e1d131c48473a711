// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// Platform is what an image is built for, in Go's words.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// DefaultPlatform is linux, whatever the host is, on the host's architecture.
func DefaultPlatform() Platform {
	return Platform{OS: "linux", Architecture: runtime.GOARCH}.normalize()
}

// platformPart is compiled when it is needed: this package is linked into
// programs that start hundreds of times a second.
var platformPart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`) })

// ParsePlatform reads `--platform`: OS/ARCH[/VARIANT], or one of them alone.
func ParsePlatform(s string) (Platform, error) {
	parts := strings.Split(s, "/")
	if len(parts) > 3 {
		return Platform{}, errPlatform(s)
	}
	for _, part := range parts {
		if !platformPart().MatchString(part) {
			return Platform{}, errPlatform(s)
		}
	}
	p := DefaultPlatform()
	switch {
	case len(parts) == 1 && slices.Contains([]string{"linux", "windows", "darwin", "freebsd"}, strings.ToLower(s)):
		p.OS = parts[0]
	case len(parts) == 1:
		p.Architecture, p.Variant = parts[0], ""
	default:
		p = Platform{OS: parts[0], Architecture: parts[1]}
		if len(parts) == 3 {
			p.Variant = parts[2]
		}
	}
	return p.normalize(), nil
}

func errPlatform(s string) error {
	return api.Errorf(api.KindInvalid, "platform %q: want OS/ARCH or OS/ARCH/VARIANT, for example linux/arm64", s)
}

// String is the form that ParsePlatform reads.
func (p Platform) String() string {
	s := cmp.Or(p.OS, "?") + "/" + cmp.Or(p.Architecture, "?")
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// orDefault fills an unset platform.
func (p Platform) orDefault() Platform {
	if p == (Platform{}) {
		return DefaultPlatform()
	}
	d := DefaultPlatform()
	p.OS = cmp.Or(p.OS, d.OS)
	p.Architecture = cmp.Or(p.Architecture, d.Architecture)
	return p.normalize()
}

// normalize maps the names other tools use to Go's, and drops variants that
// say nothing.
func (p Platform) normalize() Platform {
	p.OS = strings.ToLower(p.OS)
	p.Architecture = strings.ToLower(p.Architecture)
	p.Variant = strings.ToLower(p.Variant)
	switch p.Architecture {
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	case "i386", "i686":
		p.Architecture = "386"
	case "armhf":
		p.Architecture, p.Variant = "arm", cmp.Or(p.Variant, "v7")
	case "armel":
		p.Architecture, p.Variant = "arm", cmp.Or(p.Variant, "v6")
	}
	switch p.Architecture + "/" + p.Variant {
	case "amd64/v1", "arm64/8", "arm64/v8":
		p.Variant = ""
	case "arm/", "arm/7":
		p.Variant = "v7"
	case "arm/6", "arm/5":
		p.Variant = "v" + p.Variant
	}
	return p
}

// match tells how well an image for have runs where p is wanted: 0 not at all,
// more is better. A variant is a level of the instruction set, and lower levels
// run on higher ones.
func (p Platform) match(have Platform) int {
	have = have.normalize()
	if p.OS != have.OS || p.Architecture != have.Architecture {
		return 0
	}
	want, got := level(p), level(have)
	if got > want {
		return 0
	}
	return 1 + got
}

// level is the number in a variant; no variant is the lowest.
func level(p Platform) int {
	n, err := strconv.Atoi(strings.TrimPrefix(p.Variant, "v"))
	if err != nil || n < 0 || n > 99 {
		return 0
	}
	return n
}

// platformOf converts the image specification's form.
func platformOf(p *ispec.Platform) Platform {
	if p == nil {
		return Platform{}
	}
	return Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}.normalize()
}
