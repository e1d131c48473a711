// SPDX-License-Identifier: Apache-2.0

// Package mkfs makes an empty ext4 volume on a sparse device.
//
// A fresh sparse file reads as zero, so inode tables and bitmaps that hold
// nothing are not written but declared so: inode tables are marked zeroed,
// which is true, and bitmaps uninitialised. What is written is packed at the
// front of each flex group. A volume of 64 GiB takes about 250 KiB.
//
// The package writes a whole volume once; it never changes one that exists.
package mkfs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

const (
	// MinSize is the smallest volume: a journal of 4 MiB and as much again.
	MinSize = 8 << 20
	// MaxSize keeps the group descriptors of a volume under 8 MiB.
	MaxSize = 16 << 40

	defaultRatio    = 16384
	logGroupsFlex   = 4
	mountErrorsRO   = 2       // what a kernel does that finds damage
	maxJournalParts = 4       // extents that fit in an inode
	lostFoundIno    = 11      // the first ordinary inode
	mountOptions    = 0x0c    // user_xattr and acl, as mke2fs sets them
	minTailBlocks   = 50      // a last group with less room than this is left off
	oneChunk        = 1 << 20 // descriptors are written in pieces of this size
)

// Options are what a caller may choose. Zero values mean defaults.
type Options struct {
	Size        int64 // default: the device's size
	BlockSize   int   // 1024, 2048 or 4096 (default)
	InodeSize   int   // 128 or 256 (default)
	BytesPerIno int64 // one inode for so many bytes; default 16384
	Journal     int64 // bytes; default by size, 4 MiB to 64 MiB
	Label       string
	UUID        [16]byte // default: random
	HashSeed    [16]byte // default: random
	// NoLostFound leaves lost+found out, for volumes that are to begin empty.
	// e2fsck makes one when it has something to put there.
	NoLostFound bool
	// OldChecksums leaves metadata_csum out, for tools that do not know it:
	// only group descriptors have a checksum then.
	OldChecksums bool
	Now          time.Time
	RootUID      uint32
	RootGID      uint32
	RootMode     uint16 // permission bits; default 0755
}

// volume is a volume being made.
type volume struct {
	dev   device.Device
	o     Options
	s     *disk.Super
	g     *disk.Geometry
	desc  []disk.Group
	next  uint64 // where the next metadata block goes
	used  []run  // blocks taken, apart from superblocks and descriptors
	now   disk.Time
	parts []disk.Extent // of the journal
	root  uint64
	lost  uint64
}

type run struct{ start, n uint64 }

// Format makes a volume. The device must read as zero: a new file, or one that
// was truncated to nothing first. It is not synced: a volume that a power cut
// leaves half made is made again.
func Format(dev device.Device, o Options) error {
	if err := o.fill(dev); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	if dev.Size() != o.Size {
		if err := dev.Truncate(o.Size); err != nil {
			return fmt.Errorf("make volume: set size to %d bytes: %w", o.Size, err)
		}
	}
	v := &volume{dev: dev, o: o, now: disk.TimeOf(o.Now)}
	v.super()
	for _, step := range []func() error{v.placeTables, v.placeFiles, v.writeBitmaps, v.writeFiles, v.writeDescriptors} {
		if err := step(); err != nil {
			return fmt.Errorf("make volume: %w", err)
		}
	}
	return nil
}

func (o *Options) fill(dev device.Device) error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.BlockSize, 4096)
	def(&o.InodeSize, 256)
	if o.Size == 0 {
		o.Size = dev.Size()
	}
	if o.BytesPerIno == 0 {
		o.BytesPerIno = defaultRatio
	}
	if o.RootMode == 0 {
		o.RootMode = 0o755
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if o.UUID == [16]byte{} {
		rand.Read(o.UUID[:])
		o.UUID[6], o.UUID[8] = o.UUID[6]&0x0f|0x40, o.UUID[8]&0x3f|0x80
	}
	if o.HashSeed == [16]byte{} {
		rand.Read(o.HashSeed[:])
	}
	o.Size -= o.Size % int64(o.BlockSize)
	if o.Journal == 0 {
		o.Journal = defaultJournal(o.Size)
	}
	switch {
	case o.BlockSize != 1024 && o.BlockSize != 2048 && o.BlockSize != 4096:
		return fmt.Errorf("block size %d: 1024, 2048 and 4096 are possible: %w", o.BlockSize, errno.EINVAL)
	case o.InodeSize != 128 && o.InodeSize != 256 && o.InodeSize != 512:
		return fmt.Errorf("inode size %d: 128, 256 and 512 are possible: %w", o.InodeSize, errno.EINVAL)
	case o.Size < MinSize || o.Size > MaxSize:
		return fmt.Errorf("size %d bytes: from %d to %d are possible: %w", o.Size, int64(MinSize), int64(MaxSize), errno.EINVAL)
	case len(o.Label) > 16:
		return fmt.Errorf("label %q: at most 16 bytes are possible: %w", o.Label, errno.EINVAL)
	case o.BytesPerIno < 1024 || o.BytesPerIno > 64<<20:
		return fmt.Errorf("one inode for %d bytes: from 1024 to %d are possible: %w", o.BytesPerIno, 64<<20, errno.EINVAL)
	case o.Journal < int64(journal.MinBlocks*o.BlockSize) || o.Journal > o.Size/2 || o.Journal/int64(o.BlockSize) > 2*disk.MaxExtentLen:
		return fmt.Errorf("journal of %d bytes: from %d to %d are possible: %w", o.Journal, journal.MinBlocks*o.BlockSize,
			min(o.Size/2, int64(2*disk.MaxExtentLen*o.BlockSize)), errno.EINVAL)
	}
	return nil
}

// defaultJournal is large enough that a transaction (a quarter of it) holds
// thousands of changed blocks, and small enough that a sandbox's disk use
// stays small.
func defaultJournal(size int64) int64 {
	switch {
	case size < 128<<20:
		return 4 << 20
	case size < 1<<30:
		return 16 << 20
	case size < 16<<30:
		return 32 << 20
	}
	return 64 << 20
}

// super fills the superblock and the geometry.
func (v *volume) super() {
	o := &v.o
	bs := int64(o.BlockSize)
	s := &disk.Super{
		BlocksCount: uint64(o.Size / bs), BlocksPerGroup: uint32(bs * 8), ClustersPerGrp: uint32(bs * 8),
		State: disk.StateValid, Errors: mountErrorsRO, RevLevel: 1, FirstIno: lostFoundIno, InodeSize: uint16(o.InodeSize),
		MaxMountCount: 0xffff, MkfsTime: uint32(v.now.Sec), LastCheck: uint32(v.now.Sec), WriteTime: uint32(v.now.Sec),
		Compat:   disk.CompatHasJournal | disk.CompatExtAttr | disk.CompatDirIndex | disk.CompatSparseSuper2,
		Incompat: disk.IncompatFiletype | disk.IncompatExtents | disk.Incompat64Bit | disk.IncompatFlexBG,
		ROCompat: disk.ROCompatLargeFile | disk.ROCompatHugeFile | disk.ROCompatDirNlink | disk.ROCompatMetadataCsum,
		UUID:     o.UUID, Label: o.Label, JournalInum: disk.JournalIno, DefHash: disk.HashHalfMD4, Flags: disk.FlagSignedHash,
		DescSize: 64, LogGroupsFlex: logGroupsFlex, ChecksumType: 1, DefaultMountOpt: mountOptions,
	}
	for s.LogBlockSize = 0; 1024<<s.LogBlockSize < bs; s.LogBlockSize++ {
	}
	s.LogClusterSize = s.LogBlockSize
	if o.OldChecksums {
		s.ROCompat = s.ROCompat&^disk.ROCompatMetadataCsum | disk.ROCompatGdtCsum
		s.ChecksumType = 0
	}
	if bs == 1024 {
		s.FirstDataBlock = 1
	}
	if o.InodeSize > 128 {
		s.ROCompat |= disk.ROCompatExtraIsize
		s.MinExtraIsize = disk.MaxExtraIsize(o.InodeSize)
		s.WantExtraIsize = s.MinExtraIsize
	}
	for i := range s.HashSeed {
		s.HashSeed[i] = binary.LittleEndian.Uint32(o.HashSeed[4*i:])
	}
	v.s = s
	v.count()
	for tail := v.g.GroupLen(v.g.Groups - 1); v.g.Groups > 1 && tail < v.g.GroupOverhead(v.g.Groups-1)+v.g.ItableBlocks+minTailBlocks; {
		s.BlocksCount -= tail
		v.count()
		tail = v.g.GroupLen(v.g.Groups - 1)
	}
}

// count derives what depends on the number of blocks.
func (v *volume) count() {
	s := v.s
	groups := uint32(s.Groups64())
	per := (uint64(v.o.Size)/uint64(v.o.BytesPerIno) + uint64(groups) - 1) / uint64(groups)
	unit := uint64(max(8, v.o.BlockSize/v.o.InodeSize))
	per = min(max((per+unit-1)/unit*unit, 2*unit), uint64(v.o.BlockSize*8))
	s.InodesPerGroup = uint32(per)
	s.InodesCount = groups * s.InodesPerGroup
	s.BackupBGs = [2]uint32{}
	if groups > 1 {
		s.BackupBGs[0] = 1
	}
	if groups > 2 {
		s.BackupBGs[1] = groups - 1
	}
	v.g = disk.NewGeometry(s)
}

// take finds n blocks in a row from v.next on, apart from superblock copies.
func (v *volume) take(n uint64) (uint64, error) {
	for {
		if v.next+n > v.g.Blocks {
			return 0, fmt.Errorf("no room for metadata: choose fewer inodes or a larger size: %w", errno.ENOSPC)
		}
		clash := false
		first, _ := v.g.GroupOf(v.next)
		last, _ := v.g.GroupOf(v.next + n - 1)
		for gr := first; gr <= last; gr++ {
			start, over := v.g.GroupStart(gr), v.g.GroupOverhead(gr)
			if over > 0 && start < v.next+n && start+over > v.next {
				v.next, clash = start+over, true
				break
			}
		}
		if !clash {
			b := v.next
			v.next += n
			v.used = append(v.used, run{b, n})
			return b, nil
		}
	}
}

// placeTables gives every flex group's bitmaps and inode tables their place.
func (v *volume) placeTables() (err error) {
	v.desc = make([]disk.Group, v.g.Groups)
	const flex = 1 << logGroupsFlex
	for f := uint32(0); f < v.g.Groups; f += flex {
		n := min(flex, v.g.Groups-f)
		v.next = max(v.next, v.g.GroupStart(f)+v.g.GroupOverhead(f))
		for i := range n {
			if v.desc[f+i].BlockBitmap, err = v.take(1); err != nil {
				return err
			}
		}
		for i := range n {
			if v.desc[f+i].InodeBitmap, err = v.take(1); err != nil {
				return err
			}
		}
		for i := range n {
			if v.desc[f+i].InodeTable, err = v.take(v.g.ItableBlocks); err != nil {
				return err
			}
		}
	}
	return nil
}

// placeFiles gives the root, lost+found and the journal their blocks, in the
// first group where there is room.
func (v *volume) placeFiles() (err error) {
	v.next = v.firstGap()
	if v.root, err = v.take(1); err != nil {
		return err
	}
	if !v.o.NoLostFound {
		if v.lost, err = v.take(1); err != nil {
			return err
		}
	}
	left, logical := uint64(v.o.Journal)/uint64(v.o.BlockSize), uint32(0)
	for left > 0 {
		if len(v.parts) == maxJournalParts {
			return fmt.Errorf("no room for a journal of %d bytes in %d extents: %w", v.o.Journal, maxJournalParts, errno.ENOSPC)
		}
		n := v.gapAt(v.next, min(left, disk.MaxExtentLen))
		b, err := v.take(n)
		if err != nil {
			return err
		}
		v.parts = append(v.parts, disk.Extent{Logical: logical, Len: uint32(n), Physical: b})
		left, logical = left-n, logical+uint32(n)
	}
	return nil
}

// firstGap is the end of the first flex group's tables, which is followed by
// free blocks: volumes are at least MinSize.
func (v *volume) firstGap() uint64 {
	last := v.desc[min(1<<logGroupsFlex, v.g.Groups)-1]
	return last.InodeTable + v.g.ItableBlocks
}

// gapAt is how many of n blocks from at on are free of tables and superblock
// copies; it moves v.next to a place where there is at least one.
func (v *volume) gapAt(at, n uint64) uint64 {
	for moved := true; moved; {
		moved = false
		gr, _ := v.g.GroupOf(at)
		if end := v.g.GroupStart(gr) + v.g.GroupOverhead(gr); at < end {
			at, moved = end, true
		}
		for _, r := range v.used {
			if at >= r.start && at < r.start+r.n {
				at, moved = r.start+r.n, true
			}
		}
	}
	v.next = at
	end := at + n
	gr, _ := v.g.GroupOf(at)
	for gr++; gr < v.g.Groups && v.g.GroupStart(gr) < end; gr++ {
		if v.g.GroupOverhead(gr) > 0 {
			end = v.g.GroupStart(gr)
		}
	}
	for _, r := range v.used {
		if r.start > at && r.start < end {
			end = r.start
		}
	}
	return end - at
}

func (v *volume) write(block uint64, p []byte) error {
	if _, err := v.dev.WriteAt(p, int64(block)*int64(v.o.BlockSize)); err != nil {
		return fmt.Errorf("write block %d: %w", block, err)
	}
	return nil
}
