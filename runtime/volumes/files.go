// SPDX-License-Identifier: Apache-2.0

// Files in and out of volumes that are mounted nowhere.

package volumes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/treecopy"
)

// CopyOptions say how files are copied.
type CopyOptions struct {
	// Archive keeps owners; otherwise files belong to root in a volume, and to
	// the user on the host.
	Archive bool
	// Follow copies what a symbolic link leads to, if the source is one.
	Follow bool
	// Own gives everything to UID and GID.
	Own      bool
	UID, GID uint32
}

// ExportTar writes a file or tree of a volume as a tar archive.
func (s *Store) ExportTar(w io.Writer, r Ref, source string, o CopyOptions) error {
	return s.reading(r, "copy from volume", func(fs *ext4lite.FS) error {
		i, err := find(fs, source, o.Follow)
		if err != nil {
			return err
		}
		defer i.Release()
		return fs.ExportInode(w, i, baseName(source))
	})
}

// ImportTar unpacks a tar archive into a directory of a volume.
func (s *Store) ImportTar(rd io.Reader, r Ref, dir string, o CopyOptions) error {
	return s.writing(r, "copy to volume", func(fs *ext4lite.FS) error {
		return importInto(fs, rd, dir, ext4lite.ImportOptions{Own: o.Own, UID: o.UID, GID: o.GID})
	})
}

// CopyOut copies a file or tree of a volume to the host, to docker's rules.
func (s *Store) CopyOut(r Ref, source, dest string, o CopyOptions) error {
	return s.reading(r, "copy from volume", func(fs *ext4lite.FS) error {
		i, err := find(fs, source, o.Follow)
		if err != nil {
			return err
		}
		defer i.Release()
		what := treecopy.Source{Base: baseName(source), Dir: isDir(i), Contents: contentsOnly(source)}
		dir, name, err := treecopy.Resolve(dest, what)
		if err != nil {
			return err
		}
		root := "."
		if !what.Dir {
			root, name = name, ""
		}
		return pipe(
			func(w io.Writer) error { return fs.ExportInode(w, i, root) },
			func(rd io.Reader) error {
				return treecopy.Unpack(rd, dir, treecopy.UnpackOptions{Name: name, Owner: o.Archive, Xattrs: true, Sparse: true,
					Skipped: func(name, why string) { s.warn("%q is left out: %s", name, why) }})
			})
	})
}

// CopyIn copies a file or tree of the host into a volume, to docker's rules.
func (s *Store) CopyIn(source string, r Ref, dest string, o CopyOptions) error {
	real, what, err := treecopy.Find(source, o.Follow)
	if err != nil {
		return hostError("copy to volume "+r.String(), err)
	}
	return s.writing(r, "copy to volume", func(fs *ext4lite.FS) error {
		dir, name, err := resolve(fs, dest, what)
		if err != nil {
			return err
		}
		pack := treecopy.PackOptions{Xattrs: true, Contents: name == ".", Own: o.Own || !o.Archive, UID: o.UID, GID: o.GID}
		return pipe(
			func(w io.Writer) error { return treecopy.PackWith(w, real, name, pack) },
			func(rd io.Reader) error { return importInto(fs, rd, dir, ext4lite.ImportOptions{}) })
	})
}

// resolve is treecopy.Resolve for a destination in a volume.
func resolve(fs *ext4lite.FS, dest string, what treecopy.Source) (dir, name string, err error) {
	wantsDir := strings.HasSuffix(dest, "/") || strings.HasSuffix(dest, "/.")
	i, err := fs.WalkFollow(dest)
	if err == nil {
		defer i.Release()
		switch {
		case isDir(i) && what.Contents:
			return dest, ".", nil
		case isDir(i):
			return dest, what.Base, nil
		case what.Dir:
			return "", "", fmt.Errorf("cannot copy a directory to the file %s: %w", dest, ext4lite.ENOTDIR)
		case wantsDir:
			return "", "", fmt.Errorf("%s: %w", dest, ext4lite.ENOTDIR)
		}
	} else if !errors.Is(err, ext4lite.ENOENT) {
		return "", "", err
	} else if wantsDir && !what.Dir {
		return "", "", fmt.Errorf("%s: no such directory: %w", dest, ext4lite.ENOENT)
	}
	clean := path.Clean("/" + dest)
	return path.Dir(clean), path.Base(clean), nil
}

func isDir(i *ext4lite.Inode) bool { return i.Mode()&ext4lite.ModeType == ext4lite.ModeDir }

// Cat writes a file's bytes.
func (s *Store) Cat(w io.Writer, r Ref, file string) error {
	return s.reading(r, "read from volume", func(fs *ext4lite.FS) error {
		i, err := find(fs, file, true)
		if err != nil {
			return err
		}
		defer i.Release()
		if i.Mode()&ext4lite.ModeType != ext4lite.ModeReg {
			return fmt.Errorf("%s is no regular file: %w", file, ext4lite.EINVAL)
		}
		_, err = io.Copy(w, i.Reader())
		return err
	})
}

// PutOptions say what a file is made with.
type PutOptions struct {
	Mode     uint16
	UID, GID uint32
	// Parents makes the directories above it.
	Parents bool
}

// putName is a file's name until it is whole.
const putName = ".gvx-put"

// Put makes a file in a volume of what a reader has, or replaces one.
func (s *Store) Put(rd io.Reader, r Ref, file string, o PutOptions) error {
	return s.writing(r, "write to volume", func(fs *ext4lite.FS) error {
		dirName, name := path.Split(path.Clean("/" + file))
		if name == "" {
			return fmt.Errorf("%q names a directory: %w", file, ext4lite.EISDIR)
		}
		dir, err := fs.WalkFollow(dirName)
		if errors.Is(err, ext4lite.ENOENT) && o.Parents {
			dir, err = fs.MkdirAll(dirName, ext4lite.NewInode{Mode: 0o755, UID: o.UID, GID: o.GID})
		}
		if err != nil {
			return err
		}
		defer dir.Release()
		if err := dir.RemoveAll(putName); err != nil {
			return err
		}
		i, err := dir.Create(putName, ext4lite.NewInode{Mode: o.Mode, UID: o.UID, GID: o.GID})
		if err != nil {
			return err
		}
		defer i.Release()
		i.OpenWrite()
		_, err = io.Copy(io.NewOffsetWriter(i, 0), rd)
		i.CloseWrite()
		if err == nil {
			err = fs.Rename(dir, putName, dir, name, 0)
		}
		if err != nil {
			_ = dir.Unlink(putName)
		}
		return err
	})
}

// reading opens a volume to look at it.
func (s *Store) reading(r Ref, op string, do func(*ext4lite.FS) error) error {
	fs, err := s.OpenFS(r, false)
	if err != nil {
		return err
	}
	defer fs.Close()
	return fileError(op, r, do(fs))
}

// writing opens a volume to change it. It is closed in any case: what was done
// until an error is kept, and the volume is clean.
func (s *Store) writing(r Ref, op string, do func(*ext4lite.FS) error) error {
	fs, err := s.OpenFS(r, true)
	if err != nil {
		return err
	}
	err = do(fs)
	if e := fs.Close(); err == nil {
		err = e
	}
	return fileError(op, r, err)
}

// fileError gives an error about files in a volume its kind.
func fileError(op string, r Ref, err error) error {
	var known *api.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case ext4lite.ErrnoOf(err) == ext4lite.ENOENT:
		return api.Errorf(api.KindNotFound, "%s %s: %w", op, r, err)
	case ext4lite.ErrnoOf(err) == ext4lite.ENOSPC:
		return api.Errorf(api.KindNoSpace, "%s %s: %w: 'rungv volume resize' makes it larger, if the host has room", op, r, err)
	case errors.Is(err, os.ErrPermission):
		return api.Errorf(api.KindPermission, "%s %s: %w", op, r, err)
	}
	return api.Errorf(api.KindInvalid, "%s %s: %w", op, r, err)
}

// find finds a file; links on the way are followed, inside the volume, and the
// last one if follow is set.
func find(fs *ext4lite.FS, file string, follow bool) (*ext4lite.Inode, error) {
	clean := path.Clean("/" + file)
	if follow || clean == "/" || strings.HasSuffix(file, "/") || strings.HasSuffix(file, "/.") {
		return fs.WalkFollow(clean)
	}
	dir, err := fs.WalkFollow(path.Dir(clean))
	if err != nil {
		return nil, err
	}
	defer dir.Release()
	i, err := dir.Lookup(path.Base(clean))
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", file, err)
	}
	return i, nil
}

func importInto(fs *ext4lite.FS, rd io.Reader, dir string, o ext4lite.ImportOptions) error {
	i, err := fs.WalkFollow(dir)
	if err != nil {
		return err
	}
	defer i.Release()
	if !isDir(i) {
		return fmt.Errorf("%s is no directory: %w", dir, ext4lite.ENOTDIR)
	}
	return fs.ImportInode(rd, i, o)
}

// pipe joins who writes an archive and who reads it. The reader's error counts:
// the writer's follows from it, or comes through it.
func pipe(write func(io.Writer) error, read func(io.Reader) error) error {
	rd, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(write(w))
	}()
	err := read(rd)
	if err == nil {
		_, err = io.Copy(io.Discard, rd) // the archive's padding, or its error
	}
	rd.CloseWithError(err)
	<-done
	return err
}

// baseName is the last element of a path; "." for the root and for what stands
// for a directory's contents.
func baseName(p string) string {
	if name := path.Base(path.Clean("/" + p)); name != "/" {
		return name
	}
	return "."
}

// contentsOnly says that a source means a directory's contents: docker's "/.".
func contentsOnly(p string) bool {
	return p == "." || strings.HasSuffix(p, "/.") || path.Clean("/"+p) == "/"
}
