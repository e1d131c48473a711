// SPDX-License-Identifier: Apache-2.0

// What the Sentry itself holds of the host's memory: its heap, and its mapping of the
// guest's.

package boot

import (
	"math"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

const (
	// guestGCPercent makes the Sentry's heap grow by no more than half over
	// what lives: the sandbox's own memory is not the guest's to inflate.
	guestGCPercent = 50

	// A guest that runs for the blink of an eye shall not pay for a collection
	// of what boot left behind: collection begins after firstCollection, or
	// once the heap has grown to bootHeapBytes.
	firstCollection = 250 * time.Millisecond
	bootHeapBytes   = 64 << 20
)

// deferCollection keeps the garbage collector off for boot and a guest's first
// moments, within bootHeapBytes.
func deferCollection() {
	debug.SetMemoryLimit(bootHeapBytes)
	debug.SetGCPercent(-1)
}

// resumeCollection lets the collector work as usual, in a moment.
func resumeCollection() {
	time.AfterFunc(firstCollection, func() {
		debug.SetGCPercent(guestGCPercent)
		debug.SetMemoryLimit(math.MaxInt64)
	})
}

// forgetGuestMemory lets go of the guest's memory as the Sentry has it mapped, which is
// not the memory: what a guest's system calls touched once would be in the page tables
// for good.
func (sb *sandbox) forgetGuestMemory() {
	file := sb.k.MemoryFile()
	size := file.TotalSize()
	if size == 0 {
		return
	}
	blocks, err := file.MapInternal(memmap.FileRange{End: size}, hostarch.Read)
	if err != nil {
		return
	}
	for ; !blocks.IsEmpty(); blocks = blocks.Tail() {
		// Of a shared mapping.
		_ = unix.Madvise(blocks.Head().ToSlice(), unix.MADV_DONTNEED)
	}
}
