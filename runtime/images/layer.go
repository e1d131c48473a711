// SPDX-License-Identifier: Apache-2.0

// Layers: making sure that the store holds one, converting it at most once.

package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// converterVersion counts changes of what a layer converts to. A pull makes
// layers of a lower version anew; runs use what is there.
const converterVersion = 1

// errNeedsLower says that a layer cannot be converted alone: see lower.go.
var errNeedsLower = errors.New("layer depends on those below it")

// heldLayer is a layer that is pinned until its image is published.
type heldLayer struct {
	file *os.File
	key  hexDigest
	rec  *layerRecord
	// made says that this call converted it.
	made bool
}

// holdLayer pins a layer that is there, whole and of the present version. It
// returns nil without an error when the layer has to be converted.
func (s *Store) holdLayer(j *layerJob, key hexDigest) (*heldLayer, error) {
	rec, err := s.readLayer(key)
	switch {
	case errors.Is(err, fs.ErrNotExist), api.KindOf(err) == api.KindImage:
		return nil, nil // A damaged record is mended by converting again.
	case err != nil:
		return nil, err
	case rec.Converter < converterVersion:
		return nil, nil
	case rec.Implicit && key != j.chainID:
		return nil, errNeedsLower
	}
	f, err := openShared(s.layerPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || fi.Size() != rec.ErofsSize {
		f.Close()
		return nil, err
	}
	return &heldLayer{file: f, key: key, rec: rec}, nil
}

// ensureLayer returns the layer pinned, having converted it if nobody else
// has. waiting is called when another process is at it.
func (s *Store) ensureLayer(ctx context.Context, j *layerJob, waiting func()) (*heldLayer, error) {
	held, err := s.ensureKey(ctx, j, j.diffID, nil, waiting)
	if !errors.Is(err, errNeedsLower) {
		return held, err
	}
	// No lock is held here: another image may have the same layers in another
	// order, and its puller may wait for ours.
	view, err := j.lower(ctx)
	if err != nil {
		return nil, err
	}
	return s.ensureKey(ctx, j, j.chainID, view, waiting)
}

// ensureKey is ensureLayer for one of the layer's keys.
func (s *Store) ensureKey(ctx context.Context, j *layerJob, key hexDigest, view *lowerView, waiting func()) (*heldLayer, error) {
	if held, err := s.holdLayer(j, key); held != nil || err != nil {
		return held, err
	}
	unlock, err := s.lockConversion(ctx, key, waiting)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if held, err := s.holdLayer(j, key); held != nil || err != nil {
		return held, err
	}
	if err := s.step("convert " + string(key)); err != nil {
		return nil, err
	}
	if err := s.convertLayer(ctx, j, key, view); err != nil {
		return nil, fmt.Errorf("layer %s: %w", j.Digest, err)
	}
	held, err := s.holdLayer(j, key)
	if err == nil && held == nil {
		err = api.Errorf(api.KindInternal, "layer %s: vanished from the store while it was pulled", j.Digest)
	}
	if held != nil {
		held.made = true
	}
	return held, err
}

// lockConversion takes the right to convert a layer.
func (s *Store) lockConversion(ctx context.Context, h hexDigest, waiting func()) (unlock func(), err error) {
	path := s.lockFile(h)
	f, err := s.tryConversion(h)
	if err != nil {
		return nil, err
	}
	if f == nil {
		waiting()
		if f, err = lockPath(ctx, path, exclusive); err != nil {
			return nil, s.writeError("lock layer", path, 0, err)
		}
	}
	return func() { removeLocked(f, path) }, nil
}

// convertLayer writes the files of a layer, the converted one last: its
// presence is what makes the layer exist. Where it fails, nothing of a layer
// that was not there before stays.
// Preconditions: the caller holds the conversion lock of key.
func (s *Store) convertLayer(ctx context.Context, j *layerJob, key hexDigest, view *lowerView) (err error) {
	var parts []string
	defer func() {
		if err != nil {
			s.dropParts(key, parts)
		}
	}()
	out, split, err := s.layerTemps(j)
	if err != nil {
		return err
	}
	defer out.discard()
	defer split.discard()

	rec := &layerRecord{
		Version: Version, Key: key.digest(), DiffID: j.DiffID, Digest: j.Digest, Size: j.Size,
		Converter: converterVersion, Framing: framingSplit,
	}
	err = s.stream(ctx, j, view, rec, out, split)
	switch {
	case errors.Is(err, errNeedsLower):
		mark := &layerRecord{Version: Version, Key: rec.Key, DiffID: j.DiffID, Converter: converterVersion, Implicit: true}
		j.marked = gone(s.layerFile(key, extRecord))
		if err := s.writeRecord("record", s.layerFile(key, extRecord), mark); err != nil {
			return err
		}
		return errNeedsLower
	case errors.Is(err, errNoFraming):
		rec.Framing = framingTar
		parts = append(parts, s.layerFile(key, extTar))
		err = s.keepTar(ctx, j, key)
	case err == nil:
		parts = append(parts, s.layerFile(key, extSplit))
		err = split.commit(s.layerFile(key, extSplit), 0o444)
	}
	if err != nil {
		return s.writeError("convert", s.layerPath(key), max(rec.TarSize, j.Size), err)
	}
	fi, err := out.Stat()
	if err != nil {
		return err
	}
	rec.ErofsSize = fi.Size()
	parts = append(parts, s.layerFile(key, extRecord))
	if err := s.writeRecord("record", s.layerFile(key, extRecord), rec); err != nil {
		return err
	}
	return out.commit(s.layerPath(key), 0o444)
}

// dropParts removes the files of a layer that a failed conversion wrote,
// unless the layer exists: a former conversion's is still of use.
// Preconditions: the caller holds the conversion lock of key.
func (s *Store) dropParts(key hexDigest, parts []string) {
	if !gone(s.layerPath(key)) {
		return
	}
	for _, path := range parts {
		// Best effort: the failure is the error to report.
		_ = s.remove(path, nil)
	}
}

// layerTemps are the files that a conversion writes, or has written.
func (s *Store) layerTemps(j *layerJob) (out, split *temp, err error) {
	if j.scan != nil {
		return j.scan.out, j.scan.split, nil
	}
	if out, err = s.newTemp("layer"); err != nil {
		return nil, nil, err
	}
	if split, err = s.newTemp("framing"); err != nil {
		out.discard()
		return nil, nil, err
	}
	return out, split, nil
}

// stream converts the layer into out and records its framing in split. The
// layer is verified when it returns nil or errNoFraming.
func (s *Store) stream(ctx context.Context, j *layerJob, view *lowerView, rec *layerRecord, out, split *temp) error {
	var (
		fr  *framer
		err error
	)
	if j.scan != nil {
		var stats layer.Stats
		fr, stats, err = j.scan.finish(ctx, hexDigest(rec.Key.Encoded()))
		rec.TarSize, rec.Implicit = fr.read, stats.ImplicitDirs > 0
		if err != nil {
			fr.abort()
		}
	} else {
		fr, err = s.convert(ctx, j, view, rec, out, split)
	}
	if err != nil {
		return err
	}
	if err := fr.finish(); err != nil {
		return err
	}
	files, err := openLayerFiles(out.File)
	if err != nil {
		return err
	}
	return checkContents(fr.pack.contents, files)
}

// convert reads the layer from its source. It returns its framing, to be
// finished, or an error.
func (s *Store) convert(ctx context.Context, j *layerJob, view *lowerView, rec *layerRecord, out, split *temp) (*framer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conv := layer.Converter{Limits: s.opt.Source.Limits}
	switch {
	case view != nil:
		conv.Lower = view.lookup
	case j.diffID != j.chainID:
		// The first missing directory ends this conversion.
		conv.Lower = func(string) (erofs.Entry, bool) {
			cancel(errNeedsLower)
			return erofs.Entry{}, false
		}
	}
	tar, err := j.Uncompressed(ctx)
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	fr := newFramer(tar, split)
	stats, err := convertTar(ctx, conv, fr, out.File, hexDigest(rec.Key.Encoded()))
	rec.TarSize, rec.Implicit = fr.read, stats.ImplicitDirs > 0
	if cause := context.Cause(ctx); errors.Is(cause, errNeedsLower) {
		err = cause // Also when the tar ended before it was noticed.
	} else if err == nil && view != nil {
		err = view.err
	}
	if err != nil {
		fr.abort()
		return nil, err
	}
	return fr, nil
}

// keepTar stores the tar of a layer that has no framing, from a second reading
// of its source.
func (s *Store) keepTar(ctx context.Context, j *layerJob, key hexDigest) error {
	t, err := s.newTemp("tar")
	if err != nil {
		return err
	}
	defer t.discard()
	tar, err := j.Uncompressed(ctx)
	if err != nil {
		return err
	}
	defer tar.Close()
	enc, err := zstd.NewWriter(t, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if _, err := io.Copy(enc, tar); err != nil {
		enc.Close()
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	return t.commit(s.layerFile(key, extTar), 0o444)
}
