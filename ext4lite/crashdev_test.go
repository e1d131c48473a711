// SPDX-License-Identifier: Apache-2.0

// A device that records what is done to it, so that it can be put together
// again as a crash would have left it, and that fails on demand.

package ext4lite_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
)

// change is one thing that was done to a device.
type change struct {
	off  int64
	data []byte // nil for a punch or a sync
	n    int64  // length of a punch, or of what is written back
	sync bool
	back bool // write-back of a range
	dur  bool // a write that is a barrier too
}

// recorder is a device in memory with a memory.
type recorder struct {
	*device.Mem
	mu     sync.Mutex
	log    []change
	failAt int   // fail the change of this number, counted from 1
	failBy error // and all after it
	ranges bool
}

func (r *recorder) note(c change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failAt > 0 && len(r.log)+1 >= r.failAt {
		return r.failBy
	}
	r.log = append(r.log, c)
	return nil
}

func (r *recorder) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.log)
}

func (r *recorder) WriteAt(p []byte, off int64) (int, error) {
	if err := r.note(change{off: off, data: append([]byte(nil), p...)}); err != nil {
		return 0, err
	}
	return r.Mem.WriteAt(p, off)
}

func (r *recorder) Punch(off, n int64) error {
	if err := r.note(change{off: off, n: n}); err != nil {
		return err
	}
	return r.Mem.Punch(off, n)
}

// CanSyncRanges makes the recorder a device whose parts are synced.
func (r *recorder) CanSyncRanges() bool { return r.ranges }

func (r *recorder) WriteBack(off, n int64) error { return r.note(change{off: off, n: n, back: true}) }

func (r *recorder) WriteDurable(p []byte, off int64) error {
	if err := r.note(change{off: off, data: append([]byte(nil), p...), dur: true}); err != nil {
		return err
	}
	_, err := r.Mem.WriteAt(p, off)
	return err
}

func (r *recorder) Sync() error { return r.note(change{sync: true}) }

func (c change) apply(m *device.Mem) {
	switch {
	case c.data != nil:
		m.WriteAt(c.data, c.off)
	case !c.sync && !c.back:
		m.Punch(c.off, c.n)
	}
}

// powerLoss applies the changes up to k as a power cut may leave them: all
// before the last sync, of the others some, and of some only some sectors.
func powerLoss(m *device.Mem, log []change, k int, r *rand.Rand) {
	const sector = 512
	for i, c := range log[:k] {
		if durable(log[:k], i) || r.IntN(2) == 0 {
			c.apply(m)
			continue
		}
		for at := 0; c.data != nil && at < len(c.data) && r.IntN(2) == 0; at += sector {
			if r.IntN(2) == 0 {
				m.WriteAt(c.data[at:min(at+sector, len(c.data))], c.off+int64(at))
			}
		}
	}
}

// durable tells whether a change cannot be lost any more: a sync came after it,
// or it is a barrier itself, or its range was written back and then came a
// barrier.
func durable(log []change, i int) bool {
	if log[i].dur {
		return true
	}
	back := false
	for _, c := range log[i+1:] {
		switch {
		case c.sync || c.dur && back:
			return true
		case c.back && c.off <= log[i].off && c.off+c.n >= log[i].off+int64(len(log[i].data)):
			back = true
		}
	}
	return false
}

// save writes a device to a file for tools.
func save(t testing.TB, m *device.Mem) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "crash.ext4")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for off := int64(0); off < m.Size(); off += int64(len(buf)) {
		n, _ := m.ReadAt(buf, off)
		for _, b := range buf[:n] {
			if b != 0 {
				if _, err := f.WriteAt(buf[:n], off); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	if err := f.Truncate(m.Size()); err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	errDisk  = fmt.Errorf("simulated: %w", syscall.EIO)
	errSpace = fmt.Errorf("simulated: %w", syscall.ENOSPC)
)
