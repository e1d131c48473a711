// SPDX-License-Identifier: Apache-2.0

// Nodes: what the kernel knows of the volume, and their attributes.

package main

import (
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

// namesValid is how long the kernel may believe in a name. Nothing else
// changes the volume.
const namesValid = time.Hour

// rootIno is the root's inode in every ext4 volume.
const rootIno = 2

// node is an inode the kernel has looked up, as often as lookups says. The
// reference keeps its number from being given to another.
type node struct {
	*ext4lite.Inode
	lookups uint64
}

// volume answers the kernel. A node's number is its inode's, but for the root,
// which is 1 in FUSE's count.
type volume struct {
	fuse.RawFileSystem
	fs *ext4lite.FS

	mu    sync.Mutex
	nodes map[uint64]*node
}

func (v *volume) String() string { return "ext4lite" }

func status(err error) fuse.Status { return fuse.Status(ext4lite.ErrnoOf(err)) }

// at gives the inode of a node. The kernel names none that it has forgotten.
func (v *volume) at(id uint64) *ext4lite.Inode {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[id].Inode
}

// answer tells the kernel of an inode, and keeps the caller's reference.
func (v *volume) answer(i *ext4lite.Inode, out *fuse.EntryOut) {
	out.SetEntryTimeout(namesValid)
	a := i.Attr()
	fillAttr(a, &out.Attr)
	out.Generation = uint64(a.Generation)
	if out.NodeId = uint64(a.Ino); a.Ino == rootIno {
		out.NodeId = fuse.FUSE_ROOT_ID
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.nodes[out.NodeId]; n != nil {
		n.lookups++
		i.Release() // of two references, so nothing is freed under the lock
		return
	}
	v.nodes[out.NodeId] = &node{Inode: i, lookups: 1}
}

// Forget takes lookups back, and the reference with the last.
func (v *volume) Forget(id, lookups uint64) {
	v.mu.Lock()
	n := v.nodes[id]
	if n.lookups -= lookups; n.lookups > 0 {
		v.mu.Unlock()
		return
	}
	delete(v.nodes, id)
	v.mu.Unlock()
	n.Release()
}

// OnUnmount drops what the kernel did not forget one by one.
func (v *volume) OnUnmount() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, n := range v.nodes {
		n.Release()
		delete(v.nodes, id)
	}
}

func fillAttr(a ext4lite.Attr, out *fuse.Attr) {
	out.Ino, out.Size, out.Blocks, out.Blksize = uint64(a.Ino), uint64(a.Size), a.Blocks, 4096
	out.Atime, out.Atimensec = uint64(a.Atime.Sec), a.Atime.Nsec
	out.Mtime, out.Mtimensec = uint64(a.Mtime.Sec), a.Mtime.Nsec
	out.Ctime, out.Ctimensec = uint64(a.Ctime.Sec), a.Ctime.Nsec
	out.Mode, out.Nlink, out.Owner = uint32(a.Mode), a.Links, fuse.Owner{Uid: a.UID, Gid: a.GID}
	out.Rdev = a.Minor&0xff | a.Major<<8 | (a.Minor&^0xff)<<12
}

// Lookup finds a name. With "." and ".." the kernel asks for a node that it
// has forgotten, by a file handle.
func (v *volume) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var i *ext4lite.Inode
	var err error
	switch name {
	case ".", "..":
		if h.NodeId == fuse.FUSE_ROOT_ID {
			i, err = v.fs.Root()
		} else {
			i, err = v.fs.Inode(uint32(h.NodeId))
		}
		if err == nil && name == ".." {
			dir := i
			i, err = dir.Lookup(name)
			dir.Release()
		}
	default:
		i, err = v.at(h.NodeId).Lookup(name)
	}
	if err == nil {
		v.answer(i, out)
	}
	return status(err)
}

func (v *volume) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	fillAttr(v.at(in.NodeId).Attr(), &out.Attr)
	return fuse.OK
}

func (v *volume) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	var s ext4lite.SetAttr
	if mode, ok := in.GetMode(); ok {
		m := uint16(mode)
		s.Mode = &m
	}
	if uid, ok := in.GetUID(); ok {
		s.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		s.GID = &gid
	}
	if size, ok := in.GetSize(); ok {
		n := int64(size)
		s.Size = &n
	}
	if t, ok := in.GetATime(); ok {
		s.Atime = &ext4lite.Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
	}
	if t, ok := in.GetMTime(); ok {
		s.Mtime = &ext4lite.Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
	}
	i := v.at(in.NodeId)
	err := i.SetAttr(s)
	fillAttr(i.Attr(), &out.Attr)
	return status(err)
}

func (v *volume) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s := v.fs.Statfs()
	out.Blocks, out.Bfree, out.Bavail, out.Files, out.Ffree = s.Blocks, s.Free, s.Available, s.Inodes, s.FreeInodes
	out.Bsize, out.Frsize, out.NameLen = uint32(s.BlockSize), uint32(s.BlockSize), uint32(s.NameLen)
	return fuse.OK
}

func (v *volume) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	value, err := v.at(h.NodeId).GetXattr(name)
	return give(value, err, dest)
}

func (v *volume) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	names, err := v.at(h.NodeId).ListXattrs()
	var list strings.Builder
	for _, name := range names {
		list.WriteString(name + "\x00")
	}
	return give([]byte(list.String()), err, dest)
}

// give copies an answer, or tells how large it is.
func give(p []byte, err error, dest []byte) (uint32, fuse.Status) {
	switch {
	case err != nil:
		return 0, status(err)
	case len(dest) < len(p):
		return uint32(len(p)), fuse.ERANGE
	}
	return uint32(copy(dest, p)), fuse.OK
}

func (v *volume) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	i := v.at(in.NodeId)
	err := i.SetXattr(name, data, int(in.Flags))
	if err == nil && in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		mode := i.Mode() &^ unix.S_ISGID
		err = i.SetAttr(ext4lite.SetAttr{Mode: &mode})
	}
	return status(err)
}

func (v *volume) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return status(v.at(h.NodeId).RemoveXattr(name))
}

// Access is never asked: the kernel checks permissions itself.
func (v *volume) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.Status(unix.ENOSYS) }
