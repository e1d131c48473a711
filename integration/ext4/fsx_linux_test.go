// SPDX-License-Identifier: Apache-2.0

// One file under random reads, writes, mappings, truncations and holes,
// compared with a copy in memory: what fsx does, which no package of Debian has.

package ext4

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// exerciser is a file and what it must hold.
type exerciser struct {
	t    *testing.T
	r    *rand.Rand
	path string
	f    *os.File
	good []byte // up to the end of the file
	most int    // bytes
	last string // the operation before
}

// span picks a range, often within the file, sometimes at block boundaries.
func (x *exerciser) span(limit int) (off, n int) {
	if limit == 0 {
		return 0, 0
	}
	off = x.r.IntN(limit)
	n = 1 + x.r.IntN(min(limit-off, 64<<10))
	if x.r.IntN(4) == 0 {
		off &^= 4095
	}
	if x.r.IntN(4) == 0 {
		n = min((n+4095)&^4095, limit-off)
	}
	return off, n
}

func (x *exerciser) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("after %s: %s", x.last, fmt.Sprintf(format, args...))
}

func (x *exerciser) need(err error) {
	x.t.Helper()
	if err != nil {
		x.fail("%v", err)
	}
}

// extend grows what the file must hold.
func (x *exerciser) extend(size int) {
	if size > len(x.good) {
		x.good = append(x.good, make([]byte, size-len(x.good))...)
	}
}

func (x *exerciser) fill(p []byte) {
	for i := range p {
		p[i] = byte(x.r.Uint32())
	}
}

func (x *exerciser) same(off int, got []byte) {
	x.t.Helper()
	want := x.good[off : off+len(got)]
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			x.fail("byte %#x of %#x is %#x, wanted %#x", off+i, len(x.good), got[i], want[i])
		}
	}
}

// write writes, now and then as an append, now and then synchronously.
func (x *exerciser) write() {
	off, n := x.span(x.most)
	if x.r.IntN(4) == 0 {
		off = min(len(x.good), x.most-1)
		n = min(n, x.most-off)
	}
	p := make([]byte, n)
	x.fill(p)
	x.last = fmt.Sprintf("write of %#x at %#x", n, off)
	_, err := x.f.WriteAt(p, int64(off))
	x.need(err)
	x.extend(off + n)
	copy(x.good[off:], p)
}

func (x *exerciser) read() {
	off, n := x.span(len(x.good))
	p := make([]byte, n)
	_, err := x.f.ReadAt(p, int64(off))
	x.need(err)
	x.same(off, p)
}

// mapped maps part of the file and reads or writes there.
func (x *exerciser) mapped(write bool) {
	off, n := x.span(len(x.good))
	if n == 0 {
		return
	}
	base := off &^ 4095
	m, err := unix.Mmap(int(x.f.Fd()), int64(base), off+n-base, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	x.need(err)
	defer unix.Munmap(m)
	if !write {
		x.same(off, m[off-base:])
		return
	}
	x.last = fmt.Sprintf("write of %#x at %#x through a mapping", n, off)
	x.fill(m[off-base:])
	copy(x.good[off:], m[off-base:])
	if x.r.IntN(2) == 0 {
		x.need(unix.Msync(m, unix.MS_SYNC))
	}
}

func (x *exerciser) truncate() {
	size := x.r.IntN(x.most)
	if x.r.IntN(8) == 0 {
		size = 0
	}
	x.last = fmt.Sprintf("truncation from %#x to %#x", len(x.good), size)
	x.need(x.f.Truncate(int64(size)))
	if size < len(x.good) {
		x.good = x.good[:size:size]
	}
	x.extend(size)
}

func (x *exerciser) fallocate() {
	off, n := x.span(x.most)
	mode := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE,
		unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE}[x.r.IntN(5)]
	x.last = fmt.Sprintf("fallocate, mode %#x, of %#x at %#x in %#x", mode, n, off, len(x.good))
	x.need(unix.Fallocate(int(x.f.Fd()), mode, int64(off), int64(n)))
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		x.extend(off + n)
	}
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 && off < len(x.good) {
		clear(x.good[off:min(off+n, len(x.good))])
	}
}

// reopen lets go of the file, and of its pages.
func (x *exerciser) reopen() {
	x.last += ", then opened again"
	unix.Fadvise(int(x.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	x.need(x.f.Close())
	var err error
	x.f, err = os.OpenFile(x.path, os.O_RDWR, 0)
	x.need(err)
}

// holes checks that what SEEK_DATA and SEEK_HOLE call a hole is zero.
func (x *exerciser) holes() {
	for at := int64(0); at < int64(len(x.good)); {
		data, err := unix.Seek(int(x.f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data, err = int64(len(x.good)), nil
		}
		x.need(err)
		if data < at || data > int64(len(x.good)) {
			x.fail("data from %#x on is at %#x", at, data)
		}
		if k := bytes.IndexFunc(x.good[at:data], func(r rune) bool { return r != 0 }); k >= 0 {
			x.fail("byte %#x is called a hole", at+int64(k))
		}
		if data == int64(len(x.good)) {
			return
		}
		at, err = unix.Seek(int(x.f.Fd()), data, unix.SEEK_HOLE)
		x.need(err)
		if at <= data {
			x.fail("the hole behind data at %#x is at %#x", data, at)
		}
	}
}

func (x *exerciser) step() {
	switch k := x.r.IntN(20); {
	case k < 5:
		x.write()
	case k < 9:
		x.read()
	case k < 11:
		x.mapped(true)
	case k < 13:
		x.mapped(false)
	case k < 14:
		x.truncate()
	case k < 17:
		x.fallocate()
	case k < 18:
		x.reopen()
	case k < 19:
		x.holes()
	default:
		x.need(x.f.Sync())
	}
	st, err := x.f.Stat()
	x.need(err)
	if st.Size() != int64(len(x.good)) {
		x.fail("the file has %#x bytes, wanted %#x", st.Size(), len(x.good))
	}
}

// TestFileExerciser runs several files at once over one volume, so that their
// blocks lie between each other's, on a volume of ours and one of mkfs.ext4 with
// small blocks.
func TestFileExerciser(t *testing.T) {
	for kind, options := range map[string][]string{"ours": nil, "small blocks": {"-b", "1024"}} {
		t.Run(kind, func(t *testing.T) {
			volume := filepath.Join(scratch(t), "v.ext4")
			size := int64(1 << 30)
			if options != nil {
				makeVolume(t, volume, size, options...)
				size = 0
			}
			m := serve(t, volume, size)
			t.Run("files", func(t *testing.T) {
				for seed := range amount(20, 4) {
					t.Run(fmt.Sprint(seed), func(t *testing.T) {
						t.Parallel()
						x := &exerciser{t: t, r: rand.New(rand.NewPCG(uint64(seed), 1)), path: filepath.Join(m.dir, fmt.Sprint(seed)), most: 512 << 10, last: "creation"}
						var err error
						x.f, err = os.OpenFile(x.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
						x.need(err)
						for range amount(20000, 1500) {
							x.step()
						}
						x.last = "all"
						x.need(x.f.Close())
						got, err := os.ReadFile(x.path)
						x.need(err)
						x.same(0, got)
					})
				}
			})
			m.finish()
		})
	}
}

// TestFsx runs fsx itself, of the xfstests that GVX_XFSTESTS names.
func TestFsx(t *testing.T) {
	suite := os.Getenv("GVX_XFSTESTS")
	if suite == "" {
		t.Skip("needs fsx: set GVX_XFSTESTS to the folder in which xfstests was built")
	}
	m := serve(t, filepath.Join(scratch(t), "v.ext4"), 1<<30)
	for seed := range amount(8, 2) {
		run := exec.Command(filepath.Join(suite, "ltp", "fsx"), "-q", "-N", fmt.Sprint(amount(200000, 10000)), "-S", fmt.Sprint(seed+1), "-l", "1048576",
			filepath.Join(m.dir, fmt.Sprint("fsx", seed)))
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("fsx, seed %d: %v\n%s", seed+1, err, clip(string(out)))
		}
	}
	m.finish()
}
