// SPDX-License-Identifier: Apache-2.0

// Stopping tasks for a while: frozen ones, those of paused containers, and those that
// have had their share of processor time.

package boot

import (
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const (
	// stopRounds bounds how often tasks are listed anew for those that were made while the
	// others were stopped.
	stopRounds = 4
	// grownLooks is in how many looks tasks that wait may have used processor time before
	// they are stopped too.
	grownLooks = 3
)

// stops are tasks that are stopped until they are released. One goroutine at a time may
// use it.
type stops map[*kernel.Task]struct{}

// stop stops the tasks that list returns, and releases those that it does not return any
// more or that are to be killed, as stopped processes can be. It is to be called again
// and again, for what comes in or is killed meanwhile. It says whether there was any to
// stop.
func (s *stops) stop(list func() []*kernel.Task) (came bool) {
	return s.stopUnless(list, func(*kernel.Task) bool { return false })
}

func (s *stops) stopUnless(list func() []*kernel.Task, spared func(*kernel.Task) bool) (found bool) {
	keep := make(stops)
	for range stopRounds {
		came := false
		for _, t := range list() {
			_, kept := keep[t]
			if kept || killed(t) || t.ExitState() >= kernel.TaskExitInitiated {
				continue
			}
			if _, is := (*s)[t]; !is {
				if spared(t) {
					continue
				}
				t.BeginExternalStop()
				came, found = true, true
			}
			keep[t] = struct{}{}
		}
		if !came {
			break
		}
	}
	for t := range *s {
		if _, kept := keep[t]; !kept {
			t.EndExternalStop()
		}
	}
	*s = keep
	return found
}

// killed says whether a task is about to die of a signal, for which it must not be
// stopped.
func killed(t *kernel.Task) bool { return t.PendingSignals()&linux.SignalSetOf(linux.SIGKILL) != 0 }

// stand says whether all that are to stop have done so, or wait for the host, which a
// stop does not end.
func (s *stops) stand() bool {
	for t := range *s {
		switch t.TaskGoroutineState() {
		case kernel.TaskGoroutineStopped, kernel.TaskGoroutineBlockedUninterruptible, kernel.TaskGoroutineNonexistent:
		default:
			return false
		}
	}
	return true
}

// release lets all go on.
func (s *stops) release() {
	for t := range *s {
		t.EndExternalStop()
	}
	*s = nil
}

// throttle keeps tasks from using processor time, until it is released. Those that wait
// for something are let be, and use none: to be stopped ends a wait, which then begins
// anew, and a signal in between would not end it. Only where the time that was used grows
// in spite of it are they stopped too.
type throttle struct {
	stopped stops
	used    time.Duration
	grown   int
}

// look stops tasks that list returns, which have used that much by now. It returns how
// long they may go unseen, and whether any of them stands.
func (h *throttle) look(list func() []*kernel.Task, used time.Duration) (gap time.Duration, stand bool) {
	if h.used > 0 && used > h.used {
		h.grown++
	}
	h.used = used
	waiting := false
	came := h.stopped.stopUnless(list, func(t *kernel.Task) bool {
		waits := !h.all() && t.TaskGoroutineState() == kernel.TaskGoroutineBlockedInterruptible
		waiting = waiting || waits
		return waits
	})
	if came || waiting {
		return cpuTick, len(h.stopped) > 0
	}
	return maxLookGap, len(h.stopped) > 0
}

// all says that tasks which wait are not let be any more.
func (h *throttle) all() bool { return h.grown >= grownLooks }

// release lets all go on.
func (h *throttle) release() {
	h.stopped.release()
	h.used, h.grown = 0, 0
}
