// SPDX-License-Identifier: Apache-2.0

package image

// Verification: no byte leaves this package's readers as complete before its
// digest and size agreed.

import (
	"bytes"
	"fmt"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// errDigest is a digest that is not what a descriptor or the user said.
func errDigest(what string, got, want digest.Digest) error {
	return api.Errorf(api.KindImage, "%s: content has digest %s, want %s: it is corrupt or was tampered with", what, got, want)
}

// checkDigest refuses digests that are malformed or of unknown algorithms,
// before they name a file or choose a hash.
func checkDigest(what string, d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return api.Errorf(api.KindImage, "%s: digest %q: %w", what, d, err)
	}
	return nil
}

// verifier checks size and digest at the end of a stream. It reads one byte
// more than size, never two, so that a source without an end costs nothing.
type verifier struct {
	src  io.ReadCloser
	what string
	want digest.Digest
	sum  hash.Hash
	left int64
	size int64
	err  error
}

// newVerifier wraps rc.
// Preconditions: want passed checkDigest.
func newVerifier(rc io.ReadCloser, what string, want digest.Digest, size int64) *verifier {
	v := newSizeVerifier(rc, what, want, size)
	v.sum = want.Algorithm().Hash()
	return v
}

// newSizeVerifier is newVerifier for content that somebody else hashes: want
// only names it in errors.
func newSizeVerifier(rc io.ReadCloser, what string, want digest.Digest, size int64) *verifier {
	return &verifier{src: rc, what: what, want: want, left: size, size: size}
}

// Read implements io.Reader.
func (v *verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	if v.left == 0 {
		v.err = v.atEnd()
		return 0, v.err
	}
	if int64(len(p)) > v.left {
		p = p[:v.left]
	}
	n, err := v.src.Read(p)
	if v.sum != nil {
		v.sum.Write(p[:n])
	}
	v.left -= int64(n)
	switch {
	case err == nil:
	case err == io.EOF && v.left > 0:
		v.err = api.Errorf(api.KindImage, "%s %s: content ends after %d of %d bytes", v.what, v.want, v.size-v.left, v.size)
	case err == io.EOF:
		v.err = v.atEnd()
	default:
		v.err = fmt.Errorf("read %s %s: %w", v.what, v.want, err)
	}
	return n, v.err
}

// Close closes the source.
func (v *verifier) Close() error { return v.src.Close() }

// atEnd checks, after size bytes, that nothing follows and the digest agrees.
func (v *verifier) atEnd() error {
	var one [1]byte
	for {
		n, err := v.src.Read(one[:])
		if n > 0 {
			return api.Errorf(api.KindImage, "%s %s: content is longer than the %d bytes its descriptor says", v.what, v.want, v.size)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s %s: %w", v.what, v.want, err)
		}
	}
	if v.sum == nil {
		return io.EOF
	}
	if got := digest.NewDigest(v.want.Algorithm(), v.sum); got != v.want {
		return errDigest(v.what, got, v.want)
	}
	return io.EOF
}

// readDocument reads a JSON document of known digest and size, bounded.
func readDocument(rc io.ReadCloser, what string, desc ispec.Descriptor, maxBytes int64) ([]byte, error) {
	defer rc.Close()
	if err := checkDocument(what, desc, maxBytes); err != nil {
		return nil, err
	}
	return io.ReadAll(newVerifier(rc, what, desc.Digest, desc.Size))
}

// checkDocument checks a descriptor before its bytes are fetched.
func checkDocument(what string, desc ispec.Descriptor, maxBytes int64) error {
	if desc.Size < 0 || desc.Size > maxBytes {
		return api.Errorf(api.KindLimit, "%s %s: %d bytes, more than the %d allowed", what, desc.Digest, desc.Size, maxBytes)
	}
	return checkDigest(what, desc.Digest)
}

// readBounded reads a document whose size nobody declared.
func readBounded(r io.Reader, what string, maxBytes int64) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if n > maxBytes {
		return nil, api.Errorf(api.KindLimit, "%s: larger than the %d bytes allowed", what, maxBytes)
	}
	return b.Bytes(), nil
}
