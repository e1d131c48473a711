// SPDX-License-Identifier: Apache-2.0

// The cache of metadata blocks.

package journal

import (
	"sync"
	"sync/atomic"
)

const shards = 16

// Buf is a cached metadata block. Who may touch Data is its owner's affair: an
// inode's lock covers its extent and directory blocks, the allocator's lock
// the bitmaps, the barrier the inode tables and descriptors. A block that was
// read outside a handle may be edited inside one only while its owner's lock
// is held alone all the time in between.
type Buf struct {
	Block uint64
	Data  []byte
	// Seal stores checksums in a copy of Data that goes to the log. It must
	// not depend on anything that changes.
	Seal func(p []byte)

	dirty      atomic.Bool // in the running transaction
	committing atomic.Bool // its newest copy is on the way into the log
	used       atomic.Bool // touched since the last trim
}

type shard struct {
	mu   sync.Mutex
	bufs map[uint64]*Buf
}

// Cache holds metadata blocks by number.
type Cache struct {
	shards [shards]shard
	count  atomic.Int64
}

func (c *Cache) shard(block uint64) *shard { return &c.shards[block%shards] }

func (c *Cache) get(block uint64) *Buf {
	s := c.shard(block)
	s.mu.Lock()
	b := s.bufs[block]
	s.mu.Unlock()
	if b != nil && !b.used.Load() {
		b.used.Store(true)
	}
	return b
}

// add puts a block in, unless there is one, and gives the one that is in.
func (c *Cache) add(b *Buf) *Buf {
	s := c.shard(b.Block)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.bufs[b.Block]; old != nil {
		return old
	}
	c.insert(s, b)
	return b
}

// set puts a block in, in place of any other.
func (c *Cache) set(b *Buf) {
	s := c.shard(b.Block)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.insert(s, b)
}

func (c *Cache) insert(s *shard, b *Buf) {
	if s.bufs == nil {
		s.bufs = make(map[uint64]*Buf)
	}
	if _, ok := s.bufs[b.Block]; !ok {
		c.count.Add(1)
	}
	b.used.Store(true)
	s.bufs[b.Block] = b
}

func (c *Cache) drop(block uint64) {
	s := c.shard(block)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.bufs[block]; ok {
		delete(s.bufs, block)
		c.count.Add(-1)
	}
}

// trim forgets clean blocks until at most limit are left, those that were not
// touched since the last trim first. The caller holds the barrier alone.
func (c *Cache) trim(limit int64) {
	for pass := 0; pass < 2 && c.count.Load() > limit; pass++ {
		c.sweep(limit)
	}
}

// sweep forgets clean blocks that were not touched since the last sweep.
func (c *Cache) sweep(limit int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for n, b := range s.bufs {
			if c.count.Load() <= limit {
				break
			}
			if b.dirty.Load() || b.committing.Load() || b.used.Swap(false) {
				continue
			}
			delete(s.bufs, n)
			c.count.Add(-1)
		}
		s.mu.Unlock()
	}
}
