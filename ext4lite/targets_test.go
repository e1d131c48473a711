// SPDX-License-Identifier: Apache-2.0

// This package as a target of comparison, and the random operations.

package ext4lite_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

func sum(p []byte) []byte {
	s := sha256.Sum256(p)
	return s[:6]
}

// ours drives an open volume.
type ours struct {
	t  testing.TB
	fs *ext4lite.FS
}

func no(err error) ext4lite.Errno { return ext4lite.ErrnoOf(err) }

func (o *ours) in(path string, fn func(dir *ext4lite.Inode, name string) error) ext4lite.Errno {
	d, name := splitPath(path)
	dir, err := o.fs.Walk(d)
	if err != nil {
		return no(err)
	}
	defer dir.Release()
	if dir.Mode()&ext4lite.ModeType != ext4lite.ModeDir {
		return ext4lite.ENOTDIR
	}
	return no(fn(dir, name))
}

func (o *ours) on(path string, fn func(i *ext4lite.Inode) error) ext4lite.Errno {
	i, err := o.fs.Walk(path)
	if err != nil {
		return no(err)
	}
	defer i.Release()
	return no(fn(i))
}

func (o *ours) make(path string, n ext4lite.NewInode) ext4lite.Errno {
	return o.in(path, func(d *ext4lite.Inode, name string) error {
		i, err := d.Make(name, n)
		if err == nil {
			i.Release()
		}
		return err
	})
}

func (o *ours) create(path string, mode uint16) ext4lite.Errno {
	return o.make(path, ext4lite.NewInode{Mode: ext4lite.ModeReg | mode})
}
func (o *ours) mkdir(path string, mode uint16) ext4lite.Errno {
	return o.make(path, ext4lite.NewInode{Mode: ext4lite.ModeDir | mode})
}
func (o *ours) symlink(path, to string) ext4lite.Errno {
	return o.make(path, ext4lite.NewInode{Mode: ext4lite.ModeLink | 0o777, Target: to})
}
func (o *ours) mknod(path string, mode uint16, major, minor uint32) ext4lite.Errno {
	return o.make(path, ext4lite.NewInode{Mode: mode, Major: major, Minor: minor})
}
func (o *ours) link(from, to string) ext4lite.Errno {
	return o.on(from, func(i *ext4lite.Inode) error {
		if e := o.in(to, func(d *ext4lite.Inode, name string) error { return d.Link(name, i) }); e != 0 {
			return e
		}
		return nil
	})
}
func (o *ours) unlink(path string) ext4lite.Errno {
	return o.in(path, func(d *ext4lite.Inode, name string) error { return d.Unlink(name) })
}
func (o *ours) rmdir(path string) ext4lite.Errno {
	return o.in(path, func(d *ext4lite.Inode, name string) error { return d.Rmdir(name) })
}
func (o *ours) rename(from, to string, flags int) ext4lite.Errno {
	return o.in(from, func(od *ext4lite.Inode, on string) error {
		if e := o.in(to, func(nd *ext4lite.Inode, nn string) error { return o.fs.Rename(od, on, nd, nn, flags) }); e != 0 {
			return e
		}
		return nil
	})
}
func (o *ours) write(path string, off int64, data []byte) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { _, err := i.WriteAt(data, off); return err })
}
func (o *ours) truncate(path string, size int64) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.Truncate(size) })
}
func (o *ours) fallocate(path string, mode uint32, off, n int64) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.Fallocate(mode, off, n) })
}
func (o *ours) chmod(path string, mode uint16) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.SetAttr(ext4lite.SetAttr{Mode: &mode}) })
}
func (o *ours) chown(path string, uid, gid uint32) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.SetAttr(ext4lite.SetAttr{UID: &uid, GID: &gid}) })
}
func (o *ours) setxattr(path, name string, value []byte, flags int) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.SetXattr(name, value, flags) })
}
func (o *ours) removexattr(path, name string) ext4lite.Errno {
	return o.on(path, func(i *ext4lite.Inode) error { return i.RemoveXattr(name) })
}
func (o *ours) tmpfile(dir, name string, data []byte) ext4lite.Errno {
	return o.on(dir, func(d *ext4lite.Inode) error {
		i, err := d.CreateUnnamed(ext4lite.NewInode{Mode: 0o600})
		if err != nil {
			return err
		}
		defer i.Release()
		if _, err := i.WriteAt(data, 0); err != nil {
			return err
		}
		return d.Link(name, i)
	})
}

func (o *ours) dump() []string {
	out, err := dumpFS(o.fs)
	if err != nil {
		o.t.Fatal(err)
	}
	return out
}

// dumpFS describes every file of a volume.
func dumpFS(fs *ext4lite.FS) ([]string, error) {
	var out []string
	var walk func(path string, i *ext4lite.Inode) error
	walk = func(path string, i *ext4lite.Inode) error {
		n, err := describe(i)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, line(path, n))
		if !n.dir() {
			return nil
		}
		var names []string
		if err := i.ReadDir(0, func(e ext4lite.DirEntry) bool {
			if e.Name != "." && e.Name != ".." {
				names = append(names, e.Name)
			}
			return true
		}); err != nil {
			return err
		}
		for _, name := range names {
			k, err := i.Lookup(name)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			err = walk(path+"/"+name, k)
			k.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	root, err := fs.Root()
	if err != nil {
		return nil, err
	}
	defer root.Release()
	if err := walk("", root); err != nil {
		return nil, err
	}
	sort.Strings(out)
	return out, nil
}

func describe(i *ext4lite.Inode) (*node, error) {
	a := i.Attr()
	n := &node{mode: a.Mode, uid: a.UID, gid: a.GID, links: int(a.Links), major: a.Major, minor: a.Minor, xattrs: map[string]string{}}
	names, err := i.ListXattrs()
	if err != nil {
		return nil, err
	}
	for _, x := range names {
		v, err := i.GetXattr(x)
		if err != nil {
			return nil, err
		}
		n.xattrs[x] = string(v)
	}
	switch n.typ() {
	case ext4lite.ModeReg:
		n.data = make([]byte, a.Size)
		if k, err := i.ReadAt(n.data, 0); int64(k) != a.Size || err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read %d of %d bytes: %w", k, a.Size, err)
		}
	case ext4lite.ModeLink:
		n.to, err = i.Readlink()
	}
	return n, err
}

// op is one random operation; it gives the number it ended with.
type op struct {
	what string
	do   func(t target) ext4lite.Errno
}

type generator struct {
	r       *rand.Rand
	names   int
	maxFile int64
}

func (g *generator) path() string {
	parts := make([]string, 1+g.r.IntN(3))
	for k := range parts {
		parts[k] = fmt.Sprintf("n%d", g.r.IntN(g.names))
		if g.r.IntN(20) == 0 {
			parts[k] = strings.Repeat(parts[k], 60)[:100+g.r.IntN(20)]
		}
	}
	return strings.Join(parts, "/")
}

func (g *generator) bytes(n int) []byte {
	p := make([]byte, n)
	for k := range p {
		p[k] = byte(g.r.Uint32())
	}
	return p
}

func (g *generator) offset() int64 {
	switch g.r.IntN(3) {
	case 0:
		return 0
	case 1:
		return g.r.Int64N(64) * 1024
	}
	return g.r.Int64N(g.maxFile)
}

func (g *generator) next() op {
	p, q := g.path(), g.path()
	mk := func(format string, do func(t target) ext4lite.Errno, args ...any) op {
		return op{fmt.Sprintf(format, args...), do}
	}
	switch g.r.IntN(22) {
	case 0, 1, 2:
		m := uint16(g.r.IntN(0o1000))
		return mk("create %s %o", func(t target) ext4lite.Errno { return t.create(p, m) }, p, m)
	case 3, 4:
		m := uint16(g.r.IntN(0o1000))
		return mk("mkdir %s", func(t target) ext4lite.Errno { return t.mkdir(p, m) }, p)
	case 5:
		to := strings.Repeat("t/", 1+g.r.IntN(60))
		return mk("symlink %s", func(t target) ext4lite.Errno { return t.symlink(p, to) }, p)
	case 6:
		m, maj, min := uint16(ext4lite.ModeChar), uint32(0), uint32(0)
		switch g.r.IntN(3) {
		case 0:
			m = ext4lite.ModeFifo | 0o644
		case 1:
			m, maj, min = ext4lite.ModeBlock|0o600, uint32(g.r.IntN(4000)), uint32(g.r.IntN(1<<20))
		}
		return mk("mknod %s %o", func(t target) ext4lite.Errno { return t.mknod(p, m, maj, min) }, p, m)
	case 7:
		return mk("link %s %s", func(t target) ext4lite.Errno { return t.link(p, q) }, p, q)
	case 8, 9:
		return mk("unlink %s", func(t target) ext4lite.Errno { return t.unlink(p) }, p)
	case 10:
		return mk("rmdir %s", func(t target) ext4lite.Errno { return t.rmdir(p) }, p)
	case 11, 12:
		f := []int{0, 0, ext4lite.RenameNoReplace, ext4lite.RenameExchange, ext4lite.RenameWhiteout}[g.r.IntN(5)]
		return mk("rename %s %s %d", func(t target) ext4lite.Errno { return t.rename(p, q, f) }, p, q, f)
	case 13, 14, 15:
		off, data := g.offset(), g.bytes(g.r.IntN(1+g.r.IntN(40000)))
		return mk("write %s %d+%d", func(t target) ext4lite.Errno { return t.write(p, off, data) }, p, off, len(data))
	case 16:
		size := g.offset()
		return mk("truncate %s %d", func(t target) ext4lite.Errno { return t.truncate(p, size) }, p, size)
	case 17:
		m := []uint32{0, ext4lite.FallocKeepSize, ext4lite.FallocKeepSize | ext4lite.FallocPunchHole, ext4lite.FallocZeroRange,
			ext4lite.FallocZeroRange | ext4lite.FallocKeepSize}[g.r.IntN(5)]
		off, n := g.offset(), 1+g.r.Int64N(50000)
		return mk("fallocate %s %#x %d+%d", func(t target) ext4lite.Errno { return t.fallocate(p, m, off, n) }, p, m, off, n)
	case 18:
		m := uint16(g.r.IntN(0o1000))
		return mk("chmod %s", func(t target) ext4lite.Errno { return t.chmod(p, m) }, p)
	case 19:
		u, gid := g.r.Uint32N(1<<31), g.r.Uint32N(100)
		return mk("chown %s", func(t target) ext4lite.Errno { return t.chown(p, u, gid) }, p)
	case 20:
		name := []string{"trusted.a", "trusted.overlay.opaque", "trusted.some.longer.name", "security.x"}[g.r.IntN(4)]
		if g.r.IntN(4) == 0 {
			return mk("removexattr %s %s", func(t target) ext4lite.Errno { return t.removexattr(p, name) }, p, name)
		}
		v, f := g.bytes(g.r.IntN(200)), g.r.IntN(3)
		return mk("setxattr %s %s %d", func(t target) ext4lite.Errno { return t.setxattr(p, name, v, f) }, p, name, f)
	}
	data := g.bytes(g.r.IntN(9000))
	d, name := splitPath(p)
	return mk("tmpfile %s %s", func(t target) ext4lite.Errno { return t.tmpfile(d, name, data) }, d, name)
}

// compare fails where two dumps differ, and shows the lines that do.
func compare(t testing.TB, what string, a, b []string) {
	t.Helper()
	in := func(list []string) map[string]bool {
		m := map[string]bool{}
		for _, l := range list {
			m[l] = true
		}
		return m
	}
	ma, mb := in(a), in(b)
	bad := false
	for _, l := range a {
		if !mb[l] {
			t.Errorf("%s: only in the first: %s", what, l)
			bad = true
		}
	}
	for _, l := range b {
		if !ma[l] {
			t.Errorf("%s: only in the second: %s", what, l)
			bad = true
		}
	}
	if bad {
		t.FailNow()
	}
}
