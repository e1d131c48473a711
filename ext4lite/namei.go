// SPDX-License-Identifier: Apache-2.0

// Making names: create, mkdir, symlink, mknod, link, unnamed files.

package ext4lite

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

const (
	// maxLinks is ext4's limit. A directory that has more sub-directories
	// counts as 1, with the feature dir_nlink.
	maxLinks = 65000
	// createCredits is what a new inode dirties apart from its name: bitmap,
	// descriptor, table, inode, first block and attributes, orphan link.
	createCredits = 24
)

// NewInode says what a new inode is.
type NewInode struct {
	Mode         uint16 // type and permission bits
	UID, GID     uint32
	Major, Minor uint32 // of a device
	Target       string // of a symbolic link
	Xattrs       []Xattr
	// InheritACL has the directory's default ACL decide on Mode and become the
	// new inode's, as the kernel does it. Mode is then what was asked for, and
	// Umask is taken off it where the directory has no such list.
	InheritACL bool
	Umask      uint16
}

// Xattr is an extended attribute with its full name.
type Xattr struct {
	Name  string
	Value []byte
}

// Create makes a regular file.
func (i *Inode) Create(name string, n NewInode) (*Inode, error) {
	n.Mode = n.Mode&0o7777 | disk.ModeReg
	return i.Make(name, n)
}

// Mkdir makes a directory.
func (i *Inode) Mkdir(name string, n NewInode) (*Inode, error) {
	n.Mode = n.Mode&0o7777 | disk.ModeDir
	return i.Make(name, n)
}

// Symlink makes a symbolic link.
func (i *Inode) Symlink(name, target string, n NewInode) (*Inode, error) {
	n.Mode, n.Target = disk.ModeLink|0o777, target
	return i.Make(name, n)
}

// Mknod makes a device, fifo or socket; a character device 0/0 is overlayfs's
// whiteout.
func (i *Inode) Mknod(name string, n NewInode) (*Inode, error) { return i.Make(name, n) }

// Make makes an inode of any type under a new name.
func (i *Inode) Make(name string, n NewInode) (child *Inode, err error) {
	err = i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		child, err = i.make(name, n)
		return err
	})
	if err != nil {
		return nil, failName("create", name, err)
	}
	return child, nil
}

func (i *Inode) make(name string, n NewInode) (*Inode, error) {
	if err := i.vacant(name); err != nil {
		return nil, err
	}
	if err := n.check(i.fs); err != nil {
		return nil, err
	}
	dir := n.Mode&ModeType == disk.ModeDir
	if dir && i.d.Links >= maxLinks && i.fs.s.ROCompat&disk.ROCompatDirNlink == 0 {
		return nil, EMLINK
	}
	if err := i.extents(); err != nil {
		return nil, err
	}
	h, err := i.fs.start(dirCredits + createCredits + i.fs.mapCredits())
	if err != nil {
		return nil, err
	}
	defer h.Stop()
	child, err := i.fs.newInode(h, i, n)
	if err != nil {
		return nil, err
	}
	if err := i.add(h, name, child.ino, disk.FtOfMode(n.Mode)); err != nil {
		i.fs.undoNew(h, child)
		return nil, i.fs.damaged(err)
	}
	if dir {
		i.addLink(1)
	}
	return child, nil
}

// vacant checks that a name can be made in a directory.
func (i *Inode) vacant(name string) error {
	if err := i.isDir(); err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	if dots(name) {
		return EEXIST
	}
	if i.fs.readonly.Load() {
		return EROFS
	}
	if i.d.Links == 0 { // removed, but still open
		return ENOENT
	}
	_, ok, err := i.lookup(name)
	if err != nil {
		return err
	}
	if ok {
		return EEXIST
	}
	return nil
}

func (n *NewInode) check(fs *FS) error {
	switch n.Mode & ModeType {
	case disk.ModeReg, disk.ModeDir, disk.ModeFifo, disk.ModeSocket:
	case disk.ModeChar, disk.ModeBlock:
		if n.Major > 0xfff || n.Minor > 0xfffff {
			return fmt.Errorf("device %d:%d: %w", n.Major, n.Minor, EINVAL)
		}
	case disk.ModeLink:
		if n.Target == "" {
			return ENOENT
		}
		if len(n.Target) > fs.maxTarget() {
			return ENAMETOOLONG
		}
	default:
		return fmt.Errorf("mode %#o: %w", n.Mode, EINVAL)
	}
	return nil
}

// maxTarget is the longest target of a symbolic link.
func (fs *FS) maxTarget() int { return min(fs.g.BlockSize, 4096) - 1 }

// newInode takes an inode and fills it, without a name yet.
func (fs *FS) newInode(h *journal.Handle, dir *Inode, n NewInode) (*Inode, error) {
	isDir := n.Mode&ModeType == disk.ModeDir
	ino, fresh, err := fs.a.TakeInode(h, dir.group(), isDir)
	if err != nil {
		return nil, fs.damaged(err)
	}
	b, at, err := fs.table(h, ino, fresh)
	if err != nil {
		return nil, fs.damaged(err)
	}
	clear(b.Data[at : at+fs.g.InodeSize]) // what a former inode left
	h.Dirty(b)
	var gen [4]byte
	rand.Read(gen[:])
	now := fs.now()
	c := &Inode{fs: fs, ino: ino}
	c.once.Do(func() {})
	c.d = disk.Inode{Mode: n.Mode, Links: 1, UID: n.UID, GID: n.GID, Generation: binary.LittleEndian.Uint32(gen[:]),
		Flags: dir.d.Flags & disk.FlInherited, Atime: now, Mtime: now, Ctime: now, Crtime: now, ExtraIsize: disk.MaxExtraIsize(fs.g.InodeSize)}
	if room := fs.g.InodeSize - 128 - int(c.d.ExtraIsize); fs.g.InodeSize > 128 {
		c.d.Xattrs = make([]byte, room)
	}
	c.xsOK = true
	c.bind()
	fs.icache.mu.Lock()
	fs.icache.put(c)
	fs.icache.mu.Unlock()
	if err := c.fillNew(h, dir, n); err != nil {
		fs.undoNew(h, c)
		return nil, fs.damaged(err)
	}
	c.touch(h)
	return c, nil
}

// fillNew gives a new inode what its type needs.
func (i *Inode) fillNew(h *journal.Handle, dir *Inode, n NewInode) error {
	switch n.Mode & ModeType {
	case disk.ModeReg:
		i.d.Flags |= disk.FlExtents
		i.tree.Init()
	case disk.ModeDir:
		i.d.Flags |= disk.FlExtents
		i.tree.Init()
		i.d.Links = 2
		b, _, err := i.appendDirBlock(h)
		if err != nil {
			return err
		}
		disk.PutDirent(b.Data, 0, 12, i.ino, disk.FtDir, ".")
		disk.PutDirent(b.Data, 12, i.fs.g.DirEnd()-12, dir.ino, disk.FtDir, "..")
		disk.InitDirTail(b.Data, i.fs.g)
		i.dirtyLeaf(h, b)
	case disk.ModeLink:
		if err := i.fillLink(h, n.Target); err != nil {
			return err
		}
	case disk.ModeChar, disk.ModeBlock:
		i.d.SetRdev(n.Major, n.Minor)
	}
	if err := i.inheritACL(h, dir, n); err != nil {
		return err
	}
	for _, x := range n.Xattrs {
		if err := i.putXattr(h, x.Name, x.Value, 0); err != nil {
			return err
		}
	}
	return nil
}

// undoNew gives back an inode that got no name, within the handle that took it.
func (fs *FS) undoNew(h *journal.Handle, c *Inode) {
	if c.mapped() {
		c.tree.Remove(h, 0, disk.MaxLogical+1, 4, func(start, n uint64) error { return c.freeData(h, start, n) })
	}
	c.freeXattrBlock(h)
	dir := c.d.Type() == disk.ModeDir
	c.d = disk.Inode{Generation: c.d.Generation, ExtraIsize: c.d.ExtraIsize, Xattrs: make([]byte, len(c.d.Xattrs))}
	fs.dirtyMu.Lock()
	delete(fs.dirty, c)
	c.dirty.Store(false)
	fs.dirtyMu.Unlock()
	if err := fs.encode(h, c); err != nil {
		fs.damaged(err)
	}
	if err := fs.a.FreeInode(h, c.ino, dir); err != nil {
		fs.damaged(err)
	}
	fs.icache.mu.Lock()
	c.gone = true
	if fs.icache.m[c.ino] == c {
		delete(fs.icache.m, c.ino)
	}
	fs.icache.mu.Unlock()
}

// addLink changes a directory's link count by n. One that has had more than
// maxLinks stays at 1: how many is not known any more.
func (i *Inode) addLink(n int) {
	if n > 0 && i.d.Links >= maxLinks {
		i.d.Links = 1
		return
	}
	if i.d.Links == 1 && i.d.Type() == disk.ModeDir {
		return
	}
	i.d.Links = uint32(int(i.d.Links) + n)
}

// Link gives an inode another name in a directory. An unnamed file gets its
// first.
func (i *Inode) Link(name string, target *Inode) error {
	err := i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.link(name, target)
	})
	if err != nil {
		return failName("link", name, err)
	}
	return nil
}

func (i *Inode) link(name string, target *Inode) error {
	if target.fs != i.fs {
		return EXDEV
	}
	if err := i.vacant(name); err != nil {
		return err
	}
	if target == i {
		return EPERM
	}
	if err := i.extents(); err != nil {
		return err
	}
	target.mu.Lock()
	defer target.mu.Unlock()
	if target.d.Type() == disk.ModeDir {
		return EPERM
	}
	if target.d.Links >= maxLinks {
		return EMLINK
	}
	if target.d.Links == 0 && !target.tmp {
		return ENOENT
	}
	h, err := i.fs.start(dirCredits + 8)
	if err != nil {
		return err
	}
	defer h.Stop()
	if err := i.add(h, name, target.ino, disk.FtOfMode(target.d.Mode)); err != nil {
		return i.fs.damaged(err)
	}
	if target.d.Links == 0 {
		i.fs.delOrphan(h, target)
		target.tmp = false
	}
	target.d.Links++
	target.d.Ctime = i.fs.now()
	target.touch(h)
	return nil
}

// CreateUnnamed makes a file without a name near a directory, as open(2) does
// with O_TMPFILE. It is freed with its last reference unless Link names it.
func (i *Inode) CreateUnnamed(n NewInode) (child *Inode, err error) {
	n.Mode = n.Mode&0o7777 | disk.ModeReg
	err = i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		if err := i.isDir(); err != nil {
			return err
		}
		h, err := i.fs.start(createCredits + i.fs.mapCredits())
		if err != nil {
			return err
		}
		defer h.Stop()
		if child, err = i.fs.newInode(h, i, n); err != nil {
			return err
		}
		child.d.Links, child.tmp = 0, true
		i.fs.addOrphan(h, child)
		return nil
	})
	if err != nil {
		return nil, fail("create unnamed file near", i.ino, err)
	}
	return child, nil
}
