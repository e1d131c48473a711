// SPDX-License-Identifier: Apache-2.0

// What changes a container while it exists: its name, its limits, whether it
// runs or pauses.

package container

import (
	"context"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

// Pause stops every process of a container until it is resumed.
func (r *Runner) Pause(ctx context.Context, ref string) error {
	return r.setPaused(ctx, ref, true)
}

// Unpause lets a paused container go on.
func (r *Runner) Unpause(ctx context.Context, ref string) error {
	return r.setPaused(ctx, ref, false)
}

func (r *Runner) setPaused(ctx context.Context, ref string, paused bool) error {
	var id string
	if err := r.call(ctx, ref, func(ctx context.Context, c *control.Client, rec *state.Record) error {
		id = rec.ID
		if paused {
			return c.Pause(ctx, rec.ID)
		}
		return c.Resume(ctx, rec.ID)
	}); err != nil {
		return err
	}
	return r.notePaused(id, paused)
}

// notePaused writes down whether a container is paused.
func (r *Runner) notePaused(id string, paused bool) error {
	_, err := r.State.Amend(id, func(a *state.Amendment) error {
		a.Paused = paused
		return nil
	})
	if api.KindOf(err) == api.KindNotFound {
		return nil // It ended meanwhile, and its record with it.
	}
	return err
}

// Update changes a container's limits, at once if it runs.
func (r *Runner) Update(ctx context.Context, ref string, l control.Limits) error {
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	switch rec.State {
	case api.StateStopped:
		return api.Errorf(api.KindState, "cannot update container %s: it has stopped and cannot be started again", rec.ID)
	case api.StateRunning:
		err := r.call(ctx, rec.ID, func(ctx context.Context, c *control.Client, rec *state.Record) error {
			return c.Update(ctx, rec.ID, l)
		})
		if err != nil {
			return err
		}
		if err := updateHostCgroup(rec, l); err != nil {
			return err
		}
	}
	_, err = r.State.Amend(rec.ID, func(a *state.Amendment) error {
		for _, n := range []struct {
			to   **int64
			from *int64
		}{{&a.MemoryBytes, l.MemoryBytes}, {&a.CPUMillis, l.CPUMillis}, {&a.Pids, l.Pids}} {
			if n.from != nil {
				*n.to = n.from
			}
		}
		return nil
	})
	return err
}
