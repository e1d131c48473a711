// SPDX-License-Identifier: Apache-2.0

// A file system as simple as can be, in memory: what the real ones are
// compared with. All operations take paths and answer with an error number.

package ext4lite_test

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"z.gfire.dev/gvx/ext4lite"
)

// target is a file system under comparison.
type target interface {
	create(path string, mode uint16) ext4lite.Errno
	mkdir(path string, mode uint16) ext4lite.Errno
	symlink(path, to string) ext4lite.Errno
	mknod(path string, mode uint16, major, minor uint32) ext4lite.Errno
	link(from, to string) ext4lite.Errno
	unlink(path string) ext4lite.Errno
	rmdir(path string) ext4lite.Errno
	rename(from, to string, flags int) ext4lite.Errno
	write(path string, off int64, data []byte) ext4lite.Errno
	truncate(path string, size int64) ext4lite.Errno
	fallocate(path string, mode uint32, off, n int64) ext4lite.Errno
	chmod(path string, mode uint16) ext4lite.Errno
	chown(path string, uid, gid uint32) ext4lite.Errno
	setxattr(path, name string, value []byte, flags int) ext4lite.Errno
	removexattr(path, name string) ext4lite.Errno
	tmpfile(dir, name string, data []byte) ext4lite.Errno
	dump() []string
}

type node struct {
	mode         uint16
	uid, gid     uint32
	links        int
	data         []byte
	to           string
	major, minor uint32
	xattrs       map[string]string
	kids         map[string]*node
}

func (n *node) typ() uint16 { return n.mode & ext4lite.ModeType }
func (n *node) dir() bool   { return n.typ() == ext4lite.ModeDir }

type model struct{ root *node }

func newModel() *model {
	return &model{&node{mode: ext4lite.ModeDir | 0o755, links: 3, kids: map[string]*node{
		"lost+found": {mode: ext4lite.ModeDir | 0o700, links: 2, kids: map[string]*node{}},
	}}}
}

// at finds a node; the last name's directory must exist for parent.
func (m *model) at(path string) (*node, ext4lite.Errno) {
	n := m.root
	for p := range strings.SplitSeq(path, "/") {
		if p == "" {
			continue
		}
		if !n.dir() {
			return nil, ext4lite.ENOTDIR
		}
		if n = n.kids[p]; n == nil {
			return nil, ext4lite.ENOENT
		}
	}
	return n, 0
}

func splitPath(path string) (dir, name string) {
	k := strings.LastIndexByte(path, '/')
	return path[:max(k, 0)], path[k+1:]
}

func (m *model) parent(path string) (*node, string, ext4lite.Errno) {
	d, name := splitPath(path)
	n, e := m.at(d)
	if e == 0 && !n.dir() {
		e = ext4lite.ENOTDIR
	}
	return n, name, e
}

func (m *model) add(path string, n *node) ext4lite.Errno {
	d, name, e := m.parent(path)
	if e != 0 {
		return e
	}
	if d.kids[name] != nil {
		return ext4lite.EEXIST
	}
	d.kids[name] = n
	if n.dir() {
		d.links++
	}
	return 0
}

func (m *model) create(path string, mode uint16) ext4lite.Errno {
	return m.add(path, &node{mode: ext4lite.ModeReg | mode, links: 1})
}

func (m *model) mkdir(path string, mode uint16) ext4lite.Errno {
	return m.add(path, &node{mode: ext4lite.ModeDir | mode, links: 2, kids: map[string]*node{}})
}

func (m *model) symlink(path, to string) ext4lite.Errno {
	return m.add(path, &node{mode: ext4lite.ModeLink | 0o777, links: 1, to: to})
}

func (m *model) mknod(path string, mode uint16, major, minor uint32) ext4lite.Errno {
	return m.add(path, &node{mode: mode, links: 1, major: major, minor: minor})
}

func (m *model) link(from, to string) ext4lite.Errno {
	n, e := m.at(from)
	if e != 0 {
		return e
	}
	d, name, e := m.parent(to)
	if e != 0 {
		return e
	}
	if d.kids[name] != nil {
		return ext4lite.EEXIST
	}
	if n.dir() {
		return ext4lite.EPERM
	}
	d.kids[name] = n
	n.links++
	return 0
}

func (m *model) unlink(path string) ext4lite.Errno {
	d, name, e := m.parent(path)
	if e != 0 {
		return e
	}
	n := d.kids[name]
	switch {
	case n == nil:
		return ext4lite.ENOENT
	case n.dir():
		return ext4lite.EISDIR
	}
	delete(d.kids, name)
	n.links--
	return 0
}

func (m *model) rmdir(path string) ext4lite.Errno {
	d, name, e := m.parent(path)
	if e != 0 {
		return e
	}
	n := d.kids[name]
	switch {
	case n == nil:
		return ext4lite.ENOENT
	case !n.dir():
		return ext4lite.ENOTDIR
	case len(n.kids) > 0:
		return ext4lite.ENOTEMPTY
	}
	delete(d.kids, name)
	d.links--
	return 0
}

func below(n, top *node) bool {
	if n == top {
		return true
	}
	for _, k := range top.kids {
		if k.dir() && below(n, k) {
			return true
		}
	}
	return false
}

func (m *model) rename(from, to string, flags int) ext4lite.Errno {
	od, on, e := m.parent(from)
	if e != 0 {
		return e
	}
	nd, nn, e := m.parent(to)
	if e != 0 {
		return e
	}
	src, dst := od.kids[on], nd.kids[nn]
	exchange := flags&ext4lite.RenameExchange != 0
	switch {
	case src == nil:
		return ext4lite.ENOENT
	case dst != nil && flags&ext4lite.RenameNoReplace != 0:
		return ext4lite.EEXIST
	case dst == nil && exchange:
		return ext4lite.ENOENT
	case src == dst:
		return 0
	case src.dir() && below(nd, src):
		return ext4lite.EINVAL
	case exchange && dst.dir() && below(od, dst):
		return ext4lite.EINVAL
	case dst != nil && dst.dir() && below(od, dst):
		return ext4lite.ENOTEMPTY
	}
	if exchange {
		od.kids[on], nd.kids[nn] = dst, src
		if src.dir() {
			od.links--
			nd.links++
		}
		if dst.dir() {
			nd.links--
			od.links++
		}
		return 0
	}
	if dst != nil {
		switch {
		case src.dir() && !dst.dir():
			return ext4lite.ENOTDIR
		case !src.dir() && dst.dir():
			return ext4lite.EISDIR
		case len(dst.kids) > 0:
			return ext4lite.ENOTEMPTY
		}
		dst.links--
		if dst.dir() {
			nd.links--
		}
	}
	delete(od.kids, on)
	nd.kids[nn] = src
	if src.dir() {
		od.links--
		nd.links++
	}
	if flags&ext4lite.RenameWhiteout != 0 {
		od.kids[on] = &node{mode: ext4lite.ModeChar, links: 1}
	}
	return 0
}

func (m *model) file(path string) (*node, ext4lite.Errno) {
	n, e := m.at(path)
	if e != 0 {
		return nil, e
	}
	if n.dir() {
		return nil, ext4lite.EISDIR
	}
	if n.typ() != ext4lite.ModeReg {
		return nil, ext4lite.EINVAL
	}
	return n, 0
}

func (n *node) grow(size int64) {
	if int64(len(n.data)) < size {
		n.data = append(n.data, make([]byte, size-int64(len(n.data)))...)
	}
}

func (m *model) write(path string, off int64, data []byte) ext4lite.Errno {
	n, e := m.file(path)
	if e != 0 {
		return e
	}
	if len(data) > 0 {
		n.grow(off + int64(len(data)))
		copy(n.data[off:], data)
	}
	return 0
}

func (m *model) truncate(path string, size int64) ext4lite.Errno {
	n, e := m.file(path)
	if e != 0 {
		return e
	}
	n.grow(size)
	n.data = n.data[:size:size]
	return 0
}

func (m *model) fallocate(path string, mode uint32, off, k int64) ext4lite.Errno {
	n, e := m.file(path)
	if e != 0 {
		return e
	}
	if mode&ext4lite.FallocKeepSize == 0 {
		n.grow(off + k)
	}
	if mode&(ext4lite.FallocPunchHole|ext4lite.FallocZeroRange) != 0 {
		if size := int64(len(n.data)); off < size {
			clear(n.data[off:min(off+k, size)])
		}
	}
	return 0
}

func (m *model) chmod(path string, mode uint16) ext4lite.Errno {
	n, e := m.at(path)
	if e == 0 && n.typ() == ext4lite.ModeLink {
		e = ext4lite.EOPNOTSUPP
	}
	if e == 0 {
		n.mode = n.typ() | mode
	}
	return e
}

func (m *model) chown(path string, uid, gid uint32) ext4lite.Errno {
	n, e := m.at(path)
	if e == 0 {
		n.uid, n.gid = uid, gid
	}
	return e
}

func (m *model) setxattr(path, name string, value []byte, flags int) ext4lite.Errno {
	n, e := m.at(path)
	if e != 0 {
		return e
	}
	_, have := n.xattrs[name]
	if have && flags&ext4lite.XattrCreate != 0 {
		return ext4lite.EEXIST
	}
	if !have && flags&ext4lite.XattrReplace != 0 {
		return ext4lite.ENODATA
	}
	if n.xattrs == nil {
		n.xattrs = map[string]string{}
	}
	n.xattrs[name] = string(value)
	return 0
}

func (m *model) removexattr(path, name string) ext4lite.Errno {
	n, e := m.at(path)
	if e != 0 {
		return e
	}
	if _, have := n.xattrs[name]; !have {
		return ext4lite.ENODATA
	}
	delete(n.xattrs, name)
	return 0
}

func (m *model) tmpfile(dir, name string, data []byte) ext4lite.Errno {
	n, e := m.at(dir)
	if e != 0 {
		return e
	}
	if !n.dir() {
		return ext4lite.ENOTDIR
	}
	if n.kids[name] != nil {
		return ext4lite.EEXIST
	}
	n.kids[name] = &node{mode: ext4lite.ModeReg | 0o600, links: 1, data: slices.Clone(data)}
	return 0
}

func (m *model) dump() []string {
	var out []string
	var walk func(path string, n *node)
	walk = func(path string, n *node) {
		out = append(out, line(path, n))
		for name, k := range n.kids {
			walk(path+"/"+name, k)
		}
	}
	walk("", m.root)
	sort.Strings(out)
	return out
}

// line describes a node as all targets do.
func line(path string, n *node) string {
	size := int64(len(n.data))
	if n.typ() == ext4lite.ModeLink {
		size = int64(len(n.to))
	}
	if n.dir() {
		size = 0 // a matter of the format
	}
	var xs []string
	for _, k := range slices.Sorted(maps.Keys(n.xattrs)) {
		xs = append(xs, fmt.Sprintf("%s=%x", k, sum([]byte(n.xattrs[k]))))
	}
	return fmt.Sprintf("%s mode=%o uid=%d gid=%d links=%d size=%d dev=%d:%d to=%q data=%x xattrs=%v",
		path, n.mode, n.uid, n.gid, n.links, size, n.major, n.minor, n.to, sum(n.data), xs)
}
