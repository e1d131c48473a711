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
const quietLook = 250 * time.Millisecond

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
	if f.data == nil {
		return
	}
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
		q.mu.Lock()
		for f := range q.files {
			if f.use.CompareAndSwap(usedLately, usedOnce) || !f.use.CompareAndSwap(usedOnce, unused) {
				continue
			}
			delete(q.files, f)
			// For shared pages of files that is no loss.
			_ = unix.Madvise(f.data, unix.MADV_DONTNEED)
		}
		if len(q.files) == 0 {
			q.watching = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
	}
}

// unmap gives the mapping back.
func (f *HostFile) unmap() {
	// Its addresses may be others' at once.
	quiet.mu.Lock()
	defer quiet.mu.Unlock()
	delete(quiet.files, f)
	unix.Munmap(f.data)
	f.data = nil
	f.use.Store(unused)
}
