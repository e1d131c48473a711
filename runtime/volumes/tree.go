// SPDX-License-Identifier: Apache-2.0

// Looking through a volume's directories.

package volumes

import (
	"fmt"
	"path"
	"slices"

	"z.gfire.dev/gvx/ext4lite"
)

// maxTreeDepth bounds a walk: a volume's directories may be nested deeper than
// any path can name.
const maxTreeDepth = 4096

// TreeEntry is a file that a walk comes to.
type TreeEntry struct {
	Name   string
	Depth  int
	Last   bool // of its directory
	Attr   ext4lite.Attr
	Target string // of a symbolic link
}

// IsDir says whether the entry is a directory.
func (e *TreeEntry) IsDir() bool { return e.Attr.Mode&ext4lite.ModeType == ext4lite.ModeDir }

// Tree walks a volume from a path down, at most depth levels (0 for all), in
// order of names. dirs leaves out all but directories.
func (s *Store) Tree(r Ref, from string, depth int, dirs bool, visit func(*TreeEntry) error) error {
	if depth <= 0 || depth > maxTreeDepth {
		depth = maxTreeDepth
	}
	return s.reading(r, "list volume", func(fs *ext4lite.FS) error {
		i, err := find(fs, from, true)
		if err != nil {
			return err
		}
		defer i.Release()
		t := &treeWalk{depth: depth, dirs: dirs, visit: visit, seen: map[uint32]struct{}{i.Attr().Ino: {}}}
		if err := t.visit(&TreeEntry{Name: path.Clean("/" + from), Last: true, Attr: i.Attr()}); err != nil {
			return err
		}
		return t.children(i, 1)
	})
}

type treeWalk struct {
	depth int
	dirs  bool
	visit func(*TreeEntry) error
	seen  map[uint32]struct{} // directories
}

func (t *treeWalk) children(dir *ext4lite.Inode, depth int) error {
	if depth > t.depth || dir.Mode()&ext4lite.ModeType != ext4lite.ModeDir {
		return nil
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	if t.dirs {
		names = slices.DeleteFunc(names, func(n string) bool {
			i, err := dir.Lookup(n)
			if err != nil {
				return false // the walk reports it
			}
			defer i.Release()
			return i.Mode()&ext4lite.ModeType != ext4lite.ModeDir
		})
	}
	for k, n := range names {
		if err := t.child(dir, n, depth, k == len(names)-1); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeWalk) child(dir *ext4lite.Inode, name string, depth int, last bool) error {
	i, err := dir.Lookup(name)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer i.Release()
	e := &TreeEntry{Name: name, Depth: depth, Last: last, Attr: i.Attr()}
	if e.IsDir() {
		if _, again := t.seen[e.Attr.Ino]; again { // else one that is in itself would have no end
			return fmt.Errorf("directory %q has several names: %w", name, ext4lite.EUCLEAN)
		}
		t.seen[e.Attr.Ino] = struct{}{}
	}
	if e.Attr.Mode&ext4lite.ModeType == ext4lite.ModeLink {
		if e.Target, err = i.Readlink(); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	if err := t.visit(e); err != nil {
		return err
	}
	return t.children(i, depth+1)
}
