// SPDX-License-Identifier: Apache-2.0

package image

// Tar archives of images, read in place: one pass over the headers finds where
// each file lies, and layers are then read as sections of the archive.

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxArchiveEntries bounds the index of an archive: a few files for each
	// layer of each image.
	maxArchiveEntries = 100_000
	// maxArchiveLinks bounds links in an archive: docker linked equal layers.
	maxArchiveLinks = 8
)

// tarFiles is an archive's index.
type tarFiles struct {
	f *os.File
	// temporary files are removed in the end.
	temporary bool
	entries   map[string]tarEntry
}

// tarEntry is where a file lies, or where it links to.
type tarEntry struct {
	offset, size int64
	link         string
}

// openArchive indexes the tar file at path. A compressed one is decompressed
// to a temporary file first, because sections of it cannot be read otherwise.
func openArchive(ctx context.Context, name string, o Options) (*tarFiles, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	t := &tarFiles{f: f, entries: map[string]tarEntry{}}
	var head [6]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		f.Close()
		return nil, fmt.Errorf("read archive %s: %w", name, err)
	}
	if layer.Detect(head[:n]) != layer.Plain {
		if err := t.spool(ctx, name, o); err != nil {
			t.Close()
			return nil, err
		}
	}
	if err := t.scan(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("archive %s: %w", name, err)
	}
	return t, nil
}

// openRegular opens a file and refuses what would block or never end.
func openRegular(name string) (*os.File, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "%w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, api.Errorf(api.KindInvalid, "%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, api.Errorf(kindOfFile(err), "%w", err)
	}
	return f, nil
}

// spool replaces t.f by a decompressed temporary file.
func (t *tarFiles) spool(ctx context.Context, name string, o Options) error {
	total := int64(0)
	if fi, err := t.f.Stat(); err == nil {
		total = fi.Size()
	}
	src := &observer{ReadCloser: t.f, ctx: ctx, report: o.Progress, event: Event{Phase: PhaseScan, Name: name, Total: total}}
	s, err := layer.Decompress(ctx, src, "", o.Limits)
	if err != nil {
		return err
	}
	defer s.Close()
	tmp, err := os.CreateTemp("", "gvx-archive-*.tar")
	if err != nil {
		return fmt.Errorf("decompress archive %s: %w", name, err)
	}
	t.f, t.temporary = tmp, true
	if _, err := io.Copy(tmp, s); err != nil {
		kind := api.KindOf(err)
		if errors.Is(err, syscall.ENOSPC) {
			kind = api.KindNoSpace
		}
		return api.Errorf(kind, "decompress archive %s to %s: %w (TMPDIR chooses another place)", name, tmp.Name(), err)
	}
	_, err = tmp.Seek(0, io.SeekStart)
	return err
}

// scan reads the headers. The tar reader seeks over contents, and consumes
// whole headers and nothing more, so that the file's position after each is
// where the content begins.
func (t *tarFiles) scan(ctx context.Context) error {
	tr := tar.NewReader(t.f)
	for n := 0; ; n++ {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return api.Errorf(api.KindImage, "not a tar archive, or a broken one, after %d entries: %w", n, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n >= maxArchiveEntries {
			return api.Errorf(api.KindLimit, "more than %d entries", maxArchiveEntries)
		}
		name := path.Clean("/" + hdr.Name)
		switch hdr.Typeflag {
		case tar.TypeReg:
			offset, err := t.f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			t.entries[name] = tarEntry{offset: offset, size: hdr.Size}
		case tar.TypeSymlink:
			t.entries[name] = tarEntry{link: path.Join("/", path.Dir(name), hdr.Linkname)}
		case tar.TypeLink:
			t.entries[name] = tarEntry{link: path.Clean("/" + hdr.Linkname)}
		}
	}
}

// open implements files.
func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	key := path.Clean("/" + name)
	for range maxArchiveLinks {
		e, ok := t.entries[key]
		if !ok {
			return nil, 0, fmt.Errorf("%s: %w in the archive", name, fs.ErrNotExist)
		}
		if e.link == "" {
			return io.NopCloser(io.NewSectionReader(t.f, e.offset, e.size)), e.size, nil
		}
		key = e.link
	}
	return nil, 0, api.Errorf(api.KindImage, "%s: too many links in the archive", name)
}

// Close implements files.
func (t *tarFiles) Close() error {
	err := t.f.Close()
	if t.temporary {
		err = errors.Join(err, os.Remove(t.f.Name()))
		t.temporary = false
	}
	return err
}

// resolveArchive reads oci-archive:FILE and docker-archive:FILE. The latter is
// an OCI layout too since docker 25.
func (s Source) resolveArchive(ctx context.Context, o Options) (*Image, error) {
	t, err := openArchive(ctx, s.path, o)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s, err)
	}
	_, isLayout := t.entries["/oci-layout"]
	if s.transport == OCIArchive || isLayout {
		return s.resolveIndex(ctx, t, o)
	}
	img, err := s.fromDockerArchive(ctx, t, o)
	if err != nil {
		t.Close()
		return nil, err
	}
	return img, nil
}
