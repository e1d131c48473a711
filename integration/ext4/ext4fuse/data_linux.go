// SPDX-License-Identifier: Apache-2.0

// File data. A handle says only whether the file was opened for writing.

package main

import (
	"io"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/ext4lite"
)

// Handles of open files.
const (
	forReading = iota + 1
	forWriting
)

func open(i *ext4lite.Inode, flags uint32, out *fuse.OpenOut) {
	out.Fh = forReading
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		out.Fh = forWriting
		i.OpenWrite()
	}
}

func (v *volume) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	open(v.at(in.NodeId), in.Flags, out)
	return fuse.OK
}

func (v *volume) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	i, code := v.make(&in.InHeader, name, newInode(v.at(in.NodeId), &in.InHeader, in.Mode&0o7777|unix.S_IFREG, in.Umask), &out.EntryOut)
	if code.Ok() {
		open(i, in.Flags, &out.OpenOut)
	}
	return code
}

func (v *volume) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	dir := v.at(in.NodeId)
	i, err := dir.CreateUnnamed(newInode(dir, &in.InHeader, in.Mode&0o7777|unix.S_IFREG, in.Umask))
	if err != nil {
		return status(err)
	}
	v.answer(i, &out.EntryOut)
	open(i, in.Flags, &out.OpenOut)
	return fuse.OK
}

func (v *volume) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if in.Fh == forWriting {
		v.at(in.NodeId).CloseWrite()
	}
}

func (v *volume) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, err := v.at(in.NodeId).ReadAt(buf[:min(len(buf), int(in.Size))], int64(in.Offset))
	if err != nil && err != io.EOF {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (v *volume) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, err := v.at(in.NodeId).WriteAt(data, int64(in.Offset))
	if n > 0 {
		return uint32(n), fuse.OK // the caller comes again with the rest
	}
	return 0, status(err)
}

func (v *volume) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	i := v.at(in.NodeId)
	seek := i.SeekHole
	if in.Whence == unix.SEEK_DATA {
		seek = i.SeekData
	}
	off, err := seek(int64(in.Offset))
	out.Offset = uint64(off)
	return status(err)
}

func (v *volume) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return status(v.at(in.NodeId).Fallocate(in.Mode, int64(in.Offset), int64(in.Length)))
}

func (v *volume) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return status(v.at(in.NodeId).SyncFile())
}

func (v *volume) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }
