// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const (
	// dentryShards spreads the cache's locks; a power of two.
	dentryShards = 64

	// maxCachedDentries bounds the names a mount keeps although nobody holds
	// them: about 4 MiB with their inodes. An overlay keeps no dentries of its
	// own, so this is the sandbox's dentry cache.
	maxCachedDentries = 8192

	// sweepSteps bounds the search for names to evict when one is added, as
	// all names may be in use. More than one, so that a cache that has
	// outgrown its bound by names in use shrinks again.
	sweepSteps = 8

	// dead is the reference count of a dentry that was evicted.
	dead = -1
)

// dentry is a name in a directory. It implements vfs.DentryImpl.
//
// A dentry holds its inode and one reference on its parent. A name with no
// references stays in the cache until its shard is full and it was not used
// since the last sweep.
type dentry struct {
	vfsd vfs.Dentry

	refs atomicbitops.Int64
	// used is set by lookups and cleared by sweeps.
	used atomic.Bool

	// The rest is immutable.

	fs *filesystem
	// parent is nil only for the root.
	parent *dentry
	name   string
	// inode is nil if the name is known not to exist.
	inode *inode
	// hash is made of all names of the path, so that a shard needs no second
	// one to find the dentry.
	hash uint64

	// next has the same hash. The shard's lock protects it.
	next *dentry
}

var _ vfs.DentryImpl = (*dentry)(nil)

// newDentry returns a dentry with one reference. It takes over the caller's
// count of names on i.
func (fs *filesystem) newDentry(parent *dentry, name string, i *inode) *dentry {
	d := &dentry{fs: fs, parent: parent, name: name, inode: i}
	d.refs.Store(1)
	d.vfsd.Init(d)
	return d
}

// IncRef implements vfs.DentryImpl.
//
// Preconditions: the caller holds a reference, or the lock of d's shard.
func (d *dentry) IncRef() {
	if d.refs.Add(1) <= 0 {
		panic("sentryfs: reference taken on an evicted dentry")
	}
}

// TryIncRef implements vfs.DentryImpl.
func (d *dentry) TryIncRef() bool {
	for {
		r := d.refs.Load()
		if r == dead {
			return false
		}
		if d.refs.CompareAndSwap(r, r+1) {
			return true
		}
	}
}

// DecRef implements vfs.DentryImpl. The last reference leaves the dentry in the
// cache.
func (d *dentry) DecRef(context.Context) {
	if d.refs.Add(-1) < 0 {
		panic("sentryfs: dentry released more often than taken")
	}
}

// InotifyWithParent implements vfs.DentryImpl.
func (d *dentry) InotifyWithParent(ctx context.Context, events, cookie uint32, et vfs.EventType) {
	if d.inode.isDir() {
		events |= linux.IN_ISDIR
	}
	if d.parent != nil {
		d.parent.inode.notify(ctx, d.name, events, cookie, et)
	}
	d.inode.notify(ctx, "", events, cookie, et)
}

// Watches implements vfs.DentryImpl.
func (d *dentry) Watches() *vfs.Watches { return &d.inode.watches }

// OnZeroWatches implements vfs.DentryImpl. Sweeps look at the watches
// themselves.
func (d *dentry) OnZeroWatches(context.Context) {}

// dentryCache finds dentries by parent and name.
type dentryCache struct {
	seed   maphash.Seed
	shards [dentryShards]dentryShard
}

// dentryShard is a part of the cache with its own lock and its own clock.
type dentryShard struct {
	mu sync.RWMutex
	// m has lists of dentries by hash. A list of two is a rarity.
	m map[uint64]*dentry
	// ring has the same dentries, in the order that hand sweeps them.
	ring []*dentry
	hand int
	_    [64]byte // no two locks in one cache line
}

func (c *dentryCache) init() {
	c.seed = maphash.MakeSeed()
	for i := range c.shards {
		c.shards[i].m = make(map[uint64]*dentry)
	}
}

// hash of a name in a directory.
func (c *dentryCache) hash(parent *dentry, name string) uint64 {
	return maphash.String(c.seed, name) ^ (parent.hash*0x9e3779b97f4a7c15 + 1)
}

func (c *dentryCache) shard(hash uint64) *dentryShard {
	return &c.shards[hash%dentryShards]
}

// find returns the dentry of a name, or nil.
//
// Preconditions: sh.mu is locked, at least for reading.
func (sh *dentryShard) find(hash uint64, parent *dentry, name string) *dentry {
	d := sh.m[hash]
	for d != nil && (d.parent != parent || d.name != name) {
		d = d.next
	}
	return d
}

// add puts d into the shard.
//
// Preconditions: sh.mu is locked, and d's name is not in the shard.
func (sh *dentryShard) add(d *dentry) {
	d.next = sh.m[d.hash]
	sh.m[d.hash] = d
	sh.ring = append(sh.ring, d)
}

// remove takes d, which is ring[at], out of the shard.
//
// Preconditions: sh.mu is locked.
func (sh *dentryShard) remove(d *dentry, at int) {
	last := len(sh.ring) - 1
	sh.ring[at] = sh.ring[last]
	sh.ring[last] = nil
	sh.ring = sh.ring[:last]
	switch head := sh.m[d.hash]; {
	case head != d:
		for head.next != d {
			head = head.next
		}
		head.next = d.next
	case d.next != nil:
		sh.m[d.hash] = d.next
	default:
		delete(sh.m, d.hash)
	}
	d.next = nil
}

// lookup returns the child of d called name, with a reference.
//
// Preconditions: d is a directory and the caller holds a reference on it.
func (d *dentry) lookup(name string) (*dentry, error) {
	if uint64(len(name)) > d.fs.traits.NameMaxBytes {
		return nil, linuxerr.ENAMETOOLONG
	}
	hash := d.fs.dentries.hash(d, name)
	sh := d.fs.dentries.shard(hash)
	sh.mu.RLock()
	child := sh.find(hash, d, name)
	if child != nil {
		defer sh.mu.RUnlock()
		return child.hit()
	}
	sh.mu.RUnlock()

	child, err := d.instantiate(name)
	if err != nil {
		return nil, err
	}
	child.hash = hash
	return sh.insert(child)
}

// hit returns d with a reference, or ENOENT if it stands for no file.
//
// Preconditions: the lock of d's shard is held, at least for reading.
func (d *dentry) hit() (*dentry, error) {
	if !d.used.Load() {
		d.used.Store(true)
	}
	if d.inode == nil {
		return nil, linuxerr.ENOENT
	}
	d.IncRef()
	return d, nil
}

// instantiate reads the entry called name and makes a dentry of it, with a
// reference: one with no inode if there is no such entry.
func (d *dentry) instantiate(name string) (*dentry, error) {
	id, err := d.inode.node.Lookup(name)
	if linuxerr.Equals(linuxerr.ENOENT, err) {
		d.IncRef()
		return d.fs.newDentry(d, name, nil), nil
	}
	if err != nil {
		return nil, d.fs.errno("look up a name in directory", d.inode.id, err)
	}
	i, err := d.fs.getInode(id)
	if err != nil {
		return nil, err
	}
	if i.isDir() {
		for a := d; a != nil; a = a.parent {
			if a.inode == i {
				d.fs.putInode(i)
				return nil, d.fs.errno("look up a name: a directory contains its ancestor", id, linuxerr.ELOOP)
			}
		}
	}
	d.IncRef()
	return d.fs.newDentry(d, name, i), nil
}

// insert adds d, which carries the caller's reference, unless a racing lookup
// added the same name. It returns the dentry that is in the cache.
func (sh *dentryShard) insert(d *dentry) (*dentry, error) {
	sh.mu.Lock()
	if winner := sh.find(d.hash, d.parent, d.name); winner != nil {
		res, err := winner.hit()
		sh.mu.Unlock()
		d.refs.Store(dead)
		d.release()
		return res, err
	}
	res, err := d, error(nil)
	if d.inode == nil {
		// Nobody gets to hold a name that does not exist.
		d.refs.Store(0)
		res, err = nil, linuxerr.ENOENT
	}
	d.used.Store(true)
	sh.add(d)
	var victims [sweepSteps]*dentry
	n := sh.sweep(victims[:])
	sh.mu.Unlock()
	for _, v := range victims[:n] {
		v.release()
	}
	return res, err
}

// sweep moves the clock's hand if the shard is over its bound, and takes out
// the dentries it finds to be unused. The caller releases them, without the
// lock.
//
// Preconditions: sh.mu is locked.
func (sh *dentryShard) sweep(victims []*dentry) int {
	n := 0
	for range sweepSteps {
		if len(sh.ring) <= maxCachedDentries/dentryShards {
			break
		}
		if sh.hand >= len(sh.ring) {
			sh.hand = 0
		}
		d := sh.ring[sh.hand]
		if d.used.Swap(false) || !sh.evict(sh.hand) {
			sh.hand++
			continue
		}
		victims[n] = d
		n++
	}
	return n
}

// evict takes the dentry at ring[at] out of the shard if nothing needs it.
//
// Preconditions: sh.mu is locked.
func (sh *dentryShard) evict(at int) bool {
	d := sh.ring[at]
	if !d.refs.CompareAndSwap(0, dead) {
		return false
	}
	// A watch is on the file, but lives as long as the name it was added by.
	// Only a holder of a reference can add one, so that looking now, when there
	// can be no more holders, sees them all.
	if d.inode != nil && d.inode.watches.Size() > 0 {
		d.refs.Store(0)
		return false
	}
	sh.remove(d, at)
	return true
}

// release lets go of what an evicted dentry holds.
//
// Preconditions: d is dead and in no shard; no shard's lock is held.
func (d *dentry) release() {
	if d.inode != nil {
		d.fs.putInode(d.inode)
	}
	if d.parent != nil {
		d.parent.refs.Add(-1)
	}
}

// evictUnused evicts every name that nobody holds, leaves first.
func (c *dentryCache) evictUnused() {
	for again := true; again; {
		again = false
		for i := range c.shards {
			sh := &c.shards[i]
			var victims []*dentry
			sh.mu.Lock()
			for at := 0; at < len(sh.ring); {
				if d := sh.ring[at]; sh.evict(at) {
					victims = append(victims, d)
				} else {
					at++
				}
			}
			sh.mu.Unlock()
			for _, d := range victims {
				d.release()
			}
			again = again || len(victims) > 0
		}
	}
}

// all returns the dentries in the cache.
func (c *dentryCache) all() []*dentry {
	var ds []*dentry
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.RLock()
		ds = append(ds, sh.ring...)
		sh.mu.RUnlock()
	}
	return ds
}

// restore puts a dentry back that a checkpoint held.
func (c *dentryCache) restore(d *dentry) {
	d.hash = c.pathHash(d)
	sh := c.shard(d.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.add(d)
}

// pathHash hashes d's path anew, as the seed of the old hashes is gone.
func (c *dentryCache) pathHash(d *dentry) uint64 {
	if d.parent == nil {
		return 0
	}
	d.parent.hash = c.pathHash(d.parent)
	return c.hash(d.parent, d.name)
}
