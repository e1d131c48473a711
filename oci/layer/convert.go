// SPDX-License-Identifier: Apache-2.0

package layer

// Convert: the tar stream of a layer, replayed into a sink. All state is in the
// sink, apart from a cache of resolved directories, so that what counts is
// always what the tree says now.

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"time"

	"z.gfire.dev/gvx/oci/erofs"
	"z.gfire.dev/gvx/runtime/api"
)

// Sink takes the tree. [erofs.Builder] is one; paths are relative to the root,
// which is "", and clean.
type Sink interface {
	// Add adds or replaces an entry. A directory that replaces a directory
	// keeps its children; anything else replaces a whole tree. Of data exactly
	// e.Size bytes are read.
	Add(path string, e erofs.Entry, data io.Reader) error
	// Link gives the file at target another name.
	Link(path, target string) error
	// Lookup returns the entry at path, not following a symlink there.
	Lookup(path string) (erofs.Entry, bool)
}

// Stats counts what a layer held.
type Stats struct {
	Entries      int
	Files        int
	Directories  int
	Symlinks     int
	HardLinks    int
	Devices      int
	Whiteouts    int
	Opaque       int
	ImplicitDirs int
	// LowerUsed says that the result depends on the layers below, not on this
	// one alone: see [Converter.Lower].
	LowerUsed bool
	// DroppedXattrs counts attributes that do not go into an image.
	DroppedXattrs int
	// Bytes is the length of the tar stream, DataBytes that of all files.
	Bytes, DataBytes int64
}

// Converter converts layers. Its zero value has the default limits.
type Converter struct {
	Limits Limits
	// Lower, if not nil, looks up an entry in the layers below. Directories
	// that this layer's entries need but that it does not have take their
	// owner, mode and attributes from there, and symlinks among parents are
	// followed there, as when containerd unpacks a layer over its parent. A
	// conversion that used it says so in its Stats.
	Lower func(path string) (erofs.Entry, bool)
}

// Convert reads the uncompressed tar stream r to its end and adds its entries
// to sink. It is [Converter.Convert] without lower layers.
func Convert(ctx context.Context, r io.Reader, sink Sink, limits Limits) (Stats, error) {
	return Converter{Limits: limits}.Convert(ctx, r, sink)
}

// Convert reads the uncompressed tar stream r to its end and adds its entries
// to sink. An error names the entry; it is KindImage for what is broken,
// KindLimit for what exceeds a limit, KindNoSpace for a full disk, or whatever
// r itself failed with.
func (c Converter) Convert(ctx context.Context, r io.Reader, sink Sink) (Stats, error) {
	run := &conversion{ctx: ctx, limits: c.Limits.withDefaults(), lower: c.Lower, sink: sink, dirs: map[string]string{}}
	run.src = &source{r: r, max: run.limits.Bytes}
	var in io.Reader = run.src
	if _, ok := r.(*Stream); !ok {
		in = bufio.NewReaderSize(run.src, chunkBytes)
	}
	err := run.all(tar.NewReader(in))
	if err == nil {
		// Padding after the end; and the end is where digests are checked.
		if _, err = io.Copy(io.Discard, in); err != nil {
			err = run.classify(err)
		}
	}
	run.stats.Bytes = run.src.n
	return run.stats, err
}

// conversion is one run of Convert.
type conversion struct {
	ctx    context.Context
	limits Limits
	lower  func(string) (erofs.Entry, bool)
	sink   Sink
	src    *source
	stats  Stats
	// dirs caches which directory a path of a directory leads to.
	dirs map[string]string
	// steps counts components walked, for maxSteps.
	steps int64
}

// source bounds the stream, and remembers its error under whatever the tar
// reader or the sink makes of it.
type source struct {
	r   io.Reader
	n   int64
	max int64
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	if s.n > s.max {
		err = errLimit("Bytes", s.max, "uncompressed layer is larger than %d bytes", s.max)
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// all replays all entries.
func (c *conversion) all(tr *tar.Reader) error {
	last := ""
	for {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return c.errTar(err, last)
		}
		c.stats.Entries++
		if c.stats.Entries > c.limits.Entries {
			return errLimit("Entries", int64(c.limits.Entries), "layer has more than %d entries", c.limits.Entries)
		}
		if err := c.entry(hdr, tr); err != nil {
			return c.errEntry(hdr, err)
		}
		last = hdr.Name
	}
}

// errTar explains a stream that is no tar, or ends too early.
func (c *conversion) errTar(err error, last string) error {
	where := "at its beginning"
	if c.stats.Entries > 0 {
		where = fmt.Sprintf("after entry %d (%.200q)", c.stats.Entries, last)
	}
	switch {
	case c.src.err != nil:
		return c.src.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return api.Errorf(api.KindImage, "layer's tar stream is truncated %s", where)
	case errors.Is(err, tar.ErrFieldTooLong):
		return errLimit("header bytes", headerBytes, "layer's tar stream %s has an extended header of more than %d bytes", where, headerBytes)
	}
	return api.Errorf(api.KindImage, "layer is not a tar stream %s: %w", where, err)
}

// errEntry says which entry an error is about.
func (c *conversion) errEntry(hdr *tar.Header, err error) error {
	err = c.classify(err)
	return api.Errorf(api.KindOf(err), "layer entry %d (%.200q): %w", c.stats.Entries, hdr.Name, err)
}

// classify gives an error from the sink or the stream its kind.
func (c *conversion) classify(err error) error {
	switch {
	case c.src.err != nil:
		return c.src.err
	case api.KindOf(err) != api.KindInternal, c.ctx.Err() != nil:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return api.Errorf(api.KindNoSpace, "%w", err)
	case errors.Is(err, erofs.ErrLimit):
		return api.Errorf(api.KindLimit, "%w", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return api.Errorf(api.KindImage, "the tar stream is truncated: %w", err)
	case errors.Is(err, erofs.ErrInvalid), errors.Is(err, erofs.ErrNotDir), errors.Is(err, tar.ErrHeader):
		return api.Errorf(api.KindImage, "%w", err)
	}
	return err
}

// entry replays one entry.
func (c *conversion) entry(hdr *tar.Header, data io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil // comments, such as git's
	}
	name, err := c.clean(hdr.Name)
	if err != nil {
		return err
	}
	dir, base := split(name)
	if reserved(dir) || strings.HasPrefix(base, metaPrefix) && base != opaqueName {
		if strings.HasPrefix(base, metaPrefix) || strings.Contains("/"+dir, "/"+metaPrefix) {
			return nil // bookkeeping of AUFS, as docker skips it
		}
		return api.Errorf(api.KindImage, "names that begin with %q are reserved for whiteouts, and those have no children", whiteoutPrefix)
	}
	if name != "" {
		if dir, err = c.parent(dir); err != nil {
			return err
		}
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return c.whiteout(dir, base)
	}
	path := join(dir, base)
	if hdr.Typeflag == tar.TypeLink {
		return c.hardLink(path, hdr.Linkname)
	}
	e, err := c.describe(hdr)
	if err != nil {
		return err
	}
	return c.add(path, e, data)
}

// add adds or replaces an entry, with what whiteouts have said of it.
func (c *conversion) add(path string, e erofs.Entry, data io.Reader) error {
	old, exists := c.sink.Lookup(path)
	isDir := e.Mode&erofs.ModeType == erofs.ModeDir
	wasDir := exists && old.Mode&erofs.ModeType == erofs.ModeDir
	if path == "" && !isDir {
		return api.Errorf(api.KindImage, "the root is not a directory")
	}
	if isDir && exists && (isWhiteout(old) || wasDir && isOpaque(old)) {
		setOpaque(&e)
	}
	c.forget(old, exists, isDir)
	switch e.Mode & erofs.ModeType {
	case erofs.ModeDir:
		c.stats.Directories++
	case erofs.ModeRegular:
		c.stats.Files++
		c.stats.DataBytes += e.Size
		if c.stats.DataBytes > c.limits.Bytes {
			return errLimit("Bytes", c.limits.Bytes, "the files of the layer are larger than %d bytes", c.limits.Bytes)
		}
	case erofs.ModeSymlink:
		c.stats.Symlinks++
	default:
		c.stats.Devices++
	}
	return c.sink.Add(path, e, data)
}

// forget empties the cache when paths through what old was lead elsewhere now:
// it was a directory that is replaced, or a symlink, or it hides one below.
func (c *conversion) forget(old erofs.Entry, exists, isDir bool) {
	kind := old.Mode & erofs.ModeType
	if exists && (kind == erofs.ModeSymlink || kind == erofs.ModeDir && !isDir) || !exists && c.stats.LowerUsed {
		clear(c.dirs)
	}
}

// hardLink links path to a target that must be in this layer.
func (c *conversion) hardLink(path, linkname string) error {
	target, err := c.clean(linkname)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", linkname, err)
	}
	dir, base := split(target)
	if dir, err = c.resolve(dir, false); err != nil {
		return fmt.Errorf("hard link to %.200q: %w", linkname, err)
	}
	target = join(dir, base)
	e, ok := c.sink.Lookup(target)
	switch {
	case !ok || isWhiteout(e):
		return api.Errorf(api.KindImage, "hard link to %.200q, which is not in this layer", linkname)
	case e.Mode&erofs.ModeType == erofs.ModeDir:
		return api.Errorf(api.KindImage, "hard link to the directory %.200q", linkname)
	case path == "":
		return api.Errorf(api.KindImage, "the root is a hard link")
	}
	old, exists := c.sink.Lookup(path)
	c.forget(old, exists, false)
	c.stats.HardLinks++
	return c.sink.Link(path, target)
}

// describe translates a header, but for hard links.
func (c *conversion) describe(hdr *tar.Header) (erofs.Entry, error) {
	e := erofs.Entry{Mode: uint32(hdr.Mode) & 0o7777, Mtime: boundTime(hdr.ModTime)}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Mode |= erofs.ModeRegular
		e.Size = hdr.Size
	case tar.TypeDir:
		e.Mode |= erofs.ModeDir
	case tar.TypeSymlink:
		e.Mode |= erofs.ModeSymlink
		if e.Linkname = hdr.Linkname; e.Linkname == "" || len(e.Linkname) > maxPathBytes || strings.ContainsRune(e.Linkname, 0) {
			return e, api.Errorf(api.KindImage, "symlink with an empty, overlong or broken target")
		}
	case tar.TypeChar, tar.TypeBlock:
		e.Mode |= erofs.ModeChar
		if hdr.Typeflag == tar.TypeBlock {
			e.Mode = e.Mode&^erofs.ModeType | erofs.ModeBlock
		}
		if hdr.Devmajor < 0 || hdr.Devmajor > math.MaxUint32 || hdr.Devminor < 0 || hdr.Devminor > math.MaxUint32 {
			return e, api.Errorf(api.KindImage, "device number %d:%d is out of range", hdr.Devmajor, hdr.Devminor)
		}
		e.Major, e.Minor = uint32(hdr.Devmajor), uint32(hdr.Devminor)
	case tar.TypeFifo:
		e.Mode |= erofs.ModeFIFO
	default:
		return e, api.Errorf(api.KindUnsupported, "unknown type %q of entry", hdr.Typeflag)
	}
	if hdr.Uid < 0 || int64(hdr.Uid) > maxID || hdr.Gid < 0 || int64(hdr.Gid) > maxID {
		return e, api.Errorf(api.KindImage, "owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	e.UID, e.GID = uint32(hdr.Uid), uint32(hdr.Gid)
	var err error
	e.Xattrs, err = c.xattrs(hdr)
	return e, err
}

// boundTime keeps times that Linux file systems agree on, and makes the epoch
// of all others, as docker and containerd do.
func boundTime(t time.Time) time.Time {
	if s := t.Unix(); s < 0 || s >= math.MaxInt64/int64(time.Second) {
		return time.Unix(0, 0)
	}
	return t
}
