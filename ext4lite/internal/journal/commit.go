// SPDX-License-Identifier: Apache-2.0

// Commit and checkpoint: the way of a transaction into the log, and of the
// log's blocks home.

package journal

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// CommitThrough returns when transaction tid, and all before it, are
// committed. Callers that come while a commit runs share the next one.
func (m *Manager) CommitThrough(tid uint64) error {
	for m.committed.Load() < tid {
		m.commitMu.Lock()
		if m.committed.Load() >= tid {
			m.commitMu.Unlock()
			break
		}
		done, err := m.commit()
		m.commitMu.Unlock()
		if err != nil {
			return err
		}
		if !done {
			return nil // there was nothing to commit
		}
	}
	return nil
}

// Commit commits all that was done before the call. It tells whether there
// was anything.
func (m *Manager) Commit() (bool, error) {
	if m.super == nil {
		return false, nil
	}
	m.mu.Lock()
	tid, changed := m.running.id, m.running.changed
	m.mu.Unlock()
	if !changed {
		// A commit in flight may hold what the caller waits for.
		m.commitMu.Lock()
		defer m.commitMu.Unlock()
		return false, m.Err()
	}
	return true, m.CommitThrough(tid)
}

// commit runs one commit. The caller holds commitMu.
func (m *Manager) commit() (bool, error) {
	if err := m.Err(); err != nil {
		return false, err
	}
	m.barrier.Lock()
	t := m.running
	if !t.changed {
		m.barrier.Unlock()
		return false, nil
	}
	t.deadline.Stop()
	if m.hooks.Prepare != nil {
		if err := m.hooks.Prepare(&Handle{m: m, t: t}); err != nil {
			m.barrier.Unlock()
			return false, m.fail(fmt.Errorf("commit transaction: %w", err))
		}
	}
	if m.cache.count.Load() > m.limit {
		m.cache.trim(m.limit)
	}
	bs := m.st.Size()
	blocks := slices.Sorted(maps.Keys(t.bufs))
	copies := make([]byte, len(blocks)*bs)
	seals := make([]func([]byte), len(blocks))
	for i, n := range blocks {
		b := t.bufs[n]
		copy(copies[i*bs:], b.Data)
		seals[i] = b.Seal
		b.committing.Store(true)
		b.dirty.Store(false)
	}
	revoked := slices.Sorted(maps.Keys(t.revoked))
	m.mu.Lock()
	m.running = newTxn(t.id + 1)
	m.mu.Unlock()
	m.barrier.Unlock()

	for i, seal := range seals {
		if seal != nil {
			seal(copies[i*bs : (i+1)*bs])
		}
	}
	if err := m.log(t.id, blocks, copies, revoked); err != nil {
		return false, m.fail(fmt.Errorf("commit transaction: %w", err))
	}
	for _, b := range t.bufs {
		b.committing.Store(false)
	}
	m.committed.Store(t.id)
	if m.hooks.Durable != nil {
		m.hooks.Durable(t.id)
	}
	return true, nil
}

// hotLog is how much of the log is used before it is emptied and begun again.
// A small part that is written over and over has its place on the host's disk
// after the first round, which makes a sync twice as fast as one into holes,
// and keeps sparse volumes small.
const hotLog = 16 << 20

// log writes a transaction: descriptors and copies, revoked blocks, and, once
// those and all file data written before are durable, the commit record.
func (m *Manager) log(tid uint64, blocks []uint64, copies []byte, revoked []uint64) error {
	bs := m.st.Size()
	w := &logWriter{m: m, seq: m.seq, seed: m.super.seed()}
	w.build(blocks, copies, revoked)
	need := uint32(len(w.out)/bs + 1)
	if m.head > m.super.First && m.head+need > min(m.super.First+uint32(hotLog/bs), m.super.End()) {
		if err := m.checkpoint(); err != nil {
			return err
		}
	}
	if m.head+need > m.super.End() {
		return fmt.Errorf("transaction %d has %d blocks, the journal %d", tid, need, m.super.End()-m.super.First)
	}
	if !m.dirtyLog {
		if err := m.begin(); err != nil {
			return err
		}
	}
	start := m.head
	if err := m.writeLog(start, w.out); err != nil {
		return err
	}
	if err := m.sync(); err != nil {
		return err
	}
	n := uint32(len(w.out) / bs)
	if err := m.writeLog(start+n, w.commit()); err != nil {
		return err
	}
	if err := m.sync(); err != nil {
		return err
	}
	m.head = start + n + 1
	m.seq++
	m.pendingMu.Lock()
	defer m.pendingMu.Unlock()
	for _, b := range revoked {
		delete(m.pending, b)
	}
	for b, at := range w.where {
		m.pending[b] = place{log: m.area.Block(start + at.index), seq: w.seq, escape: at.escape}
	}
	return nil
}

// begin says in both superblocks that the log is in use. The sync before the
// first commit record makes that durable in time.
func (m *Manager) begin() error {
	if m.hooks.Begin != nil {
		if err := m.hooks.Begin(); err != nil {
			return err
		}
	}
	m.head = m.super.First
	if err := m.writeSuper(m.head); err != nil {
		return err
	}
	m.dirtyLog = true
	return nil
}

func (m *Manager) writeSuper(start uint32) error {
	m.super.Start, m.super.Sequence = start, m.seq
	if _, err := m.st.Dev.WriteAt(m.super.Encode(), int64(m.area.Block(0))<<m.st.Shift); err != nil {
		return fmt.Errorf("write journal superblock: %w", err)
	}
	return nil
}

func (m *Manager) sync() error {
	if !m.host {
		if o, ok := m.st.Dev.(device.Orderer); ok {
			return o.Order()
		}
		return nil
	}
	return m.st.Dev.Sync()
}

// writeLog writes whole blocks from log block at on, a run of the volume's
// blocks at a time.
func (m *Manager) writeLog(at uint32, p []byte) error {
	bs := m.st.Size()
	for len(p) > 0 {
		first := m.area.Block(at)
		n := 1
		for n*bs < len(p) && m.area.Block(at+uint32(n)) == first+uint64(n) {
			n++
		}
		if err := m.st.Write(first, p[:n*bs]); err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		p, at = p[n*bs:], at+uint32(n)
	}
	return nil
}

// checkpoint brings every block home and empties the log. The caller holds
// commitMu.
func (m *Manager) checkpoint() error {
	if err := m.writeHome(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := m.writeSuper(m.super.First); err != nil {
		return err
	}
	// The log is overwritten next: a superblock that still pointed into it
	// would hide the transactions that follow.
	if err := m.sync(); err != nil {
		return err
	}
	m.pendingMu.Lock()
	defer m.pendingMu.Unlock()
	clear(m.pending)
	m.head = m.super.First
	return nil
}

// writeHome copies blocks from the log to their places and makes that durable.
func (m *Manager) writeHome() error {
	m.pendingMu.RLock()
	blocks := slices.Sorted(maps.Keys(m.pending))
	m.pendingMu.RUnlock()
	bs := m.st.Size()
	const batch = 64 // blocks in one write: 256 KiB
	buf := make([]byte, 0, batch*bs)
	var from uint64
	flush := func() error {
		if len(buf) == 0 {
			return nil
		}
		err := m.st.Write(from, buf)
		buf = buf[:0]
		return err
	}
	for _, n := range blocks {
		if len(buf) == batch*bs || n != from+uint64(len(buf)/bs) {
			if err := flush(); err != nil {
				return err
			}
			from = n
		}
		buf = buf[:len(buf)+bs]
		if err := readPlace(m.st, m.pending[n], buf[len(buf)-bs:]); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	return m.sync()
}

// Flush commits and brings everything home, so that the volume is sound
// without its log. finish runs between the two syncs, to mark it clean.
func (m *Manager) Flush(finish func() error) error {
	if m.super == nil {
		return nil
	}
	if _, err := m.Commit(); err != nil {
		return err
	}
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	if err := m.Err(); err != nil || !m.dirtyLog {
		return err
	}
	if err := m.checkpoint(); err != nil {
		return m.fail(err)
	}
	if err := m.writeSuper(0); err != nil {
		return m.fail(err)
	}
	if err := finish(); err != nil {
		return m.fail(err)
	}
	if err := m.sync(); err != nil {
		return m.fail(err)
	}
	m.dirtyLog = false
	return nil
}

// WithEmptyLog calls fn with the runs of blocks that hold an empty log. It does
// nothing if the log is in use.
func (m *Manager) WithEmptyLog(fn func(r disk.Range) error) error {
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	if m.super == nil || m.dirtyLog {
		return nil
	}
	for _, e := range m.area {
		from := max(e.Logical, m.super.First)
		if uint64(from) >= e.End() {
			continue
		}
		if err := fn(disk.Range{Start: e.Physical + uint64(from-e.Logical), N: e.End() - uint64(from)}); err != nil {
			return err
		}
	}
	return nil
}

// PunchClean calls fn, which makes blocks read as zero, if none of them was
// changed since it was last written home. The blocks are dropped from the
// cache.
func (m *Manager) PunchClean(r disk.Range, fn func() error) error {
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	m.barrier.Lock()
	defer m.barrier.Unlock()
	m.pendingMu.Lock()
	defer m.pendingMu.Unlock()
	for b := r.Start; b < r.Start+r.N; b++ {
		if _, ok := m.pending[b]; ok || m.running.bufs[b] != nil {
			return nil
		}
	}
	for b := r.Start; b < r.Start+r.N; b++ {
		m.cache.drop(b)
	}
	return fn()
}

// Sync makes file data durable that no transaction waits for.
func (m *Manager) Sync() error { return m.sync() }

// Committed is the newest transaction that is committed.
func (m *Manager) Committed() uint64 { return m.committed.Load() }

// Running is the number of the running transaction.
func (m *Manager) Running() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running.id
}

// logWriter lays a transaction out as log blocks.
type logWriter struct {
	m     *Manager
	seq   uint32
	seed  uint32
	out   []byte
	where map[uint64]logged
}

type logged struct {
	index  uint32 // block within the transaction
	escape bool
}

func (w *logWriter) block() []byte {
	bs := w.m.st.Size()
	n := len(w.out)
	w.out = append(w.out, make([]byte, bs)...)
	return w.out[n : n+bs]
}

func (w *logWriter) build(blocks []uint64, copies []byte, revoked []uint64) {
	m, bs := w.m, w.m.st.Size()
	csum := m.super.hasCsum()
	end := bs
	if csum {
		end -= tailSize
	}
	size := m.super.tagSize()
	perDesc := (end - headerSize - uuidSize) / size
	w.out = make([]byte, 0, (len(blocks)+len(blocks)/perDesc+len(revoked)/m.revokesPerBlock()+3)*bs)
	w.where = make(map[uint64]logged, len(blocks))
	for len(blocks) > 0 {
		n := min(len(blocks), perDesc)
		at := len(w.out)
		w.block()
		for i := range n {
			p := w.block()
			copy(p, copies[i*bs:])
			escape := be.Uint32(p) == magic
			if escape {
				be.PutUint32(p, 0)
			}
			w.where[blocks[i]] = logged{uint32(len(w.out)/bs - 1), escape}
		}
		d := w.out[at : at+bs]
		putHeader(d, blockDescriptor, w.seq)
		off := headerSize
		for i := range n {
			flags := uint32(0)
			if w.where[blocks[i]].escape {
				flags |= tagEscape
			}
			if i > 0 {
				flags |= tagSameUUID
			}
			if i == n-1 {
				flags |= tagLast
			}
			w.tag(d[off:], blocks[i], flags, w.out[at+(i+1)*bs:at+(i+2)*bs])
			off += size
			if i == 0 {
				copy(d[off:], m.super.UUID[:])
				off += uuidSize
			}
		}
		if csum {
			be.PutUint32(d[bs-tailSize:], blockSum(w.seed, d, bs-tailSize))
		}
		blocks, copies = blocks[n:], copies[n*bs:]
	}
	w.revokes(revoked)
}

func (w *logWriter) tag(p []byte, block uint64, flags uint32, data []byte) {
	s := w.m.super
	be.PutUint32(p, uint32(block))
	if s.Incompat&incompatCsumV3 != 0 {
		be.PutUint32(p[4:], flags)
		be.PutUint32(p[8:], uint32(block>>32))
		be.PutUint32(p[12:], dataSum(w.seed, w.seq, data))
		return
	}
	be.PutUint16(p[6:], uint16(flags))
	if s.Incompat&incompat64Bit != 0 {
		be.PutUint32(p[8:], uint32(block>>32))
	}
}

func (w *logWriter) revokes(list []uint64) {
	bs, s := w.m.st.Size(), w.m.super
	size := 4
	if s.Incompat&incompat64Bit != 0 {
		size = 8
	}
	for len(list) > 0 {
		n := min(len(list), (bs-revokeHeaderSize-tailSize)/size)
		p := w.block()
		putHeader(p, blockRevoke, w.seq)
		be.PutUint32(p[headerSize:], uint32(revokeHeaderSize+n*size))
		for i, b := range list[:n] {
			if size == 8 {
				be.PutUint64(p[revokeHeaderSize+8*i:], b)
			} else {
				be.PutUint32(p[revokeHeaderSize+4*i:], uint32(b))
			}
		}
		if s.hasCsum() {
			be.PutUint32(p[bs-tailSize:], blockSum(w.seed, p, bs-tailSize))
		}
		list = list[n:]
	}
}

// commit is the commit record.
func (w *logWriter) commit() []byte {
	p := make([]byte, w.m.st.Size())
	putHeader(p, blockCommit, w.seq)
	now := time.Now()
	be.PutUint64(p[commitSecOffset:], uint64(now.Unix()))
	be.PutUint32(p[commitSecOffset+8:], uint32(now.Nanosecond()))
	if w.m.super.hasCsum() {
		be.PutUint32(p[commitCsumOffset:], blockSum(w.seed, p, commitCsumOffset))
	}
	return p
}
