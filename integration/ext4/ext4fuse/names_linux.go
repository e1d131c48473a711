// SPDX-License-Identifier: Apache-2.0

// Names: making, moving and removing them, and reading directories.

package main

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

// newInode is what a caller makes in a directory. Below a set-group-ID
// directory all belongs to its group, and directories hand the bit on.
func newInode(dir *ext4lite.Inode, h *fuse.InHeader, mode, umask uint32) ext4lite.NewInode {
	n := ext4lite.NewInode{Mode: uint16(mode), UID: h.Uid, GID: h.Gid, InheritACL: true, Umask: uint16(umask)}
	if a := dir.Attr(); a.Mode&unix.S_ISGID != 0 {
		n.GID = a.GID
		if mode&unix.S_IFMT == unix.S_IFDIR {
			n.Mode |= unix.S_ISGID
		}
	}
	return n
}

// make makes any kind of inode.
func (v *volume) make(h *fuse.InHeader, name string, n ext4lite.NewInode, out *fuse.EntryOut) (*ext4lite.Inode, fuse.Status) {
	i, err := v.at(h.NodeId).Make(name, n)
	if err == nil {
		v.answer(i, out)
	}
	return i, status(err)
}

func (v *volume) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	n := newInode(v.at(in.NodeId), &in.InHeader, in.Mode, in.Umask)
	n.Major, n.Minor = in.Rdev>>8&0xfff, in.Rdev&0xff|in.Rdev>>12&0xfff00
	_, code := v.make(&in.InHeader, name, n, out)
	return code
}

func (v *volume) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	_, code := v.make(&in.InHeader, name, newInode(v.at(in.NodeId), &in.InHeader, in.Mode&0o7777|unix.S_IFDIR, in.Umask), out)
	return code
}

func (v *volume) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	n := newInode(v.at(h.NodeId), h, unix.S_IFLNK|0o777, 0)
	n.Target = target
	_, code := v.make(h, name, n, out)
	return code
}

func (v *volume) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	target, err := v.at(h.NodeId).Readlink()
	return []byte(target), status(err)
}

func (v *volume) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return status(v.at(h.NodeId).Unlink(name))
}

func (v *volume) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return status(v.at(h.NodeId).Rmdir(name))
}

// Rename leaves a whiteout to its caller, as the kernel's file systems do: the
// library knows of no callers and leaves it to root.
func (v *volume) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	dir := v.at(in.NodeId)
	err := v.fs.Rename(dir, oldName, v.at(in.Newdir), newName, int(in.Flags))
	if err != nil || in.Flags&ext4lite.RenameWhiteout == 0 {
		return status(err)
	}
	i, err := dir.Lookup(oldName)
	if err != nil {
		return status(err)
	}
	n := newInode(dir, &in.InHeader, unix.S_IFCHR, 0)
	err = i.SetAttr(ext4lite.SetAttr{UID: &n.UID, GID: &n.GID})
	i.Release()
	return status(err)
}

func (v *volume) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	i := v.at(in.Oldnodeid)
	if err := v.at(in.NodeId).Link(name, i); err != nil {
		return status(err)
	}
	i.Retain()
	v.answer(i, out)
	return fuse.OK
}

func (v *volume) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (v *volume) ReleaseDir(*fuse.ReleaseIn) {}

func (v *volume) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.at(in.NodeId).ReadDir(int64(in.Offset), func(e ext4lite.DirEntry) bool {
		return out.AddDirEntry(fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: uint32(e.Type) << 12, Off: uint64(e.Next)})
	}))
}

func (v *volume) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return status(v.at(in.NodeId).SyncFile())
}
