// SPDX-License-Identifier: Apache-2.0

// Volumes that somebody broke on purpose: any bytes are answered with errors,
// never with a panic, an endless loop or unbounded memory.

package ext4lite_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// seedVolume is a small volume without metadata checksums, so that a changed
// byte reaches the code behind them: files with trees of extents, a hash tree,
// attributes, links, a log that was not replayed.
var seedVolume = sync.OnceValue(func() *device.Mem {
	m := device.NewMem(8 << 20)
	ok := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ok(ext4lite.Mkfs(m, ext4lite.MkfsOptions{BlockSize: 1024, Journal: 1 << 20, OldChecksums: true, BytesPerIno: 8192,
		UUID: [16]byte{1}, HashSeed: [16]byte{2}, Now: time.Unix(1e9, 0)}))
	fs, err := ext4lite.Open(m, ext4lite.Options{})
	ok(err)
	d, err := fs.MkdirAll("dir", ext4lite.NewInode{Mode: 0o755})
	ok(err)
	for k := range 120 {
		ok(fs.WriteFile(fmt.Sprintf("dir/name-%04d", k), []byte{byte(k)}, ext4lite.NewInode{Mode: 0o644}))
	}
	f, err := d.Create("holes", ext4lite.NewInode{Mode: 0o644})
	ok(err)
	for k := range 120 {
		_, err := f.WriteAt([]byte("x"), int64(k)*2048)
		ok(err)
	}
	ok(f.SetXattr("user.a", make([]byte, 300), 0))
	ok(f.SetXattr("trusted.b", []byte("value"), 0))
	f.Release()
	s, err := d.Symlink("link", string(make64('x', 200)), ext4lite.NewInode{})
	ok(err)
	s.Release()
	ok(fs.Compact())
	ok(fs.WriteFile("late", []byte("in the log"), ext4lite.NewInode{}))
	ok(fs.Sync())
	d.Release()
	c := m.Clone()
	ok(fs.Abandon())
	return c
})

func make64(b byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = b
	}
	return p
}

// abuse does everything one can do with a volume; only a panic or a hang is
// wrong. Work is bounded, because a broken volume may look endless.
func abuse(m device.Device, ro bool) {
	fs, err := ext4lite.Open(m, ext4lite.Options{ReadOnly: ro, Durability: ext4lite.Process})
	if err != nil {
		return
	}
	defer fs.Close()
	steps := 0
	var visit func(i *ext4lite.Inode, depth int)
	visit = func(i *ext4lite.Inode, depth int) {
		if steps++; steps > 400 || depth > 6 {
			return
		}
		i.Attr()
		if names, err := i.ListXattrs(); err == nil {
			for _, n := range names {
				i.GetXattr(n)
			}
		}
		i.Readlink()
		buf := make([]byte, 4096)
		i.ReadAt(buf, 0)
		i.ReadAt(buf, 100000)
		i.SeekData(0)
		i.SeekHole(0)
		if !ro {
			i.WriteAt(buf[:100], 5000)
			i.SetXattr("user.new", buf[:50], 0)
			i.Fallocate(ext4lite.FallocPunchHole|ext4lite.FallocKeepSize, 1000, 30000)
			i.Fallocate(0, 60000, 3000)
			i.Truncate(3000)
			i.SyncFile()
		}
		var names []string
		i.ReadDir(0, func(e ext4lite.DirEntry) bool {
			names = append(names, e.Name)
			return len(names) < 300
		})
		for _, n := range names {
			if k, err := i.Lookup(n); err == nil {
				if n != "." && n != ".." {
					visit(k, depth+1)
				}
				k.Release()
			}
		}
		if ro {
			return
		}
		if k, err := i.Create("created", ext4lite.NewInode{Mode: 0o644}); err == nil {
			k.WriteAt(buf, 0)
			k.Release()
		}
		if k, err := i.Mkdir("made", ext4lite.NewInode{}); err == nil {
			k.Release()
		}
		for k, n := range names {
			switch k % 4 {
			case 0:
				i.Unlink(n)
			case 1:
				fs.Rename(i, n, i, fmt.Sprint("renamed", k), ext4lite.RenameWhiteout)
			case 2:
				i.Rmdir(n)
			}
		}
		fs.Sync()
	}
	if root, err := fs.Root(); err == nil {
		visit(root, 0)
		root.Release()
	}
	fs.Compact()
}

// within fails a test whose function takes too long: a loop.
func within(t testing.TB, d time.Duration, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(d):
		panic("hangs: " + what)
	}
}

// interesting picks an offset that holds metadata rather than free space.
func interesting(m *device.Mem, r *rand.Rand) int64 {
	for range 1000 {
		off := r.Int64N(m.Size())
		if r.IntN(3) == 0 {
			off = 1024 + r.Int64N(1024)
		}
		p := make([]byte, 16)
		if _, err := m.ReadAt(p, off); err != nil && err != io.EOF {
			continue
		}
		for _, b := range p {
			if b != 0 {
				return off
			}
		}
	}
	return 1024
}

func TestBrokenVolumes(t *testing.T) {
	r := rand.New(rand.NewPCG(firstSeed(), 9))
	for n := range seeds(1500) {
		m := seedVolume().Clone()
		for range 1 + r.IntN(8) {
			off := interesting(m, r)
			var p [4]byte
			switch r.IntN(4) {
			case 0:
				binary.LittleEndian.PutUint32(p[:], r.Uint32())
			case 1:
				binary.LittleEndian.PutUint32(p[:], r.Uint32N(9000))
			case 2:
				p = [4]byte{0xff, 0xff, 0xff, 0xff}
			}
			m.WriteAt(p[:1+r.IntN(4)], off)
		}
		within(t, time.Minute, fmt.Sprint("volume ", n), func() { abuse(m, n%3 == 0) })
	}
}

func FuzzVolume(f *testing.F) {
	f.Add([]byte{0, 0, 4, 0, 1, 2, 3, 4}, false)
	f.Add([]byte{0, 1, 0x10, 0, 0xff, 0xff, 0xff, 0xff}, true)
	f.Fuzz(func(t *testing.T, edits []byte, ro bool) {
		m := seedVolume().Clone()
		for ; len(edits) >= 8; edits = edits[8:] {
			off := int64(binary.BigEndian.Uint32(edits)) % m.Size()
			m.WriteAt(edits[4:8], off)
		}
		within(t, time.Minute, "volume", func() { abuse(m, ro) })
	})
}
