// SPDX-License-Identifier: Apache-2.0

// Taking names away: unlink and rmdir.

package ext4lite

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// victim finds the inode a name is about to lose. The caller holds i.mu alone.
func (i *Inode) victim(name string) (entry, *Inode, error) {
	if err := i.isDir(); err != nil {
		return entry{}, nil, err
	}
	if err := checkName(name); err != nil {
		return entry{}, nil, err
	}
	if i.fs.readonly.Load() {
		return entry{}, nil, EROFS
	}
	e, ok, err := i.lookup(name)
	if err != nil {
		return e, nil, err
	}
	if !ok {
		return e, nil, ENOENT
	}
	child, err := i.fs.Inode(e.ino)
	if err != nil {
		return e, nil, err
	}
	if child == i { // only a crafted volume names a directory in itself
		child.Release()
		return e, nil, disk.Corrupt(fmt.Sprintf("directory inode %d", i.ino), "%q names the directory itself", name)
	}
	return e, child, nil
}

// Unlink removes the name of something that is not a directory.
func (i *Inode) Unlink(name string) error {
	child, err := i.unlink(name)
	if child != nil {
		child.Release() // frees it, if this was its last name and nobody has it open
	}
	if err != nil {
		return failName("unlink", name, err)
	}
	return nil
}

func (i *Inode) unlink(name string) (*Inode, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if dots(name) {
		return nil, EISDIR
	}
	e, child, err := i.victim(name)
	if err != nil {
		return nil, err
	}
	if child.Mode()&ModeType == disk.ModeDir { // the type never changes
		return child, EISDIR
	}
	child.mu.Lock()
	defer child.mu.Unlock()
	h, err := i.fs.start(finishCredits)
	if err != nil {
		return child, err
	}
	defer h.Stop()
	if err := i.remove(h, e); err != nil {
		return child, err
	}
	child.d.Ctime = i.d.Ctime
	if child.d.Links > 0 {
		child.d.Links--
	}
	if child.d.Links == 0 {
		i.fs.addOrphan(h, child)
	}
	child.touch(h)
	return child, nil
}

// Rmdir removes an empty directory.
func (i *Inode) Rmdir(name string) error {
	child, err := i.rmdir(name)
	if child != nil {
		child.Release()
	}
	if err != nil {
		return failName("remove directory", name, err)
	}
	return nil
}

func (i *Inode) rmdir(name string) (*Inode, error) {
	switch name {
	case ".":
		return nil, EINVAL
	case "..":
		return nil, ENOTEMPTY
	}
	i.fs.renameMu.Lock()
	defer i.fs.renameMu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	e, child, err := i.victim(name)
	if err != nil {
		return nil, err
	}
	child.mu.Lock()
	defer child.mu.Unlock()
	if child.d.Type() != disk.ModeDir {
		return child, ENOTDIR
	}
	if child.ino == disk.RootIno {
		return child, EBUSY
	}
	empty, err := child.empty()
	if err != nil {
		return child, err
	}
	if !empty {
		return child, ENOTEMPTY
	}
	h, err := i.fs.start(finishCredits)
	if err != nil {
		return child, err
	}
	defer h.Stop()
	if err := i.remove(h, e); err != nil {
		return child, err
	}
	child.d.Ctime = i.d.Ctime
	child.d.Links = 0
	i.fs.addOrphan(h, child)
	child.touch(h)
	i.addLink(-1)
	return child, nil
}
