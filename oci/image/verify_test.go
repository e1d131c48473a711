// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestShortLayerIsNamedByDigest: also a plain layer, whose digest the stream
// behind the verifier checks.
func TestShortLayerIsNamedByDigest(t *testing.T) {
	plain := digest.FromString("a plain layer")
	for what, stored := range map[string]digest.Digest{"plain": plain, "compressed": digest.FromString("compressed")} {
		for size, says := range map[int64]string{100: "content ends after 3 of 100 bytes", 2: "content is longer than the 2 bytes"} {
			l := NewLayer(ispec.Descriptor{Digest: stored, Size: size}, plain, func(context.Context) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader("abc")), nil
			})
			r, err := l.Uncompressed(t.Context())
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				r.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "layer "+string(stored)+": "+says) {
				t.Errorf("%s, size %d: %v", what, size, err)
			}
		}
	}
}
