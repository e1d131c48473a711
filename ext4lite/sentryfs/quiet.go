// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// quietLook is how often mappings that were read are looked at. One that nobody has
// read through between two looks is let go of.
var quietLook = 250 * time.Millisecond // Tests look more often.

// quietPiece is how much of a mapping is let go of at once: faults of other threads
// wait for it.
const quietPiece = 256 << 20

// quietMappings lets go of what was read through mappings and is not being read any
// more. The data stays in the host's page cache, for whoever reads it next; what goes
// are this process' page tables of it, which would grow with all that a guest ever
// read, and take their time to be undone when a sandbox ends.
//
// It costs nothing while nobody reads.
type quietMappings struct {
	mu sync.Mutex
	// files are those that were read through since they were let go of last.
	files map[*HostFile]struct{}
	// watching says that a goroutine looks at them.
	watching bool
}

var quiet quietMappings

// What is known of the use of a mapping: HostFile.use.
const (
	unused     = iota // Not among quietMappings.files.
	usedOnce          // Not since the last look.
	usedLately        // Since the last look.
)

// used notes that a file's mapping is about to be read.
func (f *HostFile) used() {
	if f.use.Load() == usedLately || f.use.Swap(usedLately) != unused {
		return
	}
	quiet.mu.Lock()
	defer quiet.mu.Unlock()
	if quiet.files == nil {
		quiet.files = make(map[*HostFile]struct{})
	}
	quiet.files[f] = struct{}{}
	if !quiet.watching {
		quiet.watching = true
		go quiet.watch()
	}
}

// watch looks at the files until all are quiet.
func (q *quietMappings) watch() {
	for {
		time.Sleep(quietLook)
		var idle []*HostFile
		q.mu.Lock()
		for f := range q.files {
			if !f.use.CompareAndSwap(usedLately, usedOnce) && f.use.CompareAndSwap(usedOnce, unused) {
				delete(q.files, f)
				idle = append(idle, f)
			}
		}
		done := len(q.files) == 0
		q.watching = !done
		q.mu.Unlock()
		for _, f := range idle {
			f.letGo()
		}
		if done {
			return
		}
	}
}

// letGo gives up the page tables of a file's mapping, unless it is unmapped meanwhile.
func (f *HostFile) letGo() {
	for off := 0; ; off += quietPiece {
		f.mapping.Lock()
		if off >= len(f.data) {
			f.mapping.Unlock()
			return
		}
		// For shared pages of files that is no loss.
		_ = unix.Madvise(f.data[off:min(off+quietPiece, len(f.data))], unix.MADV_DONTNEED)
		f.mapping.Unlock()
	}
}

// unmap gives the mapping back.
func (f *HostFile) unmap() {
	quiet.mu.Lock()
	delete(quiet.files, f)
	quiet.mu.Unlock()
	// Its addresses may be others' at once.
	f.mapping.Lock()
	defer f.mapping.Unlock()
	unix.Munmap(f.data)
	f.data = nil
}
