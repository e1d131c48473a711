// SPDX-License-Identifier: Apache-2.0

// Paths, for tools: a volume's files without handles. Symbolic links are not
// followed, except where a function says so.

package ext4lite

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

const (
	// maxFollow bounds how many symbolic links one path may lead through.
	maxFollow = 40
	// maxDepth bounds recursions: a volume's directories may be nested deeper
	// than any path can name, or be in themselves.
	maxDepth = 4096
)

// Walk finds the inode at a slash-separated path from the root.
func (fs *FS) Walk(path string) (*Inode, error) { return fs.walk(path, false) }

// WalkFollow is Walk, following symbolic links, the last one too. Links do not
// lead out of the volume.
func (fs *FS) WalkFollow(path string) (*Inode, error) { return fs.walk(path, true) }

func (fs *FS) walk(path string, follow bool) (*Inode, error) {
	cur, err := fs.Root()
	if err != nil {
		return nil, err
	}
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next, err := cur.Lookup(name)
		if err != nil {
			cur.Release()
			return nil, fmt.Errorf("path %q: %w", path, err)
		}
		if follow && next.Mode()&ModeType == disk.ModeLink {
			target, err := next.Readlink()
			next.Release()
			if links++; err == nil && links > maxFollow {
				err = ELOOP
			}
			if err != nil {
				cur.Release()
				return nil, fmt.Errorf("path %q: %w", path, err)
			}
			rest = append(strings.Split(target, "/"), rest...)
			if strings.HasPrefix(target, "/") {
				cur.Release()
				if cur, err = fs.Root(); err != nil {
					return nil, err
				}
			}
			continue
		}
		cur.Release()
		cur = next
	}
	return cur, nil
}

// WalkParent finds the directory a path's last name is in, and that name.
func (fs *FS) WalkParent(path string) (*Inode, string, error) {
	path = strings.TrimRight(path, "/")
	dir, name := "", path
	if k := strings.LastIndexByte(path, '/'); k >= 0 {
		dir, name = path[:k], path[k+1:]
	}
	if name == "" {
		return nil, "", fmt.Errorf("path %q: %w", path, EINVAL)
	}
	i, err := fs.Walk(dir)
	return i, name, err
}

// MkdirAll makes a directory and those above it that are missing.
func (fs *FS) MkdirAll(path string, n NewInode) (*Inode, error) {
	cur, err := fs.Root()
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		next, err := cur.Lookup(name)
		if errors.Is(err, ENOENT) {
			if next, err = cur.Mkdir(name, n); errors.Is(err, EEXIST) {
				next, err = cur.Lookup(name)
			}
		}
		cur.Release()
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", path, err)
		}
		cur = next
	}
	return cur, nil
}

// ReadFile reads a whole file of at most limit bytes.
func (fs *FS) ReadFile(path string, limit int64) ([]byte, error) {
	i, err := fs.WalkFollow(path)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	size := i.Attr().Size
	if size > limit {
		return nil, fmt.Errorf("read %q: %d bytes, at most %d are wanted: %w", path, size, limit, EFBIG)
	}
	p := make([]byte, size)
	n, err := i.ReadAt(p, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return p[:n], nil
}

// WriteFile makes a file, or replaces what one holds.
func (fs *FS) WriteFile(path string, data []byte, n NewInode) error {
	dir, name, err := fs.WalkParent(path)
	if err != nil {
		return err
	}
	defer dir.Release()
	i, err := dir.Create(name, n)
	if errors.Is(err, EEXIST) {
		if i, err = dir.Lookup(name); err == nil {
			if err = i.Truncate(0); err != nil {
				i.Release()
			}
		}
	}
	if err != nil {
		return err
	}
	defer i.Release()
	_, err = i.WriteAt(data, 0)
	return err
}

// Reader reads a file from its start, for functions that want an io.Reader.
func (i *Inode) Reader() io.Reader { return io.NewSectionReader(i, 0, i.Attr().Size) }

// RemoveAll removes a name and all that is below it. One that is not there is
// no error.
func (i *Inode) RemoveAll(name string) error { return i.removeAll(name, 0) }

func (i *Inode) removeAll(name string, depth int) error {
	if depth > maxDepth {
		return failName("remove", name, fmt.Errorf("directories are nested too deep: %w", ELOOP))
	}
	child, err := i.Lookup(name)
	if errors.Is(err, ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	dir := child.Mode()&ModeType == disk.ModeDir
	if dir {
		err = child.removeContents(depth + 1)
	}
	child.Release()
	if err != nil {
		return err
	}
	if dir {
		return i.Rmdir(name)
	}
	return i.Unlink(name)
}

func (i *Inode) removeContents(depth int) error {
	names, err := i.Names()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := i.removeAll(n, depth); err != nil {
			return err
		}
	}
	return nil
}

// Names lists what is in a directory, in order, without "." and "..".
func (i *Inode) Names() ([]string, error) {
	var names []string
	err := i.ReadDir(0, func(e DirEntry) bool {
		if !dots(e.Name) {
			names = append(names, e.Name)
		}
		return true
	})
	slices.Sort(names)
	return names, err
}
