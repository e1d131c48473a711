// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"sync"
	"sync/atomic"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"z.gfire.dev/gvx/runtime/api"
)

// TestFirstProcessBeginsOnce: who starts a container, who forgets it and who ends the
// sandbox may all have its first process run; the kernel bears that once. Where there is
// none, nothing is started, then or later.
func TestFirstProcessBeginsOnce(t *testing.T) {
	c := newContainer(&api.Container{})
	var starts atomic.Int32
	start := func(*kernel.ThreadGroup) { starts.Add(1) }
	c.begin(start)
	if n := starts.Load(); n != 0 {
		t.Errorf("without a process, %d are started", n)
	}
	c.first = &kernel.ThreadGroup{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { c.begin(start) })
	}
	all.Wait()
	if n := starts.Load(); n != 1 {
		t.Errorf("it was started %d times", n)
	}
}
