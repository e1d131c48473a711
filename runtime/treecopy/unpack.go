// SPDX-License-Identifier: Apache-2.0

package treecopy

import (
	"archive/tar"
	"bytes"
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

// Resolve says where a source goes, by docker's rules: into which directory,
// which exists, and under which name there. An empty name is for what lies in
// the source, and not the source itself.
func Resolve(dest string, s Source) (dir, name string, err error) {
	wantsDir := strings.HasSuffix(dest, "/") || strings.HasSuffix(dest, "/.") || dest == "."
	fi, err := os.Stat(dest)
	switch {
	case err == nil && fi.IsDir():
		if s.Contents {
			return dest, "", nil
		}
		return dest, s.Base, nil
	case err == nil && s.Dir:
		return "", "", fmt.Errorf("cannot copy a directory to the file %s", dest)
	case err == nil && wantsDir:
		return "", "", fmt.Errorf("%s: not a directory", dest)
	case err == nil:
		real, err := filepath.EvalSymlinks(dest)
		if err != nil {
			return "", "", err
		}
		return filepath.Dir(real), filepath.Base(real), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", "", err
	case wantsDir && !s.Dir:
		return "", "", fmt.Errorf("%s: no such directory", dest)
	}
	clean := filepath.Clean(dest)
	dir, name = filepath.Dir(clean), filepath.Base(clean)
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return "", "", fmt.Errorf("%s: no such directory", dir)
	}
	return dir, name, nil
}

// UnpackOptions say how a stream is laid out.
type UnpackOptions struct {
	// Name is what the entries' root becomes, empty for the directory itself.
	Name string
	// Owner keeps owners, which otherwise become whoever unpacks.
	Owner bool
	// Inside is for the container's side, where device nodes, pipes and
	// set-user-id bits are the container's own affair.
	Inside bool
	// Xattrs keeps extended attributes: those of users, with Owner all.
	Xattrs bool
	// Sparse makes holes of runs of zeros.
	Sparse bool
	// Skipped, if not nil, is told what was left out and why.
	Skipped func(name, why string)
}

// Unpack lays a tar stream out below dir. Nothing is written anywhere else:
// names that lead out of dir, by links or otherwise, are errors.
func Unpack(r io.Reader, dir string, o UnpackOptions) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, o: o, tar: tar.NewReader(r), buf: make([]byte, copyBytes)}
	for {
		h, err := u.tar.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("read the stream of files: %w", err)
		}
		if err := u.entry(h); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root *os.Root
	o    UnpackOptions
	tar  *tar.Reader
	buf  []byte
	dirs []dirTime
}

type dirTime struct {
	name string
	mode fs.FileMode
	time time.Time
	head *tar.Header // where there are attributes to be set
}

// target is where an entry's name goes.
func (u *unpacker) target(name string) string {
	return path.Join(u.o.Name, path.Clean(strings.TrimLeft(name, "/")))
}

func (u *unpacker) entry(h *tar.Header) error {
	name := u.target(h.Name)
	if name == "." {
		return nil // The destination itself stays as it is.
	}
	if parent := path.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	mode := h.FileInfo().Mode()
	if !u.o.Inside {
		mode &^= fs.ModeSetuid | fs.ModeSetgid
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, mode, h)
	case tar.TypeReg:
		return u.file(name, mode, h)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.own(name, h)
	case tar.TypeLink:
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(u.target(h.Linkname), name)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if u.o.Inside {
			if err := u.clear(name); err != nil {
				return err
			}
			if err := makeNode(u.root, name, h); err != nil {
				return err
			}
			return u.own(name, h)
		}
		u.skip(name, "devices and pipes are not made on the host")
		return nil
	case tar.TypeXGlobalHeader:
		return nil
	}
	u.skip(name, fmt.Sprintf("unknown type %q", h.Typeflag))
	return nil
}

func (u *unpacker) skip(name, why string) {
	if u.o.Skipped != nil {
		u.o.Skipped(name, why)
	}
}

// clear makes room for an entry that is no directory.
func (u *unpacker) clear(name string) error {
	fi, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return errors.New("cannot overwrite a directory with something else")
	}
	return u.root.Remove(name)
}

func (u *unpacker) dir(name string, mode fs.FileMode, h *tar.Header) error {
	fi, err := u.root.Lstat(name)
	switch {
	case err == nil && fi.Mode()&fs.ModeSymlink != 0:
		// A directory behind a link is one, inside of the destination.
		if fi, err = u.root.Stat(name); err != nil {
			return err
		}
		fallthrough
	case err == nil:
		if !fi.IsDir() {
			return errors.New("cannot overwrite with a directory what is none")
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// Ours alone until it is complete.
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	if len(u.dirs) < maxTimes {
		d := dirTime{name: name, mode: mode, time: h.ModTime}
		if u.o.Xattrs && len(h.PAXRecords) > 0 {
			d.head = h
		}
		u.dirs = append(u.dirs, d)
	} else if err := u.root.Chmod(name, mode); err != nil {
		return err
	}
	return u.own(name, h)
}

func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if err := u.clear(name); err != nil {
		if !isBusy(err) {
			return err
		}
		// Something is mounted on it: /etc/hosts of a container, say.
		flags = os.O_WRONLY | os.O_TRUNC
	}
	f, err := u.root.OpenFile(name, flags, 0o600)
	if err != nil {
		return err
	}
	if u.o.Sparse {
		err = u.sparse(f, h.Size)
	} else {
		_, err = io.CopyBuffer(onlyWriter{f}, onlyReader{u.tar}, u.buf)
	}
	if err == nil && u.o.Owner {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil && u.o.Xattrs {
		u.setXattrs(f, name, h)
	}
	if err == nil {
		err = f.Chmod(mode) // After its owner, whose change takes bits away.
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

type onlyReader struct{ io.Reader }

// sparse writes a file's data, but for runs of zeros.
func (u *unpacker) sparse(f *os.File, size int64) error {
	for off := int64(0); off < size; {
		p := u.buf[:min(int64(len(u.buf)), size-off)]
		if _, err := io.ReadFull(u.tar, p); err != nil {
			return err
		}
		if len(bytes.Trim(p, "\x00")) > 0 {
			if _, err := f.WriteAt(p, off); err != nil {
				return err
			}
		}
		off += int64(len(p))
	}
	return f.Truncate(size)
}

// setXattrs sets the attributes that the stream has and this user may set.
func (u *unpacker) setXattrs(f *os.File, name string, h *tar.Header) {
	for k, v := range h.PAXRecords {
		x, ok := strings.CutPrefix(k, paxXattr)
		if !ok || !u.o.Owner && !strings.HasPrefix(x, "user.") {
			continue
		}
		if err := setXattr(f, x, v); err != nil {
			u.skip(name, fmt.Sprintf("its attribute %s: %v", x, err))
		}
	}
}

func (u *unpacker) own(name string, h *tar.Header) error {
	if !u.o.Owner {
		return nil
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

// finish sets what directories lose while something is put into them, the
// deepest first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := &u.dirs[i]
		if d.head != nil {
			if f, err := u.root.Open(d.name); err == nil {
				u.setXattrs(f, d.name, d.head)
				f.Close()
			}
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := u.root.Chmod(d.name, d.mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
