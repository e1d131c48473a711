// SPDX-License-Identifier: Apache-2.0

// Open, close, sync: the life of a mounted volume.

package ext4lite

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/tree"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// Device is what a volume lives on.
type Device = device.Device

// MkfsOptions are the choices of [Mkfs].
type MkfsOptions = mkfs.Options

// Mkfs makes an empty volume on a device that reads as zero.
func Mkfs(dev Device, o MkfsOptions) error { return mkfs.Format(dev, o) }

// Durability says what a sync waits for.
type Durability int

const (
	// Host: a synced change survives a power cut.
	Host Durability = iota
	// Process: a synced change survives the end of this process.
	Process
)

// defaultCacheBytes bounds the metadata cache. The host's page cache stands
// behind it, so that a miss costs a system call, not a disk access.
const defaultCacheBytes = 32 << 20

// idleCacheBytes is what the cache shrinks to when a volume is not used.
const idleCacheBytes = 2 << 20

// Options say how a volume is opened.
type Options struct {
	ReadOnly   bool
	Durability Durability
	CacheBytes int // of metadata, at most; default 32 MiB
	// Discard gives the space of freed blocks back to the host once the
	// transaction that freed them is durable.
	Discard bool
	// RangeSync makes a sync wait for the data it is about, and not for what
	// others have written to the volume. It is used where the host's file
	// system is known to allow it (ext4 and XFS) and the volume is one file.
	// New data it waits for all the same, as the transaction maps it: the host
	// begins with that early.
	RangeSync bool
	// StripSetID makes writes take the set-ID bits away, as the kernel does
	// for writers without privilege. Callers that decide themselves leave it.
	StripSetID bool
	// OnReadOnly is told, once, when the volume stops taking changes: damage,
	// a failing disk, a full one under a sparse file. It must not use the
	// volume.
	OnReadOnly func(why error)
	// Now replaces the clock, for tests.
	Now func() time.Time
}

// FS is an open volume.
type FS struct {
	dev  Device
	st   journal.Store
	s    *disk.Super // features never change; the rest changes under superMu
	g    *disk.Geometry
	m    *journal.Manager
	a    *alloc.Allocator
	env  tree.Env
	opt  Options
	hash uint8 // default hash version, signedness folded in

	readonly   atomic.Bool
	overlaid   bool // read-only over a dirty journal
	whyMu      sync.Mutex
	why        error // why the volume is read-only
	renameMu   sync.Mutex
	orphanMu   sync.Mutex
	orphans    orphanList
	dirtyMu    sync.Mutex
	dirty      map[*Inode]struct{}
	superMu    sync.Mutex
	superDirt  bool
	attributed atomic.Bool // the volume announces attributes, or will with the next superblock
	icache     icache
	overhead   uint64
	journal    []disk.Range
	discards   []disk.Range
	discarding atomic.Bool
	background sync.WaitGroup
	ordered    []disk.Range // bytes written that the running transaction maps; dirtyMu
	unordered  bool         // there were too many to note
	started    int          // how many of them the host was told to begin with; the last may have grown
	unstarted  int64        // bytes noted since then
	sharedEA   sync.Mutex   // attribute blocks, which inodes may share
	closed     atomic.Bool
}

// Open opens the volume on a device. On success the device belongs to the FS,
// whose Close closes it.
func Open(dev Device, o Options) (*FS, error) {
	fs := &FS{dev: dev, opt: o, dirty: map[*Inode]struct{}{}}
	if fs.opt.CacheBytes == 0 {
		fs.opt.CacheBytes = defaultCacheBytes
	}
	if fs.opt.Now == nil {
		fs.opt.Now = time.Now
	}
	if err := fs.open(); err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	return fs, nil
}

// OpenFile opens the volume in a host file, plain or a delta, and locks the
// file.
func OpenFile(path string, o Options) (*FS, error) {
	access := device.ReadWrite
	if o.ReadOnly {
		access = device.ReadOnly
	}
	dev, err := delta.OpenAny(path, access)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", path, err)
	}
	fs, err := Open(dev, o)
	if err != nil {
		dev.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return fs, nil
}

func (fs *FS) open() error {
	p := make([]byte, disk.SuperSize)
	if _, err := fs.dev.ReadAt(p, disk.SuperOffset); err != nil {
		return fmt.Errorf("read superblock: %w: not an ext4 volume: %w", err, EINVAL)
	}
	s, torn, err := disk.DecodeSuperTorn(p)
	if err != nil {
		return err
	}
	if torn != nil {
		s.Incompat |= disk.IncompatRecover
	}
	if err := fs.admit(s); err != nil {
		return err
	}
	if err := fs.openJournal(); err != nil {
		return errors.Join(torn, err)
	}
	// The replay may have changed the superblock, or brought a torn one back.
	if s, err = fs.rereadSuper(); err != nil {
		return err
	}
	if err := fs.admit(s); err != nil {
		return err
	}
	if fs.a, err = alloc.New(fs.g, fs.s, fs.m); err != nil {
		return err
	}
	for _, r := range fs.journal {
		if fs.a.Zones().Overlaps(r.Start, r.N) {
			return disk.Corrupt("journal inode", "maps %d blocks at %d, which are the volume's own", r.N, r.Start)
		}
	}
	fs.a.Protect(fs.journal...)
	fs.env = tree.Env{G: fs.g, M: fs.m, A: fs.a}
	fs.overhead = fs.countOverhead()
	fs.m.SetHooks(journal.Hooks{Prepare: fs.prepare, Durable: fs.durable, Ordered: fs.takeOrdered, Begin: fs.begin,
		Failed: func(err error) { fs.goReadOnly(fmt.Errorf("journal: %w", err)) }})
	if fs.opt.Discard && !fs.readonly.Load() {
		fs.a.SetDiscard(fs.queueDiscard)
	}
	if fs.readonly.Load() {
		return nil
	}
	fs.attributed.Store(fs.s.Compat&disk.CompatExtAttr != 0)
	if err := fs.settle(); err != nil {
		return err
	}
	return fs.cleanOrphans()
}

// settle makes the superblock agree with the descriptors, as the kernel brings its
// counts up to date only when it unmounts, and announces files of more than 2 GiB; of
// more than 2 TiB where there can be any. mkfs has done so for nearly all volumes.
func (fs *FS) settle() error {
	roCompat := uint32(disk.ROCompatLargeFile)
	if fs.g.Blocks>>(41-fs.g.BlockShift) > 0 {
		roCompat |= disk.ROCompatHugeFile
	}
	blocks, inodes := fs.a.Counts()
	if fs.s.FreeBlocks == blocks && fs.s.FreeInodes == inodes && fs.s.ROCompat&roCompat == roCompat {
		return nil
	}
	h, err := fs.start(2)
	if err != nil {
		return err
	}
	defer h.Stop()
	fs.s.FreeBlocks, fs.s.FreeInodes = blocks, inodes
	fs.s.ROCompat |= roCompat
	fs.touchSuper(h)
	return nil
}

// admit takes a superblock: geometry, size against the device, and whether the
// volume can be written.
func (fs *FS) admit(s *disk.Super) error {
	fs.s, fs.g = s, disk.NewGeometry(s)
	fs.st = journal.Store{Dev: fs.dev, Blocks: fs.g.Blocks, Shift: fs.g.BlockShift}
	if size := fs.dev.Size(); int64(fs.g.Blocks) > size>>fs.g.BlockShift {
		return disk.Corrupt("superblock", "the volume has %d bytes, the file %d: it was cut off", fs.g.Blocks<<fs.g.BlockShift, size)
	}
	v, ok := disk.HashVersion(s.DefHash, s.UnsignedHash())
	if !ok {
		return disk.Corrupt("superblock", "unknown directory hash %d", s.DefHash)
	}
	fs.hash = v
	switch {
	case fs.opt.ReadOnly:
		fs.goReadOnly(errors.New("opened read-only"))
	case s.UnknownROCompat() != "":
		fs.goReadOnly(fmt.Errorf("the volume has features that ext4lite does not write: %s", s.UnknownROCompat()))
	case s.Compat&disk.CompatHasJournal == 0:
		fs.goReadOnly(errors.New("the volume has no journal (tune2fs -O has_journal adds one)"))
	case s.Incompat&disk.IncompatExtents == 0:
		fs.goReadOnly(errors.New("the volume has no extents (tune2fs -O extent adds them)"))
	}
	return nil
}

func (fs *FS) rereadSuper() (*disk.Super, error) {
	b, err := fs.m.Get(disk.SuperOffset>>fs.g.BlockShift, nil)
	if err != nil {
		return nil, err
	}
	return disk.DecodeSuper(b.Data[disk.SuperOffset&(fs.g.BlockSize-1):])
}

// openJournal finds the journal's blocks and opens it.
func (fs *FS) openJournal() error {
	jo := journal.Options{Write: !fs.readonly.Load(), Host: fs.opt.Durability == Host, CacheBytes: fs.opt.CacheBytes, IdleBytes: idleCacheBytes, Ranges: fs.opt.RangeSync,

		Wide: fs.s.Incompat&disk.Incompat64Bit != 0, Csum: fs.g.Csum, Recover: fs.s.Incompat&disk.IncompatRecover != 0}
	var err error
	if fs.s.Compat&disk.CompatHasJournal == 0 {
		fs.m, err = journal.Open(&fs.st, nil, 0, jo)
		return err
	}
	if fs.s.JournalDev != 0 || fs.s.JournalInum != disk.JournalIno {
		return fmt.Errorf("journal on another device or in inode %d: %w", fs.s.JournalInum, EOPNOTSUPP)
	}
	area, blocks, err := fs.journalArea()
	if err != nil {
		return fmt.Errorf("find journal: %w", err)
	}
	for _, e := range area {
		fs.journal = append(fs.journal, disk.Range{Start: e.Physical, N: uint64(e.Len)})
	}
	if fs.m, err = journal.Open(&fs.st, area, blocks, jo); err != nil {
		return err
	}
	fs.overlaid = !jo.Write && fs.s.Incompat&disk.IncompatRecover != 0
	return nil
}

// journalArea reads the journal file's map. Nothing else is open yet: neither
// the allocator nor the cache that outlives the replay.
func (fs *FS) journalArea() (journal.Area, uint64, error) {
	m, err := journal.Open(&fs.st, nil, 0, journal.Options{})
	if err != nil {
		return nil, 0, err
	}
	desc, err := m.Get(fs.g.DescBlock(0), nil)
	if err != nil {
		return nil, 0, err
	}
	first, err := disk.DecodeGroup(desc.Data, 0, fs.g, fs.s)
	if err != nil {
		return nil, 0, err
	}
	const idx = disk.JournalIno - 1 // in group 0: groups have at least as many
	per := uint64(fs.g.BlockSize / fs.g.InodeSize)
	b, err := m.Get(first.InodeTable+idx/per, nil)
	if err != nil {
		return nil, 0, err
	}
	at := int(idx%per) * fs.g.InodeSize
	d, err := disk.DecodeInode(b.Data[at:at+fs.g.InodeSize], disk.JournalIno, fs.g, fs.s)
	if err != nil {
		return nil, 0, err
	}
	if d.Type() != disk.ModeReg || d.Links == 0 {
		return nil, 0, disk.Corrupt("journal inode", "mode %#o", d.Mode)
	}
	env := &tree.Env{G: fs.g, M: m, A: &alloc.Allocator{}} // no zones are known yet
	var area journal.Area
	next := uint64(0)
	collect := func(e disk.Extent) (bool, error) {
		if uint64(e.Logical) != next {
			return false, disk.Corrupt("journal inode", "hole at block %d", next)
		}
		next = e.End()
		area = append(area, e)
		return true, nil
	}
	if d.Flags&disk.FlExtents != 0 {
		t := &tree.Tree{Env: env, Ino: disk.JournalIno, Gen: d.Generation, Root: d.Block[:], Sectors: new(uint64)}
		if err := t.CheckRoot(); err != nil {
			return nil, 0, err
		}
		err = t.Walk(0, collect)
	} else {
		err = (&tree.Indirect{Env: env, Ino: disk.JournalIno, Root: d.Block[:]}).Walk(0, collect)
	}
	if err == nil && (next == 0 || d.Size>>fs.g.BlockShift > next) {
		err = disk.Corrupt("journal inode", "%d bytes in %d blocks", d.Size, next)
	}
	return area, next, err
}

// countOverhead is how many blocks the volume's structures take, as statfs
// reports it.
func (fs *FS) countOverhead() uint64 {
	n := fs.g.FirstData
	for gr := range fs.g.Groups {
		n += fs.g.GroupOverhead(gr) + 2 + fs.g.ItableBlocks
	}
	for _, r := range fs.journal {
		n += r.N
	}
	return n
}

// goReadOnly stops all changes. The first reason is kept.
func (fs *FS) goReadOnly(why error) {
	fs.whyMu.Lock()
	first := fs.why == nil
	if first {
		fs.why = why
	}
	fs.whyMu.Unlock()
	fs.readonly.Store(true)
	if first && fs.opt.OnReadOnly != nil && fs.a != nil && !fs.closed.Load() {
		fs.opt.OnReadOnly(why)
	}
}

// ReadOnly tells why the volume cannot be written, or nil.
func (fs *FS) ReadOnly() error {
	if !fs.readonly.Load() {
		return nil
	}
	fs.whyMu.Lock()
	defer fs.whyMu.Unlock()
	return fs.why
}

// damaged takes an error that ended a change halfway. Damage found then makes
// the volume read-only: what is in memory may not agree with itself.
func (fs *FS) damaged(err error) error {
	if e := ErrnoOf(err); e == EUCLEAN || e == EIO {
		fs.goReadOnly(err)
	}
	return err
}

// begin marks the volume as having a journal in use.
func (fs *FS) begin() error {
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	fs.s.MountTime = uint32(fs.opt.Now().Unix()) // goes through the journal
	return fs.writeSuper(func(s *disk.Super) { s.Incompat |= disk.IncompatRecover })
}

// writeSuper changes the superblock in its place, past the journal: what the
// journal holds of it is home already. edit changes only the mark that the
// journal is in use, so that a torn write can be understood.
func (fs *FS) writeSuper(edit func(*disk.Super)) error {
	p := make([]byte, disk.SuperSize)
	if _, err := fs.dev.ReadAt(p, disk.SuperOffset); err != nil {
		return fmt.Errorf("read superblock: %w", err)
	}
	s, _, err := disk.DecodeSuperTorn(p) // torn before and whole in the journal
	if err != nil {
		return err
	}
	edit(s)
	if _, err := fs.dev.WriteAt(s.Encode(), disk.SuperOffset); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	return nil
}

// Sync commits all that was done before the call.
func (fs *FS) Sync() error {
	if fs.readonly.Load() {
		return fs.m.Err()
	}
	did, err := fs.m.Commit()
	if err != nil {
		return fmt.Errorf("sync volume: %w", err)
	}
	if !did || fs.m.SyncsRanges() {
		if err := fs.m.Sync(); err != nil {
			return fmt.Errorf("sync volume: %w", err)
		}
	}
	return fs.flushDiscards()
}

// Flush commits, brings the journal's blocks home and marks the volume clean.
// It stays open.
func (fs *FS) Flush() error {
	if fs.readonly.Load() {
		return fs.m.Err()
	}
	if err := fs.flush(); err != nil {
		return fmt.Errorf("flush volume: %w", err)
	}
	return nil
}

// flush brings the volume to rest: no orphans but those that are open, an
// empty journal, marked clean.
func (fs *FS) flush() error {
	fs.dropWindows()
	err := fs.m.Flush(func() error {
		fs.superMu.Lock()
		defer fs.superMu.Unlock()
		return fs.writeSuper(func(s *disk.Super) { s.Incompat &^= disk.IncompatRecover })
	})
	if err == nil {
		err = fs.flushDiscards()
	}
	return err
}

// Close releases orphans nobody will free otherwise, commits, brings the
// journal's blocks home, marks the volume clean and closes the device. Inodes
// still held are useless afterwards.
func (fs *FS) Close() error {
	if fs.closed.Swap(true) {
		return nil
	}
	var err error
	if !fs.readonly.Load() {
		err = fs.evictAll()
		if e := fs.flush(); err == nil {
			err = e
		}
		fs.goReadOnly(errors.New("closed"))
	}
	fs.m.Close()
	fs.background.Wait()
	if e := fs.dev.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("close volume: %w", err)
	}
	return nil
}

// Abandon closes the device and leaves the volume as it is, as the end of the
// process would.
func (fs *FS) Abandon() error {
	fs.closed.Store(true)
	fs.goReadOnly(errors.New("abandoned"))
	fs.m.Abandon()
	fs.background.Wait()
	return fs.dev.Close()
}

// Idle commits and shrinks the caches of a volume that nobody uses right now.
func (fs *FS) Idle() error {
	err := fs.Sync()
	fs.m.Trim(idleCacheBytes >> fs.g.BlockShift)
	fs.a.Shrink()
	fs.icache.mu.Lock()
	fs.icache.trim(restInodes, idleInodes)
	fs.icache.mu.Unlock()
	return err
}
