// SPDX-License-Identifier: Apache-2.0

// Package footprint keeps small what long-lived processes of a sandbox hold of the
// host: thousands of them may wait on one.
package footprint

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// firstLook is when a process that still runs is taken for one that stays; a
	// guest that runs for the blink of an eye pays for nothing here.
	firstLook = time.Second
	// looks are how often a process is looked after, the distance doubling each time:
	// for about a minute.
	looks = 6
	// laterLook is between looks after that. A process that has allocated less than
	// leastWork since the last has done nothing.
	laterLook = time.Minute
	leastWork = 256 << 10
	// waitingGCPercent is the collector's for processes that wait: rungv's commands let
	// eight times as much garbage gather as there is alive.
	waitingGCPercent = 100
)

// Settle has this process give back to the host, a while from now and again later, what
// its start and its work needed: garbage, the pages of its own program, and what more
// lets go of, if it is not nil. It returns at once.
func Settle(more func()) { settle(firstLook, looks, more) }

// SettleToWait is [Settle] for a process that waits for a guest from now on, and passes
// on its bytes: it collects as often as Go programs do.
func SettleToWait() {
	time.AfterFunc(firstLook, func() { debug.SetGCPercent(waitingGCPercent) })
	Settle(nil)
}

func settle(wait time.Duration, left int, more func()) {
	time.AfterFunc(wait, func() {
		letGo(more)
		if left > 1 {
			settle(2*wait, left-1, more)
		} else {
			settleLater(allocated(), more)
		}
	})
}

// settleLater is settle for what a process does later on. before is what it had allocated
// when it was looked after last.
func settleLater(before uint64, more func()) {
	time.AfterFunc(laterLook, func() {
		if allocated()-before >= leastWork {
			letGo(more)
			before = allocated()
		}
		settleLater(before, more)
	})
}

func letGo(more func()) {
	debug.FreeOSMemory()
	forgetProgram()
	if more != nil {
		more()
	}
}

// allocated is how many bytes this process has allocated on its heap since its start.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
