// SPDX-License-Identifier: Apache-2.0

// The running transaction and the handles of operations on it.

package journal

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

const (
	// maxTxnBlocks bounds the memory a commit copies into: 16 MiB with 4 KiB
	// blocks. JBD2's own bound is a quarter of the journal.
	maxTxnBlocks = 4096
	// commitInterval is how old a change may get before it is committed
	// without being asked for: ext4's default.
	commitInterval = 5 * time.Second
	// ageInterval is how long a cached block stays untouched before it goes.
	ageInterval = 20 * time.Second
	// fixedCredits is what every commit may add: superblock and slack.
	fixedCredits = 8
)

// Hooks are what the file system adds to a commit.
type Hooks struct {
	// Prepare writes in-memory state into blocks of the transaction, whose
	// handle it is given. It runs with the barrier held alone.
	Prepare func(h *Handle) error
	// Ordered gives the ranges of the device, in bytes, that must be durable
	// before the transaction, or tells that there are too many to say. It
	// runs right after Prepare.
	Ordered func() (ranges []disk.Range, all bool)
	// Durable runs when a transaction is committed for good. It must not
	// take locks that are held across Start.
	Durable func(tid uint64)
	// Begin runs before the first commit after the log was clean.
	Begin func() error
	// Failed runs once, when the journal gives up.
	Failed func(err error)
}

// txn is a transaction.
type txn struct {
	id       uint64
	bufs     map[uint64]*Buf
	revoked  map[uint64]struct{}
	extra    int // blocks that Prepare will add, at most
	changed  bool
	deadline *time.Timer
}

func newTxn(id uint64) *txn {
	return &txn{id: id, bufs: map[uint64]*Buf{}, revoked: map[uint64]struct{}{}}
}

func (t *txn) size(revokesPerBlock int) int {
	return len(t.bufs) + t.extra + (len(t.revoked)+revokesPerBlock-1)/revokesPerBlock
}

// Manager owns the cache, the running transaction and the log.
type Manager struct {
	st    *Store
	hooks Hooks
	host  bool // syncs are real
	// ranges makes parts of the device durable, where that is wanted.
	ranges device.RangeSyncer
	limit  int64
	idle   int64

	commitMu sync.Mutex
	super    *Super
	area     Area
	head     uint32 // next free block of the log
	seq      uint32 // JBD2's number of the next commit
	dirtyLog bool   // the superblocks say that the log is in use

	barrier sync.RWMutex
	mu      sync.Mutex
	running *txn
	booked  int // credits of handles in flight
	max     int

	committed atomic.Uint64
	failure   atomic.Pointer[error]

	pendingMu sync.RWMutex
	pending   map[uint64]place

	cache    Cache
	trimming atomic.Bool
	aging    atomic.Bool
	closed   atomic.Bool
}

// Handle is one operation's part in the running transaction.
type Handle struct {
	m       *Manager
	t       *txn
	credits int
}

// ID is the number of the transaction the handle is part of.
func (h *Handle) ID() uint64 { return h.t.id }

// SyncsRanges tells whether a commit leaves other files' data alone.
func (m *Manager) SyncsRanges() bool { return m.ranges != nil }

// Err gives the reason the journal gave up, or nil.
func (m *Manager) Err() error {
	if p := m.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// MaxCredits is the most a handle may ask for.
func (m *Manager) MaxCredits() int { return m.max / 2 }

// Start opens a handle that will dirty at most credits blocks, counting blocks
// that Prepare adds for it. It may wait for a commit, so the caller holds no
// lock that a hook takes.
func (m *Manager) Start(credits int) (*Handle, error) {
	if m.super == nil {
		return nil, fmt.Errorf("start transaction: %w", errno.EROFS)
	}
	if credits > m.max-fixedCredits {
		return nil, fmt.Errorf("start transaction: %d blocks, the journal takes %d: make a larger journal: %w", credits, m.max, errno.ENOSPC)
	}
	for {
		m.barrier.RLock()
		m.mu.Lock()
		if err := m.Err(); err != nil {
			m.mu.Unlock()
			m.barrier.RUnlock()
			return nil, fmt.Errorf("start transaction: journal stopped: %w (%w)", err, errno.EROFS)
		}
		t := m.running
		if t.size(m.revokesPerBlock())+m.booked+credits+fixedCredits <= m.max {
			m.booked += credits
			m.mu.Unlock()
			return &Handle{m, t, credits}, nil
		}
		m.mu.Unlock()
		m.barrier.RUnlock()
		if err := m.CommitThrough(t.id); err != nil {
			return nil, err
		}
	}
}

// Stop ends the handle. What it dirtied is committed with its transaction.
func (h *Handle) Stop() {
	h.m.mu.Lock()
	h.m.booked -= h.credits
	h.m.mu.Unlock()
	h.m.barrier.RUnlock()
}

// Dirty makes a block part of the transaction.
func (h *Handle) Dirty(b *Buf) {
	if b.dirty.Load() {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	b.dirty.Store(true)
	h.t.bufs[b.Block] = b
	h.m.cache.set(b)
	h.m.touch(h.t)
}

// Touch says that Prepare will have something to write, at most blocks more
// than it said before.
func (h *Handle) Touch(blocks int) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.t.extra += blocks
	h.m.touch(h.t)
}

// touch starts the clock of a transaction that was empty.
func (m *Manager) touch(t *txn) {
	if t.changed {
		return
	}
	t.changed = true
	t.deadline = time.AfterFunc(commitInterval, func() { m.CommitThrough(t.id) })
}

// Forget gives up a metadata block that is being freed: older copies of it in
// the log must not come back over what the block will hold next.
func (h *Handle) Forget(block uint64) {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := h.t.bufs[block]; b != nil {
		b.dirty.Store(false)
		delete(h.t.bufs, block)
	}
	m.cache.drop(block)
	h.t.revoked[block] = struct{}{}
	m.touch(h.t)
}

// Get reads a metadata block. check looks at its bytes when they come from the
// volume; it is not called for a block that is cached.
func (m *Manager) Get(block uint64, check func(p []byte) error) (*Buf, error) {
	if b := m.cache.get(block); b != nil {
		return b, nil
	}
	b := &Buf{Block: block, Data: make([]byte, m.st.Size())}
	// pendingMu is held until the block is in the cache: a commit or a
	// checkpoint in between could make what was read stale.
	m.pendingMu.RLock()
	defer m.pendingMu.RUnlock()
	var err error
	if p, ok := m.pending[block]; ok {
		err = readPlace(m.st, p, b.Data)
	} else {
		err = m.st.Read(block, b.Data)
	}
	if err != nil {
		return nil, err
	}
	if check != nil {
		if err := check(b.Data); err != nil {
			return nil, err
		}
	}
	if m.cache.count.Load() > 2*m.limit && m.trimming.CompareAndSwap(false, true) {
		go m.Trim(m.limit)
	}
	if m.cache.count.Load() > m.idle && m.aging.CompareAndSwap(false, true) {
		time.AfterFunc(ageInterval, m.age)
	}
	return m.cache.add(b), nil
}

// GetNew gives a block of zeros for a metadata block that is being allocated.
func (h *Handle) GetNew(block uint64) *Buf {
	b := &Buf{Block: block, Data: make([]byte, h.m.st.Size())}
	h.m.cache.set(b)
	h.Dirty(b)
	return b
}

// Trim forgets clean cached blocks until at most limit are left.
func (m *Manager) Trim(limit int64) {
	m.barrier.Lock()
	m.cache.trim(limit)
	m.barrier.Unlock()
	m.trimming.Store(false)
}

// age forgets clean blocks that nobody has touched for a while, so that a
// volume at rest costs little, and comes back while there are more.
func (m *Manager) age() {
	m.barrier.Lock()
	m.cache.sweep(m.idle)
	m.barrier.Unlock()
	if m.cache.count.Load() > m.idle && !m.closed.Load() {
		time.AfterFunc(ageInterval, m.age)
		return
	}
	m.aging.Store(false)
}

// fail stops the journal for good: nothing after a lost write may be trusted
// to be atomic.
func (m *Manager) fail(err error) error {
	if m.failure.CompareAndSwap(nil, &err) && m.hooks.Failed != nil {
		m.hooks.Failed(err)
	}
	return err
}

func (m *Manager) revokesPerBlock() int { return (m.st.Size() - revokeHeaderSize - tailSize) / 8 }

// Overlay reads whole blocks of file data through the log, for volumes that
// are open read-only over a log that was not replayed.
func (m *Manager) Overlay(block uint64, p []byte) error {
	m.pendingMu.RLock()
	defer m.pendingMu.RUnlock()
	for off := 0; off < len(p) && len(m.pending) > 0; off += m.st.Size() {
		if pl, ok := m.pending[block+uint64(off>>m.st.Shift)]; ok {
			if err := readPlace(m.st, pl, p[off:off+m.st.Size()]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Open prepares a journal. With write set a dirty log is replayed into the
// volume; without it, it is read through. area is the journal file's map,
// which the caller has checked to lie within the volume.
func Open(st *Store, area Area, blocks uint64, o Options) (*Manager, error) {
	m := &Manager{st: st, host: o.Host, limit: max(int64(o.CacheBytes)>>st.Shift, 64), idle: max(int64(o.IdleBytes)>>st.Shift, 64), pending: map[uint64]place{}, area: area}
	m.running = newTxn(1)
	if len(area) == 0 {
		return m, nil
	}
	if r, ok := st.Dev.(device.RangeSyncer); ok && o.Ranges && o.Host && o.Write && r.CanSyncRanges() {
		m.ranges = r
	}
	p := make([]byte, st.Size())
	if err := st.Read(area.Block(0), p); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	s, err := DecodeSuper(p, st.Size(), blocks)
	if err != nil {
		return nil, err
	}
	found, next, err := scan(st, s, area)
	if err != nil {
		return nil, err
	}
	if !o.Write {
		m.pending = found
		return m, nil
	}
	m.super, m.seq, m.pending = s, next, found
	replayed := s.Start != 0
	if replayed {
		if err := m.writeHome(); err != nil {
			return nil, fmt.Errorf("replay journal: %w", err)
		}
		m.seq++ // as JBD2 does: a torn commit of this number may lie in the log
		m.pending = map[uint64]place{}
	}
	m.super.Errno = 0
	m.super.SetFeatures(o.Wide, o.Csum)
	m.head = s.First
	m.max = int(min((s.End()-s.First)/4, maxTxnBlocks))
	if replayed || o.Recover {
		// The volume stays marked as in use; the log starts over.
		if err := m.writeSuper(m.head); err != nil {
			return nil, err
		}
		if err := m.sync(); err != nil {
			return nil, err
		}
		m.dirtyLog = true
	}
	return m, nil
}

// Options say how a journal is opened.
type Options struct {
	Write      bool
	Recover    bool // the volume is marked as having its journal in use
	Host       bool // sync for real
	Ranges     bool // sync what a transaction needs and no more, if possible
	Wide       bool // block numbers have 64 bits
	Csum       bool
	CacheBytes int
	IdleBytes  int // what the cache shrinks to while it is not used
}

// SetHooks installs the hooks, before the first Start.
func (m *Manager) SetHooks(h Hooks) { m.hooks = h }

// Close ends what runs in the background. The volume has been flushed.
func (m *Manager) Close() { m.closed.Store(true) }

// Abandon makes sure that nothing more is written.
func (m *Manager) Abandon() {
	m.closed.Store(true)
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	m.fail(fmt.Errorf("volume abandoned: %w", errno.EROFS))
}
