// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"math"
	"runtime/debug"
	"time"
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

	// settled is when a guest that still runs gets boot's garbage given back
	// to the host: what thousands of idle sandboxes hold adds up.
	settled = time.Second
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
	time.AfterFunc(settled, debug.FreeOSMemory)
}
