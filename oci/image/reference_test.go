// SPDX-License-Identifier: Apache-2.0

package image

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
)

// referenceSeeds are the grammar's corners.
var referenceSeeds = []string{
	"debian", "debian:12", "Debian", "a/b", "a/b/c:t", "quay.io/a/b", "quay.io/a", "localhost/a", "localhost", "localhost:5000", "localhost:5000/a:b",
	"docker.io/a", "docker.io/a/b", "docker.io/library/a", "index.docker.io/a", "docker.io/library/a/b", "library/a", "library/library/a", "UPPER/a", "UPPER/A",
	"[::1]/a", "[::1]:5000/a:t", "[::1]x/a", "[]/a", "[g::1]/a", "[::1]", "a.b:/c", "a.b:5x/c", "-a.b/c", "a-.b/c", "a..b/c", ".b/c", "a./c",
	"a_b", "a__b", "a___b", "a.b", "a..b", "a-b", "a---b", "a-_b", "a._b", "_a", "a_", "a//b", "/a", "a/", "", ":", "@", "a:", "a:.t", "a:-t", "a:_t", "a:t:u", "a@", "a:t@",
	"a@sha256:" + strings.Repeat("0", 64), "a:t@sha256:" + strings.Repeat("f", 64), "a@sha256:" + strings.Repeat("0", 63), "a@sha256:" + strings.Repeat("F", 64),
	"a@sha512:" + strings.Repeat("1", 128), "a@md5:" + strings.Repeat("0", 32), "a@sha256:" + strings.Repeat("0", 64) + "@x", "a@b/c",
	strings.Repeat("0", 64), strings.Repeat("g", 64), strings.Repeat("a", 247), strings.Repeat("a", 248), strings.Repeat("a", 255) + "/b", "a:" + strings.Repeat("t", 128), "a:" + strings.Repeat("t", 129),
	"a b", "ä", "a:ä", "a\x00", "x.y/Z", "x.y/z@sha256:" + strings.Repeat("0", 64), "a:b/c", "a.b:1/c:2/d", "EXAMPLE.com/a", "a:5000/b",
}

// sameAsLibrary compares with what docker itself parses names with.
func sameAsLibrary(t *testing.T, s string) {
	t.Helper()
	got, err := parseName(s)
	want, wantErr := reference.ParseNormalizedNamed(s)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, %v; docker says %v, %v", s, got, err, want, wantErr)
	}
	if err != nil {
		return
	}
	if got.String() != want.String() || got.repository() != want.Name() || got.familiar() != reference.FamiliarName(want) {
		t.Fatalf("%q: %s, %s; docker says %s, %s", s, got, got.familiar(), want, reference.FamiliarName(want))
	}
	tagged := reference.TagNameOnly(want)
	if got := got.withTag(); got.String() != tagged.String() || got.familiar()+got.suffix() != reference.FamiliarString(tagged) {
		t.Fatalf("%q: %s with its default tag; docker says %s", s, got, tagged)
	}
	if got.domain != reference.Domain(want) || got.path != reference.Path(want) {
		t.Fatalf("%q: registry %s, path %s; docker says %s, %s", s, got.domain, got.path, reference.Domain(want), reference.Path(want))
	}
}

func TestNamesAreReadAsDockerReadsThem(t *testing.T) {
	for _, s := range referenceSeeds {
		sameAsLibrary(t, s)
	}
}

// TestLongNamesAreRefusedAtOnce: an archive may name its image by megabytes, of
// which none is looked at twice.
func TestLongNamesAreRefusedAtOnce(t *testing.T) {
	for _, s := range []string{"-", "_", ".", "a", "/", "A", ":"} {
		long := "a" + strings.Repeat(s, 16<<20) + "a"
		if n, err := parseName(long); err == nil {
			t.Errorf("a name of %q again and again is taken as one of %d bytes", s, len(n.String()))
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range referenceSeeds {
		f.Add(s)
	}
	f.Fuzz(sameAsLibrary)
}
