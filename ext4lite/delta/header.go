// SPDX-License-Identifier: Apache-2.0

// The header of a delta, stored twice.

package delta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

var le = binary.LittleEndian

const (
	magic         = "gvxdelta"
	formatVersion = 2
	maxBasePath   = 2048
	headerSize    = BlockSize
	csumOffset    = headerSize - 4

	// flagMerging says that a commit into the base has begun: the base is no
	// longer what it was, and the commit must be finished.
	flagMerging = 1
)

var errChanged = fmt.Errorf("it changed since the delta was made, which makes the delta useless: "+
	"a base stays as it is while it has clones: %w", errno.ESTALE)

// header is what a delta's first two blocks say; each holds all of it.
type header struct {
	flags      uint32
	generation uint64 // the higher of the two headers counts
	size       int64
	baseSize   int64
	baseID     [32]byte
	basePath   string
}

func newHeader(base device.Device, basePath, path string) (header, error) {
	h := header{generation: 1, size: base.Size(), baseSize: base.Size(), basePath: basePath}
	var err error
	if h.baseID, err = identity(base); err != nil {
		return h, err
	}
	if h.size <= 0 || h.size > MaxSize {
		return h, fmt.Errorf("%d bytes, at most %d are possible: %w", h.size, int64(MaxSize), errno.EFBIG)
	}
	if path != "" && filepath.Dir(path) == filepath.Dir(basePath) {
		h.basePath = filepath.Base(basePath)
	} else if h.basePath, err = filepath.Abs(basePath); err != nil {
		return h, err
	}
	if len(h.basePath) > maxBasePath {
		return h, fmt.Errorf("path of %d bytes: %w", len(h.basePath), errno.ENAMETOOLONG)
	}
	if strings.ContainsFunc(h.basePath, unicode.IsControl) { // a path in a header is printed, whoever wrote it
		return h, fmt.Errorf("the base's path %q has control characters: rename it: %w", h.basePath, errno.EINVAL)
	}
	return h, nil
}

// matches tells whether a base is the one the delta was made on.
func (h *header) matches(base device.Device) error {
	id, err := identity(base)
	if err != nil {
		return err
	}
	if base.Size() != h.baseSize || id != h.baseID {
		return errChanged
	}
	return nil
}

func (h *header) encode() []byte {
	p := make([]byte, headerSize)
	copy(p, magic)
	le.PutUint32(p[8:], formatVersion)
	le.PutUint32(p[12:], h.flags)
	le.PutUint64(p[16:], h.generation)
	le.PutUint32(p[24:], BlockSize)
	le.PutUint32(p[28:], uint32(len(h.basePath)))
	le.PutUint64(p[32:], uint64(h.size))
	le.PutUint64(p[40:], uint64(h.baseSize))
	copy(p[48:80], h.baseID[:])
	copy(p[128:128+maxBasePath], h.basePath)
	le.PutUint32(p[csumOffset:], disk.CRC32C(^uint32(0), p[:csumOffset]))
	return p
}

func decodeHeader(p []byte) (h header, err error) {
	bad := func(format string, args ...any) (header, error) {
		return h, fmt.Errorf("delta header: %s: %w", fmt.Sprintf(format, args...), errno.EUCLEAN)
	}
	if len(p) < headerSize || string(p[:len(magic)]) != magic {
		return bad("no magic")
	}
	if v := le.Uint32(p[8:]); v != formatVersion {
		return h, fmt.Errorf("delta header: format %d, this version knows %d: flatten it with the version that made it, or clone its base anew: %w",
			v, formatVersion, errno.EOPNOTSUPP)
	}
	if got, want := disk.CRC32C(^uint32(0), p[:csumOffset]), le.Uint32(p[csumOffset:]); got != want {
		return bad("checksum %#08x, computed %#08x", want, got)
	}
	h.flags, h.generation = le.Uint32(p[12:]), le.Uint64(p[16:])
	h.size, h.baseSize = int64(le.Uint64(p[32:])), int64(le.Uint64(p[40:]))
	n := le.Uint32(p[28:])
	if le.Uint32(p[24:]) != BlockSize || h.size <= 0 || h.size > MaxSize || h.baseSize != h.size || n == 0 || n > maxBasePath ||
		h.flags&^flagMerging != 0 {
		return bad("impossible numbers")
	}
	copy(h.baseID[:], p[48:80])
	h.basePath = string(p[128 : 128+n])
	if strings.ContainsFunc(h.basePath, unicode.IsControl) {
		return bad("impossible path")
	}
	return h, nil
}

// readHeader takes the newer of the two headers that are whole.
func readHeader(f io.ReaderAt) (header, error) {
	var best header
	var errs []error
	for k := range 2 {
		p := make([]byte, headerSize)
		if _, err := f.ReadAt(p, int64(k)*headerSize); err != nil {
			errs = append(errs, err)
			continue
		}
		h, err := decodeHeader(p)
		if errors.Is(err, errno.EOPNOTSUPP) {
			return best, err // the other one says the same
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if h.generation >= best.generation {
			best = h
		}
	}
	if best.generation == 0 {
		return best, errors.Join(errs...)
	}
	return best, nil
}

// writeHeader stores a new generation over the older header, then over the
// other, each durable before the next.
func (d *Delta) writeHeader(h header) error {
	for range 2 {
		h.generation++
		if _, err := d.f.WriteAt(h.encode(), int64(h.generation%2)*headerSize); err != nil {
			return fmt.Errorf("write delta header: %w", err)
		}
		if err := d.syncData(); err != nil {
			return err
		}
	}
	d.h = h
	return nil
}
