// SPDX-License-Identifier: Apache-2.0

package image

// A directory as a tar stream: sorted, hard links kept, symlinks never
// followed, nothing outside the directory reachable.

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// dirMeta is what a host knows of a file beyond fs.FileInfo.
type dirMeta struct {
	uid, gid     int
	dev, ino     uint64
	nlink        uint64
	major, minor int64
	xattrs       map[string]string
}

// dirWriter walks one directory.
type dirWriter struct {
	ctx  context.Context
	dir  string
	root *os.Root
	tw   *tar.Writer
	buf  []byte
	// links maps an inode with several names to its first.
	links   map[[2]uint64]string
	entries int
}

// writeDir writes dir as a tar stream.
func writeDir(ctx context.Context, w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return api.Errorf(kindOfFile(err), "%w", err)
	}
	defer root.Close()
	bw := bufio.NewWriterSize(w, 256<<10)
	d := &dirWriter{ctx: ctx, dir: dir, root: root, tw: tar.NewWriter(bw), buf: make([]byte, 256<<10), links: map[[2]uint64]string{}}
	if err := filepath.WalkDir(dir, d.visit); err != nil {
		return err
	}
	if err := d.tw.Close(); err != nil {
		return err
	}
	return bw.Flush()
}

// visit writes one entry.
func (d *dirWriter) visit(name string, entry fs.DirEntry, err error) error {
	if err != nil {
		return errDir(err)
	}
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if d.entries++; d.entries > layer.DefaultEntries {
		return api.Errorf(api.KindLimit, "%s has more than %d entries", d.dir, layer.DefaultEntries)
	}
	rel, err := filepath.Rel(d.dir, name)
	if err != nil {
		return err
	}
	fi, err := entry.Info()
	if err != nil {
		return errDir(err)
	}
	if fi.Mode()&fs.ModeSocket != 0 {
		return nil // only its server can make a socket; tar has none
	}
	meta, err := statMeta(name, fi)
	if err != nil {
		return errDir(err)
	}
	hdr, err := d.header(name, filepath.ToSlash(rel), fi, meta)
	if err != nil {
		return err
	}
	if err := d.tw.WriteHeader(hdr); err != nil {
		return fmt.Errorf("write entry %s: %w", rel, err)
	}
	if hdr.Typeflag == tar.TypeReg && hdr.Size > 0 {
		return d.content(rel, hdr.Size)
	}
	return nil
}

// header describes an entry, or a link to an earlier name of the same file.
func (d *dirWriter) header(name, rel string, fi fs.FileInfo, meta dirMeta) (*tar.Header, error) {
	hdr := &tar.Header{
		Name: rel, Mode: int64(linuxMode(fi)), Uid: meta.uid, Gid: meta.gid, ModTime: fi.ModTime(),
		Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	for key, value := range meta.xattrs {
		hdr.PAXRecords["SCHILY.xattr."+key] = value
	}
	switch mode := fi.Mode(); {
	case mode.IsDir():
		hdr.Typeflag, hdr.Name = tar.TypeDir, rel+"/"
	case mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(name)
		if err != nil {
			return nil, errDir(err)
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, filepath.ToSlash(target)
	case mode&fs.ModeNamedPipe != 0:
		hdr.Typeflag = tar.TypeFifo
	case mode&fs.ModeCharDevice != 0:
		hdr.Typeflag, hdr.Devmajor, hdr.Devminor = tar.TypeChar, meta.major, meta.minor
	case mode&fs.ModeDevice != 0:
		hdr.Typeflag, hdr.Devmajor, hdr.Devminor = tar.TypeBlock, meta.major, meta.minor
	case mode.IsRegular():
		hdr.Typeflag, hdr.Size = tar.TypeReg, fi.Size()
	default:
		return nil, api.Errorf(api.KindUnsupported, "%s: files of type %s cannot be in an image", name, mode.Type())
	}
	if meta.nlink > 1 && !fi.IsDir() {
		key := [2]uint64{meta.dev, meta.ino}
		if first, ok := d.links[key]; ok {
			return &tar.Header{Typeflag: tar.TypeLink, Name: rel, Linkname: first, Mode: hdr.Mode, Uid: hdr.Uid, Gid: hdr.Gid, ModTime: hdr.ModTime, Format: tar.FormatPAX}, nil
		}
		d.links[key] = rel
	}
	return hdr, nil
}

// content copies a file's bytes, as many as its header says.
func (d *dirWriter) content(rel string, size int64) error {
	f, err := d.root.OpenFile(rel, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return errDir(err)
	}
	defer f.Close()
	// The name may be another file's by now.
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return errChanged(rel)
	}
	// The wrapper hides ReadFrom, which would bring a small buffer of its own.
	n, err := io.CopyBuffer(struct{ io.Writer }{d.tw}, io.LimitReader(f, size), d.buf)
	if err != nil {
		return fmt.Errorf("read %s: %w", rel, err)
	}
	if n != size {
		return errChanged(rel)
	}
	return nil
}

func errChanged(rel string) error {
	return api.Errorf(api.KindState, "%s changed while it was read: import a directory that nobody writes to", rel)
}

// errDir classifies a failed call on the directory.
func errDir(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return api.Errorf(api.KindPermission, "%w (an image needs every file: run as the files' owner or root)", err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return api.Errorf(api.KindState, "%w (removed while it was read)", err)
	}
	return err
}

// linuxMode gives the permission bits of st_mode.
func linuxMode(fi fs.FileInfo) uint32 {
	m := fi.Mode()
	mode := uint32(m.Perm())
	if runtime.GOOS == "windows" {
		mode |= 0o111 // it has no such bit, and a shell without it is useless
	}
	if m&fs.ModeSetuid != 0 {
		mode |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		mode |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}
