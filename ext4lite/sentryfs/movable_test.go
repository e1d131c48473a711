// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"bytes"
	"crypto/sha256"
	"os"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const page = hostarch.PageSize

// guestMap is what a memory manager keeps of one mapping of a file: the
// translations it was given, with a reference on each, until they are
// invalidated. It implements memmap.MappingSpace.
type guestMap struct {
	w        *world
	m        memmap.Mappable
	off      uint64
	pages    int
	writable bool

	mu sync.Mutex
	// ptes are by page of the file, from off on.
	ptes map[uint64]pte
	// private counts invalidations that took private copies, too.
	private int
}

type pte struct {
	file  memmap.File
	at    uint64
	write bool
}

func (w *world) mapFile(fd *vfs.FileDescription, off uint64, pages int, writable bool) *guestMap {
	w.t.Helper()
	opts := memmap.MMapOpts{Length: uint64(pages) * page, Offset: off, Private: !writable, Perms: hostarch.AnyAccess, MaxPerms: hostarch.AnyAccess}
	if err := fd.ConfigureMMap(w.ctx, &opts); err != nil {
		w.t.Fatalf("mmap: %v", err)
	}
	opts.MappingIdentity.DecRef(w.ctx) // the test keeps fd
	g := &guestMap{w: w, m: opts.Mappable, off: off, pages: pages, writable: writable, ptes: map[uint64]pte{}}
	w.must(g.m.AddMapping(w.ctx, g, g.addrs(), off, writable))
	return g
}

func (g *guestMap) addrs() hostarch.AddrRange {
	return hostarch.AddrRange{Start: 0, End: hostarch.Addr(g.pages * page)}
}

// Invalidate implements memmap.MappingSpace.
func (g *guestMap) Invalidate(ar hostarch.AddrRange, opts memmap.InvalidateOpts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if opts.InvalidatePrivate {
		g.private++
	}
	for at := uint64(ar.Start) + g.off; at < uint64(ar.End)+g.off; at += page {
		g.drop(at)
	}
}

func (g *guestMap) drop(at uint64) {
	if p, ok := g.ptes[at]; ok {
		p.file.DecRef(memmap.FileRange{Start: p.at, End: p.at + page})
		delete(g.ptes, at)
	}
}

func (g *guestMap) unmap() {
	g.mu.Lock()
	for at := range g.ptes {
		g.drop(at)
	}
	g.mu.Unlock()
	g.m.RemoveMapping(g.w.ctx, g, g.addrs(), g.off, g.writable)
}

// fault makes sure that a page of the file is mapped.
func (g *guestMap) fault(at uint64, write bool) (pte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, ok := g.ptes[at]; ok && (p.write || !write) {
		return p, nil
	}
	required := memmap.MappableRange{Start: at, End: at + page}
	optional := memmap.MappableRange{Start: g.off, End: g.off + uint64(g.pages)*page}
	access := hostarch.Read
	if write {
		access = hostarch.ReadWrite
	}
	ts, err := g.m.Translate(g.w.ctx, required, optional, access)
	if cerr := memmap.CheckTranslateResult(required, optional, access, ts, err); cerr != nil {
		g.w.t.Errorf("translate %v of %v: %v", required, optional, cerr)
	}
	if len(ts) == 0 {
		return pte{}, err
	}
	for _, t := range ts {
		for k := t.Source.Start; k < t.Source.End; k += page {
			g.drop(k)
			p := pte{t.File, t.Offset + k - t.Source.Start, t.Perms.Write}
			p.file.IncRef(memmap.FileRange{Start: p.at, End: p.at + page}, 0)
			g.ptes[k] = p
		}
	}
	return g.ptes[at], nil
}

// touch copies between a page and p, as a load or a store of the guest.
func (g *guestMap) touch(at uint64, p []byte, write bool) error {
	e, err := g.fault(at, write)
	if err != nil {
		return err
	}
	access := hostarch.Read
	if write {
		access = hostarch.ReadWrite
	}
	ims, err := e.file.MapInternal(memmap.FileRange{Start: e.at, End: e.at + page}, access)
	if err != nil {
		return err
	}
	mine := safemem.BlockSeqOf(safemem.BlockFromSafeSlice(p))
	if write {
		_, err = safemem.CopySeq(ims, mine)
	} else {
		_, err = safemem.CopySeq(mine, ims)
	}
	return err
}

func (g *guestMap) load(at uint64, n int) string {
	g.w.t.Helper()
	p := make([]byte, n)
	if err := g.touch(at, p, false); err != nil {
		g.w.t.Fatalf("load at %d: %v", at, err)
	}
	return string(p)
}

func (g *guestMap) store(at uint64, s string) {
	g.w.t.Helper()
	if err := g.touch(at, []byte(s), true); err != nil {
		g.w.t.Fatalf("store at %d: %v", at, err)
	}
}

func (g *guestMap) want(at uint64, want string) {
	g.w.t.Helper()
	if got := g.load(at, len(want)); got != want {
		g.w.t.Errorf("page at %d has %q, want %q", at, got, want)
	}
}

func TestStoresThroughAMappingAreTheFiles(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	fd := w.mustCreate("/f")
	w.pwrite(fd, pattern(3*page+100), 0)
	g := w.mapFile(fd, 0, 8, true)
	g.want(page, pattern(3 * page)[page:page+50])
	g.store(page, "stored")
	got, err := w.readFile("/f")
	if err != nil || got[page:page+6] != "stored" || len(got) != 3*page+100 {
		t.Errorf("file after a store: %d bytes, %.10q, %v", len(got), got[page:], err)
	}
	w.pwrite(fd, "written", 2*page)
	g.want(2*page, "written")
	if _, err := g.fault(4*page, false); err == nil {
		t.Error("a page behind the end of the file was mapped")
	}
	g.unmap()
	fd.DecRef(w.ctx)
	w.finish(path)
}

func TestAStoreIntoAHoleIsSeenByAllWhoMapIt(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	fd := w.mustCreate("/f")
	w.must(fd.SetStat(w.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: 64 * page}}))
	reader := w.mapFile(fd, 0, 64, false)
	reader.want(5*page, "\x00\x00")
	if st := w.mustStat("/f"); st.Blocks != 0 {
		t.Errorf("reading a hole through a private mapping took %d blocks", st.Blocks)
	}
	a, b := w.mapFile(fd, 0, 64, true), w.mapFile(fd, 0, 64, true)
	b.want(5*page, "\x00\x00")
	reader.want(5*page, "\x00\x00")
	a.store(5*page, "seen")
	b.want(5*page, "seen")
	reader.want(5*page, "seen")
	if st := w.mustStat("/f"); st.Blocks > 8*8 {
		t.Errorf("one page stored takes %d blocks of 512 bytes", st.Blocks)
	}
	for _, g := range []*guestMap{a, b, reader} {
		g.unmap()
	}
	fd.DecRef(w.ctx)
	w.finish(path)
}

func TestAWriteIntoAHoleIsSeenThroughMappingsOfIt(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	fd := w.mustCreate("/f")
	w.must(fd.SetStat(w.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: 16 * page}}))
	g := w.mapFile(fd, 0, 16, false)
	g.want(3*page, "\x00")
	w.pwrite(fd, "data", 3*page)
	g.want(3*page, "data")
	w.must(fd.Impl().Allocate(w.ctx, linux.FALLOC_FL_PUNCH_HOLE|linux.FALLOC_FL_KEEP_SIZE, 2*page, 4*page))
	g.want(3*page, "\x00\x00\x00\x00")
	g.unmap()
	fd.DecRef(w.ctx)
	w.finish(path)
}

func TestACutFileIsNotReachedThroughOldMappings(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	fd := w.mustCreate("/victim")
	w.pwrite(fd, strings.Repeat("v", 8*page), 0)
	g := w.mapFile(fd, 0, 8, true)
	g.store(5*page, "mine")
	// A guest that holds a page although it was told that it is gone, as one
	// does that reads it in another thread.
	held, err := g.fault(5*page, true)
	w.must(err)
	held.file.IncRef(memmap.FileRange{Start: held.at, End: held.at + page}, 0)
	w.must(fd.SetStat(w.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: page}}))
	if g.private == 0 {
		t.Error("private copies of what was cut off were left")
	}
	if _, err := g.fault(5*page, true); err == nil {
		t.Error("a page behind the new end is mapped")
	}
	w.must(w.fs().Sync(w.ctx))
	other := w.mustCreate("/other")
	w.pwrite(other, strings.Repeat("o", 40<<20), 0)
	ims, err := held.file.MapInternal(memmap.FileRange{Start: held.at, End: held.at + page}, hostarch.ReadWrite)
	w.must(err)
	safemem.CopySeq(ims, safemem.BlockSeqOf(safemem.BlockFromSafeSlice([]byte("stray store"))))
	if got, err := w.readFile("/other"); err != nil || got != strings.Repeat("o", 40<<20) {
		t.Errorf("a store into a page that was cut off reached another file (%v)", err)
	}
	held.file.DecRef(memmap.FileRange{Start: held.at, End: held.at + page})
	g.unmap()
	fd.DecRef(w.ctx)
	other.DecRef(w.ctx)
	w.must(w.unlink("/other"))
	w.must(w.unlink("/victim"))
	w.finish(path)
	w = mountExt4(t, path)
	if st := w.fs().w.StatFS(); st.BlocksFree < 9000 {
		t.Errorf("%d of %d blocks free after all files were removed", st.BlocksFree, st.Blocks)
	}
	w.finish(path)
}

func TestACloneTakesPagesOverWhileTheyAreMapped(t *testing.T) {
	base := newVolume(t)
	w := mountExt4(t, base)
	w.writeFile("/f", strings.Repeat("b", 16*page))
	w.finish(base)
	before := sha256.Sum256(readHost(t, base))

	path := newClone(t, base)
	w = mountExt4(t, path)
	fd := w.mustOpen("/f", linux.O_RDWR)
	private := w.mapFile(fd, 0, 16, false)
	private.want(0, "bbbb")
	p, err := private.fault(0, false)
	w.must(err)
	if f, ok := p.file.(*HostFile); !ok || f != w.fs().vol.Files()[1] {
		t.Errorf("a clean page is mapped from %T, not from the base's file", p.file)
	}
	// Written through the file: mappings of the base's page are replaced.
	w.pwrite(fd, "write", 0)
	private.want(0, "write")
	// Stored by one guest: seen by the others at once.
	a, b := w.mapFile(fd, 0, 16, true), w.mapFile(fd, 0, 16, true)
	b.want(4*page, "bbbb")
	private.want(4*page, "bbbb")
	a.store(4*page, "store")
	b.want(4*page, "store")
	private.want(4*page, "store")
	b.store(4*page, "STORE")
	a.want(4*page, "STORE")
	for _, g := range []*guestMap{a, b, private} {
		g.unmap()
	}
	fd.DecRef(w.ctx)
	w.finish(path)

	w = mountExt4(t, path)
	got, err := w.readFile("/f")
	want := []byte(strings.Repeat("b", 16*page))
	copy(want, "write")
	copy(want[4*page:], "STORE")
	if err != nil || !bytes.Equal([]byte(got), want) {
		t.Errorf("the clone's file has %d bytes, %v, and not what was stored", len(got), err)
	}
	w.finish(path)
	if sha256.Sum256(readHost(t, base)) != before {
		t.Error("the base was changed")
	}
}

func readHost(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAVolumeOpenedForReadingRefusesChanges(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	w.writeFile("/f", "x")
	w.finish(path)
	w = newWorld(t)
	w.use(w.mountVolume(path, vfs.MountOptions{ReadOnly: true}))
	w.wantFile("/f", "x")
	_, err := w.open("/f", linux.O_RDWR)
	w.wantErr("open for writing", err, linuxerr.EROFS)
	_, err = w.create("/g", linux.O_RDWR, 0o644)
	w.wantErr("create", err, linuxerr.EROFS)
	w.wantErr("mkdir", w.mkdir("/d"), linuxerr.EROFS)
	w.wantErr("unlink", w.unlink("/f"), linuxerr.EROFS)
	w.wantErr("rename", w.rename("/f", "/h", 0), linuxerr.EROFS)
	fd := w.mustOpen("/f", linux.O_RDONLY)
	g := w.mapFile(fd, 0, 1, false)
	g.want(0, "x")
	g.unmap()
	fd.DecRef(w.ctx)
	w.finish(path)
}
