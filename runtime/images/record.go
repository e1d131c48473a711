// SPDX-License-Identifier: Apache-2.0

// The store's own documents: image records, layer records and names. All are
// read back as if somebody else had written them.

package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxBlobBytes bounds manifests and configurations, as oci/image does.
	maxBlobBytes = max(image.MaxManifestBytes, image.MaxConfigBytes)
	// maxRecordBytes bounds a record: an image's configuration, in which JSON
	// may take six bytes for one, and some hundred bytes a layer.
	maxRecordBytes = 8 * image.MaxConfigBytes
	// maxNameBytes bounds an image's name: repository names are at most 255,
	// tags 128, digests 71.
	maxNameBytes = 1024
)

// hexDigest is the 64 hexadecimal digits of a sha256, safe as a file name.
type hexDigest string

// hexOf checks d and returns its digits.
func hexOf(d digest.Digest) (hexDigest, error) {
	h, ok := strings.CutPrefix(string(d), "sha256:")
	if !ok || !isHex(h) || len(h) != sha256.Size*2 {
		return "", api.Errorf(api.KindUnsupported, "digest %q: want sha256 and 64 hexadecimal digits", d)
	}
	return hexDigest(h), nil
}

func isHex(s string) bool {
	for _, c := range s {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

func (h hexDigest) digest() digest.Digest { return digest.Digest("sha256:" + string(h)) }

// imageRecord is images/HEX.json, where HEX is of the image's configuration.
type imageRecord struct {
	Version  int                `json:"version"`
	ID       digest.Digest      `json:"id"`
	Manifest digest.Digest      `json:"manifest"`
	Platform ispec.Platform     `json:"platform"`
	Config   ispec.ImageConfig  `json:"config"`
	Created  *time.Time         `json:"created,omitempty"`
	Stored   time.Time          `json:"stored"`
	Layers   []imageRecordLayer `json:"layers"`
}

type imageRecordLayer struct {
	DiffID digest.Digest `json:"diffID"`
	// Key names the converted layer: the diff ID when absent, or the chain ID.
	Key digest.Digest `json:"key,omitempty"`
	// Size is that of the uncompressed tar.
	Size int64 `json:"size"`
}

// key is the checked digest that names the layer's files.
// Preconditions: the record was checked.
func (l *imageRecordLayer) key() hexDigest {
	if l.Key == "" {
		return hexDigest(l.DiffID.Encoded())
	}
	return hexDigest(l.Key.Encoded())
}

func (r *imageRecord) check(h hexDigest) error {
	if r.Version != Version || r.ID != h.digest() {
		return fmt.Errorf("version %d of %q, want %d of %s", r.Version, r.ID, Version, h)
	}
	if _, err := hexOf(r.Manifest); err != nil {
		return err
	}
	if len(r.Layers) > api.MaxLayers {
		return fmt.Errorf("%d layers, at most %d", len(r.Layers), api.MaxLayers)
	}
	for _, l := range r.Layers {
		if _, err := hexOf(l.DiffID); err != nil {
			return err
		}
		if _, err := hexOf(l.Key); l.Key != "" && err != nil {
			return err
		}
		if l.Size < 0 {
			return fmt.Errorf("layer %s: negative size", l.DiffID)
		}
	}
	return nil
}

// layerRecord is layers/sha256/HEX.json, where HEX is of the layer's key.
type layerRecord struct {
	Version int `json:"version"`
	// Key is the diff ID of a layer that stands alone, or the chain ID of one
	// that was converted for the layers below it.
	Key    digest.Digest `json:"key"`
	DiffID digest.Digest `json:"diffID"`
	// Digest and Size are of the blob that the layer was converted from.
	Digest digest.Digest `json:"digest,omitempty"`
	Size   int64         `json:"size,omitempty"`
	// Converter is the converterVersion that made it.
	Converter int `json:"converter"`
	// Implicit says that the tar lacks directories of its entries, so that
	// above other layers it has to be converted for those.
	Implicit bool `json:"implicit,omitempty"`
	// ErofsSize is the length of the converted file; 0 when there is none,
	// and the record only says that it is implicit.
	ErofsSize int64 `json:"erofsSize,omitempty"`
	// TarSize is the length of the tar whose hash is the diff ID.
	TarSize int64 `json:"tarSize,omitempty"`
	// Framing says how the tar is made again: framingSplit or framingTar.
	Framing string `json:"framing,omitempty"`
}

func (r *layerRecord) check(h hexDigest) error {
	switch {
	case r.Version != Version || r.Key != h.digest():
		return fmt.Errorf("version %d of %q, want %d of %s", r.Version, r.Key, Version, h)
	case r.Implicit && r.ErofsSize == 0:
		return nil
	case r.TarSize < 0 || r.ErofsSize <= 0:
		return fmt.Errorf("sizes %d and %d", r.TarSize, r.ErofsSize)
	case r.Framing != framingSplit && r.Framing != framingTar:
		return fmt.Errorf("unknown framing %q", r.Framing)
	}
	return nil
}

// refRecord is refs/HEX.json, where HEX is the hash of the name: names hold
// slashes, and some file systems do not tell upper from lower case.
type refRecord struct {
	Version  int           `json:"version"`
	Name     string        `json:"name"`
	Image    digest.Digest `json:"image"`
	Manifest digest.Digest `json:"manifest"`
}

func (r *refRecord) check(path string) error {
	if r.Version != Version || len(r.Name) > maxNameBytes || filepath.Base(path) != refFile(r.Name) {
		return fmt.Errorf("version %d of name %q", r.Version, r.Name)
	}
	if _, err := hexOf(r.Image); err != nil {
		return err
	}
	_, err := hexOf(r.Manifest)
	return err
}

func refFile(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:]) + ".json"
}

func (s *Store) refPath(name string) string { return filepath.Join(s.dir(dirRefs), refFile(name)) }

// readRecord reads the JSON document at path into r and checks it. An absent
// file is fs.ErrNotExist; a damaged one is of kind image, and its error gives
// the advice.
func readRecord(path, advice string, r any, check func() error) error {
	b, err := readFile(path, maxRecordBytes)
	if err == nil {
		if err = json.Unmarshal(b, r); err == nil {
			err = check()
		}
	} else if !errors.Is(err, errTooLong) {
		return err
	}
	if err != nil {
		return api.Errorf(api.KindImage, "image store: %s is damaged: %s: %w", path, advice, err)
	}
	return nil
}

func (s *Store) writeRecord(kind, path string, r any) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return s.writeFile(kind, path, append(b, '\n'), 0o644)
}

func (s *Store) readImage(h hexDigest) (*imageRecord, error) {
	var r imageRecord
	advice := fmt.Sprintf("remove it with rungv image rm -f %s or rungv image prune, and pull or import the image again", shortID(h.digest()))
	return &r, readRecord(s.imagePath(h), advice, &r, func() error { return r.check(h) })
}

func (s *Store) readLayer(h hexDigest) (*layerRecord, error) {
	var r layerRecord
	return &r, readRecord(s.layerFile(h, extRecord), "pull or import the image again", &r, func() error { return r.check(h) })
}

func (s *Store) readRef(path string) (*refRecord, error) {
	var r refRecord
	// Its file does not tell which name it was.
	return &r, readRecord(path, "remove it with rungv image prune, and pull or import the image again", &r, func() error { return r.check(path) })
}
