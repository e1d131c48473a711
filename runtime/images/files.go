// SPDX-License-Identifier: Apache-2.0

// Reading a converted layer file by file, for framing and saving.

package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"z.gfire.dev/gvx/oci/erofs"
)

// erofsFiles is layerFiles of one converted layer. Consecutive members of a
// tar mostly share their directory, so the last one is remembered.
type erofsFiles struct {
	im      *erofs.Image
	lastDir string
	last    erofs.Inode
}

// openLayerFiles reads the superblock of the converted layer f.
func openLayerFiles(f *os.File) (layerFiles, error) {
	im, err := openImage(f)
	if err != nil {
		return nil, err
	}
	root, err := im.Inode(im.Root())
	if err != nil {
		return nil, err
	}
	return &erofsFiles{im: im, last: root}, nil
}

// OpenFile implements layerFiles.
func (e *erofsFiles) OpenFile(path string) (io.ReadCloser, int64, error) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	if dir != e.lastDir {
		if err := e.walk(dir); err != nil {
			return nil, 0, err
		}
	}
	ino, err := e.child(&e.last, name)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	if ino.Mode&erofs.ModeType != erofs.ModeRegular {
		return nil, 0, fmt.Errorf("%s: not a regular file", path)
	}
	return io.NopCloser(io.NewSectionReader(inodeReader{e.im, &ino}, 0, ino.Size)), ino.Size, nil
}

// walk makes dir the remembered directory.
func (e *erofsFiles) walk(dir string) error {
	ino, err := e.im.Inode(e.im.Root())
	if err != nil {
		return err
	}
	if dir != "" {
		for _, name := range strings.Split(dir, "/") {
			// A symlink here is no directory, and Lookup says so.
			if ino, err = e.child(&ino, name); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
		}
	}
	e.lastDir, e.last = dir, ino
	return nil
}

// isAbsent reports whether a lookup found nothing, neither name nor attribute.
func isAbsent(err error) bool {
	return errors.Is(err, erofs.ErrNotExist) || errors.Is(err, erofs.ErrNoXattr)
}

func (e *erofsFiles) child(dir *erofs.Inode, name string) (erofs.Inode, error) {
	nid, _, err := e.im.Lookup(dir, name)
	if err != nil {
		return erofs.Inode{}, err
	}
	return e.im.Inode(nid)
}

// inodeReader is io.ReaderAt of one file.
type inodeReader struct {
	im  *erofs.Image
	ino *erofs.Inode
}

// ReadAt implements io.ReaderAt.
func (r inodeReader) ReadAt(p []byte, off int64) (int, error) { return r.im.ReadAt(r.ino, p, off) }
