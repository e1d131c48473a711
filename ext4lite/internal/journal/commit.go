// SPDX-License-Identifier: Apache-2.0

// Commit and checkpoint: the way of a transaction into the log, and of the
// log's blocks home.

package journal

import (
	"fmt"
	"maps"
	"slices"

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
	var data []disk.Range // bytes of the device
	allData := true
	if m.ranges != nil {
		data, allData = m.hooks.Ordered()
	}
	w := newLogWriter(m, slices.Sorted(maps.Keys(t.bufs)), slices.Sorted(maps.Keys(t.revoked)))
	seals := make([]func([]byte), len(w.blocks))
	for i, n := range w.blocks {
		b := t.bufs[n]
		copy(w.slot(i), b.Data)
		seals[i] = b.Seal
		b.committing.Store(true)
		b.dirty.Store(false)
	}
	m.mu.Lock()
	m.running = newTxn(t.id + 1)
	m.mu.Unlock()
	m.barrier.Unlock()

	for i, seal := range seals {
		if seal != nil {
			seal(w.slot(i))
		}
	}
	if err := m.log(t.id, w, data, allData); err != nil {
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
func (m *Manager) log(tid uint64, w *logWriter, data []disk.Range, allData bool) error {
	bs := m.st.Size()
	w.finish()
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
	if m.ranges != nil && !allData {
		for _, r := range data {
			if err := m.ranges.WriteBack(int64(r.Start), int64(r.N)); err != nil {
				return fmt.Errorf("write back data: %w", err)
			}
		}
		if err := m.writeLog(start, w.out, true); err != nil {
			return err
		}
	} else {
		if err := m.writeLog(start, w.out, false); err != nil {
			return err
		}
		if err := m.sync(); err != nil {
			return err
		}
	}
	n := uint32(len(w.out) / bs)
	if err := m.writeLog(start+n, w.commit(), true); err != nil {
		return err
	}
	m.head = start + n + 1
	m.seq++
	m.pendingMu.Lock()
	defer m.pendingMu.Unlock()
	for _, b := range w.revoked {
		delete(m.pending, b)
	}
	for i, b := range w.blocks {
		m.pending[b] = place{log: m.area.Block(start + uint32(w.index(i))), seq: w.seq, escape: w.escaped[i]}
	}
	return nil
}

// begin says in both superblocks that the log is in use: in the volume's first, as
// e2fsck takes a log in use without that mark for damage, and asks. The sync before the
// first commit record makes the journal's durable in time.
func (m *Manager) begin() error {
	if m.hooks.Begin != nil {
		if err := m.hooks.Begin(); err != nil {
			return err
		}
		if err := m.sync(); err != nil {
			return err
		}
	}
	m.head = m.super.First
	if err := m.writeSuper(m.head); err != nil {
		return err
	}
	m.dirtyLog = true
	if m.ranges != nil {
		return m.sync() // the superblocks are in no range that is written back
	}
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
// blocks at a time. With durable set it is a barrier: all that was written
// (without ranges) or written back (with them) before is durable too.
func (m *Manager) writeLog(at uint32, p []byte, durable bool) error {
	bs := m.st.Size()
	if durable && m.ranges == nil {
		if err := m.writeLog(at, p, false); err != nil {
			return err
		}
		return m.sync()
	}
	for len(p) > 0 {
		first := m.area.Block(at)
		n := 1
		for n*bs < len(p) && m.area.Block(at+uint32(n)) == first+uint64(n) {
			n++
		}
		var err error
		if durable {
			err = m.ranges.WriteDurable(p[:n*bs], int64(first)<<m.st.Shift)
		} else {
			err = m.st.Write(first, p[:n*bs])
		}
		if err != nil {
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
	if err := m.barrierSuper(); err != nil {
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
		if err == nil && m.ranges != nil {
			err = m.ranges.WriteBack(int64(from)<<m.st.Shift, int64(len(buf)))
		}
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
	return m.barrierSuper()
}

// barrierSuper makes durable what was written, or with ranges what was written
// back, by writing the journal's superblock as it is on the volume.
func (m *Manager) barrierSuper() error {
	if m.ranges == nil {
		return m.sync()
	}
	at := int64(m.area.Block(0)) << m.st.Shift
	p := make([]byte, superSize)
	if _, err := m.st.Dev.ReadAt(p, at); err != nil {
		return fmt.Errorf("read journal superblock: %w", err)
	}
	return m.ranges.WriteDurable(p, at)
}

// Barrier makes durable what was written back before.
func (m *Manager) Barrier() error {
	if m.ranges == nil {
		return m.sync()
	}
	m.commitMu.Lock() // nobody else writes the journal's superblock
	defer m.commitMu.Unlock()
	return m.barrierSuper()
}

// Flush commits and brings everything home, so that the volume is sound
// without its log. finish runs before the last sync, to mark it clean, when its log is
// empty for sure.
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
	if err := m.sync(); err != nil {
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
// changed since it was last written home, and unused still says that they hold
// nothing. No handle is open while it is asked. The blocks are dropped from
// the cache.
func (m *Manager) PunchClean(r disk.Range, unused func() bool, fn func() error) error {
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	m.barrier.Lock()
	defer m.barrier.Unlock()
	if !unused() {
		return nil
	}
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
