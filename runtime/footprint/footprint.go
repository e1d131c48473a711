// SPDX-License-Identifier: Apache-2.0

// Package footprint keeps small what long-lived processes of a sandbox hold of the
// host: thousands of them may wait on one.
package footprint

import (
	"runtime/debug"
	"time"
)

const (
	// firstLook is when a process that still runs is taken for one that stays; a
	// guest that runs for the blink of an eye pays for nothing here.
	firstLook = time.Second
	// looks are how often a process is looked after, the distance doubling each time:
	// for about a minute.
	looks = 6
	// waitingGCPercent is the collector's for processes that wait: rungv's commands let
	// eight times as much garbage gather as there is alive.
	waitingGCPercent = 100
)

// Settle has this process give back to the host, a while from now and again some times
// later, what its start needed: garbage, the pages of its own program, and what more
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
		// A collection is dear: after the start, after that of most programs, at last.
		if left >= looks-1 || left == 1 {
			debug.FreeOSMemory()
		}
		forgetProgram()
		if more != nil {
			more()
		}
		if left > 1 {
			settle(2*wait, left-1, more)
		}
	})
}
