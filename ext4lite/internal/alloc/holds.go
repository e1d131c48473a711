// SPDX-License-Identifier: Apache-2.0

// Holds: blocks that some process has mapped. They may be freed on disk but
// are not given out again before the last hold is gone.

package alloc

import "math/bits"

const chunkBlocks = 512 // with 4 KiB blocks, a huge page of 2 MiB

// chunk counts the holds of chunkBlocks blocks. A hold of the whole chunk is
// counted once, so that mappings of large files cost little.
type chunk struct {
	whole uint32
	each  *[chunkBlocks]uint32
	limbo [chunkBlocks / 64]uint64 // free on disk, kept for the holds
}

func (c *chunk) held(i uint64) bool { return c.whole > 0 || c.each != nil && c.each[i] > 0 }

// Hold keeps blocks from being given out again. Each block counts its holds.
func (a *Allocator) Hold(start, n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.eachChunk(start, n, func(c *chunk, base, from, to uint64) {
		if to-from == chunkBlocks {
			c.whole++
			return
		}
		if c.each == nil {
			c.each = new([chunkBlocks]uint32)
		}
		for i := from; i < to; i++ {
			c.each[i]++
		}
	})
}

// Release undoes a Hold of the same range. Parts of a range may be released
// one by one.
func (a *Allocator) Release(start, n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.eachChunk(start, n, func(c *chunk, base, from, to uint64) {
		if to-from == chunkBlocks && c.whole > 0 {
			c.whole--
		} else {
			if c.each == nil {
				c.each = new([chunkBlocks]uint32)
			}
			for i := from; i < to; i++ {
				if c.each[i] == 0 && c.whole > 0 { // a whole hold is released in parts
					c.whole--
					for k := range c.each {
						c.each[k]++
					}
				}
				if c.each[i] == 0 {
					panic("alloc: released a block that is not held")
				}
				c.each[i]--
			}
		}
		a.settle(c, base)
	})
}

// settle gives back the limbo blocks of a chunk that nobody holds any more,
// and forgets a chunk that says nothing.
func (a *Allocator) settle(c *chunk, base uint64) {
	empty := c.whole == 0
	for w := range c.limbo {
		for m := c.limbo[w]; m != 0; m &= m - 1 {
			i := uint64(w*64 + bits.TrailingZeros64(m))
			if c.held(i) {
				empty = false
				continue
			}
			c.limbo[w] &^= 1 << (i % 64)
			a.giveBack(base+i, 1)
		}
	}
	if empty && c.each != nil {
		for _, v := range c.each {
			if v > 0 {
				empty = false
				break
			}
		}
	}
	if empty {
		delete(a.holds, base/chunkBlocks)
	}
}

// eachChunk calls fn for the parts of a range that lie in one chunk each.
func (a *Allocator) eachChunk(start, n uint64, fn func(c *chunk, base, from, to uint64)) {
	for n > 0 {
		key, from := start/chunkBlocks, start%chunkBlocks
		k := min(n, chunkBlocks-from)
		c := a.holds[key]
		if c == nil {
			c = &chunk{}
			a.holds[key] = c
		}
		fn(c, key*chunkBlocks, from, from+k)
		start, n = start+k, n-k
	}
}

// releaseUnheld gives blocks back, or leaves them in limbo while they are held.
func (a *Allocator) releaseUnheld(start, n uint64) {
	for n > 0 {
		from := start % chunkBlocks
		k := min(n, chunkBlocks-from)
		c := a.holds[start/chunkBlocks]
		if c == nil {
			a.giveBack(start, k)
			start, n = start+k, n-k
			continue
		}
		for i := from; i < from+k; i++ {
			if c.held(i) {
				c.limbo[i/64] |= 1 << (i % 64)
			} else {
				a.giveBack(start+i-from, 1)
			}
		}
		start, n = start+k, n-k
	}
}

// giveBack makes blocks available and lets the host have their space.
func (a *Allocator) giveBack(start, n uint64) {
	if a.discard != nil {
		a.discard(start, n)
	}
	a.release(start, n)
}
