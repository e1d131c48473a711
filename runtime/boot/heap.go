// SPDX-License-Identifier: Apache-2.0

// What the Sentry itself holds of the host's memory: its heap, and its mapping of the
// guest's.

package boot

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

const (
	// guestGCPercent makes the Sentry's heap grow by no more than half over
	// what lives: the sandbox's own memory is not the guest's to inflate. Below
	// garbageBytes it may grow all the same: of a guest that makes processes all the
	// while the collector would take a seventh of the processor time. With a limit on the
	// guest's memory, which the host may count the Sentry's against, garbageShare of that
	// is the bound.
	guestGCPercent = 50
	garbageBytes   = 16 << 20
	garbageShare   = 32
	// gcPercentMost is for a heap of next to nothing.
	gcPercentMost = 800

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

// resumeCollection lets the collector work as usual, in a moment. limit is that of the
// guest's memory, 0 for none.
func resumeCollection(limit uint64) {
	garbage := uint64(garbageBytes)
	if limit > 0 {
		garbage = min(garbage, limit/garbageShare)
	}
	time.AfterFunc(firstCollection, func() {
		debug.SetGCPercent(guestGCPercent)
		debug.SetMemoryLimit(math.MaxInt64)
		afterCollections(garbage, guestGCPercent)
	})
}

// afterCollections sets, after each collection, how far the heap may grow until the next.
func afterCollections(garbage uint64, percent int) {
	runtime.AddCleanup(new(collected), func(struct{}) {
		sample := []metrics.Sample{{Name: metricLiveHeap}}
		metrics.Read(sample)
		next := gcPercent(sample[0].Value.Uint64(), garbage)
		if next*4 > percent*5 || next*5 < percent*4 {
			debug.SetGCPercent(next)
			percent = next
		}
		afterCollections(garbage, percent)
	}, struct{}{})
}

// collected is garbage from the start. It has a pointer: what has none shares its place
// with others.
type collected struct{ _ *collected }

// gcPercent is the collector's for a heap of which that much lives.
func gcPercent(live, garbage uint64) int {
	return int(max(guestGCPercent, min(garbage*100/max(live, 1), gcPercentMost)))
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
