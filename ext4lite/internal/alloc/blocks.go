// SPDX-License-Identifier: Apache-2.0

// Blocks: search, reserve, use, free.

package alloc

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// SmallBlocks is the longest request that counts as a small file: such files
// are packed one behind the other in their directory's group.
const SmallBlocks = 16

// Run is N blocks from Start on.
type Run = disk.Range

// Reserve finds up to want blocks in a row, at goal where that is free, near
// it otherwise, and keeps them from others. It answers with at least one block
// or ENOSPC. A goal of 0 means anywhere in group near.
func (a *Allocator) Reserve(goal uint64, near uint32, want uint64) (Run, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	want = max(want, 1)
	if a.freeBlocks <= a.busyFree {
		return Run{}, noSpace("allocate blocks")
	}
	if goal > a.g.FirstData && goal < a.g.Blocks {
		gr, i := a.g.GroupOf(goal)
		p, err := a.load(gr)
		if err != nil {
			return Run{}, err
		}
		if end := nextSet(p.busy, i, min(i+want, a.g.GroupLen(gr))); end > i {
			return a.reserve(gr, i, end-i), nil
		}
		near = gr
	}
	return a.search(near%a.g.Groups, goal, want)
}

// search looks for a run of the full length in all groups, from near on, then
// for one of half the length, and so on.
func (a *Allocator) search(near uint32, goal, want uint64) (Run, error) {
	want = min(want, a.g.BlocksPerGroup)
	for {
		for k := range a.g.Groups {
			gr := (near + k) % a.g.Groups
			p := &a.groups[gr]
			if p.run < want || uint64(p.FreeBlocks) < want {
				continue
			}
			if _, err := a.load(gr); err != nil {
				return Run{}, err
			}
			end := a.g.GroupLen(gr)
			from := uint64(0)
			switch {
			case k == 0 && goal > 0:
				_, from = a.g.GroupOf(goal)
			case want <= SmallBlocks:
				from = min(p.small, end)
			}
			at, n := findRun(p.busy, from, end, want)
			if n < want && from > 0 {
				at, n = findRun(p.busy, 0, end, want)
			}
			if n < want {
				p.run = n
				continue
			}
			if want <= SmallBlocks {
				p.small = at + n
			}
			return a.reserve(gr, at, n), nil
		}
		if want == 1 {
			return Run{}, noSpace("allocate blocks")
		}
		want /= 2
	}
}

func (a *Allocator) reserve(gr uint32, at, n uint64) Run {
	setBits(a.groups[gr].busy, at, at+n)
	a.busyFree += n
	return Run{Start: a.g.GroupStart(gr) + at, N: n}
}

// Unreserve gives reserved blocks back.
func (a *Allocator) Unreserve(r Run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(r.Start, r.N)
}

// release makes blocks available that are free on disk.
func (a *Allocator) release(start, n uint64) {
	for n > 0 {
		gr, i := a.g.GroupOf(start)
		k := min(n, a.g.GroupLen(gr)-i)
		p := &a.groups[gr]
		if p.busy != nil {
			clearBits(p.busy, i, i+k)
		}
		p.run = max(p.run, a.g.GroupLen(gr)) // unknown again
		p.small = min(p.small, i)
		a.busyFree -= k
		start, n = start+k, n-k
	}
}

// Use turns reserved blocks into used ones, as part of a transaction.
func (a *Allocator) Use(h *journal.Handle, r Run) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for start, n := r.Start, r.N; n > 0; {
		gr, i := a.g.GroupOf(start)
		k := min(n, a.g.GroupLen(gr)-i)
		b, err := a.editBlocks(h, gr)
		if err != nil {
			return err
		}
		p := &a.groups[gr]
		if nextSet(b.Data, i, i+k) != i+k || uint64(p.FreeBlocks) < k {
			return disk.Corrupt("block bitmap", "group %d: blocks at %d are in use, or the free count is too small", gr, start)
		}
		setBits(b.Data, i, i+k)
		p.FreeBlocks -= uint32(k)
		a.freeBlocks -= k
		a.busyFree -= k
		start, n = start+k, n-k
	}
	return nil
}

// Take reserves and uses one metadata block near a group.
func (a *Allocator) Take(h *journal.Handle, goal uint64, near uint32) (uint64, error) {
	r, err := a.Reserve(goal, near, 1)
	if err != nil {
		return 0, err
	}
	if err := a.Use(h, r); err != nil {
		return 0, err
	}
	return r.Start, nil
}

// Free gives blocks up, as part of a transaction.
func (a *Allocator) Free(h *journal.Handle, start, n uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.g.ValidRange(start, n) || a.zones.Overlaps(start, n) {
		return disk.Corrupt("free blocks", "%d blocks at %d are not a file's", n, start)
	}
	for n > 0 {
		gr, i := a.g.GroupOf(start)
		k := min(n, a.g.GroupLen(gr)-i)
		if _, err := a.load(gr); err != nil { // before the bits change
			return err
		}
		b, err := a.editBlocks(h, gr)
		if err != nil {
			return err
		}
		p := &a.groups[gr]
		if nextClear(b.Data, i, i+k) != i+k || uint64(p.FreeBlocks)+k > a.g.GroupLen(gr) {
			return disk.Corrupt("block bitmap", "group %d: freeing %d blocks at %d, some of which are free", gr, k, start)
		}
		clearBits(b.Data, i, i+k)
		p.FreeBlocks += uint32(k)
		a.freeBlocks += k
		a.busyFree += k
		if l := len(a.waiting); l > 0 && a.waiting[l-1].tid == h.ID() && a.waiting[l-1].start+a.waiting[l-1].n == start {
			a.waiting[l-1].n += k
		} else {
			a.waiting = append(a.waiting, freed{h.ID(), start, k})
		}
		start, n = start+k, n-k
	}
	return nil
}

// Durable makes available what transactions up to tid freed, except for blocks
// that are mapped.
func (a *Allocator) Durable(tid uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	keep := a.waiting[:0]
	for _, f := range a.waiting {
		if f.tid > tid {
			keep = append(keep, f)
			continue
		}
		a.releaseUnheld(f.start, f.n)
	}
	clear(a.waiting[len(keep):])
	a.waiting = keep
}

// EachFree calls fn for every free run of a group, in order.
func (a *Allocator) EachFree(gr uint32, fn func(start, n uint64) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := a.load(gr)
	if err != nil {
		return err
	}
	end := a.g.GroupLen(gr)
	for i := uint64(0); i < end; {
		s := nextClear(p.busy, i, end)
		e := nextSet(p.busy, s, end)
		if s < e {
			if err := fn(a.g.GroupStart(gr)+s, e-s); err != nil {
				return fmt.Errorf("group %d: %w", gr, err)
			}
		}
		i = e
	}
	return nil
}

// TakeDiscards empties a queue that the discard function fills, and reserves
// what is still free of it, so that the host's space can be given back. The
// caller unreserves each run.
func (a *Allocator) TakeDiscards(queue *[]Run) []Run {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Run
	for _, r := range *queue {
		for start, n := r.Start, r.N; n > 0; {
			gr, i := a.g.GroupOf(start)
			k := min(n, a.g.GroupLen(gr)-i)
			if p, err := a.load(gr); err == nil {
				for s := nextClear(p.busy, i, i+k); s < i+k; {
					e := nextSet(p.busy, s, i+k)
					out = append(out, a.reserve(gr, s, e-s))
					s = nextClear(p.busy, e, i+k)
				}
			}
			start, n = start+k, n-k
		}
	}
	*queue = nil
	return out
}

// ReserveFree reserves every free run of a group.
func (a *Allocator) ReserveFree(gr uint32) ([]Run, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.groups[gr].Flags&disk.GroupBlockUninit != 0 {
		return nil, nil // nothing was ever written there
	}
	p, err := a.load(gr)
	if err != nil {
		return nil, err
	}
	var out []Run
	end := a.g.GroupLen(gr)
	for s := nextClear(p.busy, 0, end); s < end; s = nextClear(p.busy, s, end) {
		out = append(out, a.reserve(gr, s, nextSet(p.busy, s, end)-s))
	}
	return out, nil
}

// TableUnused tells whether a run that UnusedTable gave is still unused.
func (a *Allocator) TableUnused(gr uint32, r Run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := a.inodeBitmap(gr)
	if err != nil {
		return false
	}
	per := uint64(a.g.BlockSize / a.g.InodeSize)
	from := (r.Start - a.groups[gr].InodeTable) * per
	to := min(from+r.N*per, uint64(a.g.InodesPerGroup))
	return nextSet(b.Data, from, to) == to
}

// UnusedTable gives the runs of a group's inode table blocks in which no inode
// is in use.
func (a *Allocator) UnusedTable(gr uint32) ([]Run, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &a.groups[gr]
	if p.Flags&disk.GroupInodeUninit != 0 {
		return nil, nil
	}
	b, err := a.inodeBitmap(gr)
	if err != nil {
		return nil, err
	}
	var out []Run
	per := uint64(a.g.BlockSize / a.g.InodeSize)
	for i := range a.g.ItableBlocks {
		from, to := i*per, min((i+1)*per, uint64(a.g.InodesPerGroup))
		if gr == 0 && from < uint64(a.g.FirstIno) || nextSet(b.Data, from, to) != to {
			continue
		}
		if k := len(out); k > 0 && out[k-1].Start+out[k-1].N == p.InodeTable+i {
			out[k-1].N++
		} else {
			out = append(out, Run{Start: p.InodeTable + i, N: 1})
		}
	}
	return out, nil
}
