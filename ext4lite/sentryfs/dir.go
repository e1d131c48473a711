// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// directoryFD is an open directory. Nothing is kept of what was read: the
// position is the volume's own, so that a directory of any size costs no memory
// and can be gone on with at any entry.
type directoryFD struct {
	fileFD
	vfs.DirectoryFileDescriptionDefaultImpl

	// mu protects off, the position of the next entry.
	mu  sync.Mutex
	off int64
}

var _ vfs.FileDescriptionImpl = (*directoryFD)(nil)

// IterDirents implements vfs.FileDescriptionImpl.
func (fd *directoryFD) IterDirents(ctx context.Context, cb vfs.IterDirentsCallback) error {
	d := fd.dentry()
	d.InotifyWithParent(ctx, linux.IN_ACCESS, 0, vfs.PathEvent)
	fd.mu.Lock()
	defer fd.mu.Unlock()

	var stop error
	pos, err := d.inode.node.ReadDir(fd.off, func(e Dirent) bool {
		if e.Next <= fd.off {
			stop = d.fs.errno("read directory: an entry points backwards", d.inode.id, linuxerr.EUCLEAN)
			return false
		}
		if stop = cb.Handle(d.dirent(e)); stop != nil {
			return false
		}
		fd.off = e.Next
		return true
	})
	if stop != nil {
		return stop
	}
	if err != nil {
		return d.fs.errno("read directory", d.inode.id, err)
	}
	fd.off = max(fd.off, pos)
	return nil
}

// dirent converts an entry of d. Where "." and ".." lead is for the tree to
// say, not for the image.
func (d *dentry) dirent(e Dirent) vfs.Dirent {
	ino := e.ID
	switch e.Name {
	case ".":
		ino = d.inode.id
	case "..":
		up := d.up()
		ino = up.inode.id
		up.DecRef(context.Background())
	}
	return vfs.Dirent{Name: e.Name, Type: e.Type, Ino: ino, NextOff: e.Next}
}

// Seek implements vfs.FileDescriptionImpl.
func (fd *directoryFD) Seek(ctx context.Context, off int64, whence int32) (int64, error) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	switch whence {
	case linux.SEEK_SET:
	case linux.SEEK_CUR:
		off += fd.off
	default:
		return 0, linuxerr.EINVAL
	}
	if off < 0 {
		return 0, linuxerr.EINVAL
	}
	fd.off = off
	return off, nil
}
