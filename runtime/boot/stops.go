// SPDX-License-Identifier: Apache-2.0

// Stopping tasks for a while: frozen ones, and those that have had their share of
// processor time.

package boot

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// stopRounds bounds how often tasks are listed anew for those that were made while the
// others were stopped.
const stopRounds = 4

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

// stopBusy is stop for tasks that are not to use processor time: those that wait for
// something are let be, and use none. To be stopped ends a wait, which then begins anew;
// a signal in between would not end it. It says whether there are such.
func (s *stops) stopBusy(list func() []*kernel.Task) (waiting bool) {
	s.stopUnless(list, func(t *kernel.Task) bool {
		waits := t.TaskGoroutineState() == kernel.TaskGoroutineBlockedInterruptible
		waiting = waiting || waits
		return waits
	})
	return waiting
}

func (s *stops) stopUnless(list func() []*kernel.Task, spared func(*kernel.Task) bool) (any bool) {
	keep := make(stops)
	for range stopRounds {
		came := false
		for _, t := range list() {
			_, kept := keep[t]
			if kept || t.PendingSignals()&linux.SignalSetOf(linux.SIGKILL) != 0 || t.ExitState() >= kernel.TaskExitInitiated {
				continue
			}
			if _, is := (*s)[t]; !is {
				if spared(t) {
					continue
				}
				t.BeginExternalStop()
				came, any = true, true
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
	return any
}

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
