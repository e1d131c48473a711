// SPDX-License-Identifier: Apache-2.0

// Blocks and inodes on their way round, against a map of who has what.

package alloc_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/volumetest"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

const credits = 16

// owner is what a block is for, in a test's own books.
type owner int

const (
	free owner = iota
	reserved
	used
	waiting // freed, its transaction not yet durable
	kept    // durably free, but mapped
)

// books follow every block that was ever given out.
type books struct {
	t     *testing.T
	v     *volumetest.Volume
	state map[uint64]owner
	held  map[uint64]int
	runs  map[owner][]alloc.Run
	holds []alloc.Run
}

func (b *books) each(r alloc.Run, fn func(block uint64)) {
	for k := range r.N {
		fn(r.Start + k)
	}
}

func (b *books) move(r alloc.Run, to owner) {
	b.each(r, func(block uint64) { b.state[block] = to })
	b.runs[to] = append(b.runs[to], r)
}

// pick takes a random run out of those in a state.
func (b *books) pick(r *rand.Rand, s owner) (alloc.Run, bool) {
	list := b.runs[s]
	if len(list) == 0 {
		return alloc.Run{}, false
	}
	k := r.IntN(len(list))
	run := list[k]
	list[k] = list[len(list)-1]
	b.runs[s] = list[:len(list)-1]
	return run, true
}

func (b *books) reserve(r *rand.Rand) {
	run, err := b.v.A.Reserve(r.Uint64N(b.v.G.Blocks), uint32(r.IntN(int(b.v.G.Groups))), 1+r.Uint64N(200))
	if errors.Is(err, errno.ENOSPC) {
		return
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if run.N == 0 {
		b.t.Fatal("a reservation of nothing")
	}
	b.each(run, func(block uint64) {
		if b.state[block] != free {
			b.t.Fatalf("block %d is given out while it is in state %d", block, b.state[block])
		}
		if b.v.A.Zones().Overlaps(block, 1) {
			b.t.Fatalf("block %d of the volume's own is given out", block)
		}
	})
	b.move(run, reserved)
}

// settle frees what waited for a commit, except for what is mapped.
func (b *books) settle() {
	for block, s := range b.state {
		if s == waiting || s == kept {
			b.state[block] = free
			if b.held[block] > 0 {
				b.state[block] = kept
			}
		}
	}
}

func (b *books) step(r *rand.Rand) {
	a := b.v.A
	switch r.IntN(9) {
	case 0, 1, 2:
		b.reserve(r)
	case 3:
		if run, ok := b.pick(r, reserved); ok {
			a.Unreserve(run)
			b.each(run, func(block uint64) { b.state[block] = free })
		}
	case 4, 5:
		if run, ok := b.pick(r, reserved); ok {
			b.v.Change(credits, func(h *journal.Handle) error { return a.Use(h, run) })
			b.move(run, used)
		}
	case 6:
		if run, ok := b.pick(r, used); ok {
			b.v.Change(credits, func(h *journal.Handle) error { return a.Free(h, run.Start, run.N) })
			b.each(run, func(block uint64) { b.state[block] = waiting })
		}
	case 7:
		if run, ok := b.pick(r, used); ok {
			a.Hold(run.Start, run.N)
			b.each(run, func(block uint64) { b.held[block]++ })
			b.holds = append(b.holds, run)
			b.runs[used] = append(b.runs[used], run)
		}
	case 8:
		if n := len(b.holds); n > 0 && r.IntN(2) == 0 {
			k := r.IntN(n)
			run := b.holds[k]
			b.holds = append(b.holds[:k], b.holds[k+1:]...)
			a.Release(run.Start, run.N)
			b.each(run, func(block uint64) {
				if b.held[block]--; b.held[block] == 0 && b.state[block] == kept {
					b.state[block] = free
				}
			})
			return
		}
		b.v.Commit()
		b.settle()
	}
}

// TestBlocksHaveOneOwner drives an almost full volume at random: no block is
// ever given out while somebody has it, waits for it to be durable, or maps it.
func TestBlocksHaveOneOwner(t *testing.T) {
	seeds, steps := uint64(6), 6000
	if testing.Short() {
		seeds, steps = 1, 2500
	}
	for seed := range seeds {
		v := volumetest.New(t, 24<<20, mkfs.Options{BlockSize: 1024})
		b := &books{t: t, v: v, state: map[uint64]owner{}, held: map[uint64]int{}, runs: map[owner][]alloc.Run{}}
		start, _ := v.A.Counts()
		r := rand.New(rand.NewPCG(seed, 2))
		for range steps {
			b.step(r)
		}
		n := uint64(0)
		for _, s := range b.state {
			if s == used {
				n++
			}
		}
		if now, _ := v.A.Counts(); now != start-n {
			t.Fatalf("seed %d: %d blocks are free, wanted %d", seed, now, start-n)
		}
		// All that is given back can be had again, to the last block.
		for _, run := range b.holds {
			v.A.Release(run.Start, run.N)
		}
		for {
			run, ok := b.pick(r, reserved)
			if !ok {
				break
			}
			v.A.Unreserve(run)
		}
		v.Commit()
		had := uint64(0)
		for {
			run, err := v.A.Reserve(0, 0, 64)
			if errors.Is(err, errno.ENOSPC) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			had += run.N
		}
		if had != start-n {
			t.Fatalf("seed %d: %d blocks could be reserved, %d are free", seed, had, start-n)
		}
	}
}

func TestFreeingWhatIsFreeIsDamage(t *testing.T) {
	v := volumetest.New(t, 24<<20, mkfs.Options{})
	run, err := v.A.Reserve(0, 0, 8)
	if err != nil {
		t.Fatal(err)
	}
	v.Change(credits, func(h *journal.Handle) error {
		for _, bad := range []alloc.Run{{Start: run.Start, N: 1}, {Start: 0, N: 1}, {Start: v.G.Blocks - 1, N: 2}, {Start: v.A.Table(0), N: 1}} {
			if err := v.A.Free(h, bad.Start, bad.N); !errors.Is(err, errno.EUCLEAN) {
				t.Errorf("freeing %d blocks at %d: %v", bad.N, bad.Start, err)
			}
		}
		return v.A.Use(h, run)
	})
}

// TestGoalIsTaken has a file go on where it ended.
func TestGoalIsTaken(t *testing.T) {
	v := volumetest.New(t, 64<<20, mkfs.Options{})
	a, err := v.A.Reserve(0, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	b, err := v.A.Reserve(a.Start+a.N, 0, 50)
	if err != nil || b.Start != a.Start+a.N || b.N != 50 {
		t.Fatalf("behind %+v: %+v, %v", a, b, err)
	}
}

// TestInodesHaveOneOwner takes every inode, gives half back and takes those
// again.
func TestInodesHaveOneOwner(t *testing.T) {
	v := volumetest.New(t, 20<<20, mkfs.Options{BlockSize: 1024})
	_, start := v.A.Counts()
	owned := map[uint32]bool{}
	take := func(dir bool) bool {
		ok := true
		v.Change(credits, func(h *journal.Handle) error {
			ino, _, err := v.A.TakeInode(h, uint32(len(owned))%v.G.Groups, dir)
			if errors.Is(err, errno.ENOSPC) {
				ok = false
				return nil
			}
			if owned[ino] || !v.G.ValidIno(ino) || ino < v.G.FirstIno {
				t.Fatalf("inode %d is given out", ino)
			}
			owned[ino] = true
			return err
		})
		return ok
	}
	for take(len(owned)%7 == 0) {
	}
	if len(owned) != int(start) {
		t.Fatalf("%d inodes could be taken, %d were free", len(owned), start)
	}
	k := 0
	for ino := range owned {
		if k++; k%2 == 0 {
			continue
		}
		if in, err := v.A.InodeUsed(ino); err != nil || !in {
			t.Fatalf("inode %d: %v, %v", ino, in, err)
		}
		v.Change(credits, func(h *journal.Handle) error { return v.A.FreeInode(h, ino, false) })
		delete(owned, ino)
	}
	left := len(owned)
	v.Commit()
	for take(false) {
	}
	if len(owned) != int(start) {
		t.Fatalf("%d inodes again, wanted %d; %d were kept", len(owned), start, left)
	}
}
