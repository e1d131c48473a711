// SPDX-License-Identifier: Apache-2.0

// Package hosttree turns files of the host into tar archives and archives into
// files of the host: the host's end of copies to and from volumes.
//
// An archive comes out of a volume, which a guest may have written: [Unpack]
// leaves its directory by no name and by no link, replaces what has a name
// instead of writing through it, and makes devices for nobody but root.
//
// It knows nothing of volumes.
package hosttree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
)

// paxXattr is the prefix GNU tar and others keep attributes under.
const paxXattr = "SCHILY.xattr."

// maxDepth bounds how deep directories are nested that are packed.
const maxDepth = 4096

// PackOptions say what is packed.
type PackOptions struct {
	// Name is the tree's in the archive; "." gives a directory's contents and
	// nothing about the directory.
	Name string
	// Follow packs what a symbolic link leads to, if the source is one.
	Follow bool
	// Own gives everything to UID and GID.
	Own      bool
	UID, GID uint32
}

// Pack writes a file or tree of the host as a tar archive. Sockets, which mean
// nothing elsewhere, are left out.
func Pack(w io.Writer, source string, o PackOptions) error {
	p := &packer{w: tar.NewWriter(w), o: o, seen: map[fileID]string{}}
	fi, err := os.Lstat(source)
	if err == nil && o.Follow {
		fi, err = os.Stat(source)
	}
	if err == nil {
		err = p.add(source, o.Name, fi, 0)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", source, err)
	}
	return p.w.Close()
}

type packer struct {
	w    *tar.Writer
	o    PackOptions
	seen map[fileID]string // first name of a file with several
}

func (p *packer) add(source, name string, fi os.FileInfo, depth int) error {
	if fi.Mode()&os.ModeSocket != 0 {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: directories are nested too deep", source)
	}
	if name == "." && fi.IsDir() {
		return p.children(source, name, depth) // its contents, not itself
	}
	link := ""
	if fi.Mode()&os.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(source); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return err
	}
	h.Name, h.Format, h.Uname, h.Gname = name, tar.FormatPAX, "", ""
	if fi.IsDir() {
		h.Name += "/"
	}
	if p.o.Own {
		h.Uid, h.Gid = int(p.o.UID), int(p.o.GID)
	}
	if id, several := identify(fi); several && !fi.IsDir() {
		if first := p.seen[id]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.w.WriteHeader(h)
		}
		p.seen[id] = name
	}
	if err := addXattrs(h, source, fi); err != nil {
		return err
	}
	if err := p.w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	switch {
	case fi.IsDir():
		return p.children(source, name, depth)
	case fi.Mode().IsRegular():
		return p.data(source, h.Size)
	}
	return nil
}

func (p *packer) children(source, name string, depth int) error {
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err == nil {
			err = p.add(filepath.Join(source, e.Name()), path.Join(name, e.Name()), fi, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// data copies as many bytes as the header has announced.
func (p *packer) data(source string, size int64) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(p.w, io.LimitReader(f, size))
	if err == nil && n < size {
		err = fmt.Errorf("%s became shorter while it was read", source)
	}
	return err
}

// fileID names a file of the host.
type fileID struct{ dev, ino uint64 }
