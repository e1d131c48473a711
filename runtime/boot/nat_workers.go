// SPDX-License-Identifier: Apache-2.0

// Goroutines that carry one flow after another. A connection goes deep into both
// stacks, and a goroutine that is made for it grows, and copies, its own stack
// several times: with short connections that costs more than carrying the bytes.

package boot

import (
	"sync/atomic"
	"time"
)

const (
	// maxIdleWorkers bounds goroutines that wait for work: two for each of as
	// many connections as busy clients open at once. What is above ends.
	maxIdleWorkers = 64
	// workerPatience is how long one waits: an idle sandbox holds no stacks.
	workerPatience = 2 * time.Second
)

// workers run functions at once, as go does.
type workers struct {
	next chan func()
	idle atomic.Int32
	// patience is workerPatience, but for tests.
	patience time.Duration
}

func newWorkers() *workers { return &workers{next: make(chan func()), patience: workerPatience} }

// run runs f on a goroutine other than the caller's. It does not wait.
func (w *workers) run(f func()) {
	select {
	case w.next <- f:
	default:
		go w.work(f)
	}
}

// work runs functions until enough others wait for them, or none comes.
func (w *workers) work(f func()) {
	patience := time.NewTimer(w.patience)
	defer patience.Stop()
	for f != nil {
		f()
		f = nil // What it held may go.
		if w.idle.Add(1) <= maxIdleWorkers {
			patience.Reset(w.patience)
			select {
			case f = <-w.next:
			case <-patience.C:
			}
		}
		w.idle.Add(-1)
	}
}
