// SPDX-License-Identifier: Apache-2.0

// Reading and writing file data.

package ext4lite

import (
	"io"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// writeChunk is how much of one write is done before the inode's state is
// brought up to date: it bounds what a failure in the middle leaves undone.
const writeChunk = 4 << 20

// Open counts an opening of the file for writing; the window reserved behind
// a growing file is given back when [Inode.CloseWrite] was called as often.
func (i *Inode) OpenWrite() { i.opens.Add(1) }

// CloseWrite undoes one OpenWrite.
func (i *Inode) CloseWrite() {
	if i.opens.Add(-1) == 0 {
		i.mu.Lock()
		i.dropWindow()
		i.mu.Unlock()
	}
}

// ReadAt reads file data. Like io.ReaderAt it ends with io.EOF at the end of
// the file.
func (i *Inode) ReadAt(p []byte, off int64) (int, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if err := i.regular("read"); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fail("read", i.ino, EINVAL)
	}
	if uint64(off) >= i.d.Size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), int64(i.d.Size)-off))
	if err := i.readRange(p[:n], off); err != nil {
		return 0, fail("read", i.ino, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (i *Inode) regular(op string) error {
	switch i.d.Type() {
	case disk.ModeReg:
		return nil
	case disk.ModeDir:
		return fail(op, i.ino, EISDIR)
	}
	return fail(op, i.ino, EINVAL)
}

// readRange fills p from file data, holes as zeros. The caller holds mu.
func (i *Inode) readRange(p []byte, off int64) error {
	bs := int64(i.fs.g.BlockSize)
	for len(p) > 0 {
		e, ok, err := i.find(uint32(off / bs))
		if err != nil {
			return err
		}
		n := int(min(int64(len(p)), int64(e.End())*bs-off))
		if !ok || e.Unwritten {
			clear(p[:n])
		} else if err := i.fs.readData(p[:n], int64(e.Physical)*bs+off-int64(e.Logical)*bs); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readData reads bytes of the volume, through the journal where that was not
// replayed.
func (fs *FS) readData(p []byte, at int64) error {
	if !fs.overlaid {
		_, err := fs.dev.ReadAt(p, at)
		return err
	}
	bs := int64(fs.g.BlockSize)
	first := at / bs
	buf := make([]byte, (at+int64(len(p))+bs-1)/bs*bs-first*bs)
	if _, err := fs.dev.ReadAt(buf, first*bs); err != nil {
		return err
	}
	if err := fs.m.Overlay(uint64(first), buf); err != nil {
		return err
	}
	copy(p, buf[at-first*bs:])
	return nil
}

// WriteAt writes file data and grows the file where needed. On an error the
// count says how much was written.
func (i *Inode) WriteAt(p []byte, off int64) (int, error) {
	n := 0
	err := i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		k, err := i.write(p[n:], off+int64(n))
		n += k
		return err
	})
	if err != nil {
		return n, fail("write", i.ino, err)
	}
	return n, nil
}

// Append writes at the end of the file and tells where that was.
func (i *Inode) Append(p []byte) (off int64, n int, err error) {
	first := true
	err = i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		if first {
			off, first = int64(i.d.Size), false
		}
		k, err := i.write(p[n:], int64(i.d.Size))
		n += k
		return err
	})
	if err != nil {
		return off, n, fail("append to", i.ino, err)
	}
	return off, n, nil
}

func (i *Inode) write(p []byte, off int64) (int, error) {
	if err := i.regular("write"); err != nil {
		return 0, err
	}
	if i.fs.readonly.Load() {
		return 0, EROFS
	}
	if off < 0 {
		return 0, EINVAL
	}
	if off >= i.fs.maxSize() && len(p) > 0 {
		return 0, EFBIG
	}
	p = p[:min(int64(len(p)), i.fs.maxSize()-off)]
	if len(p) == 0 {
		return 0, nil
	}
	if err := i.extents(); err != nil {
		return 0, err
	}
	if err := i.zeroGap(off); err != nil {
		return 0, err
	}
	done := 0
	for done < len(p) {
		k, err := i.writeRun(p[done:min(len(p), done+writeChunk)], off+int64(done))
		i.fs.startOrdered()
		done += k
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// zeroGap clears what lies between the old end of the file and off in the
// block that holds the end: a mapping may have left bytes there.
func (i *Inode) zeroGap(off int64) error {
	bs := int64(i.fs.g.BlockSize)
	size := int64(i.d.Size)
	if off <= size || size%bs == 0 {
		return nil
	}
	return i.zeroWritten(size, min(off, (size/bs+1)*bs))
}

// zeroWritten clears [from, to), which lies in one block, if that is written.
func (i *Inode) zeroWritten(from, to int64) error {
	bs := int64(i.fs.g.BlockSize)
	e, ok, err := i.find(uint32(from / bs))
	if err != nil || !ok || e.Unwritten || from >= to {
		return err
	}
	if i.moves(from, to-from) {
		i.invalidate(from/bs*bs, bs)
	}
	at := (int64(e.Physical)-int64(e.Logical))*bs + from
	if _, err = i.fs.dev.WriteAt(make([]byte, to-from), at); err == nil {
		i.fs.order(at, to-from)
	}
	return err
}

// writeRun writes the part of p that one extent, or one new run, can take.
func (i *Inode) writeRun(p []byte, off int64) (int, error) {
	bs := int64(i.fs.g.BlockSize)
	logical := uint32(off / bs)
	e, ok, err := i.find(logical)
	if err != nil {
		return 0, err
	}
	if ok && !e.Unwritten {
		n := int(min(int64(len(p)), int64(e.End())*bs-off))
		if i.moves(off, int64(n)) {
			i.invalidate(off, int64(n)) // faults wait for mu, then find the new place
		}
		if _, err := i.fs.dev.WriteAt(p[:n], (int64(e.Physical)-int64(e.Logical))*bs+off); err != nil {
			return 0, err
		}
		return n, i.wrote(off+int64(n), 1, nil)
	}
	end := (off + int64(len(p)) + bs - 1) / bs
	n := min(end, int64(e.End())) - int64(logical) // blocks
	i.invalidate(int64(logical)*bs, n*bs)          // pages of zeros that stood for them
	if ok {
		if err := i.writePadded(p, off, uint64(int64(e.Physical)+int64(logical)-int64(e.Logical)), n); err != nil {
			return 0, err
		}
		return i.ran(p, off, n, func(h *journal.Handle) error {
			i.fs.order((int64(e.Physical)+int64(logical)-int64(e.Logical))*bs, n*bs)
			_, err := i.tree.MarkWritten(h, uint64(logical), uint64(logical)+uint64(n), 1)
			return err
		})
	}
	r, err := i.reserveData(logical, uint64(n), e.End() > disk.MaxLogical)
	if err != nil {
		return 0, err
	}
	if err := i.writePadded(p, off, r.Start, int64(r.N)); err != nil {
		i.fs.a.Unreserve(r)
		return 0, err
	}
	return i.ran(p, off, int64(r.N), func(h *journal.Handle) error {
		i.fs.order(int64(r.Start)*bs, int64(r.N)*bs)
		return i.mapReserved(h, logical, r, false)
	})
}

// ran finishes a run of n blocks that begins in off's block: it maps them and
// tells how many bytes of p they took.
func (i *Inode) ran(p []byte, off, n int64, change func(*journal.Handle) error) (int, error) {
	bs := int64(i.fs.g.BlockSize)
	k := int(min(int64(len(p)), (off/bs+n)*bs-off))
	return k, i.wrote(off+int64(k), i.fs.mapCredits(), change)
}

// writePadded writes p to n blocks that hold nothing yet, from the block that
// off is in; what p does not cover of the first and last is zeroed.
func (i *Inode) writePadded(p []byte, off int64, start uint64, n int64) error {
	bs := int64(i.fs.g.BlockSize)
	head := off % bs
	body := min(int64(len(p)), n*bs-head)
	tail := n*bs - head - body
	at := int64(start) * bs
	if head == 0 && tail == 0 {
		_, err := i.fs.dev.WriteAt(p[:body], at)
		return err
	}
	if n <= padBlocks {
		buf := make([]byte, n*bs)
		copy(buf[head:], p[:body])
		_, err := i.fs.dev.WriteAt(buf, at)
		return err
	}
	if head > 0 {
		if err := i.writePadded(p[:bs-head], off, start, 1); err != nil {
			return err
		}
		p, off, start, n, body = p[bs-head:], off+bs-head, start+1, n-1, body-(bs-head)
	}
	whole := body / bs
	if _, err := i.fs.dev.WriteAt(p[:whole*bs], int64(start)*bs); err != nil {
		return err
	}
	if whole == n {
		return nil
	}
	return i.writePadded(p[whole*bs:body], off+whole*bs, start+uint64(whole), n-whole)
}

// padBlocks is how many blocks are copied to be padded; longer runs are
// written in pieces.
const padBlocks = 16

// wrote records that data up to end was written: size, times, and whatever
// change makes to the map.
func (i *Inode) wrote(end int64, credits int, change func(*journal.Handle) error) error {
	now := i.fs.now()
	grew := uint64(end) > i.d.Size
	if change == nil && !grew && !stale(i.d.Mtime, now) {
		return nil
	}
	h, err := i.fs.start(credits + 1)
	if err != nil {
		return err
	}
	defer h.Stop()
	if change != nil {
		if err := change(h); err != nil {
			return i.fs.damaged(err)
		}
	}
	if grew {
		i.d.Size = uint64(end)
	}
	i.d.Mtime, i.d.Ctime = now, now
	i.d.Version++
	if mode := i.d.Mode; mode&0o6000 != 0 && i.d.Type() == disk.ModeReg && i.fs.opt.StripSetID {
		i.d.Mode = stripSetID(mode)
	}
	i.touch(h)
	return nil
}

// stripSetID takes set-user-ID away, and set-group-ID where it is not a lock
// mark.
func stripSetID(mode uint16) uint16 {
	mode &^= 0o4000
	if mode&0o010 != 0 {
		mode &^= 0o2000
	}
	return mode
}

// SyncFile makes one file durable: its data, its size and map, and its name if
// it is new.
func (i *Inode) SyncFile() error {
	fs := i.fs
	if fs.readonly.Load() {
		if err := fs.m.Err(); err != nil {
			return fail("sync", i.ino, err)
		}
		return nil
	}
	var err error
	switch tid := i.dirtyTid.Load(); {
	case fs.m.SyncsRanges():
		err = i.syncRanges(tid)
	case tid > fs.m.Committed():
		err = fs.m.CommitThrough(tid)
	default:
		err = fs.m.Sync()
	}
	if err != nil {
		return fail("sync", i.ino, err)
	}
	return nil
}

// syncRanges writes this file's data back, then has a commit, or a barrier,
// make it durable. A commit that began before the write-back was over does not
// count.
func (i *Inode) syncRanges(tid uint64) error {
	r := i.fs.dev.(device.RangeSyncer)
	i.mu.RLock()
	var err error
	if i.d.Type() == disk.ModeReg && i.d.Flags&disk.FlExtents != 0 {
		bs := int64(i.fs.g.BlockSize)
		err = i.tree.Walk(0, func(e disk.Extent) (bool, error) {
			if e.Unwritten {
				return true, nil
			}
			return true, r.WriteBack(int64(e.Physical)*bs, int64(e.Len)*bs)
		})
	} else if i.d.Type() == disk.ModeReg {
		err = i.fs.m.Sync()
	}
	i.mu.RUnlock()
	if err != nil {
		return err
	}
	if tid > i.fs.m.Committed() && i.fs.m.Running() == tid {
		return i.fs.m.CommitThrough(tid)
	}
	if err := i.fs.m.CommitThrough(tid); err != nil {
		return err
	}
	return i.fs.m.Barrier()
}
