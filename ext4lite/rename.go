// SPDX-License-Identifier: Apache-2.0

// Rename, with the flags of renameat2(2).

package ext4lite

import (
	"cmp"
	"fmt"
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// Flags of Rename, as in renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4
)

// Rename moves a name from one directory to another, over what is there.
func (fs *FS) Rename(oldDir *Inode, oldName string, newDir *Inode, newName string, flags int) error {
	var freed []*Inode
	err := fs.retry(func() error {
		fs.renameMu.Lock()
		defer fs.renameMu.Unlock()
		r := &renaming{fs: fs, oldDir: oldDir, newDir: newDir, oldName: oldName, newName: newName, flags: flags}
		err := r.run()
		freed = append(freed, r.refs...)
		return err
	})
	for _, i := range freed {
		i.Release()
	}
	if err != nil {
		return fmt.Errorf("rename %q to %q: %w", oldName, newName, err)
	}
	return nil
}

type renaming struct {
	fs               *FS
	oldDir, newDir   *Inode
	oldName, newName string
	flags            int

	above    map[uint32]bool // ancestors of newDir, itself included
	aboveOld map[uint32]bool // and of oldDir
	old, new entry
	src, dst *Inode
	refs     []*Inode // to release once no lock is held
}

func (r *renaming) run() error {
	fs := r.fs
	if r.newDir.fs != fs || r.oldDir.fs != fs {
		return EXDEV
	}
	for _, n := range []string{r.oldName, r.newName} {
		if err := checkName(n); err != nil {
			return err
		}
		if dots(n) {
			return EBUSY
		}
	}
	if r.flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 || r.flags&RenameExchange != 0 && r.flags != RenameExchange {
		return EINVAL
	}
	if fs.readonly.Load() {
		return EROFS
	}
	if r.oldDir != r.newDir {
		var err error
		if r.above, err = fs.ancestors(r.newDir); err != nil {
			return err
		}
		if r.aboveOld, err = fs.ancestors(r.oldDir); err != nil {
			return err
		}
	}
	r.oldDir.mu.Lock()
	defer r.oldDir.mu.Unlock()
	if r.newDir != r.oldDir {
		r.newDir.mu.Lock()
		defer r.newDir.mu.Unlock()
	}
	if err := r.find(); err != nil {
		return err
	}
	if r.src == r.dst {
		return nil // two names of one file: POSIX leaves both
	}
	defer r.lockChildren()()
	if err := r.check(); err != nil {
		return err
	}
	for _, d := range []*Inode{r.oldDir, r.newDir} {
		if err := d.extents(); err != nil {
			return err
		}
	}
	h, err := fs.start(dirCredits + createCredits + 12)
	if err != nil {
		return err
	}
	defer h.Stop()
	if r.flags&RenameExchange != 0 {
		return fs.damaged(r.exchange(h))
	}
	return fs.damaged(r.move(h))
}

// ancestors collects a directory and all above it. renameMu is held, so that
// nothing moves.
func (fs *FS) ancestors(dir *Inode) (map[uint32]bool, error) {
	seen := map[uint32]bool{}
	dir.Retain()
	for {
		if seen[dir.ino] {
			dir.Release()
			return nil, disk.Corrupt(fmt.Sprintf("directory inode %d", dir.ino), "is its own ancestor")
		}
		seen[dir.ino] = true
		if dir.ino == disk.RootIno {
			dir.Release()
			return seen, nil
		}
		dir.mu.RLock()
		var up entry
		err := dir.isDir()
		if err == nil && dir.d.Links == 0 {
			err = ENOENT
		}
		if err == nil {
			up, _, err = dir.lookup("..")
		}
		dir.mu.RUnlock()
		dir.Release()
		if err != nil {
			return nil, err
		}
		if dir, err = fs.Inode(up.ino); err != nil {
			return nil, err
		}
	}
}

// find looks both names up.
func (r *renaming) find() error {
	for _, d := range []*Inode{r.oldDir, r.newDir} {
		if err := d.isDir(); err != nil {
			return err
		}
		if d.d.Links == 0 {
			return ENOENT
		}
	}
	var ok bool
	var err error
	if r.old, ok, err = r.oldDir.lookup(r.oldName); err != nil {
		return err
	}
	if !ok {
		return ENOENT
	}
	if r.src, err = r.fs.Inode(r.old.ino); err != nil {
		return err
	}
	r.refs = append(r.refs, r.src)
	if r.new, ok, err = r.newDir.lookup(r.newName); err != nil {
		return err
	}
	if !ok {
		if r.flags&RenameExchange != 0 {
			return ENOENT
		}
		return nil
	}
	if r.flags&RenameNoReplace != 0 {
		return EEXIST
	}
	if r.dst, err = r.fs.Inode(r.new.ino); err != nil {
		return err
	}
	r.refs = append(r.refs, r.dst)
	return nil
}

// lockChildren locks what moves, directories first, and gives the function
// that unlocks.
func (r *renaming) lockChildren() func() {
	var list []*Inode
	for _, i := range []*Inode{r.src, r.dst} {
		if i != nil && i != r.oldDir && i != r.newDir {
			list = append(list, i)
		}
	}
	isDir := func(i *Inode) bool { return i.Mode()&ModeType == disk.ModeDir }
	slices.SortFunc(list, func(a, b *Inode) int {
		if da, db := isDir(a), isDir(b); da != db {
			if da {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.ino, b.ino)
	})
	for _, i := range list {
		i.mu.Lock()
	}
	return func() {
		for _, i := range list {
			i.mu.Unlock()
		}
	}
}

func (r *renaming) check() error {
	srcDir := r.src.d.Type() == disk.ModeDir
	if srcDir && (r.src == r.oldDir || r.src == r.newDir || r.above[r.src.ino]) {
		return EINVAL // a directory cannot go below itself
	}
	if r.dst == nil {
		return r.checkLinks(srcDir)
	}
	dstDir := r.dst.d.Type() == disk.ModeDir
	if r.flags&RenameExchange != 0 {
		if dstDir && (r.dst == r.oldDir || r.dst == r.newDir || r.aboveOld[r.dst.ino]) {
			return EINVAL
		}
		return nil
	}
	if dstDir && (r.dst == r.oldDir || r.dst == r.newDir || r.aboveOld[r.dst.ino]) {
		return ENOTEMPTY
	}
	switch {
	case srcDir && !dstDir:
		return ENOTDIR
	case !srcDir && dstDir:
		return EISDIR
	case dstDir:
		empty, err := r.dst.empty()
		if err != nil {
			return err
		}
		if !empty {
			return ENOTEMPTY
		}
	}
	return nil
}

func (r *renaming) checkLinks(srcDir bool) error {
	if srcDir && r.oldDir != r.newDir && r.newDir.d.Links >= maxLinks && r.fs.s.ROCompat&disk.ROCompatDirNlink == 0 {
		return EMLINK
	}
	return nil
}

// move gives src its new name and takes the old one away.
func (r *renaming) move(h *journal.Handle) error {
	fs := r.fs
	var white *Inode
	if r.flags&RenameWhiteout != 0 {
		w, err := fs.newInode(h, r.oldDir, NewInode{Mode: disk.ModeChar})
		if err != nil {
			return err
		}
		white = w
		r.refs = append(r.refs, w)
	}
	ft := disk.FtOfMode(r.src.d.Mode)
	if r.dst != nil {
		r.newDir.point(h, r.new, r.src.ino, ft)
	} else if err := r.newDir.add(h, r.newName, r.src.ino, ft); err != nil {
		if white != nil {
			fs.undoNew(h, white)
		}
		return err
	}
	// Adding may have moved the old entry.
	old, ok, err := r.oldDir.lookup(r.oldName)
	if err != nil || !ok {
		return disk.Corrupt(fmt.Sprintf("directory inode %d", r.oldDir.ino), "%q is gone: %v", r.oldName, err)
	}
	if white != nil {
		r.oldDir.point(h, old, white.ino, disk.FtChar)
	} else if err := r.oldDir.remove(h, old); err != nil {
		return err
	}
	now := fs.now()
	r.src.d.Ctime = now
	r.src.touch(h)
	srcDir := r.src.d.Type() == disk.ModeDir
	if srcDir && r.oldDir != r.newDir {
		if err := r.src.setDotdot(h, r.newDir.ino); err != nil {
			return err
		}
		r.oldDir.addLink(-1)
		r.newDir.addLink(1)
	}
	if r.dst != nil {
		r.dst.d.Ctime = now
		if r.dst.d.Type() == disk.ModeDir {
			r.dst.d.Links = 0
			r.newDir.addLink(-1)
		} else if r.dst.d.Links > 0 {
			r.dst.d.Links--
		}
		if r.dst.d.Links == 0 {
			fs.addOrphan(h, r.dst)
		}
		r.dst.touch(h)
	}
	return nil
}

// exchange swaps what two names stand for.
func (r *renaming) exchange(h *journal.Handle) error {
	r.oldDir.point(h, r.old, r.dst.ino, disk.FtOfMode(r.dst.d.Mode))
	r.newDir.point(h, r.new, r.src.ino, disk.FtOfMode(r.src.d.Mode))
	now := r.fs.now()
	for _, m := range []struct{ i, from, to *Inode }{{r.src, r.oldDir, r.newDir}, {r.dst, r.newDir, r.oldDir}} {
		m.i.d.Ctime = now
		m.i.touch(h)
		if m.i.d.Type() == disk.ModeDir && m.from != m.to {
			if err := m.i.setDotdot(h, m.to.ino); err != nil {
				return err
			}
			m.from.addLink(-1)
			m.to.addLink(1)
		}
	}
	return nil
}

// setDotdot makes a directory's ".." name another parent.
func (i *Inode) setDotdot(h *journal.Handle, parent uint32) error {
	k := leafBlock
	if i.d.Flags&disk.FlIndex != 0 {
		k = rootBlock
	}
	b, err := i.dirBlock(0, k)
	if err != nil {
		return err
	}
	if _, err := i.dotdot(b.Data); err != nil {
		return err
	}
	disk.SetDirentIno(b.Data, 12, parent, disk.FtDir)
	if i.fs.s.Incompat&disk.IncompatFiletype == 0 {
		disk.SetDirentIno(b.Data, 12, parent, disk.FtUnknown)
	}
	if k == rootBlock {
		b.Seal = i.dxSeal(true)
	} else {
		b.Seal = i.leafSeal()
	}
	h.Dirty(b)
	return nil
}
