// SPDX-License-Identifier: Apache-2.0

// Passes 2 to 4: directories, reachability, link counts.

package fsck

import (
	"maps"
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

func (c *checker) directories() error {
	for _, ino := range slices.Sorted(maps.Keys(c.inodes)) {
		f := c.inodes[ino]
		if f.mode&disk.ModeType != disk.ModeDir {
			continue
		}
		w := &dirWalk{c: c, ino: ino, f: f, seed: c.g.InodeSeed(ino, f.gen), names: map[string]bool{}}
		if err := w.walk(); err != nil {
			return err
		}
		f.blocks = nil
	}
	return nil
}

// dirWalk checks one directory.
type dirWalk struct {
	c      *checker
	ino    uint32
	f      *found
	seed   uint32
	names  map[string]bool
	leaves map[uint32]bool // blocks the hash tree reaches
}

func (w *dirWalk) count() uint64 { return w.f.size >> w.c.g.BlockShift }

func (w *dirWalk) block(n uint32) ([]byte, uint64, error) {
	i, ok := slices.BinarySearchFunc(w.f.blocks, n, func(e disk.Extent, n uint32) int {
		switch {
		case e.End() <= uint64(n):
			return -1
		case e.Logical > n:
			return 1
		}
		return 0
	})
	if !ok {
		return nil, 0, w.c.problem(DirBad, w.ino, 0, "hole at block %d", n)
	}
	e := w.f.blocks[i]
	at := e.Physical + uint64(n-e.Logical)
	p, err := w.c.read(at)
	return p, at, err
}

func (w *dirWalk) walk() error {
	tree := w.f.flags&disk.FlIndex != 0 && w.c.s.Compat&disk.CompatDirIndex != 0
	if tree {
		w.leaves = map[uint32]bool{0: true}
		if err := w.root(); err != nil {
			return err
		}
	}
	for n := range uint32(w.count()) {
		p, at, err := w.block(n)
		if err != nil {
			return err
		}
		if p == nil || tree && n > 0 && w.leaves[n] && disk.IsDXNode(p, w.c.g) {
			continue
		}
		if tree && n > 0 && !w.leaves[n] {
			if err := w.c.problem(HashTree, w.ino, at, "block %d is in no part of the tree", n); err != nil {
				return err
			}
		}
		if err := w.entries(p, n, at, tree && n == 0); err != nil {
			return err
		}
	}
	return nil
}

// entries checks the entries of a block. The root of a tree has the first two
// only.
func (w *dirWalk) entries(p []byte, n uint32, at uint64, root bool) error {
	c := w.c
	if c.g.Csum && !root {
		if err := disk.CheckDirSum(p, w.ino, w.seed, c.g); err != nil {
			return c.damage(DirBad, w.ino, at, err)
		}
	}
	end := c.g.DirEnd()
	if root {
		end = c.g.BlockSize
	}
	for off, k := 0, 0; off < end; k++ {
		d, err := disk.NextDirent(p, off, end, c.g)
		if err != nil {
			return c.damage(DirBad, w.ino, at, err)
		}
		if n == 0 && k < 2 {
			if err := w.dot(d, k); err != nil {
				return err
			}
			if root && k == 1 {
				return nil
			}
		} else if d.Ino != 0 {
			if err := w.entry(d, at); err != nil {
				return err
			}
		}
		off += d.RecLen
	}
	return nil
}

// dot checks "." and "..".
func (w *dirWalk) dot(d disk.Dirent, k int) error {
	want := [2]string{".", ".."}[k]
	if string(d.Name) != want {
		return w.c.problem(DirDots, w.ino, 0, "entry %d is %q, want %q", k, d.Name, want)
	}
	if k == 0 && d.Ino != w.ino {
		return w.c.problem(DirDots, w.ino, 0, "%q names inode %d", want, d.Ino)
	}
	if k == 1 {
		w.f.dotdot = d.Ino
	}
	if f := w.c.inodes[d.Ino]; f != nil {
		f.names++
	}
	return nil
}

func (w *dirWalk) entry(d disk.Dirent, at uint64) error {
	c, name := w.c, string(d.Name)
	if name == "." || name == ".." {
		return c.problem(DirDots, w.ino, at, "%q is there again", name)
	}
	if w.names[name] {
		return c.problem(DirDuplicate, w.ino, at, "%q is there twice", name)
	}
	w.names[name] = true
	for _, b := range d.Name {
		if b == '/' || b == 0 {
			return c.problem(DirEntry, w.ino, at, "name %q", name)
		}
	}
	f := c.inodes[d.Ino]
	if f == nil {
		return c.problem(DirEntry, w.ino, at, "%q names inode %d, which is not in use", name, d.Ino)
	}
	if c.s.Incompat&disk.IncompatFiletype != 0 && d.Type != disk.FtOfMode(f.mode) {
		if err := c.problem(DirEntry, w.ino, at, "%q has type %d, inode %d is a %d", name, d.Type, d.Ino, disk.FtOfMode(f.mode)); err != nil {
			return err
		}
	}
	f.names++
	if f.mode&disk.ModeType == disk.ModeDir {
		if f.parent != 0 {
			return c.problem(DirLinked, d.Ino, at, "has a name in directories %d and %d", f.parent, w.ino)
		}
		f.parent = w.ino
	}
	return nil
}

// root checks a hash tree from its root down.
func (w *dirWalk) root() error {
	c := w.c
	p, at, err := w.block(0)
	if err != nil || p == nil {
		return err
	}
	n := disk.DXRoot(p)
	levels := 2
	if c.s.Incompat&disk.IncompatLargedir != 0 {
		levels = 3
	}
	info, err := n.Info(w.ino, levels)
	if err != nil {
		return c.damage(HashTree, w.ino, at, err)
	}
	version, _ := disk.HashVersion(info.HashVersion, c.s.UnsignedHash())
	return w.index(n, at, info.Levels, version, 0, ^uint32(0))
}

// index checks a node whose leaves hold hashes in [from, to].
func (w *dirWalk) index(n disk.DX, at uint64, levels int, version uint8, from, to uint32) error {
	c := w.c
	if err := n.Check(w.ino, w.count(), c.g); err != nil {
		return c.damage(HashTree, w.ino, at, err)
	}
	if c.g.Csum {
		if err := n.CheckSum(w.ino, w.seed); err != nil {
			return c.damage(HashTree, w.ino, at, err)
		}
	}
	for i := range n.Count() {
		b := n.Block(i)
		if w.leaves[b] {
			return c.problem(HashTree, w.ino, at, "block %d is in the tree twice", b)
		}
		w.leaves[b] = true
		lo, hi := from, to
		if i > 0 {
			lo = n.Hash(i)
		}
		if i+1 < n.Count() {
			hi = n.Hash(i + 1)
		}
		if lo < from || lo > to {
			return c.problem(HashTree, w.ino, at, "hash %#x outside %#x to %#x", lo, from, to)
		}
		p, where, err := w.block(b)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		if levels > 0 {
			if err := w.index(disk.DXNode(p), where, levels-1, version, lo, hi); err != nil {
				return err
			}
			continue
		}
		if err := w.leaf(p, where, version, lo&^1, hi); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks that a leaf's names belong to it.
func (w *dirWalk) leaf(p []byte, at uint64, version uint8, lo, hi uint32) error {
	var bad error
	err := disk.EachDirent(p, w.c.g, func(d disk.Dirent) bool {
		if h := disk.HashName(string(d.Name), version, w.c.s.HashSeed); h.Major < lo || h.Major > hi {
			bad = w.c.problem(HashTree, w.ino, at, "%q has hash %#x, the leaf holds %#x to %#x", d.Name, h.Major, lo, hi)
		}
		return bad == nil
	})
	if bad != nil {
		return bad
	}
	if err != nil {
		return w.c.damage(DirBad, w.ino, at, err)
	}
	return nil
}

// connectivity checks that every directory hangs below the root.
func (c *checker) connectivity() error {
	state := map[uint32]int{disk.RootIno: 2} // 1 under way, 2 reached
	for _, ino := range slices.Sorted(maps.Keys(c.inodes)) {
		f := c.inodes[ino]
		if f.mode&disk.ModeType != disk.ModeDir {
			continue
		}
		want := f.parent
		if ino == disk.RootIno {
			want = disk.RootIno
		}
		if f.dotdot != want && want != 0 {
			if err := c.problem(DirDots, ino, 0, "\"..\" names inode %d, the directory is in %d", f.dotdot, want); err != nil {
				return err
			}
		}
		var path []uint32
		at := ino
		for state[at] == 0 {
			state[at] = 1
			path = append(path, at)
			g := c.inodes[at]
			if g == nil || g.parent == 0 {
				break
			}
			at = g.parent
		}
		ok := state[at] == 2
		for _, p := range path {
			state[p] = 2
		}
		if !ok {
			if err := c.problem(DirLost, ino, 0, "cannot be reached from the root"); err != nil {
				return err
			}
		}
	}
	if root := c.inodes[disk.RootIno]; root == nil || root.mode&disk.ModeType != disk.ModeDir {
		return c.problem(ReservedInode, disk.RootIno, 0, "there is no root directory")
	}
	return nil
}

// linkCounts compares the names that were counted with what inodes say.
func (c *checker) linkCounts() error {
	for _, ino := range slices.Sorted(maps.Keys(c.inodes)) {
		f := c.inodes[ino]
		dir := f.mode&disk.ModeType == disk.ModeDir
		if f.names == 0 || dir && ino != disk.RootIno && f.parent == 0 {
			if err := c.problem(InodeLost, ino, 0, "has no name"); err != nil {
				return err
			}
			continue
		}
		if f.names != f.links && !(dir && f.links == 1) {
			if err := c.problem(LinkCount, ino, 0, "says %d, %d names were found", f.links, f.names); err != nil {
				return err
			}
		}
	}
	return nil
}
