// SPDX-License-Identifier: Apache-2.0

// Orphans: inodes without a name that are still open, and files whose
// truncation takes more than one transaction. The volume lists them, so that
// the next open finishes the work after a crash.

package ext4lite

import (
	"errors"
	"fmt"
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// orphanList is the list in memory, newest first, as on the volume: the
// superblock names the first, each inode's deletion time the next.
type orphanList struct {
	head     *Inode
	cleaning bool // at open: freed inodes may be loaded
}

func (fs *FS) cleaning() bool {
	fs.orphanMu.Lock()
	defer fs.orphanMu.Unlock()
	return fs.orphans.cleaning
}

// addOrphan puts an inode on the list. The caller holds its mu.
func (fs *FS) addOrphan(h *journal.Handle, i *Inode) {
	fs.orphanMu.Lock()
	defer fs.orphanMu.Unlock()
	if i.orphan {
		return
	}
	i.orphan = true
	i.orphNext = fs.orphans.head
	i.d.DTime = 0
	if i.orphNext != nil {
		i.orphNext.orphPrev = i
		i.d.DTime = i.orphNext.ino
	}
	fs.orphans.head = i
	i.touch(h)
	fs.setLastOrphan(h, i.ino)
}

// delOrphan takes an inode off the list.
func (fs *FS) delOrphan(h *journal.Handle, i *Inode) {
	fs.orphanMu.Lock()
	defer fs.orphanMu.Unlock()
	if !i.orphan {
		return
	}
	next := uint32(0)
	if i.orphNext != nil {
		i.orphNext.orphPrev = i.orphPrev
		next = i.orphNext.ino
	}
	if p := i.orphPrev; p != nil {
		p.orphNext = i.orphNext
		p.d.DTime = next
		p.touch(h)
	} else {
		fs.orphans.head = i.orphNext
		fs.setLastOrphan(h, next)
	}
	i.orphan, i.orphPrev, i.orphNext = false, nil, nil
	i.d.DTime = 0
	i.touch(h)
}

func (fs *FS) setLastOrphan(h *journal.Handle, ino uint32) {
	fs.touchSuper(h)
	fs.superMu.Lock()
	fs.s.LastOrphan = ino
	fs.superMu.Unlock()
}

// evict frees an orphan: its blocks, its attributes, its number. Nobody else
// holds it.
func (i *Inode) evict() {
	if err := i.free(); err != nil {
		i.fs.damaged(fail("free", i.ino, err))
	}
}

func (i *Inode) free() error {
	fs := i.fs
	i.mu.Lock()
	defer i.mu.Unlock()
	i.dropWindow()
	if i.mapped() && (i.d.Flags&disk.FlExtents == 0 || i.tree.Root.Entries() > 0) {
		if err := i.unmapAll(); err != nil {
			return err
		}
	}
	h, err := fs.start(finishCredits)
	if err != nil {
		return err
	}
	defer h.Stop()
	if err := i.freeXattrBlock(h); err != nil {
		return err
	}
	fs.delOrphan(h, i)
	dir := i.d.Type() == disk.ModeDir
	i.d.DTime = uint32(fs.now().Sec)
	i.d.Size, i.d.Flags = 0, i.d.Flags&^disk.FlExtents
	clear(i.d.Block[:])
	// Encoded now, not at the commit: the number may be given out again
	// within this transaction.
	fs.dirtyMu.Lock()
	delete(fs.dirty, i)
	i.dirty.Store(false)
	fs.dirtyMu.Unlock()
	if err := fs.encode(h, i); err != nil {
		return err
	}
	return fs.a.FreeInode(h, i.ino, dir)
}

// finishCredits is what freeing an empty inode dirties: attribute block,
// bitmaps, descriptors, inode, neighbour on the list, superblock.
const finishCredits = 12

// evictAll frees the orphans that are still held: nobody will use them again.
func (fs *FS) evictAll() error {
	var errs []error
	for {
		fs.orphanMu.Lock()
		i := fs.orphans.head
		for i != nil && i.d.Links > 0 {
			i = i.orphNext
		}
		fs.orphanMu.Unlock()
		if i == nil {
			return errors.Join(errs...)
		}
		if err := i.free(); err != nil {
			return fail("free", i.ino, err)
		}
		fs.icache.mu.Lock()
		i.gone = true
		delete(fs.icache.m, i.ino)
		fs.icache.mu.Unlock()
	}
}

// maxOrphans bounds what the list on a volume may hold: more would be a loop
// or a volume with more open files than a process can have.
const maxOrphans = 1 << 20

// cleanOrphans finishes what a crash left: it frees inodes without a name and
// cuts files whose truncation was under way.
func (fs *FS) cleanOrphans() error {
	list, err := fs.readOrphans()
	if err != nil {
		return fmt.Errorf("read orphans: %w", err)
	}
	if len(list) == 0 && fs.s.ROCompat&disk.ROCompatOrphanPresent == 0 {
		return nil
	}
	fs.orphans.cleaning = true
	defer func() { fs.orphanMu.Lock(); fs.orphans.cleaning = false; fs.orphanMu.Unlock() }()
	var loaded []*Inode
	defer func() {
		for _, i := range loaded {
			i.Release()
		}
	}()
	// Rebuild the list in memory, oldest first, as it grew.
	for _, ino := range slices.Backward(list) {
		i, err := fs.Inode(ino)
		if err != nil {
			return fmt.Errorf("orphan: %w", err)
		}
		loaded = append(loaded, i)
		i.orphan = true
		if i.orphNext = fs.orphans.head; i.orphNext != nil {
			i.orphNext.orphPrev = i
		}
		fs.orphans.head = i
	}
	if err := fs.emptyOrphanFile(); err != nil {
		return fmt.Errorf("empty orphan file: %w", err)
	}
	for _, i := range loaded {
		if i.d.Links > 0 && i.d.Type() == disk.ModeReg {
			if err := i.finishTruncate(); err != nil {
				return fmt.Errorf("orphan: %w", fail("truncate", i.ino, err))
			}
		}
	}
	return nil // Release frees those without a name
}

// finishTruncate cuts what a file has past its end and takes it off the list.
func (i *Inode) finishTruncate() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.unmapFrom(i.endBlock()); err != nil {
		return err
	}
	h, err := i.fs.start(finishCredits)
	if err != nil {
		return err
	}
	defer h.Stop()
	i.fs.delOrphan(h, i)
	return nil
}

// readOrphans collects the list that starts in the superblock, then what the
// orphan file holds, newest first.
func (fs *FS) readOrphans() ([]uint32, error) {
	var list []uint32
	seen := map[uint32]bool{}
	add := func(ino uint32) error {
		if ino < fs.g.FirstIno || !fs.g.ValidIno(ino) || seen[ino] || len(list) >= maxOrphans {
			return disk.Corrupt("orphan list", "inode %d", ino)
		}
		seen[ino] = true
		list = append(list, ino)
		return nil
	}
	for ino := fs.s.LastOrphan; ino != 0; {
		if err := add(ino); err != nil {
			return nil, err
		}
		b, at, err := fs.table(nil, ino, false)
		if err != nil {
			return nil, err
		}
		d, err := disk.DecodeInode(b.Data[at:at+fs.g.InodeSize], ino, fs.g, fs.s)
		if err != nil {
			return nil, err
		}
		ino = d.DTime
	}
	err := fs.eachOrphanBlock(func(b *journal.Buf, seed uint32) error {
		for k := range fs.g.OrphanSlots() {
			if ino := disk.OrphanSlot(b.Data, k); ino != 0 {
				if err := add(ino); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return list, err
}

// eachOrphanBlock calls fn for every block of the orphan file, if it is in use.
func (fs *FS) eachOrphanBlock(fn func(b *journal.Buf, seed uint32) error) error {
	if fs.s.Compat&disk.CompatOrphanFile == 0 || fs.s.ROCompat&disk.ROCompatOrphanPresent == 0 {
		return nil
	}
	ino := fs.s.OrphanFileInum
	if !fs.g.ValidIno(ino) {
		return disk.Corrupt("orphan file", "inode %d", ino)
	}
	i := &Inode{fs: fs, ino: ino}
	if err := i.load(); err != nil {
		return err
	}
	seed := i.seed()
	for n := range i.d.Size >> fs.g.BlockShift {
		e, ok, err := i.find(uint32(n))
		if err != nil {
			return err
		}
		if !ok {
			return disk.Corrupt("orphan file", "hole at block %d", n)
		}
		at := e.Physical + n - uint64(e.Logical)
		b, err := fs.m.Get(at, func(p []byte) error { return disk.CheckOrphanBlock(p, seed, at, fs.g) })
		if err != nil {
			return err
		}
		if err := fn(b, seed); err != nil {
			return err
		}
	}
	return nil
}

// emptyOrphanFile moves what the orphan file lists to the list in memory,
// which goes to the superblock's list, and clears the file.
func (fs *FS) emptyOrphanFile() error {
	if fs.s.ROCompat&disk.ROCompatOrphanPresent == 0 {
		return nil
	}
	var bufs []*journal.Buf
	var seed uint32
	if err := fs.eachOrphanBlock(func(b *journal.Buf, s uint32) error { bufs, seed = append(bufs, b), s; return nil }); err != nil {
		return err
	}
	list := 0
	for i := fs.orphans.head; i != nil; i = i.orphNext {
		list++
	}
	h, err := fs.start(len(bufs) + list + 4)
	if err != nil {
		return err
	}
	defer h.Stop()
	for _, b := range bufs {
		disk.ClearOrphanBlock(b.Data, seed, b.Block, fs.g)
		h.Dirty(b)
	}
	fs.orphanMu.Lock()
	defer fs.orphanMu.Unlock()
	last := uint32(0)
	for i := fs.orphans.head; i != nil; i = i.orphNext {
		i.d.DTime = 0
		if i.orphNext != nil {
			i.d.DTime = i.orphNext.ino
		}
		i.touch(h)
		if last == 0 {
			last = i.ino
		}
	}
	fs.setLastOrphan(h, last)
	fs.superMu.Lock()
	fs.s.ROCompat &^= disk.ROCompatOrphanPresent
	fs.superMu.Unlock()
	return nil
}
