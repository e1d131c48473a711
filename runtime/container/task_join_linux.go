// SPDX-License-Identifier: Apache-2.0

// How a container gets into a sandbox that runs already, and out of it again: the
// sandbox goes on, and knows a container until it is told to forget it.

package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hooks"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
)

const (
	// leavePatience bounds the wait for a container's end in a sandbox that goes
	// on: its processes are killed.
	leavePatience = 15 * time.Second
	leavePoll     = 10 * time.Millisecond
)

// join adds the container to a running sandbox.
func (t *Task) join(ctx context.Context, oci *convert.OCI, files *launch.ContainerFiles) error {
	if err := t.hooks(ctx, hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer); err != nil {
		return err
	}
	id := newExecID()
	list := files.Number(oci.Container)
	if len(list) > control.MaxFiles {
		return api.Errorf(api.KindLimit, "container %s has %d files, at most %d can join a sandbox", t.o.ID, len(list), control.MaxFiles)
	}
	if err := sendFiles(t.sandbox.dir, id, list); err != nil {
		return err
	}
	t.donated()
	// From here on the sandbox may know it, whatever the answer is.
	t.joined = true
	if err := t.sandbox.control.Create(ctx, oci.Container, id); err != nil {
		return t.explain(err)
	}
	return t.noteCreated(control.Started{})
}

// leave ends what the sandbox still has of a container that has joined it, and has
// it forget that. It may be called again.
func (t *Task) leave() {
	if !t.joined {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	if err := leaveSandbox(ctx, t.sandbox.control, t.handle.ID()); err != nil {
		t.note("%v", err)
	}
}

// leaveSandbox does it, by the container's id.
func leaveSandbox(ctx context.Context, c *control.Client, id string) error {
	for {
		err := c.Delete(ctx, id)
		switch {
		case err == nil, api.KindOf(err) == api.KindNotFound, errors.Is(err, control.ErrClosed):
			return nil
		case api.KindOf(err) != api.KindState:
			return fmt.Errorf("have its sandbox forget container %s: %w", id, err)
		}
		// It runs, or is being made. What has no process yet takes no signal.
		_ = c.Signal(ctx, id, signalKill, control.TargetAll)
		select {
		case <-ctx.Done():
			return fmt.Errorf("have its sandbox forget container %s: %w: %w", id, ctx.Err(), err)
		case <-time.After(leavePoll):
		}
	}
}

// leaveTask does the same for a container whose process has ended, perhaps before
// it could.
func (r *Runner) leaveTask(ctx context.Context, rec *state.Record) error {
	if rec.Task.Sandbox == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	conn, err := dialIn(r.taskDir(rec), controlSocket)
	if errors.Is(err, fs.ErrNotExist) || api.KindOf(err) == api.KindState {
		return nil // The sandbox has ended too.
	}
	if err != nil {
		return fmt.Errorf("reach the sandbox of container %s: %w", rec.Name, err)
	}
	c := control.NewClient(conn)
	defer c.Close()
	return leaveSandbox(ctx, c, rec.ID)
}
