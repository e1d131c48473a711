// SPDX-License-Identifier: Apache-2.0

// Zones: the blocks that hold the volume's own structures. No file may map
// them, and the allocator never gives them out, whatever a bitmap says.

package disk

import (
	"cmp"
	"slices"
)

// Zones is a sorted set of block ranges.
type Zones []Range

// Range is N blocks from Start on.
type Range struct{ Start, N uint64 }

// NewZones collects superblock copies, descriptors, bitmaps and inode tables.
func NewZones(g *Geometry, desc []Group) Zones {
	z := make(Zones, 0, 64)
	if g.FirstData > 0 {
		z = append(z, Range{0, g.FirstData})
	}
	for gr := range g.Groups {
		// reserved descriptor blocks are inode 7's, so only what is in use
		// counts; they are marked in the bitmap anyway
		n := g.GroupOverhead(gr)
		if n > g.reservedGDT && g.HasSuper(gr) {
			n -= min(g.reservedGDT, n-1)
		}
		if n > 0 {
			z = append(z, Range{g.GroupStart(gr), n})
		}
		d := &desc[gr]
		z = append(z, Range{d.BlockBitmap, 1}, Range{d.InodeBitmap, 1}, Range{d.InodeTable, g.ItableBlocks})
	}
	return z.merge()
}

// With adds ranges.
func (z Zones) With(more ...Range) Zones { return append(slices.Clone(z), more...).merge() }

func (z Zones) merge() Zones {
	slices.SortFunc(z, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	out := z[:0]
	for _, r := range z {
		if k := len(out); k > 0 && r.Start <= out[k-1].Start+out[k-1].N {
			out[k-1].N = max(out[k-1].N, r.Start+r.N-out[k-1].Start)
			continue
		}
		out = append(out, r)
	}
	return slices.Clip(out)
}

// Overlaps tells whether any of n blocks from start on belongs to a zone.
func (z Zones) Overlaps(start, n uint64) bool {
	i, found := slices.BinarySearchFunc(z, start, func(r Range, s uint64) int { return cmp.Compare(r.Start, s) })
	if found {
		return n > 0
	}
	return i < len(z) && z[i].Start < start+n || i > 0 && z[i-1].Start+z[i-1].N > start
}

// Within calls fn for the parts of the zones between start and end.
func (z Zones) Within(start, end uint64, fn func(from, to uint64)) {
	i, _ := slices.BinarySearchFunc(z, start, func(r Range, s uint64) int { return cmp.Compare(r.Start, s) })
	if i > 0 {
		i--
	}
	for ; i < len(z) && z[i].Start < end; i++ {
		if from, to := max(z[i].Start, start), min(z[i].Start+z[i].N, end); from < to {
			fn(from, to)
		}
	}
}
