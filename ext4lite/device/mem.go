// SPDX-License-Identifier: Apache-2.0

// A Device in memory, sparse, for tests and for tools that build a volume
// before they write it.

package device

import (
	"fmt"
	"io"
	"sync"
)

const memPage = 64 << 10

// Mem is a Device in memory. Pages that were never written take no room.
type Mem struct {
	mu    sync.RWMutex
	size  int64
	pages map[int64][]byte
}

// NewMem makes a Device of zeros.
func NewMem(size int64) *Mem { return &Mem{size: size, pages: map[int64][]byte{}} }

// each calls fn for the parts of a range that lie in one page each.
func (m *Mem) each(n int, off int64, fn func(page int64, at, from, to int)) {
	for done := 0; done < n; {
		page, at := off/memPage, int(off%memPage)
		k := min(n-done, memPage-at)
		fn(page, at, done, done+k)
		done, off = done+k, off+int64(k)
	}
}

// ReadAt reads; like a file it ends with io.EOF.
func (m *Mem) ReadAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if off < 0 {
		return 0, fmt.Errorf("read at %d: negative offset", off)
	}
	n := int(max(0, min(int64(len(p)), m.size-off)))
	m.each(n, off, func(page int64, at, from, to int) {
		if b := m.pages[page]; b != nil {
			copy(p[from:to], b[at:])
		} else {
			clear(p[from:to])
		}
	})
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt writes and grows the device where needed.
func (m *Mem) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off < 0 {
		return 0, fmt.Errorf("write at %d: negative offset", off)
	}
	m.size = max(m.size, off+int64(len(p)))
	m.each(len(p), off, func(page int64, at, from, to int) {
		b := m.pages[page]
		if b == nil {
			b = make([]byte, memPage)
			m.pages[page] = b
		}
		copy(b[at:], p[from:to])
	})
	return len(p), nil
}

// Size is the length in bytes.
func (m *Mem) Size() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.size
}

// Truncate changes the length.
func (m *Mem) Truncate(size int64) error {
	if size < m.Size() {
		if err := m.Punch(size, m.Size()-size); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.size = size
	return nil
}

// Sync does nothing: memory is as durable as it will ever be.
func (m *Mem) Sync() error { return nil }

// Punch zeroes a range and forgets whole pages.
func (m *Mem) Punch(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for end := min(off+n, m.size); off < end; {
		page, at := off/memPage, off%memPage
		k := min(end-off, memPage-at)
		if k == memPage {
			delete(m.pages, page)
		} else if b := m.pages[page]; b != nil {
			clear(b[at : at+k])
		}
		off += k
	}
	return nil
}

// Close forgets the bytes.
func (m *Mem) Close() error { return nil }

// Clone copies the device.
func (m *Mem) Clone() *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := NewMem(m.size)
	for k, b := range m.pages {
		c.pages[k] = append([]byte(nil), b...)
	}
	return c
}
