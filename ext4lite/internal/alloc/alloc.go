// SPDX-License-Identifier: Apache-2.0

// Package alloc gives out blocks and inodes. It owns the group descriptors,
// the bitmaps, and what is known in memory only: blocks that are reserved for
// an open file, freed by a transaction that is not yet durable, or mapped into
// some process.
//
// A block's way:
//
//	free ─ Reserve ─ reserved ─ Use ─ in use ─ Free ─ waiting ─ Durable ─ free
//	                    └ Unreserve ─ free               └ held by a mapping ─ Release ─ free
//
// Reserve and Unreserve touch memory only, so file data is written to reserved
// blocks before any handle is started. Use and Free change bitmaps and are part
// of a transaction. A freed block is not given out again before its
// transaction is durable and the last mapping of it is gone: else a crash, or
// a stale mapping, would leave one file's data in another.
//
// One mutex, mu, guards everything here. It is a leaf but for the journal's mu
// and pendingMu. The package never touches file data or inode contents.
package alloc

import (
	"fmt"
	"sync"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// Allocator is the allocator of one volume.
type Allocator struct {
	mu     sync.Mutex
	g      *disk.Geometry
	s      *disk.Super
	m      *journal.Manager
	zones  disk.Zones
	groups []group
	dirty  []uint32 // groups changed in the running transaction

	freeBlocks uint64 // as on disk, in the running transaction
	freeInodes uint32
	busyFree   uint64 // of freeBlocks, those that may not be given out now
	waiting    []freed
	holds      map[uint64]*chunk
	discard    func(start, n uint64)
}

type group struct {
	disk.Group
	busy    []byte // bitmap of blocks not to give out; nil until needed
	run     uint64 // no free run is longer than this
	small   uint64 // where the next small file goes
	nextIno uint32 // no free inode below this index
	dirty   bool
	blocks  *journal.Buf // the bitmaps, while the group is dirty
	inodes  *journal.Buf
}

// freed are blocks freed by a transaction.
type freed struct {
	tid      uint64
	start, n uint64
}

// New reads all group descriptors.
func New(g *disk.Geometry, s *disk.Super, m *journal.Manager) (*Allocator, error) {
	a := &Allocator{g: g, s: s, m: m, groups: make([]group, g.Groups), holds: map[uint64]*chunk{}}
	desc := make([]disk.Group, g.Groups)
	for i := range g.DescBlocks() {
		b, err := m.Get(g.DescBlock(i), nil)
		if err != nil {
			return nil, fmt.Errorf("read group descriptors: %w", err)
		}
		for k := range g.DescPerBlock {
			gr := i*g.DescPerBlock + k
			if gr >= g.Groups {
				break
			}
			d, err := disk.DecodeGroup(b.Data[int(k)*g.DescSize:], gr, g, s)
			if err != nil {
				return nil, err
			}
			desc[gr] = d
			p := &a.groups[gr]
			p.Group, p.run = d, uint64(d.FreeBlocks)
			a.freeBlocks += uint64(d.FreeBlocks)
			a.freeInodes += d.FreeInodes
		}
	}
	a.zones = disk.NewZones(g, desc)
	return a, nil
}

// SetDiscard makes the allocator tell when blocks have become free for good.
// fn is called with the allocator locked.
func (a *Allocator) SetDiscard(fn func(start, n uint64)) { a.discard = fn }

// Protect adds blocks that no file may map: the journal's.
func (a *Allocator) Protect(r ...disk.Range) { a.zones = a.zones.With(r...) }

// Zones are the blocks no file may map. They do not change once a volume is
// open.
func (a *Allocator) Zones() disk.Zones { return a.zones }

// Table is where a group's inode table begins.
func (a *Allocator) Table(gr uint32) uint64 { return a.groups[gr].InodeTable }

// Free tells what is free in the running transaction. Waiting blocks count.
func (a *Allocator) Counts() (blocks uint64, inodes uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.freeBlocks, a.freeInodes
}

// Waiting tells how many blocks a commit would make available.
func (a *Allocator) Waiting() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var n uint64
	for _, f := range a.waiting {
		n += f.n
	}
	return n
}

// Descriptors copies all group descriptors.
func (a *Allocator) Descriptors() []disk.Group {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]disk.Group, len(a.groups))
	for i := range a.groups {
		out[i] = a.groups[i].Group
	}
	return out
}

// touch makes a group's descriptor part of the transaction.
func (a *Allocator) touch(h *journal.Handle, gr uint32) {
	if p := &a.groups[gr]; !p.dirty {
		p.dirty = true
		a.dirty = append(a.dirty, gr)
		h.Touch(1)
	}
}

// Prepare writes changed descriptors into their blocks and the counts into the
// superblock. It tells whether there was any change.
func (a *Allocator) Prepare(h *journal.Handle) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.dirty) == 0 {
		return false, nil
	}
	for _, gr := range a.dirty {
		p := &a.groups[gr]
		if a.g.Csum {
			if p.blocks != nil {
				p.BlockBitmapCsum = a.g.BlockBitmapSum(p.blocks.Data)
			}
			if p.inodes != nil {
				p.InodeBitmapCsum = a.g.InodeBitmapSum(p.inodes.Data)
			}
		}
		p.blocks, p.inodes, p.dirty = nil, nil, false
		b, err := a.m.Get(a.g.DescBlock(gr/a.g.DescPerBlock), nil)
		if err != nil {
			return false, fmt.Errorf("write descriptor of group %d: %w", gr, err)
		}
		at := int(gr%a.g.DescPerBlock) * a.g.DescSize
		p.Encode(b.Data[at:at+a.g.DescSize], gr, a.g, a.s)
		h.Dirty(b)
	}
	a.dirty = a.dirty[:0]
	a.s.FreeBlocks, a.s.FreeInodes = a.freeBlocks, a.freeInodes
	return true, nil
}

// blockBitmap reads a group's block bitmap. In a handle, an uninitialised one
// is initialised; without, its implied contents are answered.
func (a *Allocator) blockBitmap(gr uint32) ([]byte, error) {
	p := &a.groups[gr]
	if p.Flags&disk.GroupBlockUninit != 0 {
		return a.impliedBitmap(gr), nil
	}
	b, err := a.m.Get(p.BlockBitmap, func(data []byte) error {
		if a.g.Csum && a.g.BlockBitmapSum(data) != p.BlockBitmapCsum {
			return disk.Corrupt("block bitmap", "group %d: wrong checksum", gr)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.Data, nil
}

// impliedBitmap is the bitmap of an uninitialised group: its own superblock
// copies, bitmaps and inode table, and what lies past the volume's end.
func (a *Allocator) impliedBitmap(gr uint32) []byte {
	m := make([]byte, a.g.BlockSize)
	start, n := a.g.GroupStart(gr), a.g.GroupLen(gr)
	setBits(m, 0, a.g.GroupOverhead(gr))
	p := &a.groups[gr]
	for _, r := range []disk.Range{{Start: p.BlockBitmap, N: 1}, {Start: p.InodeBitmap, N: 1}, {Start: p.InodeTable, N: a.g.ItableBlocks}} {
		if from, to := max(r.Start, start), min(r.Start+r.N, start+n); from < to {
			setBits(m, from-start, to-start)
		}
	}
	setBits(m, n, uint64(len(m)*8))
	return m
}

// editBlocks gives a group's block bitmap for a change in a handle.
func (a *Allocator) editBlocks(h *journal.Handle, gr uint32) (*journal.Buf, error) {
	p := &a.groups[gr]
	if p.blocks != nil {
		return p.blocks, nil
	}
	data, err := a.blockBitmap(gr)
	if err != nil {
		return nil, err
	}
	var b *journal.Buf
	if p.Flags&disk.GroupBlockUninit != 0 {
		b = h.GetNew(p.BlockBitmap)
		copy(b.Data, data)
		p.Flags &^= disk.GroupBlockUninit
	} else if b, err = a.m.Get(p.BlockBitmap, nil); err != nil {
		return nil, err
	}
	h.Dirty(b)
	p.blocks = b
	a.touch(h, gr)
	return b, nil
}

// load builds a group's map of blocks not to give out.
func (a *Allocator) load(gr uint32) (*group, error) {
	p := &a.groups[gr]
	if p.busy != nil {
		return p, nil
	}
	data, err := a.blockBitmap(gr)
	if err != nil {
		return nil, err
	}
	m := append([]byte(nil), data...)
	start, n := a.g.GroupStart(gr), a.g.GroupLen(gr)
	a.zones.Within(start, start+n, func(from, to uint64) { setBits(m, from-start, to-start) })
	setBits(m, n, uint64(len(m)*8))
	p.busy = m
	// Blocks waiting or held were marked in the map that is gone, if any; maps
	// are dropped only while there are none (see Shrink).
	return p, nil
}

// Shrink drops the maps of groups, which are rebuilt when needed. It does
// nothing while any block is reserved, waiting or held.
func (a *Allocator) Shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busyFree > 0 {
		return
	}
	for i := range a.groups {
		a.groups[i].busy = nil
	}
}

func noSpace(what string) error { return fmt.Errorf("%s: %w", what, errno.ENOSPC) }
