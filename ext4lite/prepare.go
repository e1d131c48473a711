// SPDX-License-Identifier: Apache-2.0

// The file system's part in a commit: inodes, descriptors and the superblock
// go from memory into blocks.

package ext4lite

import (
	"fmt"
	"slices"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// prepare runs with no handle open, so nothing changes meanwhile.
func (fs *FS) prepare(h *journal.Handle) error {
	fs.dirtyMu.Lock()
	dirty := fs.dirty
	fs.dirty = make(map[*Inode]struct{}, min(len(dirty), 64))
	fs.dirtyMu.Unlock()
	for i := range dirty {
		if err := fs.encode(h, i); err != nil {
			return err
		}
		i.dirty.Store(false)
	}
	changed, err := fs.a.Prepare(h)
	if err != nil {
		return err
	}
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	if changed || fs.superDirt {
		fs.superDirt = false
		return fs.encodeSuper(h)
	}
	return nil
}

// encodeSuper writes the superblock into its block.
func (fs *FS) encodeSuper(h *journal.Handle) error {
	b, err := fs.m.Get(disk.SuperOffset>>fs.g.BlockShift, nil)
	if err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	fs.s.WriteTime = uint32(fs.opt.Now().Unix())
	s := fs.announced()
	s.Incompat |= disk.IncompatRecover
	copy(b.Data[disk.SuperOffset&(fs.g.BlockSize-1):], s.Encode())
	h.Dirty(b)
	return nil
}

// announced copies the superblock, with attributes among its features if files have
// any: those of fs.s are read without a lock. The caller holds superMu, or has the volume
// to itself.
func (fs *FS) announced() *disk.Super {
	s := fs.s.Clone()
	if fs.attributed.Load() {
		s.Compat |= disk.CompatExtAttr
	}
	return s
}

// touchSuper makes the superblock part of the transaction.
func (fs *FS) touchSuper(h *journal.Handle) {
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	if !fs.superDirt {
		fs.superDirt = true
		h.Touch(1)
	}
}

// encode writes an inode into its block of the inode table.
func (fs *FS) encode(h *journal.Handle, i *Inode) error {
	b, at, err := fs.table(h, i.ino, false)
	if err != nil {
		return fmt.Errorf("write inode %d: %w", i.ino, err)
	}
	i.d.Encode(b.Data[at:at+fs.g.InodeSize], i.ino, fs.g, fs.s)
	h.Dirty(b)
	return nil
}

// table reads the block of the inode table that holds an inode, and where in
// it. With fresh set no other inode in it is in use, and it starts as zeros.
func (fs *FS) table(h *journal.Handle, ino uint32, fresh bool) (*journal.Buf, int, error) {
	gr, idx := fs.g.InodeGroup(ino)
	per := uint32(fs.g.BlockSize / fs.g.InodeSize)
	block := fs.a.Table(gr) + uint64(idx/per)
	at := int(idx%per) * fs.g.InodeSize
	if fresh {
		return h.GetNew(block), at, nil
	}
	b, err := fs.m.Get(block, nil)
	return b, at, err
}

// durable runs when a transaction is committed for good.
func (fs *FS) durable(tid uint64) {
	fs.a.Durable(tid)
	if fs.opt.Discard && fs.discarding.CompareAndSwap(false, true) {
		fs.background.Go(func() {
			defer fs.discarding.Store(false)
			if err := fs.flushDiscards(); err != nil {
				fs.goReadOnly(err) // what the host lost there may have been in use again
			}
		})
	}
}

// queueDiscard remembers blocks that are free for good. The allocator is
// locked; the blocks may be in use again when the queue is worked off, which
// is why flushDiscards reserves them first.
func (fs *FS) queueDiscard(start, n uint64) {
	if k := len(fs.discards); k > 0 && fs.discards[k-1].Start+fs.discards[k-1].N == start {
		fs.discards[k-1].N += n
		return
	}
	if len(fs.discards) < maxDiscards {
		fs.discards = append(fs.discards, disk.Range{Start: start, N: n})
	}
}

// maxDiscards bounds the queue; what does not fit is freed by Compact.
const maxDiscards = 4096

// flushDiscards gives the space of free blocks back to the host.
func (fs *FS) flushDiscards() error {
	for _, r := range fs.a.TakeDiscards(&fs.discards) {
		err := fs.giveBack(r)
		fs.a.Unreserve(r)
		if err != nil {
			return fmt.Errorf("discard %d blocks at %d: %w", r.N, r.Start, err)
		}
	}
	return nil
}

// maxOrdered bounds the notes on what a transaction orders; with more, the
// whole volume is synced.
const maxOrdered = 4096

// order notes that bytes of the device were written which the transaction
// makes part of a file.
func (fs *FS) order(off, n int64) {
	if !fs.m.SyncsRanges() {
		return
	}
	fs.dirtyMu.Lock()
	defer fs.dirtyMu.Unlock()
	fs.unstarted += n
	if k := len(fs.ordered); k > 0 && int64(fs.ordered[k-1].Start+fs.ordered[k-1].N) == off {
		fs.ordered[k-1].N += uint64(n)
	} else if k < maxOrdered {
		fs.ordered = append(fs.ordered, disk.Range{Start: uint64(off), N: uint64(n)})
	} else {
		fs.unordered = true
	}
}

// takeOrdered gives the notes to the commit.
func (fs *FS) takeOrdered() ([]disk.Range, bool) {
	fs.dirtyMu.Lock()
	defer fs.dirtyMu.Unlock()
	r, all := fs.ordered, fs.unordered
	fs.ordered, fs.unordered, fs.started, fs.unstarted = nil, false, 0, 0
	return r, all
}

// aheadBytes is how much a transaction orders before the host is told to begin
// writing it: whoever syncs next, however little, waits for all of it, since
// the commit must not map what is not on the disk.
const aheadBytes = 8 << 20

// startOrdered begins with the write-back of what was ordered. No handle is
// open: where the disk's queue is full the host lets the caller wait.
func (fs *FS) startOrdered() {
	if !fs.m.SyncsRanges() {
		return
	}
	fs.dirtyMu.Lock()
	if fs.unstarted < aheadBytes || fs.started >= len(fs.ordered) {
		fs.dirtyMu.Unlock()
		return
	}
	list := slices.Clone(fs.ordered[fs.started:])
	fs.started, fs.unstarted = len(fs.ordered)-1, 0 // the last range may grow on
	fs.dirtyMu.Unlock()
	r := fs.dev.(device.RangeSyncer)
	for _, o := range list {
		if err := r.StartWriteBack(int64(o.Start), int64(o.N)); err != nil {
			return // the commit writes them back, and finds out what is wrong
		}
	}
}
