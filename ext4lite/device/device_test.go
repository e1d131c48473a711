// SPDX-License-Identifier: Apache-2.0

// Devices: a file and one in memory do the same, what is punched is zero, a
// file has one writer.

package device_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
)

func create(t *testing.T, size int64) *device.File {
	t.Helper()
	d, err := device.CreateFile(filepath.Join(t.TempDir(), "volume"), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestFileLikeMemory does the same at random on both kinds of device.
func TestFileLikeMemory(t *testing.T) {
	const size = 1 << 20
	f, m := create(t, size), device.NewMem(size)
	r := rand.New(rand.NewPCG(1, 5))
	for k := range 2000 {
		off := r.Int64N(size)
		n := r.Int64N(min(size-off, 100<<10)) + 1
		switch r.IntN(4) {
		case 0, 1:
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			for _, d := range []device.Device{f, m} {
				if got, err := d.WriteAt(p, off); got != len(p) || err != nil {
					t.Fatalf("write: %d, %v", got, err)
				}
			}
		case 2:
			for _, d := range []device.Device{f, m} {
				if err := d.Punch(off, n); err != nil {
					t.Fatal(err)
				}
			}
		case 3:
			a, b := make([]byte, n), make([]byte, n)
			if _, err := f.ReadAt(a, off); err != nil {
				t.Fatal(err)
			}
			if _, err := m.ReadAt(b, off); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a, b) {
				t.Fatalf("step %d: %d bytes at %d differ", k, n, off)
			}
		}
	}
	for _, d := range []device.Device{f, m} {
		if err := d.Truncate(size / 2); err != nil || d.Size() != size/2 {
			t.Errorf("cut in half: %d, %v", d.Size(), err)
		}
		if err := d.Truncate(size); err != nil {
			t.Fatal(err)
		}
		p := bytes.Repeat([]byte{1}, size/2)
		if _, err := d.ReadAt(p, size/2); err != nil || !bytes.Equal(p, make([]byte, size/2)) {
			t.Errorf("what was cut off is there again: %v", err)
		}
		if _, err := d.ReadAt(make([]byte, 2), size-1); err != io.EOF {
			t.Errorf("read across the end: %v", err)
		}
		if err := d.Sync(); err != nil {
			t.Error(err)
		}
	}
}

// TestCloneOfMemory is what crash tests stand on.
func TestCloneOfMemory(t *testing.T) {
	m := device.NewMem(1 << 20)
	m.WriteAt([]byte("before"), 5000)
	c := m.Clone()
	m.WriteAt([]byte("after!"), 5000)
	p := make([]byte, 6)
	if _, err := c.ReadAt(p, 5000); err != nil || string(p) != "before" {
		t.Errorf("the clone has %q, %v", p, err)
	}
}

func TestOneWriterOrManyReaders(t *testing.T) {
	d := create(t, 1<<20)
	for _, access := range []device.Access{device.ReadOnly, device.ReadWrite} {
		if _, err := device.OpenFile(d.Name(), access); !errors.Is(err, device.ErrLocked) {
			t.Errorf("a volume in use, opened with access %d: %v", access, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := device.OpenFile(d.Name(), device.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := device.OpenFile(d.Name(), device.ReadOnly)
	if err != nil {
		t.Fatalf("a second reader: %v", err)
	}
	defer b.Close()
	if _, err := device.OpenFile(d.Name(), device.ReadWrite); !errors.Is(err, device.ErrLocked) {
		t.Errorf("a writer beside readers: %v", err)
	}
	if _, err := a.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a reader could write")
	}
	if a.Size() != 1<<20 {
		t.Errorf("size %d", a.Size())
	}
}

func TestCreateLeavesWhatIsThere(t *testing.T) {
	d := create(t, 1<<20)
	d.WriteAt([]byte("here"), 0)
	if _, err := device.CreateFile(d.Name(), 1<<10); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that exists was created: %v", err)
	}
	if _, err := device.OpenFile(filepath.Dir(d.Name()), device.ReadOnly); err == nil {
		t.Error("a folder was opened as a volume")
	}
}

// TestNextDataSkipsHoles allows a host that knows no holes, where all is data.
func TestNextDataSkipsHoles(t *testing.T) {
	d := create(t, 8<<20)
	d.WriteAt([]byte("x"), 4<<20)
	next, err := d.NextData(0)
	if err != nil || next > 4<<20 {
		t.Errorf("the first data is at %d, %v", next, err)
	}
	if next, err = d.NextData(4 << 20); err != nil || next != 4<<20 {
		t.Errorf("data at 4 MiB is at %d, %v", next, err)
	}
}

func TestWriteZerosInPieces(t *testing.T) {
	m := device.NewMem(4 << 20)
	p := bytes.Repeat([]byte{7}, 4<<20)
	m.WriteAt(p, 0)
	if err := device.WriteZeros(m, 1000, 3<<20); err != nil {
		t.Fatal(err)
	}
	clear(p[1000 : 1000+(3<<20)])
	got := make([]byte, len(p))
	m.ReadAt(got, 0)
	if !bytes.Equal(got, p) {
		t.Error("zeros were written elsewhere")
	}
}
