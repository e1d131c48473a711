// SPDX-License-Identifier: Apache-2.0

// Directories: look up, add, remove and replace a name.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// entry is where a name was found.
type entry struct {
	buf   *journal.Buf
	off   int
	ino   uint32
	ft    uint8
	block uint32
}

// checkName vets a name for lookups; names for new entries must not be "." or
// "..", which the callers see to.
func checkName(name string) error {
	if len(name) > disk.MaxNameLen {
		return ENAMETOOLONG
	}
	if name == "" {
		return ENOENT
	}
	for k := range len(name) {
		if name[k] == '/' || name[k] == 0 {
			return EINVAL
		}
	}
	return nil
}

func dots(name string) bool { return name == "." || name == ".." }

// isDir is the check every directory operation begins with. The caller holds
// mu.
func (i *Inode) isDir() error {
	if i.d.Type() != disk.ModeDir {
		return ENOTDIR
	}
	return nil
}

// lookup finds a name. The caller holds mu.
func (i *Inode) lookup(name string) (entry, bool, error) {
	if i.indexed() && !dots(name) {
		b, d, ok, err := i.dxFind(name)
		if !ok || err != nil {
			return entry{}, false, err
		}
		return entry{buf: b, off: d.Offset, ino: d.Ino, ft: d.Type}, true, nil
	}
	if i.d.Flags&disk.FlIndex != 0 && dots(name) {
		return i.lookupDots(name)
	}
	for n := range uint32(i.dirBlocks()) {
		b, err := i.dirBlock(n, i.linearKind())
		if err != nil {
			return entry{}, false, err
		}
		d, ok, err := i.findIn(b, n, name)
		if err != nil {
			return entry{}, false, err
		}
		if ok {
			return entry{buf: b, off: d.Offset, ino: d.Ino, ft: d.Type, block: n}, true, nil
		}
	}
	return entry{}, false, nil
}

// linearKind is how blocks are read when a directory is walked in order.
func (i *Inode) linearKind() kind {
	if i.d.Flags&disk.FlIndex != 0 {
		return anyBlock
	}
	return leafBlock
}

// findIn looks for a name in a block that may be part of an index that is not
// in use: such blocks look empty.
func (i *Inode) findIn(b *journal.Buf, n uint32, name string) (disk.Dirent, bool, error) {
	if i.d.Flags&disk.FlIndex != 0 && (n == 0 || disk.IsDXNode(b.Data, i.fs.g)) {
		return disk.Dirent{}, false, nil
	}
	return disk.FindDirent(b.Data, name, i.fs.g)
}

// lookupDots finds "." and ".." in the first block of an indexed directory.
func (i *Inode) lookupDots(name string) (entry, bool, error) {
	b, err := i.dirBlock(0, rootBlock)
	if err != nil {
		return entry{}, false, err
	}
	if name == "." {
		return entry{buf: b, ino: i.ino, ft: disk.FtDir}, true, nil
	}
	parent, err := i.dotdot(b.Data)
	return entry{buf: b, off: 12, ino: parent, ft: disk.FtDir}, err == nil, err
}

// Lookup finds a name in a directory.
func (i *Inode) Lookup(name string) (*Inode, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	child, err := i.lookupInode(name)
	if err != nil {
		return nil, failName("look up", name, err)
	}
	return child, nil
}

// LookupIno finds the number behind a name in a directory: ENOENT, and no more
// words, if there is none. Nothing keeps that inode from being freed but the
// caller, who sees to it that the name stays.
func (i *Inode) LookupIno(name string) (uint32, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	err := i.isDir()
	if err == nil {
		err = checkName(name)
	}
	if err != nil {
		return 0, failName("look up", name, err)
	}
	e, ok, err := i.lookup(name)
	if err != nil {
		return 0, failName("look up", name, err)
	}
	if !ok {
		return 0, ENOENT
	}
	return e.ino, nil
}

// lookupInode finds a name's inode. The caller holds mu, which keeps the inode
// from being freed before it is referenced.
func (i *Inode) lookupInode(name string) (*Inode, error) {
	if err := i.isDir(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if name == "." {
		i.Retain()
		return i, nil
	}
	e, ok, err := i.lookup(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ENOENT
	}
	return i.fs.Inode(e.ino)
}

// add puts a name that is not there into a directory. The caller holds mu
// alone, in a handle with dirCredits.
func (i *Inode) add(h *journal.Handle, name string, ino uint32, ft uint8) error {
	if i.fs.s.Incompat&disk.IncompatFiletype == 0 {
		ft = disk.FtUnknown
	}
	if err := i.addName(h, name, ino, ft); err != nil {
		return err
	}
	now := i.fs.now()
	i.d.Mtime, i.d.Ctime = now, now
	i.d.Version++
	i.touch(h)
	return nil
}

func (i *Inode) addName(h *journal.Handle, name string, ino uint32, ft uint8) error {
	if i.indexed() {
		return i.dxAdd(h, name, ino, ft)
	}
	if i.d.Flags&disk.FlIndex != 0 {
		return fmt.Errorf("directory inode %d: it is indexed, but the volume is not: %w", i.ino, EOPNOTSUPP)
	}
	blocks := uint32(i.dirBlocks())
	for n := range blocks {
		b, err := i.dirBlock(n, leafBlock)
		if err != nil {
			return err
		}
		ok, err := disk.AddDirent(b.Data, ino, ft, name, i.fs.g)
		if err != nil {
			return err
		}
		if ok {
			i.dirtyLeaf(h, b)
			return nil
		}
		if blocks == 1 && i.fs.s.Compat&disk.CompatDirIndex != 0 {
			if err := i.dxMake(h, b); err != nil {
				return err
			}
			return i.dxAdd(h, name, ino, ft)
		}
	}
	b, _, err := i.appendDirBlock(h)
	if err != nil {
		return err
	}
	disk.InitDirBlock(b.Data, i.fs.g)
	i.dirtyLeaf(h, b)
	_, err = disk.AddDirent(b.Data, ino, ft, name, i.fs.g)
	return err
}

// remove takes an entry out of a directory.
func (i *Inode) remove(h *journal.Handle, e entry) error {
	if err := disk.RemoveDirent(e.buf.Data, e.off, i.fs.g); err != nil {
		return i.fs.damaged(err)
	}
	i.dirtyLeaf(h, e.buf)
	now := i.fs.now()
	i.d.Mtime, i.d.Ctime = now, now
	i.d.Version++
	i.touch(h)
	return nil
}

// point makes an entry name another inode.
func (i *Inode) point(h *journal.Handle, e entry, ino uint32, ft uint8) {
	if i.fs.s.Incompat&disk.IncompatFiletype == 0 {
		ft = disk.FtUnknown
	}
	disk.SetDirentIno(e.buf.Data, e.off, ino, ft)
	if i.d.Flags&disk.FlIndex != 0 && e.off == 12 && e.buf.Data[e.off+6] == 2 && string(e.buf.Data[e.off+8:e.off+10]) == ".." {
		e.buf.Seal = i.dxSeal(true)
		h.Dirty(e.buf)
	} else {
		i.dirtyLeaf(h, e.buf)
	}
	now := i.fs.now()
	i.d.Mtime, i.d.Ctime = now, now
	i.touch(h)
}

// empty tells whether a directory holds nothing but "." and "..".
func (i *Inode) empty() (bool, error) {
	found := false
	err := i.readDir(0, func(e DirEntry) bool {
		found = !dots(e.Name)
		return !found
	})
	return !found, err
}
