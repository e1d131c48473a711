// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// mapSpace is a guest that maps one file. It implements memmap.MappingSpace.
type mapSpace struct{ invalidated int }

func (s *mapSpace) Invalidate(hostarch.AddrRange, memmap.InvalidateOpts) { s.invalidated++ }

// mapping is a mapping of all of a file, and some pages behind it.
type mapping struct {
	w     *world
	m     memmap.Mappable
	space mapSpace
	size  uint64
}

const pagesBehind = 4

func (w *world) mmap(fd *vfs.FileDescription) *mapping {
	w.t.Helper()
	st, err := fd.Stat(w.ctx, vfs.StatOptions{Mask: linux.STATX_SIZE})
	if err != nil {
		w.t.Fatal(err)
	}
	size := uint64(pageUp(int64(st.Size))) + pagesBehind*hostarch.PageSize
	opts := memmap.MMapOpts{Length: size, Private: true, Perms: hostarch.Read, MaxPerms: hostarch.AnyAccess}
	if err := fd.ConfigureMMap(w.ctx, &opts); err != nil {
		w.t.Fatalf("mmap: %v", err)
	}
	opts.MappingIdentity.DecRef(w.ctx) // the test keeps fd
	m := &mapping{w: w, m: opts.Mappable, size: size}
	if err := m.m.AddMapping(w.ctx, &m.space, m.addrs(), 0, false); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (m *mapping) addrs() hostarch.AddrRange {
	return hostarch.AddrRange{Start: 0, End: hostarch.Addr(m.size)}
}

func (m *mapping) unmap() { m.m.RemoveMapping(m.w.ctx, &m.space, m.addrs(), 0, false) }

// translate asks for pages and checks the answer's form.
func (m *mapping) translate(required, optional memmap.MappableRange) ([]memmap.Translation, error) {
	m.w.t.Helper()
	ts, err := m.m.Translate(m.w.ctx, required, optional, hostarch.ReadExecute)
	if cerr := memmap.CheckTranslateResult(required, optional, hostarch.ReadExecute, ts, err); cerr != nil {
		m.w.t.Errorf("translate %v of %v: %v", required, optional, cerr)
	}
	return ts, err
}

// contents reads translations as a guest would.
func (m *mapping) contents(ts []memmap.Translation) string {
	m.w.t.Helper()
	var sb strings.Builder
	for _, tr := range ts {
		bs, err := tr.File.MapInternal(tr.FileRange(), hostarch.Read)
		if err != nil {
			m.w.t.Fatal(err)
		}
		buf := make([]byte, bs.NumBytes())
		if _, err := safemem.CopySeq(safemem.BlockSeqOf(safemem.BlockFromSafeSlice(buf)), bs); err != nil {
			m.w.t.Fatal(err)
		}
		sb.Write(buf)
	}
	return sb.String()
}

// checkMapping compares all ways to map a file with its data.
func (w *world) checkMapping(path, want string) {
	w.t.Helper()
	fd := w.mustOpen(path, linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	m := w.mmap(fd)
	defer m.unmap()
	padded := want + strings.Repeat("\x00", int(m.size)-pagesBehind*hostarch.PageSize-len(want))
	all := memmap.MappableRange{Start: 0, End: uint64(len(padded))}
	beyond := memmap.MappableRange{Start: 0, End: m.size}
	var bus *memmap.BusError

	// A fault on each page (of long files: on some), with all of the mapping
	// around it.
	step := uint64(hostarch.PageSize)
	if all.End > 1<<20 {
		step *= 31
	}
	for off := uint64(0); off < all.End; off += step {
		one := memmap.MappableRange{Start: off, End: off + hostarch.PageSize}
		ts, err := m.translate(one, beyond)
		if err != nil {
			w.t.Fatalf("%s: fault at %#x: %v", path, off, err)
		}
		for _, tr := range ts {
			if got := m.contents([]memmap.Translation{tr}); got != padded[tr.Source.Start:tr.Source.End] {
				w.t.Fatalf("%s: fault at %#x: wrong bytes in %v", path, off, tr)
			}
		}
	}
	if all.Length() > 0 {
		ts, err := m.translate(all, all)
		if err != nil || m.contents(ts) != padded {
			w.t.Errorf("%s: translating all of it: %d translations, %v", path, len(ts), err)
		}
		if ts, err = m.translate(beyond, beyond); !errors.As(err, &bus) || bus.Err != io.EOF || m.contents(ts) != padded {
			w.t.Errorf("%s: translating more than it: %d translations, %v", path, len(ts), err)
		}
	}
	if _, err := m.translate(memmap.MappableRange{Start: all.End, End: beyond.End}, beyond); !errors.As(err, &bus) {
		w.t.Errorf("%s: a page behind the end: %v, want a bus error", path, err)
	}
}

func TestMapping(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	w.checkMapping("bin/tool", pattern(3*4096+17))
	w.checkMapping("etc/passwd", "root:x:0:0\n")
	w.checkMapping("sparse", pattern(64<<10)+strings.Repeat("\x00", 20<<20-64<<10))
	w.checkMapping("empty", "")
	if n := w.fs().copies.bytes.Load(); n != 0 {
		t.Errorf("%d bytes were copied of an image that has every file page aligned", n)
	}
}

func TestMappingIsOfTheImageFile(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	fd := w.mustOpen("bin/tool", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	m := w.mmap(fd)
	defer m.unmap()
	page := memmap.MappableRange{Start: 0, End: hostarch.PageSize}
	ts, err := m.translate(page, memmap.MappableRange{Start: 0, End: m.size})
	if err != nil {
		t.Fatal(err)
	}
	f := w.fs().vol.Files()[0]
	if len(ts) != 1 || ts[0].File != f || ts[0].Source.End != 3*4096 {
		t.Errorf("translations %v, want one of the three whole pages in the volume's file", ts)
	}
	if fd, err := ts[0].File.DataFD(ts[0].FileRange()); err != nil || fd != f.fd {
		t.Errorf("data descriptor %d, %v; want %d", fd, err, f.fd)
	}
	if _, err := m.m.Translate(w.ctx, page, page, hostarch.ReadWrite); err == nil {
		t.Error("a page of a read-only volume was translated for writing")
	}
	if err := m.m.InvalidateUnsavable(w.ctx); err != nil || m.space.invalidated != 1 {
		t.Errorf("before a checkpoint: %d invalidations, %v", m.space.invalidated, err)
	}
}

// mkfs makes an image with the kernel's tool, which puts small files and tails
// behind their inodes.
func mkfs(t *testing.T, dir string, args ...string) string {
	t.Helper()
	tool, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("mkfs.erofs (package erofs-utils) is missing")
		}
		t.Skip("mkfs.erofs (package erofs-utils) is missing")
	}
	image := filepath.Join(t.TempDir(), "mkfs.image")
	if out, err := exec.Command(tool, append(args, image, dir)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, out)
	}
	return image
}

func TestMappingOfInlineTailsAndChunks(t *testing.T) {
	dir := t.TempDir()
	data := map[string]string{
		"tiny": "#!/bin/sh\n", "page": pattern(4096), "tail": pattern(5*4096 + 100), "long": pattern(300 << 10),
	}
	for name, d := range data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(d), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{nil, {"--chunksize=4096"}, {"--chunksize=65536"}} {
		w := newWorld(t)
		mnt, err := w.mountEROFS(mkfs(t, dir, args...))
		if err != nil {
			t.Fatalf("mount an image made with %v: %v", args, err)
		}
		w.use(mnt)
		for name, d := range data {
			w.checkMapping(name, d)
			if got, err := w.readFile(name); err != nil || got != d {
				t.Errorf("image made with %v: read %s: %d bytes, %v", args, name, len(got), err)
			}
		}
		t.Logf("%v: %d bytes copied", args, w.fs().copies.bytes.Load())
		w.unmount()
	}
}

// TestMappingOfOddExtents maps what no builder writes.
func TestMappingOfOddExtents(t *testing.T) {
	v := newOddVolume(t, 64<<10)
	for name, extents := range map[string][]Extent{
		"pieces of 512 bytes":       v.pieces(512),
		"pieces of 4608 bytes":      v.pieces(4608),
		"one shifted by 100":        {{Len: 20000, File: v.file, FileOff: 100}},
		"dirt behind the end":       {{Len: 5000, File: v.file, FileOff: 4096}},
		"data, hole, data, aligned": {{Len: 8192, File: v.file}, {Off: 8192, Len: 8192}, {Off: 16384, Len: 8192, File: v.file, FileOff: 4096}},
		"a hole inside a page":      {{Len: 1000, File: v.file}, {Off: 1000, Len: 9000}, {Off: 10000, Len: 10000, File: v.file, FileOff: 10000}},
		"a hole at the end":         {{Len: 4096, File: v.file}, {Off: 4096, Len: 1 << 20}},
	} {
		v.nodes[name] = &oddNode{mode: linux.S_IFREG | 0o644, extents: extents}
	}
	w := v.mount(t)
	for name, n := range v.nodes {
		if n.mode&linux.S_IFMT == linux.S_IFREG {
			w.checkMapping(name, v.data(n))
			if got, err := w.readFile(name); err != nil || got != v.data(n) {
				t.Errorf("%s: read %d bytes, %v", name, len(got), err)
			}
		}
	}
	if w.fs().copies.bytes.Load() == 0 {
		t.Error("nothing was copied")
	}
	w.unmount()
}

// TestFileGoesOnBehindTheVolume maps a last page that the volume ends in, but
// not the file.
func TestFileGoesOnBehindTheVolume(t *testing.T) {
	v := newOddVolume(t, 16<<10)
	v.file.size = 8192 + 512
	v.nodes["f"] = &oddNode{mode: linux.S_IFREG | 0o644, extents: []Extent{{Len: 4096 + 512, File: v.file, FileOff: 4096}}}
	w := v.mount(t)
	defer w.unmount()
	w.checkMapping("f", v.data(v.nodes["f"]))
	if w.fs().copies.bytes.Load() != hostarch.PageSize {
		t.Error("the last page was not copied: the guest sees what is behind the volume")
	}
}

func TestCopiedPagesAreGivenBack(t *testing.T) {
	v := newOddVolume(t, 1<<20)
	v.nodes["f"] = &oddNode{mode: linux.S_IFREG | 0o644, extents: v.pieces(512)}
	w := v.mount(t)
	defer w.unmount()
	w.checkMapping("f", v.data(v.nodes["f"]))
	pool := &w.fs().copies
	if got := pool.bytes.Load(); got != 1<<20 {
		t.Errorf("%d bytes copied, want all of the file", got)
	}
	// Others use the bound up: no mapping, no pages.
	pool.bytes.Add(keepCopiedBytes)
	w.checkMapping("f", v.data(v.nodes["f"]))
	if got := pool.bytes.Load(); got != keepCopiedBytes {
		t.Errorf("%d bytes counted after the last unmap, want only the others' %d", got, keepCopiedBytes)
	}
	pool.bytes.Store(maxCopiedBytes)
	fd := w.mustOpen("f", linux.O_RDONLY)
	m := w.mmap(fd)
	page := memmap.MappableRange{Start: 0, End: hostarch.PageSize}
	var bus *memmap.BusError
	if _, err := m.translate(page, page); !errors.As(err, &bus) || !linuxerr.Equals(linuxerr.ENOMEM, bus.Err) {
		t.Errorf("a page over the bound: %v, want a bus error", err)
	}
	m.unmap()
	fd.DecRef(w.ctx)
	pool.bytes.Store(0)
}
