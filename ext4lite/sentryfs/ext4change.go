// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"

	"z.gfire.dev/gvx/ext4lite"
)

// This file has what changes an ext4 volume's files.

func newExt4Inode(n *NewNode) ext4lite.NewInode {
	in := ext4lite.NewInode{Mode: uint16(n.Mode), UID: n.UID, GID: n.GID, Major: n.RdevMajor, Minor: n.RdevMinor, Target: n.Target}
	if n.Mode.FileType() == linux.S_IFLNK {
		in.Mode = linux.S_IFLNK | 0o777
	}
	if n.AccessACL != nil {
		in.Xattrs = append(in.Xattrs, ext4lite.Xattr{Name: linux.XATTR_NAME_POSIX_ACL_ACCESS, Value: n.AccessACL})
	}
	if n.DefaultACL != nil {
		in.Xattrs = append(in.Xattrs, ext4lite.Xattr{Name: linux.XATTR_NAME_POSIX_ACL_DEFAULT, Value: n.DefaultACL})
	}
	return in
}

func (n *ext4Node) made(i *ext4lite.Inode, err error) (uint64, WritableNode, error) {
	if err != nil {
		return 0, nil, ext4Error(err)
	}
	return uint64(i.Ino()), &ext4Node{v: n.v, i: i}, nil
}

// Make implements WritableNode.
func (n *ext4Node) Make(name string, nn *NewNode) (uint64, WritableNode, error) {
	return n.made(n.i.Make(name, newExt4Inode(nn)))
}

// MakeUnnamed implements WritableNode.
func (n *ext4Node) MakeUnnamed(nn *NewNode) (uint64, WritableNode, error) {
	return n.made(n.i.CreateUnnamed(newExt4Inode(nn)))
}

// Link implements WritableNode.
func (n *ext4Node) Link(name string, target WritableNode) error {
	return ext4Error(n.i.Link(name, target.(*ext4Node).i))
}

// Unlink implements WritableNode.
func (n *ext4Node) Unlink(name string) error { return ext4Error(n.i.Unlink(name)) }

// Rmdir implements WritableNode.
func (n *ext4Node) Rmdir(name string) error { return ext4Error(n.i.Rmdir(name)) }

// SetAttr implements WritableNode.
func (n *ext4Node) SetAttr(s *SetAttr) error {
	return ext4Error(n.i.SetAttr(ext4lite.SetAttr{
		Mode:  s.Perm,
		UID:   s.UID,
		GID:   s.GID,
		Atime: toExt4Time(s.Atime),
		Mtime: toExt4Time(s.Mtime),
		Ctime: toExt4Time(s.Ctime),
	}))
}

// TouchAtime implements WritableNode.
func (n *ext4Node) TouchAtime() error { return ext4Error(n.i.TouchAtime()) }

// SetXattr implements WritableNode.
func (n *ext4Node) SetXattr(name string, value []byte, flags uint32) error {
	return ext4Error(n.i.SetXattr(name, value, int(flags)))
}

// RemoveXattr implements WritableNode.
func (n *ext4Node) RemoveXattr(name string) error { return ext4Error(n.i.RemoveXattr(name)) }

// OpenWrite implements WritableNode.
func (n *ext4Node) OpenWrite() { n.i.OpenWrite() }

// CloseWrite implements WritableNode.
func (n *ext4Node) CloseWrite() { n.i.CloseWrite() }

// Truncate implements WritableNode.
func (n *ext4Node) Truncate(size int64) error { return ext4Error(n.i.Truncate(size)) }

// Allocate implements WritableNode.
func (n *ext4Node) Allocate(mode uint32, off, length int64) error {
	return ext4Error(n.i.Fallocate(mode, off, length))
}

// SeekData implements WritableNode.
func (n *ext4Node) SeekData(off int64) (int64, error) {
	off, err := n.i.SeekData(off)
	return off, ext4Error(err)
}

// SeekHole implements WritableNode.
func (n *ext4Node) SeekHole(off int64) (int64, error) {
	off, err := n.i.SeekHole(off)
	return off, ext4Error(err)
}

// SyncFile implements WritableNode.
func (n *ext4Node) SyncFile() error { return ext4Error(n.i.SyncFile()) }

// OnMove implements WritableNode.
func (n *ext4Node) OnMove(fn func(off, n int64)) { n.i.OnInvalidate(fn) }

// MapForRead implements WritableNode.
func (n *ext4Node) MapForRead(off, length int64) ([]Run, error) {
	return n.runs(n.i.MapForRead(off, length))
}

// MapForWrite implements WritableNode.
func (n *ext4Node) MapForWrite(off, length int64) ([]Run, error) {
	return n.runs(n.i.MapForWrite(off, length))
}

// runs says the same in the adapter's words.
func (n *ext4Node) runs(ms []ext4lite.Mapping, err error) ([]Run, error) {
	if err != nil {
		return nil, ext4Error(err)
	}
	runs := make([]Run, len(ms))
	for k, m := range ms {
		runs[k] = Run{Off: m.Off, Len: m.Len, VolumeOff: -1}
		if m.Volume < 0 {
			continue
		}
		f := n.v.byFile[m.File]
		if f == nil || !f.placed(m.FileOff-m.Volume) {
			for _, m := range ms {
				n.v.fs.ReleaseMapping(m)
			}
			return nil, fmt.Errorf("block of the volume at %d lies in an unknown place: %w", m.Volume, unix.EIO)
		}
		runs[k].File, runs[k].FileOff, runs[k].VolumeOff, runs[k].Writable = f, m.FileOff, m.Volume, m.Writable
	}
	return runs, nil
}
