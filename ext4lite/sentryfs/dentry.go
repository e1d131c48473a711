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
// since the last sweep. One that was taken out of the cache because its file
// was removed, or never had a name, lives as long as it is referenced.
type dentry struct {
	vfsd vfs.Dentry

	refs atomicbitops.Int64
	// used is set by lookups and cleared by sweeps.
	used atomic.Bool
	// unhashed says that no path leads here any more. Who sets it holds a
	// reference.
	unhashed atomic.Bool
	// moved says that an overlay has renamed this directory, which its lower
	// layers had at the old place: see Lowers.have.
	moved atomic.Bool

	// These are immutable.

	fs *filesystem
	// inode is nil if the name is known not to exist.
	inode *inode
	// key stands for the dentry in the hashes of the names below it, so that
	// they need not change when a directory is renamed.
	key uint64

	// parent and name change when the file is renamed: fs.treeMu protects them.
	// Whoever finds the dentry in a shard may read the name under that shard's
	// lock, as a renamed dentry is in none meanwhile. parent is nil for the
	// root, and for a name that does not exist.
	parent *dentry
	name   string

	// The shard's lock protects these. parentKey is the directory's key, at
	// the dentry's place in the shard's ring, and next has the same hash.
	parentKey uint64
	hash      uint64
	at        int
	next      *dentry
}

var _ vfs.DentryImpl = (*dentry)(nil)

// newDentry returns a dentry with one reference. It takes over the caller's
// count of names on i and, where there is an i, takes a reference on parent.
//
// Preconditions: the caller holds a reference on parent.
func (fs *filesystem) newDentry(parent *dentry, name string, i *inode) *dentry {
	d := &dentry{fs: fs, name: name, inode: i, key: fs.lastKey.Add(1)}
	if parent != nil {
		d.parentKey = parent.key
		d.hash = fs.dentries.hash(parent, name)
		if i != nil {
			d.parent = parent
			parent.IncRef()
		}
	}
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
// cache, if it is there. Else it goes, and with it its reference on its parent.
func (d *dentry) DecRef(ctx context.Context) {
	for d != nil {
		switch r := d.refs.Add(-1); {
		case r < 0:
			panic("sentryfs: dentry released more often than taken")
		case r > 0, !d.unhashed.Load(), !d.refs.CompareAndSwap(0, dead):
			return
		}
		d = d.dismantle(ctx)
	}
}

// InotifyWithParent implements vfs.DentryImpl.
func (d *dentry) InotifyWithParent(ctx context.Context, events, cookie uint32, et vfs.EventType) {
	if d.inode.isDir() {
		events |= linux.IN_ISDIR
	}
	gone := d.unhashed.Load()
	d.fs.treeMu.RLock()
	if d.parent != nil {
		d.parent.inode.watches.Notify(ctx, d.name, events, cookie, et, gone)
	}
	d.fs.treeMu.RUnlock()
	d.inode.watches.Notify(ctx, "", events, cookie, et, gone)
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
	return maphash.String(c.seed, name) ^ (parent.key*0x9e3779b97f4a7c15 + 1)
}

func (c *dentryCache) shard(hash uint64) *dentryShard {
	return &c.shards[hash%dentryShards]
}

// find returns the dentry of a name, or nil.
//
// Preconditions: sh.mu is locked, at least for reading.
func (sh *dentryShard) find(hash, parentKey uint64, name string) *dentry {
	d := sh.m[hash]
	for d != nil && (d.parentKey != parentKey || d.name != name) {
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
	d.at = len(sh.ring)
	sh.ring = append(sh.ring, d)
}

// remove takes d out of the shard.
//
// Preconditions: sh.mu is locked, and d is in the shard.
func (sh *dentryShard) remove(d *dentry) {
	last := len(sh.ring) - 1
	sh.ring[d.at] = sh.ring[last]
	sh.ring[d.at].at = d.at
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
	if child, err, ok := d.cached(name); ok {
		return child, err
	}
	// What the volume says and what the cache then holds must be of the same
	// moment: names are made and removed with this locked.
	d.inode.dirMu.RLock()
	defer d.inode.dirMu.RUnlock()
	return d.read(name)
}

// lookupLocked is lookup for those who change the directory.
//
// Preconditions: d.inode.dirMu is locked.
func (d *dentry) lookupLocked(name string) (*dentry, error) {
	if child, err, ok := d.cached(name); ok {
		return child, err
	}
	return d.read(name)
}

// cached returns the child of d called name, with a reference, or an error, if
// the cache knows or the name cannot be.
func (d *dentry) cached(name string) (child *dentry, err error, ok bool) {
	if uint64(len(name)) > d.fs.traits.NameMaxBytes {
		return nil, linuxerr.ENAMETOOLONG, true
	}
	hash := d.fs.dentries.hash(d, name)
	sh := d.fs.dentries.shard(hash)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if child = sh.find(hash, d.key, name); child == nil {
		return nil, nil, false
	}
	child, err = child.hit()
	return child, err, true
}

// read gets a name from the volume into the cache.
//
// Preconditions: d.inode.dirMu is locked, at least for reading.
func (d *dentry) read(name string) (*dentry, error) {
	child, err := d.instantiate(name)
	if err != nil {
		return nil, err
	}
	return d.fs.dentries.shard(child.hash).insert(child)
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
		return d.fs.newDentry(d, name, nil), nil
	}
	if err != nil {
		return nil, d.fs.errno("look up a name in directory", d.inode.id, err)
	}
	i, err := d.fs.getInode(id)
	if err != nil {
		return nil, err
	}
	if i.isDir() && d.below(i) {
		d.fs.putInode(context.Background(), i)
		return nil, d.fs.errno("look up a name: a directory contains its ancestor", id, linuxerr.ELOOP)
	}
	return d.fs.newDentry(d, name, i), nil
}

// below reports whether d is i or lies below it.
func (d *dentry) below(i *inode) bool {
	d.fs.treeMu.RLock()
	defer d.fs.treeMu.RUnlock()
	for ; d != nil; d = d.parent {
		if d.inode == i {
			return true
		}
	}
	return false
}

// insert adds d, which carries the caller's reference, unless a racing lookup
// added the same name. It returns the dentry that is in the cache.
func (sh *dentryShard) insert(d *dentry) (*dentry, error) {
	sh.mu.Lock()
	if winner := sh.find(d.hash, d.parentKey, d.name); winner != nil {
		res, err := winner.hit()
		sh.mu.Unlock()
		d.refs.Store(dead)
		d.release(context.Background())
		return res, err
	}
	res, err := d, error(nil)
	if d.inode == nil {
		// Nobody gets to hold a name that does not exist.
		d.refs.Store(0)
		res, err = nil, linuxerr.ENOENT
	}
	sh.enter(d)
	return res, err
}

// enter adds d to the shard, evicts what has become too much, and unlocks.
//
// Preconditions: sh.mu is locked.
func (sh *dentryShard) enter(d *dentry) {
	d.used.Store(true)
	sh.add(d)
	var victims [sweepSteps]*dentry
	n := sh.sweep(victims[:])
	sh.mu.Unlock()
	for _, v := range victims[:n] {
		v.release(context.Background())
	}
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
		if d.used.Swap(false) || !sh.evict(d) {
			sh.hand++
			continue
		}
		victims[n] = d
		n++
	}
	return n
}

// evict takes d out of the shard if nothing needs it.
//
// Preconditions: sh.mu is locked, and d is in the shard.
func (sh *dentryShard) evict(d *dentry) bool {
	if !d.refs.CompareAndSwap(0, dead) {
		return false
	}
	// A watch is on the file, but lives as long as the name it was added by.
	// Only a holder of a reference can add one, so that looking now, when there
	// can be no more holders, sees them all.
	// A socket's other end is the kernel's, and known to the inode only.
	if i := d.inode; i != nil && (i.watches.Size() > 0 || i.bound()) {
		d.refs.Store(0)
		return false
	}
	sh.remove(d)
	return true
}

// release lets go of what an evicted dentry holds.
//
// Preconditions: d is dead and in no shard; no shard's lock is held.
func (d *dentry) release(ctx context.Context) {
	if up := d.dismantle(ctx); up != nil {
		up.DecRef(ctx)
	}
}

// dismantle gives back a dead dentry's inode, and returns its parent, of which
// the caller owns the reference that d held.
func (d *dentry) dismantle(ctx context.Context) *dentry {
	if d.inode != nil {
		d.fs.putInode(ctx, d.inode)
	}
	return d.parent
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
				if d := sh.ring[at]; sh.evict(d) {
					victims = append(victims, d)
				} else {
					at++
				}
			}
			sh.mu.Unlock()
			for _, d := range victims {
				d.release(context.Background())
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

// restore puts a dentry back that a checkpoint held. Its key, and its parent's,
// are new ones.
func (c *dentryCache) restore(d *dentry) {
	d.parentKey, d.hash = d.parent.key, c.hash(d.parent, d.name)
	sh := c.shard(d.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.add(d)
}

// unhash takes d out of the cache: its name is gone, or is about to be another
// one.
//
// Preconditions: the caller holds a reference on d, and the dirMu of its
// directory.
func (c *dentryCache) unhash(d *dentry) {
	sh := c.shard(d.hash)
	sh.mu.Lock()
	sh.remove(d)
	sh.mu.Unlock()
}

// enter adds d, in place of a dentry that says there is no such name.
//
// Preconditions: the dirMu of d's directory is locked, and there is no file of
// this name in the cache.
func (c *dentryCache) enter(d *dentry) {
	sh := c.shard(d.hash)
	sh.mu.Lock()
	if absent := sh.find(d.hash, d.parentKey, d.name); absent != nil {
		sh.remove(absent) // nobody holds it, and it holds nothing
	}
	sh.enter(d)
}
