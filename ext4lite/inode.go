// SPDX-License-Identifier: Apache-2.0

// Inodes in memory: the cache of them, their counted handles, and the way
// from the volume and back.

package ext4lite

import (
	"container/list"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/tree"
)

// idleInodes is how many inodes that nobody holds stay in memory. One takes
// about 600 bytes.
const idleInodes = 4096

// restInodes is how many stay when the whole volume is idle.
const restInodes = 256

// clockTick is how fine time stamps are, as in the kernel: writes within a
// tick leave the inode alone.
const clockTick = 4 * time.Millisecond

// Inode is a file, directory or other object of an open volume. It is counted:
// functions that answer with one have taken a reference, which [Inode.Release]
// gives back. All methods may be called concurrently.
type Inode struct {
	fs  *FS
	ino uint32

	mu    sync.RWMutex
	d     disk.Inode
	tree  tree.Tree
	win   alloc.Run // reserved for the next append
	xs    []disk.Xattr
	xsOK  bool // xs is what the inode and its attribute block hold
	tmp   bool // never had a name
	inval func(off, n int64)

	once     sync.Once
	loadErr  error
	dirty    atomic.Bool
	dirtyTid atomic.Uint64
	opens    atomic.Int32

	// guarded by icache.mu
	refs int
	idle *list.Element
	gone bool // freed; the number may belong to another inode

	evicting bool // being freed

	// guarded by FS.orphanMu
	orphan             bool
	orphPrev, orphNext *Inode
}

type icache struct {
	mu   sync.Mutex
	m    map[uint32]*Inode
	idle list.List
}

// Ino is the inode's number.
func (i *Inode) Ino() uint32 { return i.ino }

// FS is the volume the inode belongs to.
func (i *Inode) FS() *FS { return i.fs }

// Root gives the root directory.
func (fs *FS) Root() (*Inode, error) { return fs.Inode(disk.RootIno) }

// Inode gives an inode by number. The number comes from a directory or from
// the caller's memory; one that is not in use is ESTALE.
func (fs *FS) Inode(ino uint32) (*Inode, error) {
	if !fs.g.ValidIno(ino) || ino < fs.g.FirstIno && ino != disk.RootIno {
		return nil, fail("open", ino, disk.Corrupt("inode number", "%d is reserved or does not exist", ino))
	}
	c := &fs.icache
	c.mu.Lock()
	i := c.m[ino]
	if i == nil {
		i = &Inode{fs: fs, ino: ino}
		c.put(i)
	} else if i.evicting {
		c.mu.Unlock()
		return nil, fail("open", ino, fmt.Errorf("the inode is being freed: %w", ESTALE))
	} else if i.refs++; i.idle != nil {
		c.idle.Remove(i.idle)
		i.idle = nil
	}
	c.mu.Unlock()
	i.once.Do(func() { i.loadErr = i.load() })
	if i.loadErr != nil {
		err := i.loadErr
		c.mu.Lock()
		if c.m[ino] == i { // the next one tries again
			delete(c.m, ino)
		}
		i.gone = true
		c.mu.Unlock()
		i.Release()
		return nil, err
	}
	return i, nil
}

// put adds an inode with one reference.
func (c *icache) put(i *Inode) {
	if c.m == nil {
		c.m = make(map[uint32]*Inode)
	}
	c.m[i.ino] = i
	i.refs = 1
}

// load reads the inode from its table.
func (i *Inode) load() error {
	fs := i.fs
	b, at, err := fs.table(nil, i.ino, false)
	if err != nil {
		return fail("read", i.ino, err)
	}
	d, err := disk.DecodeInode(b.Data[at:at+fs.g.InodeSize], i.ino, fs.g, fs.s)
	if err != nil {
		return err
	}
	if d.Mode == 0 || d.Links == 0 && !i.fs.cleaning() {
		return fail("open", i.ino, fmt.Errorf("the inode is not in use: %w", ESTALE))
	}
	i.d = d
	i.bind()
	return i.checkLoaded()
}

// bind ties the map's view to the inode's fields.
func (i *Inode) bind() {
	i.tree = tree.Tree{Env: &i.fs.env, Ino: i.ino, Gen: i.d.Generation, Root: i.d.Block[:], Sectors: &i.d.Blocks}
}

func (i *Inode) checkLoaded() error {
	g, d := i.fs.g, &i.d
	bad := func(format string, args ...any) error {
		return disk.Corrupt(fmt.Sprintf("inode %d", i.ino), format, args...)
	}
	switch d.Type() {
	case disk.ModeReg, disk.ModeDir, disk.ModeLink, disk.ModeChar, disk.ModeBlock, disk.ModeFifo, disk.ModeSocket:
	default:
		return bad("mode %#o", d.Mode)
	}
	if d.Flags&(disk.FlInlineData|disk.FlEncrypt|disk.FlVerity|disk.FlCasefold) != 0 {
		return bad("flags %#x, without their features", d.Flags)
	}
	if d.Size > uint64(i.fs.maxSize()) {
		return bad("size %d", d.Size)
	}
	if d.Type() == disk.ModeDir && (d.Size == 0 || d.Size%uint64(g.BlockSize) != 0 || d.Size>>g.BlockShift > maxDirBlocks) {
		return bad("directory of %d bytes", d.Size)
	}
	if d.FileACL != 0 && (!g.ValidRange(d.FileACL, 1) || i.fs.a.Zones().Overlaps(d.FileACL, 1)) {
		return bad("attributes in block %d", d.FileACL)
	}
	if i.mapped() && d.Flags&disk.FlExtents != 0 {
		return i.tree.CheckRoot()
	}
	return nil
}

// mapped tells whether i_block maps blocks rather than holding a device number
// or a short link's target.
func (i *Inode) mapped() bool {
	switch i.d.Type() {
	case disk.ModeReg, disk.ModeDir:
		return true
	case disk.ModeLink:
		return !i.fastLink()
	}
	return false
}

// fastLink tells whether a symbolic link's target is in the inode.
func (i *Inode) fastLink() bool {
	return i.d.Flags&disk.FlExtents == 0 && i.d.Size < disk.MapSize && i.d.Blocks == i.xattrSectors()
}

func (i *Inode) xattrSectors() uint64 {
	if i.d.FileACL != 0 {
		return uint64(i.fs.g.BlockSize / 512)
	}
	return 0
}

// maxSize is the largest file: logical block numbers have 32 bits.
func (fs *FS) maxSize() int64 {
	return min(int64(disk.MaxLogical)<<fs.g.BlockShift, 1<<62)
}

// Retain takes one more reference.
func (i *Inode) Retain() {
	i.fs.icache.mu.Lock()
	i.refs++
	i.fs.icache.mu.Unlock()
}

// Release gives a reference back. With the last one an inode that has no name
// any more is freed.
func (i *Inode) Release() {
	c := &i.fs.icache
	c.mu.Lock()
	if i.refs--; i.refs > 0 {
		c.mu.Unlock()
		return
	}
	if i.refs < 0 {
		panic("ext4lite: inode released too often")
	}
	if i.gone {
		c.mu.Unlock()
		return
	}
	if i.loadErr == nil && i.isOrphan() && !i.fs.readonly.Load() {
		i.refs, i.evicting = 1, true
		c.mu.Unlock()
		i.evict()
		c.mu.Lock()
		i.refs--
		i.gone = true
		if c.m[i.ino] == i {
			delete(c.m, i.ino)
		}
		c.mu.Unlock()
		return
	}
	win := i.win
	i.win = alloc.Run{}
	i.idle = c.idle.PushBack(i)
	c.trim(idleInodes, trimSteps)
	c.mu.Unlock()
	if win.N > 0 {
		i.fs.a.Unreserve(win)
	}
}

// trim forgets inodes nobody holds, oldest first, except changed ones: those
// go once their transaction has taken them.
func (c *icache) trim(limit, steps int) {
	for ; steps > 0 && c.idle.Len() > limit; steps-- {
		e := c.idle.Front()
		i := e.Value.(*Inode)
		if i.dirty.Load() {
			c.idle.MoveToBack(e)
			continue
		}
		c.idle.Remove(e)
		i.idle = nil
		delete(c.m, i.ino)
	}
}

// trimSteps bounds what one release pays for others: it makes up for more than
// the one inode it adds.
const trimSteps = 4

// touch makes the inode part of the transaction. The caller holds mu alone, or
// orphanMu for the orphan link.
func (i *Inode) touch(h *journal.Handle) {
	i.dirtyTid.Store(h.ID())
	if i.dirty.Load() {
		return
	}
	i.fs.dirtyMu.Lock()
	if !i.dirty.Load() {
		i.dirty.Store(true)
		i.fs.dirty[i] = struct{}{}
		h.Touch(1)
	}
	i.fs.dirtyMu.Unlock()
}

// now is the time for time stamps.
func (fs *FS) now() disk.Time {
	return disk.TimeOf(fs.opt.Now()).Clamp(fs.g.InodeSize > 128)
}

// stale tells whether a time stamp is older than a clock tick.
func stale(old, now disk.Time) bool {
	d := (now.Sec-old.Sec)*1e9 + int64(now.Nsec) - int64(old.Nsec)
	return d < 0 || d >= int64(clockTick)
}

// isOrphan tells whether the inode has no name left.
func (i *Inode) isOrphan() bool {
	i.fs.orphanMu.Lock()
	defer i.fs.orphanMu.Unlock()
	return i.orphan && i.d.Links == 0
}

// group is the inode's block group.
func (i *Inode) group() uint32 {
	gr, _ := i.fs.g.InodeGroup(i.ino)
	return gr
}

// seed is the seed of checksums of the inode's blocks.
func (i *Inode) seed() uint32 { return i.fs.g.InodeSeed(i.ino, i.d.Generation) }

// start opens a handle for a change, which a read-only volume refuses.
func (fs *FS) start(credits int) (*journal.Handle, error) {
	if fs.readonly.Load() {
		return nil, fmt.Errorf("%w: %w", EROFS, fs.ReadOnly())
	}
	return fs.m.Start(credits)
}

// retry runs a change again once, after a commit, if it found no space while
// freed blocks were waiting for one.
func (fs *FS) retry(op func() error) error {
	err := op()
	if ErrnoOf(err) != ENOSPC || fs.readonly.Load() {
		return err
	}
	fs.dropWindows()
	if fs.a.Waiting() > 0 {
		if _, cerr := fs.m.Commit(); cerr != nil {
			return cerr
		}
	}
	return op()
}

// dropWindows gives back what idle files have reserved. A file that is being
// written keeps its window.
func (fs *FS) dropWindows() {
	c := &fs.icache
	c.mu.Lock()
	var held []*Inode
	for _, i := range c.m {
		if i.refs > 0 && !i.gone {
			i.refs++
			held = append(held, i)
		}
	}
	c.mu.Unlock()
	for _, i := range held {
		if i.mu.TryLock() {
			i.dropWindow()
			i.mu.Unlock()
		}
		i.Release()
	}
}

// dropWindow gives the reserved blocks back. The caller holds mu alone.
func (i *Inode) dropWindow() {
	if i.win.N > 0 {
		i.fs.a.Unreserve(i.win)
		i.win = alloc.Run{}
	}
}
