// SPDX-License-Identifier: Apache-2.0

// What the process that answers for a container of a bundle does with it once it
// exists.

package container

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hostcgroup"
)

// watchCreated ends a container whose sandbox, or whose gofer, ends before the
// container is started.
func (t *Task) watchCreated() {
	gone := t.sandbox.control.Closed()
	if t.sandbox.process != nil {
		gone = t.sandbox.process.Done()
	}
	var lost error
	select {
	case <-gone:
	case <-goferDone(t.gofer):
		if lost = goferFailed(t.gofer, t.log); lost == nil {
			<-gone // Which has hung up on it.
		}
	case <-t.ended:
		return
	}
	t.mu.Lock()
	started := t.started
	t.started = true
	t.mu.Unlock()
	if started {
		return // Whoever has started it finds out.
	}
	if p := t.sandbox.process; lost == nil && t.own && p != nil {
		lost = lostSandbox(p.PID, p.Ending(), t.sandbox.log)
	}
	t.leave()
	t.finish(killedExit(), lost)
}

// Resize sets the size of the container's terminal.
func (t *Task) Resize(ctx context.Context, rows, columns uint16) error {
	return t.sandbox.control.Resize(ctx, t.handle.ID(), rows, columns)
}

// Pause stops every process of the container until it is resumed.
func (t *Task) Pause(ctx context.Context) error {
	if err := t.sandbox.control.Pause(ctx, t.handle.ID()); err != nil {
		return err
	}
	return t.r.notePaused(t.handle.ID(), true)
}

// Resume lets them go on.
func (t *Task) Resume(ctx context.Context) error {
	if err := t.sandbox.control.Resume(ctx, t.handle.ID()); err != nil {
		return err
	}
	return t.r.notePaused(t.handle.ID(), false)
}

// Update changes the container's limits: those that the sandbox holds it to, and
// those of the host's cgroup. What is absent stays.
func (t *Task) Update(ctx context.Context, res *specs.LinuxResources) error {
	if t.group != nil {
		if err := t.group.Update(hostcgroup.ForSandbox(res)); err != nil {
			return err
		}
	}
	limits := taskLimits(res)
	if limits == (control.Limits{}) {
		return nil
	}
	return t.sandbox.control.Update(ctx, t.handle.ID(), limits)
}

// Stats is what the container uses.
func (t *Task) Stats(ctx context.Context) (control.Stats, error) {
	return t.sandbox.control.Stats(ctx, t.handle.ID())
}

// Processes are the container's, by their numbers inside.
func (t *Task) Processes(ctx context.Context) ([]control.Process, error) {
	return t.sandbox.control.Processes(ctx, t.handle.ID())
}
