// SPDX-License-Identifier: Apache-2.0

// Load and Import: images from archives and file systems, also from a stream.

package images

import (
	"context"
	"io"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

// Load stores all images of an archive read from r, with their names. It
// returns those that were stored, also when a later one failed.
func (s *Store) Load(ctx context.Context, r io.Reader, o PullOptions) ([]*Image, error) {
	t, err := s.spool(ctx, r)
	if err != nil {
		return nil, err
	}
	defer t.discard()
	return s.LoadFile(ctx, t.path, o)
}

// LoadFile is Load of a file.
func (s *Store) LoadFile(ctx context.Context, path string, o PullOptions) ([]*Image, error) {
	rep := &reporter{sink: o.Progress, ref: path}
	opt := s.sourceOptions(o, rep)
	entries, err := image.ListArchive(ctx, path, opt)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, api.Errorf(api.KindNotFound, "archive %s: it holds no image", path)
	}
	var out []*Image
	for _, e := range entries {
		img, err := s.loadEntry(ctx, e, opt, rep)
		if err != nil {
			return out, err
		}
		out = append(out, img)
	}
	return out, nil
}

func (s *Store) loadEntry(ctx context.Context, e image.ArchiveEntry, opt image.Options, rep *reporter) (*Image, error) {
	found, err := e.Source.Resolve(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	return s.storeImage(ctx, found, e.Names, rep, nil)
}

// Import stores a root file system, a tar file read from r, as an image.
// Preconditions of the options are those of Pull.
func (s *Store) Import(ctx context.Context, r io.Reader, o PullOptions) (*Image, error) {
	t, err := s.spool(ctx, r)
	if err != nil {
		return nil, err
	}
	defer t.discard()
	src, err := image.Parse(string(image.RootfsTar) + ":" + t.path)
	if err != nil {
		return nil, err
	}
	return s.pullSource(ctx, src, o)
}

// spool copies a stream to a temporary file, because archives are read in no
// order, and layers more than once.
func (s *Store) spool(ctx context.Context, r io.Reader) (*temp, error) {
	t, err := s.newTemp("spool")
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(t, readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	}))
	if err != nil {
		t.discard()
		return nil, s.writeError("read archive", t.path, n, err)
	}
	return t, nil
}

// readerFunc is io.Reader by a function.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
