// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"sync"
	"testing"
	"time"
)

// TestWorkers: what is run waits for nothing else that is; a goroutine that has
// nothing to do is used again; few are kept, and none for long.
func TestWorkers(t *testing.T) {
	w := newWorkers()
	w.patience = time.Hour // However busy the host is.
	const many = 3 * maxIdleWorkers
	var running, ended sync.WaitGroup
	release := make(chan struct{})
	running.Add(many)
	ended.Add(many)
	for range many {
		w.run(func() {
			defer ended.Done()
			running.Done()
			<-release
		})
	}
	running.Wait() // All at once.
	close(release)
	ended.Wait()

	eventually(t, "as many wait as may", func() bool { return w.idle.Load() == maxIdleWorkers })

	// While others wait, hardly any is made: who has just counted itself may not
	// listen yet.
	const rounds = 100
	used := 0
	for range rounds {
		done := make(chan bool)
		before := w.idle.Load()
		w.run(func() { done <- w.idle.Load() < before })
		if <-done {
			used++
		}
	}
	if used < rounds/2 {
		t.Errorf("%d of %d were run by a goroutine that waited", used, rounds)
	}

	// Nobody waits for long.
	short := newWorkers()
	short.patience = 0
	ended.Add(1)
	short.run(ended.Done)
	ended.Wait()
	eventually(t, "none is left", func() bool { return short.idle.Load() == 0 })
	for range maxIdleWorkers { // Those of this test.
		w.next <- nil
	}
	eventually(t, "those are gone", func() bool { return w.idle.Load() == 0 })
}
