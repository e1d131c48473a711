// SPDX-License-Identifier: Apache-2.0

// Extent trees against a map from logical to physical blocks, deep enough for
// splits and merges at every level.

package tree_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/internal/tree"
	"z.gfire.dev/gvx/ext4lite/internal/volumetest"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// credits are room for one step of an edit and for what it frees.
const credits = tree.EditCredits + 16

// place is where a block lies, and whether it is unwritten.
type place struct {
	physical  uint64
	unwritten bool
}

// subject is a tree and what it must map.
type subject struct {
	t       *testing.T
	v       *volumetest.Volume
	tree    *tree.Tree
	sectors uint64
	want    map[uint32]place
	deepest int
}

func newSubject(t *testing.T, v *volumetest.Volume) *subject {
	s := &subject{t: t, v: v, want: map[uint32]place{}}
	s.tree = &tree.Tree{Env: &tree.Env{G: v.G, M: v.M, A: v.A}, Ino: 100, Gen: 7, Root: make(disk.Node, disk.MapSize), Sectors: &s.sectors}
	s.tree.Init()
	return s
}

// span is the range of logical blocks that the test uses; gaps make every
// extent an entry of its own.
const span = 30000

func (s *subject) insert(at uint32, n uint64, unwritten bool) {
	for k := range n {
		if _, ok := s.want[at+uint32(k)]; ok {
			n = k
			break
		}
	}
	if n == 0 {
		return
	}
	run, err := s.v.A.Reserve(0, 0, n)
	if errors.Is(err, errno.ENOSPC) {
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.v.Change(credits, func(h *journal.Handle) error {
		err := s.tree.Insert(h, disk.Extent{Logical: at, Len: uint32(run.N), Physical: run.Start, Unwritten: unwritten})
		if errors.Is(err, errno.ENOSPC) { // no room for a node: nothing was mapped
			s.v.A.Unreserve(run)
			run.N = 0
			return nil
		}
		if err != nil {
			return err
		}
		return s.v.A.Use(h, run)
	})
	for k := range run.N {
		s.want[at+uint32(k)] = place{run.Start + k, unwritten}
	}
}

func (s *subject) remove(from, to uint64) {
	for at := from; at < to; {
		s.v.Change(4*credits, func(h *journal.Handle) error {
			next, err := s.tree.Remove(h, at, to, 4, func(start, n uint64) error { return s.v.A.Free(h, start, n) })
			if err == nil && next <= at && next < to {
				s.t.Fatalf("removing [%d, %d) stays at %d", from, to, at)
			}
			at = next
			return err
		})
	}
	for k := range s.want {
		if uint64(k) >= from && uint64(k) < to {
			delete(s.want, k)
		}
	}
}

func (s *subject) markWritten(from, to uint64) {
	for at := from; at < to; {
		s.v.Change(4*credits, func(h *journal.Handle) error {
			next, err := s.tree.MarkWritten(h, at, to, 4)
			at = next
			return err
		})
	}
	for k := from; k < to; k++ {
		if p, ok := s.want[uint32(k)]; ok {
			s.want[uint32(k)] = place{p.physical, false}
		}
	}
}

// compare walks the tree, then looks single blocks up.
func (s *subject) compare(r *rand.Rand) {
	s.t.Helper()
	seen := 0
	next := uint64(0)
	err := s.tree.Walk(0, func(e disk.Extent) (bool, error) {
		if uint64(e.Logical) < next {
			s.t.Fatalf("extent %+v begins before %d", e, next)
		}
		next = e.End()
		for k := range e.Len {
			seen++
			if want := (place{e.Physical + uint64(k), e.Unwritten}); s.want[e.Logical+k] != want {
				s.t.Fatalf("block %d is at %+v, wanted %+v", e.Logical+k, want, s.want[e.Logical+k])
			}
		}
		return true, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if seen != len(s.want) {
		s.t.Fatalf("%d blocks are mapped, wanted %d", seen, len(s.want))
	}
	for range 50 {
		k := r.Uint32N(span)
		e, ok, err := s.tree.Find(k)
		if err != nil {
			s.t.Fatal(err)
		}
		want, mapped := s.want[k]
		if ok != mapped || ok && (place{e.Physical + uint64(k-e.Logical), e.Unwritten}) != want {
			s.t.Fatalf("block %d: %+v, %v; wanted %+v, %v", k, e, ok, want, mapped)
		}
		if !ok && e.End() <= uint64(k) {
			s.t.Fatalf("the hole at %d ends at %d", k, e.End())
		}
	}
	if last, ok, err := s.tree.Last(); err != nil || ok != (len(s.want) > 0) || ok && last.End() != next {
		s.t.Fatalf("last extent %+v, %v, %v; wanted its end at %d", last, ok, err, next)
	}
	s.checkNodes()
}

// checkNodes verifies that the blocks of the tree itself are what is counted.
func (s *subject) checkNodes() {
	s.t.Helper()
	nodes := map[uint64]bool{}
	if err := s.tree.Blocks(func(block uint64) error {
		if nodes[block] {
			s.t.Fatalf("node %d is there twice", block)
		}
		nodes[block] = true
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	if got := s.sectors * 512 / uint64(s.v.G.BlockSize); got != uint64(len(nodes)) {
		s.t.Fatalf("%d nodes are counted, there are %d", got, len(nodes))
	}
	s.deepest = max(s.deepest, s.tree.Root.Depth())
}

func TestTreeAgainstMap(t *testing.T) {
	seeds, steps := uint64(4), 3000
	if testing.Short() {
		seeds, steps = 1, 1500
	}
	for seed := range seeds {
		v := volumetest.New(t, 64<<20, mkfs.Options{BlockSize: 1024})
		s := newSubject(t, v)
		free, _ := v.A.Counts()
		r := rand.New(rand.NewPCG(seed, 3))
		for k := range steps {
			at := r.Uint32N(span)
			switch n := r.IntN(10); {
			case n < 7: // odd blocks only, so that nothing joins
				s.insert(at|1, 1+uint64(r.IntN(8)/7*r.IntN(40)), r.IntN(3) == 0)
			case n < 8:
				s.markWritten(uint64(at), uint64(at)+r.Uint64N(300))
			case n < 9:
				s.remove(uint64(at), uint64(at)+r.Uint64N(100))
			default:
				s.insert(at&^1, 1, false)
			}
			if k%500 == 499 {
				s.compare(r)
				v.Commit()
			}
			if k == steps*2/3 {
				s.remove(span/4, span/2)
			}
		}
		s.compare(r)
		if s.deepest < 2 {
			t.Errorf("seed %d: the tree was %d deep at most, the test wants more", seed, s.deepest)
		}
		s.remove(0, disk.MaxLogical+1)
		s.compare(r)
		if d := s.tree.Root.Depth(); d != 0 {
			t.Errorf("seed %d: an empty tree of depth %d", seed, d)
		}
		v.Commit()
		if now, _ := v.A.Counts(); now != free {
			t.Errorf("seed %d: %d blocks are free after all was removed, %d before", seed, now, free)
		}
	}
}

// TestExtentsJoin has neighbours become one extent, up to the longest there is.
func TestExtentsJoin(t *testing.T) {
	v := volumetest.New(t, 512<<20, mkfs.Options{})
	s := newSubject(t, v)
	run, err := v.A.Reserve(0, 1, 32768)
	if err != nil || run.N < 5000 {
		t.Fatalf("%+v, %v", run, err)
	}
	order := rand.New(rand.NewPCG(1, 1)).Perm(1000)
	for _, k := range order {
		v.Change(credits, func(h *journal.Handle) error {
			part := alloc.Run{Start: run.Start + uint64(k)*5, N: 5}
			if err := s.tree.Insert(h, disk.Extent{Logical: uint32(k) * 5, Len: 5, Physical: part.Start}); err != nil {
				return err
			}
			return v.A.Use(h, part)
		})
	}
	e, ok, err := s.tree.Find(2500)
	if err != nil || !ok || e.Logical != 0 || e.Len != 5000 {
		t.Fatalf("5000 blocks in a row are %+v, %v, %v", e, ok, err)
	}
	v.Change(credits, func(h *journal.Handle) error {
		if err := s.tree.Insert(h, disk.Extent{Logical: 4999, Len: 2, Physical: run.Start + 4999}); !errors.Is(err, errno.EUCLEAN) {
			t.Errorf("mapping what is mapped: %v", err)
		}
		return nil
	})
}
