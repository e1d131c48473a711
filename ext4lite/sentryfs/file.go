// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"io"
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// maxSeekExtents bounds the extents that one lseek(SEEK_DATA or SEEK_HOLE)
// looks at: a forged file can have one every 512 bytes of its 2^62. Behind so
// many, the answer is the one for a file without holes.
const maxSeekExtents = 1 << 16

// openFile opens the file behind d. One that was just created is open to its
// creator, whatever its mode.
func (d *dentry) openFile(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions, created bool) (*vfs.FileDescription, error) {
	i := d.inode
	ats := vfs.AccessTypesForOpenFlags(opts)
	switch {
	case i.isSymlink():
		return nil, linuxerr.ELOOP
	case i.isDir() && (ats.MayWrite() || opts.Flags&linux.O_CREAT != 0):
		return nil, linuxerr.EISDIR
	case i.isRegular() && ats.MayWrite() && i.w == nil:
		return nil, linuxerr.EROFS
	}
	if !created {
		if err := i.checkPermissions(rp.Credentials(), ats); err != nil {
			return nil, err
		}
	}
	switch i.kind {
	case linux.S_IFREG:
		return d.openRegular(ctx, rp, opts, created)
	case linux.S_IFDIR:
		if opts.Flags&linux.O_DIRECT != 0 {
			return nil, linuxerr.EINVAL
		}
		fd := &directoryFD{}
		return fd.init(fd, d, rp, opts)
	case linux.S_IFIFO:
		o := i.opened()
		return o.pipe.Open(ctx, rp.Mount(), &d.vfsd, opts.Flags, &o.locks)
	case linux.S_IFCHR:
		return d.openDevice(ctx, rp, vfs.CharDevice, opts)
	case linux.S_IFBLK:
		return d.openDevice(ctx, rp, vfs.BlockDevice, opts)
	}
	return nil, linuxerr.ENXIO // a socket
}

// openRegular opens a regular file, and cuts it to nothing if that is asked
// for.
func (d *dentry) openRegular(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions, created bool) (*vfs.FileDescription, error) {
	i := d.inode
	if opts.Flags&linux.O_TRUNC != 0 && !created {
		mnt := rp.Mount()
		if err := mnt.CheckBeginWrite(); err != nil {
			return nil, err
		}
		err := i.truncate(ctx, 0)
		mnt.EndWrite()
		if err != nil {
			return nil, err
		}
	}
	fd := &regularFD{}
	vfsfd, err := fd.init(fd, d, rp, opts)
	if err == nil && i.w != nil && vfsfd.IsWritable() {
		i.w.OpenWrite()
		fd.writing = true
	}
	return vfsfd, err
}

// openDevice opens the device that d stands for. A whiteout is no device that
// anybody registers.
func (d *dentry) openDevice(ctx context.Context, rp *vfs.ResolvingPath, kind vfs.DeviceKind, opts *vfs.OpenOptions) (*vfs.FileDescription, error) {
	mnt := rp.Mount()
	if mnt.Options().Flags.NoDev {
		return nil, linuxerr.EACCES
	}
	a := d.inode.attr()
	return d.fs.vfsfs.VirtualFilesystem().OpenDeviceSpecialFile(ctx, mnt, &d.vfsd, kind, a.RdevMajor, a.RdevMinor, opts)
}

// fileFD is what open regular files and directories have in common.
type fileFD struct {
	vfsfd vfs.FileDescription
	vfs.FileDescriptionDefaultImpl
	vfs.LockFD
}

func (fd *fileFD) init(impl vfs.FileDescriptionImpl, d *dentry, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*vfs.FileDescription, error) {
	fd.LockFD.Init(&d.inode.opened().locks)
	err := fd.vfsfd.Init(impl, opts.Flags, rp.Credentials(), rp.Mount(), &d.vfsd, &vfs.FileDescriptionOptions{
		AllowDirectIO: true,
	})
	if err != nil {
		return nil, err
	}
	return &fd.vfsfd, nil
}

func (fd *fileFD) dentry() *dentry { return fd.vfsfd.Dentry().Impl().(*dentry) }

// Release implements vfs.FileDescriptionImpl.
func (fd *fileFD) Release(context.Context) {}

// Stat implements vfs.FileDescriptionImpl.
func (fd *fileFD) Stat(context.Context, vfs.StatOptions) (linux.Statx, error) {
	var st linux.Statx
	fd.dentry().inode.statTo(&st)
	return st, nil
}

// StatFS implements vfs.FileDescriptionImpl.
func (fd *fileFD) StatFS(context.Context) (linux.Statfs, error) {
	return fd.dentry().fs.statFS(), nil
}

// Sync implements vfs.FileDescriptionImpl.
func (fd *fileFD) Sync(ctx context.Context, _ vfs.SyncOptions) error {
	return fd.dentry().inode.sync(ctx)
}

// sync makes the file durable.
func (i *inode) sync(ctx context.Context) error {
	if i.w == nil {
		return nil
	}
	ctx.UninterruptibleSleepStart()
	defer ctx.UninterruptibleSleepFinish()
	return i.fs.answer("sync inode", i.id, i.w.SyncFile())
}

// regularFD is an open regular file.
type regularFD struct {
	fileFD

	// mu protects off, the position.
	mu  sync.Mutex
	off int64

	// writing says that the volume counts this opening as one for writing. It
	// is immutable.
	writing bool
}

var _ vfs.FileDescriptionImpl = (*regularFD)(nil)

// Release implements vfs.FileDescriptionImpl.
func (fd *regularFD) Release(context.Context) {
	if fd.writing {
		fd.dentry().inode.w.CloseWrite()
	}
}

// PRead implements vfs.FileDescriptionImpl.
func (fd *regularFD) PRead(ctx context.Context, dst usermem.IOSequence, off int64, opts vfs.ReadOptions) (int64, error) {
	if off < 0 {
		return 0, linuxerr.EINVAL
	}
	if opts.Flags&^(linux.RWF_HIPRI|linux.RWF_SYNC|linux.RWF_DSYNC) != 0 {
		return 0, linuxerr.EOPNOTSUPP
	}
	if dst.NumBytes() == 0 {
		return 0, nil
	}
	i := fd.dentry().inode
	if i.w == nil {
		return dst.CopyOutFrom(ctx, &fileReader{i: i, off: off})
	}
	n, err := dst.CopyOutFrom(ctx, &nodeReader{i: i, off: off})
	i.touchAtime(fd.vfsfd.Mount(), fd.vfsfd.StatusFlags())
	return n, err
}

// Read implements vfs.FileDescriptionImpl.
func (fd *regularFD) Read(ctx context.Context, dst usermem.IOSequence, opts vfs.ReadOptions) (int64, error) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	n, err := fd.PRead(ctx, dst, fd.off, opts)
	fd.off += n
	return n, err
}

// Seek implements vfs.FileDescriptionImpl.
func (fd *regularFD) Seek(ctx context.Context, off int64, whence int32) (int64, error) {
	i := fd.dentry().inode
	fd.mu.Lock()
	defer fd.mu.Unlock()
	switch whence {
	case linux.SEEK_SET:
	case linux.SEEK_CUR:
		off += fd.off
	case linux.SEEK_END:
		off += i.size()
	case linux.SEEK_DATA, linux.SEEK_HOLE:
		var err error
		if off, err = i.seekExtent(off, whence == linux.SEEK_HOLE); err != nil {
			return 0, err
		}
	default:
		return 0, linuxerr.EINVAL
	}
	if off < 0 {
		return 0, linuxerr.EINVAL
	}
	fd.off = off
	return off, nil
}

// ConfigureMMap implements vfs.FileDescriptionImpl.
func (fd *regularFD) ConfigureMMap(ctx context.Context, opts *memmap.MMapOpts) error {
	i := fd.dentry().inode
	if i.w != nil && len(i.fs.vol.Files()) == 0 {
		return linuxerr.ENODEV // blocks that are not pages
	}
	return vfs.GenericConfigureMMap(&fd.vfsfd, i, opts)
}

// extent returns the checked extent that covers off.
//
// Preconditions: 0 <= off < i.fixed.SizeBytes.
func (i *inode) extent(off int64) (Extent, error) {
	e, err := i.node.Extent(off)
	if err != nil {
		return Extent{}, i.fs.errno("map a block of inode", i.id, err)
	}
	// All sums below stay inside 63 bits if this holds.
	size := i.fixed.SizeBytes
	if e.Off < 0 || e.Off > off || e.Len <= off-e.Off || e.Len > size-e.Off {
		return Extent{}, i.fs.errno("map a block of inode: extent does not cover it", i.id, linuxerr.EUCLEAN)
	}
	if e.File != nil && (e.FileOff < 0 || e.FileOff > e.File.size || e.Len > e.File.size-e.FileOff) {
		return Extent{}, i.fs.errno("map a block of inode: extent lies outside the volume", i.id, linuxerr.EUCLEAN)
	}
	return e, nil
}

// seekExtent returns the first offset from off on that is in a hole, or in
// data. The end of the file is a hole.
func (i *inode) seekExtent(off int64, hole bool) (int64, error) {
	if i.w != nil {
		seek := i.w.SeekData
		if hole {
			seek = i.w.SeekHole
		}
		off, err := seek(off)
		return off, i.fs.answer("seek in inode", i.id, err)
	}
	size := i.fixed.SizeBytes
	if off < 0 || off >= size {
		return 0, linuxerr.ENXIO
	}
	start := off
	for n := 0; off < size; n++ {
		if n == maxSeekExtents {
			if hole {
				return size, nil
			}
			return start, nil
		}
		e, err := i.extent(off)
		if err != nil {
			return 0, err
		}
		if (e.File == nil) == hole {
			return off, nil
		}
		off = e.end()
	}
	if hole {
		return size, nil
	}
	return 0, linuxerr.ENXIO
}

// fileReader reads an inode's data from off on. It implements safemem.Reader.
type fileReader struct {
	i   *inode
	off int64
}

// ReadToBlocks implements safemem.Reader.
func (r *fileReader) ReadToBlocks(dsts safemem.BlockSeq) (uint64, error) {
	n, err := r.i.readToBlocks(dsts, r.off)
	r.off += int64(n)
	return n, err
}

// readToBlocks fills dsts with the file's bytes from off on: straight from the
// host's page cache. It returns io.EOF only if there are none.
func (i *inode) readToBlocks(dsts safemem.BlockSeq, off int64) (uint64, error) {
	var done uint64
	for !dsts.IsEmpty() {
		if off >= i.fixed.SizeBytes {
			if done == 0 {
				return 0, io.EOF
			}
			break
		}
		e, err := i.extent(off)
		if err != nil {
			return done, err
		}
		part := dsts.TakeFirst64(uint64(e.end() - off))
		var n uint64
		if e.File == nil {
			n, err = safemem.ZeroSeq(part)
		} else {
			n, err = e.File.readToBlocks(part, e.FileOff+off-e.Off)
		}
		done += n
		if err != nil {
			return done, err
		}
		off += int64(n)
		dsts = dsts.DropFirst64(n)
	}
	return done, nil
}
