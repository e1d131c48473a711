// SPDX-License-Identifier: Apache-2.0

// The one place that knows how a tar becomes an EROFS file.

package images

import (
	"context"
	"encoding/hex"
	"io"
	"os"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/oci/layer"
)

// convertTar reads the tar to its end, and with it checks its digests, and
// writes its tree to out. The same tar gives the same bytes; key, the digest
// that names the file, becomes its UUID.
func convertTar(ctx context.Context, c layer.Converter, tar io.Reader, out *os.File, key hexDigest) (layer.Stats, error) {
	b, err := erofs.NewBuilder(out, erofs.BuilderOptions{UUID: uuidOf(key)})
	if err != nil {
		return layer.Stats{}, err
	}
	stats, err := c.Convert(ctx, tar, b)
	if err != nil {
		return stats, err
	}
	_, err = b.Finish(ctx)
	return stats, err
}

// uuidOf makes a UUID of the kind for other people's schemes (version 8).
func uuidOf(h hexDigest) (u [16]byte) {
	raw, err := hex.DecodeString(string(h[:32]))
	if err != nil {
		panic("images: a hexDigest that is not hexadecimal: " + string(h))
	}
	copy(u[:], raw)
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}
