// SPDX-License-Identifier: Apache-2.0

package treecopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Find looks at a source path. A path that ends in a slash or in "/." follows
// a link, and one that follow says so too.
func Find(p string, follow bool) (real string, s Source, err error) {
	clean := filepath.Clean(p)
	s.Base = filepath.Base(clean)
	s.Contents = p == "." || strings.HasSuffix(p, "/.")
	stat := os.Lstat
	if follow || strings.HasSuffix(p, "/") || s.Contents {
		stat = os.Stat
		if clean, err = filepath.EvalSymlinks(clean); err != nil {
			return "", s, notFound(err)
		}
	}
	fi, err := stat(clean)
	if err != nil {
		return "", s, notFound(err)
	}
	s.Dir = fi.IsDir()
	if !s.Dir && (strings.HasSuffix(p, "/") || s.Contents) {
		return "", s, &fs.PathError{Op: "copy", Path: p, Err: errors.New("not a directory")}
	}
	return clean, s, nil
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return missingError{err}
	}
	return err
}

// PackOptions say what is packed of a tree besides the files.
type PackOptions struct {
	// Xattrs packs extended attributes.
	Xattrs bool
	// Contents leaves the entry of the tree's own root out.
	Contents bool
	// Own gives everything to UID and GID.
	Own      bool
	UID, GID uint32
}

// Pack writes the tree at real as a tar stream, its root under the name root.
// A file that changes size meanwhile is cut or filled up with zeros, as it was
// announced.
func Pack(w io.Writer, real, root string) error { return PackWith(w, real, root, PackOptions{}) }

// PackWith is Pack with options.
func PackWith(w io.Writer, real, root string, o PackOptions) error {
	p := &packer{tar: tar.NewWriter(w), links: make(map[fileID]string), buf: make([]byte, copyBytes), o: o}
	err := filepath.WalkDir(real, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			if name != real && errors.Is(err, fs.ErrNotExist) {
				return nil // Removed while we came to it.
			}
			return err
		}
		if o.Contents && name == real {
			return nil
		}
		rel, err := filepath.Rel(real, name)
		if err != nil {
			return err
		}
		return p.add(name, path.Join(root, filepath.ToSlash(rel)))
	})
	if err != nil {
		return err
	}
	return p.tar.Close()
}

type packer struct {
	tar *tar.Writer
	// links are the first names of files with several.
	links map[fileID]string
	buf   []byte
	o     PackOptions
}

// add writes one entry.
func (p *packer) add(name, entry string) error {
	fi, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSocket != 0 {
		return nil // As docker: a socket is nothing without its owner.
	}
	link := ""
	if fi.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// By number: names mean something else on the other side.
	h.Name, h.Uname, h.Gname, h.Format = entry, "", "", tar.FormatPAX
	if fi.IsDir() {
		h.Name += "/"
	}
	if p.o.Own {
		h.Uid, h.Gid = int(p.o.UID), int(p.o.GID)
	}
	if id, ok := idOf(fi); ok && fi.Mode().IsRegular() {
		if first, seen := p.links[id]; seen {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tar.WriteHeader(h)
		}
		if len(p.links) < maxLinks {
			p.links[id] = entry
		}
	}
	if p.o.Xattrs {
		if err := readXattrs(h, name); err != nil {
			return err
		}
	}
	if !fi.Mode().IsRegular() {
		return p.tar.WriteHeader(h)
	}
	f, err := openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.tar}, io.LimitReader(f, h.Size), p.buf)
	if err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	if n < h.Size {
		_, err = io.CopyBuffer(onlyWriter{p.tar}, io.LimitReader(zeros{}, h.Size-n), p.buf)
	}
	return err
}

// onlyWriter hides other methods, so that our buffer is used.
type onlyWriter struct{ io.Writer }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
