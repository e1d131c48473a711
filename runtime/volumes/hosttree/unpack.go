// SPDX-License-Identifier: Apache-2.0

// Archives onto the host.

package hosttree

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
	"time"
)

// UnpackOptions say how an archive becomes files.
type UnpackOptions struct {
	// Owners keeps the owners of the archive, which takes root. Otherwise all
	// belongs to whoever unpacks.
	Owners bool
	// Warn is told what could not be kept: devices, attributes.
	Warn func(format string, args ...any)
}

// Unpack makes the files of an archive below a directory, and nowhere else.
func Unpack(r io.Reader, dir string, o UnpackOptions) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, o: o}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err == nil {
			err = u.entry(h, t)
		}
		if err != nil {
			name := ""
			if h != nil {
				name = h.Name
			}
			return fmt.Errorf("write %q below %s: %w", name, dir, err)
		}
	}
}

type unpacker struct {
	root *os.Root
	o    UnpackOptions
	// dirs get their mode and times last: one may forbid writing, and what is
	// made in it changes the other.
	dirs []*tar.Header
}

func (u *unpacker) warn(format string, args ...any) {
	if u.o.Warn != nil {
		u.o.Warn(format, args...)
	}
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return errors.New("the name leads out of the directory")
	}
	h.Name = name
	if h.Typeflag == tar.TypeDir {
		return u.directory(h)
	}
	if err := u.makeRoom(name); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, r)
	case tar.TypeLink:
		target := path.Clean(strings.TrimLeft(h.Linkname, "/"))
		return u.root.Link(target, name)
	case tar.TypeSymlink:
		if err = u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.own(h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if err = makeNode(u.root, h); err != nil {
			u.warn("%s is left out: it is a device or pipe: %v: copy to '-' for an archive that has it", name, err)
			return nil
		}
		return u.own(h)
	}
	u.warn("%s is left out: an entry of type %q", name, h.Typeflag)
	return nil
}

// makeRoom makes the directories above a name, and takes away what has it.
func (u *unpacker) makeRoom(name string) error {
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	fi, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && fi.IsDir() {
		return errors.New("a directory has the name: it is not replaced by something else")
	}
	if err == nil {
		err = u.root.Remove(name)
	}
	return err
}

func (u *unpacker) directory(h *tar.Header) error {
	fi, err := u.root.Lstat(h.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err = u.root.MkdirAll(h.Name, 0o755); err == nil {
			// Writable until it is full.
			err = u.root.Chmod(h.Name, 0o700)
		}
		if err != nil {
			return err
		}
	case err != nil:
		return err
	case !fi.IsDir():
		return errors.New("cannot overwrite a file with a directory")
	case h.Name == ".":
		return nil // the user's own: its contents were asked for
	}
	u.dirs = append(u.dirs, h)
	return nil
}

// fileChunk is what is looked at for zeros, and a multiple of a block.
const fileChunk = 64 << 10

// file writes a regular file. Runs of zeros become holes.
func (u *unpacker) file(h *tar.Header, r io.Reader) error {
	f, err := u.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, fileChunk)
	for off := int64(0); off < h.Size; {
		p := buf[:min(fileChunk, h.Size-off)]
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		if !allZero(p) {
			if _, err := f.WriteAt(p, off); err != nil {
				return err
			}
		}
		off += int64(len(p))
	}
	if err := f.Truncate(h.Size); err != nil {
		return err
	}
	// The owner first: a change of it takes set-ID bits and capabilities away.
	if err := u.own(h); err != nil {
		return err
	}
	u.setXattrs(f, h)
	if err := u.root.Chmod(h.Name, u.mode(h)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return u.root.Chtimes(h.Name, h.ModTime, h.ModTime)
}

// mode keeps set-ID bits only together with the owner they were meant for.
func (u *unpacker) mode(h *tar.Header) os.FileMode {
	m := h.FileInfo().Mode()
	if !u.o.Owners {
		m &^= os.ModeSetuid | os.ModeSetgid
	}
	return m & (os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky)
}

func (u *unpacker) own(h *tar.Header) error {
	if !u.o.Owners {
		return nil
	}
	return u.root.Lchown(h.Name, h.Uid, h.Gid)
}

// finish completes directories, the deepest first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		fi, err := u.root.Lstat(h.Name)
		if err != nil || !fi.IsDir() {
			continue // replaced by a later entry
		}
		if err := u.own(h); err != nil {
			return err
		}
		if f, err := u.root.Open(h.Name); err == nil {
			u.setXattrs(f, h)
			f.Close()
		}
		if err := u.root.Chmod(h.Name, u.mode(h)); err != nil {
			return err
		}
		at := h.ModTime
		if at.IsZero() {
			at = time.Now()
		}
		if err := u.root.Chtimes(h.Name, at, at); err != nil {
			return err
		}
	}
	return nil
}

// setXattrs sets the attributes that the archive has.
func (u *unpacker) setXattrs(f *os.File, h *tar.Header) {
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, paxXattr)
		if !ok || !u.o.Owners && !strings.HasPrefix(name, "user.") {
			continue
		}
		if err := setXattr(f, name, v); err != nil {
			u.warn("%s: its attribute %s is not kept: %v", h.Name, name, err)
		}
	}
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
