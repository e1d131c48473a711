// SPDX-License-Identifier: Apache-2.0

// What the host is told of data that a sync will wait for.

package ext4lite_test

import (
	"sync/atomic"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// starts is a file that counts the bytes whose write-back was begun early.
type starts struct {
	*device.File
	begun, waited atomic.Int64
}

func (s *starts) CanSyncRanges() bool { return true } // nothing here is about power cuts

func (s *starts) StartWriteBack(off, n int64) error {
	s.begun.Add(n)
	return s.File.StartWriteBack(off, n)
}

func (s *starts) WriteBack(off, n int64) error {
	s.waited.Add(n)
	return s.File.WriteBack(off, n)
}

// TestMuchNewDataIsBegunBeforeTheSync writes a large file beside a small one,
// whose sync must wait for the large one's new blocks: the transaction maps
// them. What is overwritten in place it must leave alone.
func TestMuchNewDataIsBegunBeforeTheSync(t *testing.T) {
	path := newVolume(t, 512<<20, ext4lite.MkfsOptions{})
	f, err := device.OpenFile(path, device.ReadWrite)
	must(t, err)
	dev := &starts{File: f}
	fs, err := ext4lite.Open(dev, ext4lite.Options{RangeSync: true})
	must(t, err)
	root, err := fs.Root()
	must(t, err)
	large, err := root.Create("large", ext4lite.NewInode{Mode: 0o644})
	must(t, err)
	small, err := root.Create("small", ext4lite.NewInode{Mode: 0o644})
	must(t, err)
	root.Release()
	const size = 64 << 20
	p := make([]byte, 256<<10)
	write := func() {
		for off := int64(0); off < size; off += int64(len(p)) {
			_, err := large.WriteAt(p, off)
			must(t, err)
		}
	}
	write()
	if n := dev.begun.Load(); n < size*3/4 {
		t.Errorf("of %d new bytes %d were begun early", size, n)
	}
	must(t, small.SyncFile())
	if n := dev.waited.Load(); n < size {
		t.Errorf("the commit waited for %d bytes, it maps %d new ones", n, size)
	}
	dev.waited.Store(0)
	write()
	_, err = small.WriteAt([]byte("small"), 0)
	must(t, err)
	must(t, small.SyncFile())
	if n := dev.waited.Load(); n > size/4 {
		t.Errorf("the sync of a small file waited for %d bytes that another overwrote", n)
	}
	large.Release()
	small.Release()
	closeFS(t, fs)
	check(t, path)
}
