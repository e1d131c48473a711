// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"errors"
	"io"
	"math"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// Reading and changing the data of files of a WritableVolume. What is read is
// copied from the mapped host file, or with one system call if it is much. What
// is written goes there with one system call; memory that must be read with
// care, as another file's mapping, goes through a buffer.

// bounceBytes is the size of such buffers.
const bounceBytes = 64 << 10

var bounces = sync.Pool{New: func() any { return new([bounceBytes]byte) }}

// nodeReader reads an inode's data from off on. It implements safemem.Reader.
type nodeReader struct {
	i   *inode
	off int64
}

// ReadToBlocks implements safemem.Reader.
func (r *nodeReader) ReadToBlocks(dsts safemem.BlockSeq) (uint64, error) {
	if len(r.i.fs.vol.Files()) == 0 {
		return r.readUnmapped(dsts)
	}
	var done uint64
	var copied error
	err := r.i.w.View(r.off, int64(dsts.NumBytes()), func(f *HostFile, fileOff, n int64) error {
		part := dsts.TakeFirst64(uint64(n))
		var k uint64
		if f == nil {
			k, copied = safemem.ZeroSeq(part)
		} else {
			k, copied = f.readToBlocks(part, fileOff)
		}
		done += k
		dsts = dsts.DropFirst64(k)
		return copied
	})
	r.off += int64(done)
	switch {
	case copied != nil:
		return done, copied // the guest's memory, or the host's file
	case err == io.EOF && done > 0:
		return done, nil
	case err == nil || err == io.EOF:
		return done, err
	}
	return done, r.i.fs.answer("read inode", r.i.id, err)
}

// readUnmapped is ReadToBlocks for a volume whose blocks are not pages.
func (r *nodeReader) readUnmapped(dsts safemem.BlockSeq) (uint64, error) {
	var done uint64
	for !dsts.IsEmpty() {
		n, err := r.readBlock(dsts.Head())
		done += n
		r.off += int64(n)
		dsts = dsts.DropFirst64(n)
		switch {
		case errors.Is(err, io.EOF) && done > 0:
			return done, nil
		case errors.Is(err, io.EOF):
			return 0, io.EOF
		case err != nil:
			return done, r.i.fs.answer("read inode", r.i.id, err)
		}
	}
	return done, nil
}

// readBlock fills dst, or a part of it, and says io.EOF where the file ends.
func (r *nodeReader) readBlock(dst safemem.Block) (uint64, error) {
	if !dst.NeedSafecopy() {
		n, err := r.i.w.ReadAt(dst.ToSlice(), r.off)
		return uint64(n), err
	}
	buf := bounces.Get().(*[bounceBytes]byte)
	defer bounces.Put(buf)
	n, err := r.i.w.ReadAt(buf[:min(dst.Len(), bounceBytes)], r.off)
	if n == 0 {
		return 0, err
	}
	k, cerr := safemem.Copy(dst, safemem.BlockFromSafeSlice(buf[:n]))
	if cerr != nil {
		err = cerr
	}
	return uint64(k), err
}

// nodeWriter writes an inode's data from off on. It implements safemem.Writer.
type nodeWriter struct {
	i   *inode
	off int64
}

// WriteFromBlocks implements safemem.Writer.
func (w *nodeWriter) WriteFromBlocks(srcs safemem.BlockSeq) (uint64, error) {
	var done uint64
	for !srcs.IsEmpty() {
		n, err := w.writeBlock(srcs.Head())
		done += n
		w.off += int64(n)
		srcs = srcs.DropFirst64(n)
		if err != nil {
			return done, w.i.fs.answer("write inode", w.i.id, err)
		}
	}
	return done, nil
}

// writeBlock writes src, or a part of it.
func (w *nodeWriter) writeBlock(src safemem.Block) (uint64, error) {
	if !src.NeedSafecopy() {
		n, err := w.i.w.WriteAt(src.ToSlice(), w.off)
		return uint64(n), err
	}
	buf := bounces.Get().(*[bounceBytes]byte)
	defer bounces.Put(buf)
	n, cerr := safemem.Copy(safemem.BlockFromSafeSlice(buf[:]), src)
	if n == 0 {
		return 0, cerr
	}
	k, err := w.i.w.WriteAt(buf[:n], w.off)
	if err == nil {
		err = cerr
	}
	return uint64(k), err
}

// PWrite implements vfs.FileDescriptionImpl.
func (fd *regularFD) PWrite(ctx context.Context, src usermem.IOSequence, off int64, opts vfs.WriteOptions) (int64, error) {
	n, _, err := fd.write(ctx, src, off, opts)
	return n, err
}

// Write implements vfs.FileDescriptionImpl.
func (fd *regularFD) Write(ctx context.Context, src usermem.IOSequence, opts vfs.WriteOptions) (int64, error) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	n, end, err := fd.write(ctx, src, fd.off, opts)
	fd.off = end
	return n, err
}

// write writes src at off, or at the file's end with O_APPEND. It returns where
// it has ended.
func (fd *regularFD) write(ctx context.Context, src usermem.IOSequence, off int64, opts vfs.WriteOptions) (n, end int64, err error) {
	i := fd.dentry().inode
	switch {
	case off < 0:
		return 0, off, linuxerr.EINVAL
	case i.w == nil:
		return 0, off, linuxerr.EROFS
	case opts.Flags&^(linux.RWF_HIPRI|linux.RWF_SYNC|linux.RWF_DSYNC) != 0:
		return 0, off, linuxerr.EOPNOTSUPP
	case src.NumBytes() == 0:
		return 0, off, nil
	}
	flags := fd.vfsfd.StatusFlags()
	o := i.opened()
	o.writeMu.Lock()
	if flags&linux.O_APPEND != 0 {
		off = i.size()
	}
	n, err = i.writeLocked(ctx, src, off)
	o.writeMu.Unlock()
	if n > 0 && (flags&linux.O_DSYNC != 0 || opts.Flags&(linux.RWF_SYNC|linux.RWF_DSYNC) != 0) {
		if serr := i.sync(ctx); serr != nil {
			return 0, off, serr
		}
	}
	return n, off + n, err
}

// writeLocked writes as much of src as the limit on file sizes allows.
//
// Preconditions: openState.writeMu is locked.
func (i *inode) writeLocked(ctx context.Context, src usermem.IOSequence, off int64) (int64, error) {
	size := src.NumBytes()
	if off > math.MaxInt64-size {
		return 0, linuxerr.EFBIG
	}
	size, err := vfs.CheckLimit(ctx, off, size)
	if err != nil {
		return 0, err
	}
	n, err := src.TakeFirst64(size).CopyInTo(ctx, &nodeWriter{i: i, off: off})
	i.settle()
	if n > 0 {
		i.dropPrivileges(ctx)
	}
	return n, err
}

// truncate sets the file's length. The caller has checked that it may.
func (i *inode) truncate(ctx context.Context, size int64) error {
	switch {
	case i.isDir():
		return linuxerr.EISDIR
	case !i.isRegular():
		return linuxerr.EINVAL
	case i.w == nil:
		return linuxerr.EROFS
	}
	o := i.opened()
	o.writeMu.Lock()
	defer o.writeMu.Unlock()
	was := i.size()
	err := i.w.Truncate(size)
	if size < was {
		i.cut(pageUp(size), math.MaxInt64-pageUp(size), true)
	} else {
		i.settle()
	}
	if err != nil {
		return i.fs.answer("truncate inode", i.id, err)
	}
	i.dropPrivileges(ctx)
	return nil
}

// Allocate implements vfs.FileDescriptionImpl.
func (fd *regularFD) Allocate(ctx context.Context, mode, off, n uint64) error {
	i := fd.dentry().inode
	const known = linux.FALLOC_FL_KEEP_SIZE | linux.FALLOC_FL_PUNCH_HOLE | linux.FALLOC_FL_ZERO_RANGE
	switch {
	case i.w == nil:
		return linuxerr.EROFS
	case mode&^known != 0:
		return linuxerr.EOPNOTSUPP
	case off > math.MaxInt64 || n > math.MaxInt64-off:
		return linuxerr.EFBIG
	}
	o := i.opened()
	o.writeMu.Lock()
	defer o.writeMu.Unlock()
	if mode&linux.FALLOC_FL_KEEP_SIZE == 0 && int64(off+n) > i.size() {
		limit, err := vfs.CheckLimit(ctx, int64(off), int64(n))
		if err != nil {
			return err
		}
		if limit < int64(n) {
			return linuxerr.ErrExceedsFileSizeLimit
		}
	}
	ctx.UninterruptibleSleepStart()
	err := i.w.Allocate(uint32(mode), int64(off), int64(n))
	ctx.UninterruptibleSleepFinish()
	if mode&(linux.FALLOC_FL_PUNCH_HOLE|linux.FALLOC_FL_ZERO_RANGE) != 0 {
		i.cut(int64(off), int64(n), false)
	} else {
		i.settle()
	}
	if err != nil {
		return i.fs.answer("allocate for inode", i.id, err)
	}
	i.dropPrivileges(ctx)
	return nil
}

// atimeAge is how old an access time gets before a read replaces it although
// the file has not changed since: Linux's relatime.
const atimeAge = 24 * time.Hour

// touchAtime records an access through a mount, by a file opened with flags.
func (i *inode) touchAtime(mnt *vfs.Mount, flags uint32) {
	if i.w == nil || flags&linux.O_NOATIME != 0 {
		return
	}
	a := i.w.Attr()
	before := func(s, t linux.StatxTimestamp) bool { return s.Sec < t.Sec || s.Sec == t.Sec && s.Nsec <= t.Nsec }
	if !before(a.Atime, a.Mtime) && !before(a.Atime, a.Ctime) && time.Since(time.Unix(a.Atime.Sec, 0)) < atimeAge {
		return
	}
	if mnt.CheckBeginWrite() != nil {
		return
	}
	defer mnt.EndWrite()
	if mnt.Options().Flags.NoATime || i.fs.w.Failed() != nil {
		return
	}
	if err := i.w.TouchAtime(); err != nil {
		i.fs.answer("touch inode", i.id, err)
	}
}
