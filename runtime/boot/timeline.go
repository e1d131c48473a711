// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"sync"

	"golang.org/x/sys/unix"
)

// maxPhases bounds the timeline: boot has some twenty points.
const maxPhases = 64

// phase is a point on the way to the guest's first instruction.
type phase struct {
	name string
	// at is CLOCK_MONOTONIC in nanoseconds.
	at int64
}

// timeline records when boot reached what. Its zero value is ready for use
// and safe for concurrent use.
type timeline struct {
	mu     sync.Mutex
	origin int64
	phases []phase
}

// start sets the origin that points are counted from: the launcher's own
// start, or the first point when that is unknown (0) or in the future.
func (t *timeline) start(origin int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.origin = origin
	if first := t.phases[0].at; origin == 0 || origin > first {
		t.origin = first
	}
}

// reached records that boot has come to the named point.
func (t *timeline) reached(name string) {
	now := monotonicNanos()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.phases) < maxPhases {
		t.phases = append(t.phases, phase{name, now})
	}
}

// each calls fn for every point with nanoseconds since the origin.
func (t *timeline) each(fn func(name string, nanos int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.phases {
		fn(p.name, p.at-t.origin)
	}
}

func monotonicNanos() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
