// SPDX-License-Identifier: Apache-2.0

// A log of any bytes: replay ends, and writes nothing outside the volume.

package journal

import (
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

const (
	fuzzBlock = 1024
	fuzzStart = 100 // where the log lies
	fuzzLog   = 1100
)

// logImage is a volume with a log of two transactions that was not replayed.
func logImage(t testing.TB, csum bool) *device.Mem {
	t.Helper()
	m := device.NewMem(2000 * fuzzBlock)
	st := &Store{Dev: m, Blocks: 2000, Shift: 10}
	s := NewSuper(fuzzBlock, fuzzLog, [16]byte{1}, true, csum)
	if _, err := m.WriteAt(s.Encode(), fuzzStart*fuzzBlock); err != nil {
		t.Fatal(err)
	}
	j, err := Open(st, fuzzArea, fuzzLog, Options{Write: true, Wide: true, Csum: csum})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		h, err := j.Start(10)
		if err != nil {
			t.Fatal(err)
		}
		for k := range 5 {
			b := h.GetNew(uint64(1500 + k))
			b.Data[0] = byte(round + 1)
			if k == 3 {
				be.PutUint32(b.Data, magic) // must be escaped
			}
		}
		if round == 1 {
			h.Forget(1504)
		}
		h.Stop()
		if _, err := j.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	return m
}

var fuzzArea = Area{disk.Extent{Len: 600, Physical: fuzzStart}, disk.Extent{Logical: 600, Len: 500, Physical: 800}}

func TestReplayOwnLog(t *testing.T) {
	for _, csum := range []bool{true, false} {
		m := logImage(t, csum)
		st := &Store{Dev: m, Blocks: 2000, Shift: 10}
		if _, err := Open(st, fuzzArea, fuzzLog, Options{Write: true, Wide: true, Csum: csum}); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, fuzzBlock)
		for k, want := range []byte{2, 2, 2, 0xC0, 0} {
			if err := st.Read(uint64(1500+k), p); err != nil {
				t.Fatal(err)
			}
			if p[0] != want {
				t.Errorf("csum %v: block %d begins with %#x, want %#x", csum, 1500+k, p[0], want)
			}
		}
	}
}

// Bytes of the log are replaced: eight of input give an offset and four bytes.
func FuzzReplay(f *testing.F) {
	images := map[bool]*device.Mem{true: logImage(f, true), false: logImage(f, false)}
	f.Add([]byte{0, 0, 0, 0x1c, 0, 0, 0, 1}, true)
	f.Add([]byte{0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 4, 12, 0, 0, 0xff, 0xff}, false)
	f.Fuzz(func(t *testing.T, edits []byte, csum bool) {
		m := images[csum].Clone()
		for ; len(edits) >= 8; edits = edits[8:] {
			off := int64(be.Uint32(edits)) % (20 * fuzzBlock)
			m.WriteAt(edits[4:8], fuzzStart*fuzzBlock+off)
		}
		st := &Store{Dev: m, Blocks: 2000, Shift: 10}
		j, err := Open(st, fuzzArea, fuzzLog, Options{Write: true, Wide: true, Csum: csum})
		if err == nil {
			j.Close()
		}
		if m.Size() != 2000*fuzzBlock {
			t.Fatal("replay wrote past the volume")
		}
	})
}
