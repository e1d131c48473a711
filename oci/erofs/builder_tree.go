// SPDX-License-Identifier: Apache-2.0

// The builder's tree: nodes, path resolution, linking and unlinking.

package erofs

import (
	"fmt"
	"path"
	"strings"
)

// node is one inode to be.
type node struct {
	mode, uid, gid uint32
	mtimeNsec      uint32
	mtime          int64
	size           int64
	rdev           uint32
	block          uint32 // first block of data that lies outside the inode
	names          uint32 // names that point here
	layout         uint8
	target         string // symbolic link
	xattrs         string // encoded list
	nid            uint64 // assigned by the layout; 0 is none
	dir            *directory
	sparse         *sparseMap // regular files with holes
}

// directory is the part of a node that only directories have.
type directory struct {
	parent   *node
	children map[string]*node
	sorted   []string // with "." and ".."; made by the layout
	subdirs  uint32
}

func (b *Builder) newDir(parent *node) *node {
	n := &node{dir: &directory{parent: parent}, mode: ModeDir | 0o755, mtime: b.o.Time.Unix(), mtimeNsec: uint32(b.o.Time.Nanosecond())}
	if parent == nil {
		n.dir.parent = n
	}
	return n
}

// describe sets what an entry says of a node.
func (n *node) describe(e *Entry, xattrs string) {
	n.mode, n.uid, n.gid = e.Mode, e.UID, e.GID
	n.mtime, n.mtimeNsec = 0, 0
	if !e.Mtime.IsZero() {
		n.mtime, n.mtimeNsec = e.Mtime.Unix(), uint32(e.Mtime.Nanosecond())
	}
	n.xattrs = xattrs
	switch e.Mode & ModeType {
	case ModeRegular:
		n.size = e.Size
	case ModeSymlink:
		n.target, n.size = e.Linkname, int64(len(e.Linkname))
	case ModeChar, ModeBlock:
		n.rdev = encodeDev(e.Major, e.Minor)
	}
}

// metaCost is about what a node and its name take in the image, without the
// chunk index, which writeData adds.
func (n *node) metaCost(name string) int64 {
	return inodeExtendedSize + direntSize + int64(len(n.xattrs)+len(n.target)+len(name))
}

// link gives n the name in parent, which must be free.
func (b *Builder) link(parent *node, name string, n *node) {
	if parent.dir.children == nil {
		parent.dir.children = make(map[string]*node)
	}
	// Tar paths are slices of larger strings; a copy lets those go.
	parent.dir.children[strings.Clone(name)] = n
	n.names++
	b.entries++
	if n.dir != nil {
		parent.dir.subdirs++
	}
}

// unlink takes the name from parent, with what is below it.
func (b *Builder) unlink(parent *node, name string) {
	n := parent.dir.children[name]
	if n == nil {
		return
	}
	delete(parent.dir.children, name)
	if n.dir != nil {
		parent.dir.subdirs--
	}
	// Not recursive: a hostile archive can nest as deep as it likes.
	type dropped struct {
		name string
		n    *node
	}
	stack := []dropped{{name, n}}
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		b.entries--
		d.n.names--
		if d.n.names > 0 {
			b.metaBytes -= direntSize + int64(len(d.name))
			continue
		}
		b.metaBytes -= d.n.metaCost(d.name)
		b.dropData(d.n)
		if d.n.dir != nil {
			for name, child := range d.n.dir.children {
				stack = append(stack, dropped{name, child})
			}
			d.n.dir.children = nil
		}
	}
}

// find returns the node at a path, without following a symbolic link there.
func (b *Builder) find(p string) (*node, error) {
	parent, name, err := b.walk(p, false)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return b.root, nil
	}
	n := parent.dir.children[name]
	if n == nil {
		return nil, ErrNotExist
	}
	return n, nil
}

// walk resolves all of a path but its last component, following symbolic
// links as a process whose root is the image would, so that no path leaves
// it. With create it makes the directories that are missing. The name is empty
// for the root.
func (b *Builder) walk(p string, create bool) (parent *node, name string, err error) {
	rest, err := cleanPath(p)
	if err != nil {
		return nil, "", err
	}
	at := b.root
	hops := 0
	for {
		comp, more, deeper := strings.Cut(rest, "/")
		if !deeper {
			return at, rest, nil
		}
		rest = more
		switch comp {
		case "", ".":
			continue
		case "..":
			at = at.dir.parent
			continue
		}
		next := at.dir.children[comp]
		if next == nil {
			if !create {
				return nil, "", ErrNotExist
			}
			if next, err = b.makeParent(at, comp); err != nil {
				return nil, "", err
			}
		}
		switch {
		case next.dir != nil:
			at = next
		case next.mode&ModeType == ModeSymlink:
			if hops++; hops > MaxSymlinkHops {
				return nil, "", fmt.Errorf("%w: more than %d symbolic links in the path", ErrLimit, MaxSymlinkHops)
			}
			if strings.HasPrefix(next.target, "/") {
				at = b.root
			}
			rest = next.target + "/" + rest
		default:
			return nil, "", fmt.Errorf("%w: %.200q", ErrNotDir, comp)
		}
	}
}

// makeParent creates a directory that no entry has described so far.
func (b *Builder) makeParent(at *node, name string) (*node, error) {
	if len(name) > MaxNameBytes {
		return nil, fmt.Errorf("%w: name of %d bytes, at most %d", ErrLimit, len(name), MaxNameBytes)
	}
	if b.entries >= MaxEntries {
		return nil, fmt.Errorf("%w: more than %d entries", ErrLimit, MaxEntries)
	}
	n := b.newDir(at)
	if err := b.checkMetadata(n.metaCost(name)); err != nil {
		return nil, err
	}
	b.link(at, name, n)
	return n, nil
}

// cleanPath makes a path relative to the root of the image, without "." and
// "..", and checks its bytes. The root is "".
func cleanPath(p string) (string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", fmt.Errorf("%w: the path contains a NUL", ErrInvalid)
	}
	if len(p) > MaxPathBytes {
		return "", fmt.Errorf("%w: path of %d bytes, at most %d", ErrLimit, len(p), MaxPathBytes)
	}
	p = path.Clean("/" + p)[1:]
	for rest := p; rest != ""; {
		var comp string
		comp, rest, _ = strings.Cut(rest, "/")
		if len(comp) > MaxNameBytes {
			return "", fmt.Errorf("%w: name of %d bytes, at most %d", ErrLimit, len(comp), MaxNameBytes)
		}
	}
	return p, nil
}
