// SPDX-License-Identifier: Apache-2.0

// Package volumetest gives tests of the lower packages an empty volume in
// memory with its journal and allocator open, as the file system above them
// would. It is for tests only and knows nothing of files.
package volumetest

import (
	"testing"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// Volume is an empty volume, open below its files.
type Volume struct {
	S *disk.Super
	G *disk.Geometry
	M *journal.Manager
	A *alloc.Allocator
	t testing.TB
}

// New makes a volume.
func New(t testing.TB, size int64, o mkfs.Options) *Volume {
	t.Helper()
	dev := device.NewMem(size)
	if err := mkfs.Format(dev, o); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, disk.SuperSize)
	if _, err := dev.ReadAt(p, disk.SuperOffset); err != nil {
		t.Fatal(err)
	}
	s, err := disk.DecodeSuper(p)
	if err != nil {
		t.Fatal(err)
	}
	v := &Volume{S: s, G: disk.NewGeometry(s), t: t}
	st := &journal.Store{Dev: dev, Blocks: v.G.Blocks, Shift: v.G.BlockShift}
	area, blocks := v.area(st)
	if v.M, err = journal.Open(st, area, blocks, journal.Options{Write: true, Wide: true, Csum: true, CacheBytes: 8 << 20, IdleBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if v.A, err = alloc.New(v.G, v.S, v.M); err != nil {
		t.Fatal(err)
	}
	v.M.SetHooks(journal.Hooks{
		Prepare: func(h *journal.Handle) error { _, err := v.A.Prepare(h); return err },
		Ordered: func() ([]disk.Range, bool) { return nil, false },
		Durable: v.A.Durable,
		Begin:   func() error { return nil },
		Failed:  func(err error) { t.Error(err) },
	})
	t.Cleanup(v.M.Close)
	return v
}

// area finds the journal, which mkfs makes of extents in the inode.
func (v *Volume) area(st *journal.Store) (journal.Area, uint64) {
	v.t.Helper()
	desc := make([]byte, v.G.BlockSize)
	table := make([]byte, v.G.BlockSize)
	err := st.Read(v.G.DescBlock(0), desc)
	if err != nil {
		v.t.Fatal(err)
	}
	first, err := disk.DecodeGroup(desc, 0, v.G, v.S)
	if err != nil {
		v.t.Fatal(err)
	}
	at := (disk.JournalIno - 1) * v.G.InodeSize
	if err := st.Read(first.InodeTable+uint64(at/v.G.BlockSize), table); err != nil {
		v.t.Fatal(err)
	}
	d, err := disk.DecodeInode(table[at%v.G.BlockSize:][:v.G.InodeSize], disk.JournalIno, v.G, v.S)
	if err != nil {
		v.t.Fatal(err)
	}
	var area journal.Area
	n := disk.Node(d.Block[:])
	for i := range n.Entries() {
		area = append(area, n.Extent(i))
	}
	return area, d.Size >> v.G.BlockShift
}

// Change runs a change in a handle of its own.
func (v *Volume) Change(credits int, fn func(h *journal.Handle) error) {
	v.t.Helper()
	h, err := v.M.Start(credits)
	if err != nil {
		v.t.Fatal(err)
	}
	err = fn(h)
	h.Stop()
	if err != nil {
		v.t.Fatal(err)
	}
}

// Commit makes what was changed durable.
func (v *Volume) Commit() {
	v.t.Helper()
	if _, err := v.M.Commit(); err != nil {
		v.t.Fatal(err)
	}
}
