// SPDX-License-Identifier: Apache-2.0

package footprint

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageMap reads which pages of some memory are mapped: proc(5), pagemap. Reading
// itself needs hardly any of the program.
type pageMap struct {
	fd      int
	at      int64
	entries []byte
}

func newPageMap(t *testing.T, of []byte) *pageMap {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	page := os.Getpagesize()
	return &pageMap{
		fd: int(f.Fd()), at: int64(uintptr(unsafe.Pointer(&of[0]))) / int64(page) * 8,
		entries: make([]byte, (len(of)+page-1)/page*8),
	}
}

func (m *pageMap) read(t *testing.T) {
	t.Helper()
	if n, err := unix.Pread(m.fd, m.entries, m.at); err != nil || n != len(m.entries) {
		t.Fatalf("read pagemap: %d bytes, %v", n, err)
	}
}

// mapped counts the pages that were mapped when the map was read.
func (m *pageMap) mapped() int {
	n := 0
	for i := 0; i < len(m.entries); i += 8 {
		if binary.NativeEndian.Uint64(m.entries[i:])>>63 != 0 {
			n++
		}
	}
	return n
}

func TestForgetProgram(t *testing.T) {
	parts := programPages()
	if len(parts) == 0 {
		t.Fatal("the program has no pages")
	}
	var sum byte
	for _, p := range parts {
		m := newPageMap(t, p)
		for i := 0; i < len(p); i += os.Getpagesize() {
			sum += p[i]
		}
		m.read(t)
		before := m.mapped()
		forgetProgram()
		m.read(t)
		after := m.mapped()
		t.Logf("%d pages: %d mapped before, %d after (%d)", len(m.entries)/8, before, after, sum)
		if before != len(m.entries)/8 || after > before*3/4 {
			t.Errorf("of %d pages of the program %d were mapped, %d still", len(m.entries)/8, before, after)
		}
	}
}
