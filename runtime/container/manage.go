// SPDX-License-Identifier: Apache-2.0

// What anyone with access to a container's control socket may do with it.

package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

const (
	// dialTimeout bounds the connection to a sandbox: its accept queue may be
	// full when it is stuck.
	dialTimeout = 5 * time.Second
	// manageTimeout bounds one request to a sandbox.
	manageTimeout = 10 * time.Second
	// removeTimeout bounds the wait for a launcher to finish after its sandbox
	// has been killed: it delivers the last output first.
	removeTimeout = 30 * time.Second
)

// signalKill is SIGKILL in the guest's numbering, which is Linux'.
const signalKill = 9

// Dial opens a control connection to a running container.
func (r *Runner) Dial(rec *state.Record) (*control.Client, error) {
	if rec.State != api.StateRunning {
		return nil, api.Errorf(api.KindState, "container %s is not running", rec.ID)
	}
	return r.dialSandbox(rec)
}

// takesExec says whether a container that was not started takes additional processes:
// a bundle's does.
func takesExec(rec *state.Record) bool { return rec.Task != nil && rec.State == api.StateCreated }

// dialMade opens a control connection to a container that runs, or that takes
// additional processes before it does.
func (r *Runner) dialMade(rec *state.Record) (*control.Client, error) {
	if takesExec(rec) {
		return r.dialSandbox(rec)
	}
	return r.Dial(rec)
}

// dialSandbox opens a control connection to the sandbox of a container.
func (r *Runner) dialSandbox(rec *state.Record) (*control.Client, error) {
	conn, err := dialIn(r.taskDir(rec), controlSocket)
	if err != nil {
		return nil, fmt.Errorf("connect to container %s: %w", rec.ID, err)
	}
	return control.NewClient(conn), nil
}

// dialIn connects to a socket in a container's directory. A socket that nobody
// listens on is that of a sandbox which has just ended, as one that is not there.
func dialIn(dir, name string) (net.Conn, error) {
	path, done, err := socketIn(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, api.Errorf(api.KindState, "the container is not running")
	}
	return conn, err
}

const (
	// startPatience is how long a container that is being started may take to
	// be entered as running: its first output may come before that.
	startPatience = 5 * time.Second
	startPoll     = 5 * time.Millisecond
)

// awaitRunning returns the record of a container that runs. It waits for one
// that is about to, and for no other.
func (r *Runner) awaitRunning(ctx context.Context, ref string) (*state.Record, error) {
	for deadline := time.Now().Add(startPatience); ; time.Sleep(startPoll) {
		rec, err := r.State.Get(ref)
		if err != nil {
			return nil, err
		}
		starting := rec.State == api.StateCreating && rec.Sandbox.PID > 0
		switch {
		case rec.State == api.StateRunning:
			return rec, nil
		case !starting || time.Now().After(deadline) || ctx.Err() != nil:
			return nil, api.Errorf(api.KindState, "container %s is not running", rec.ID)
		}
	}
}

// call runs f with a control connection to a running container.
func (r *Runner) call(ctx context.Context, ref string, f func(context.Context, *control.Client, *state.Record) error) error {
	return r.callBy(ctx, r.Dial, ref, f)
}

// callBy is call with a connection by dial.
func (r *Runner) callBy(ctx context.Context, dial func(*state.Record) (*control.Client, error), ref string, f func(context.Context, *control.Client, *state.Record) error) error {
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	c, err := dial(rec)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, manageTimeout)
	defer cancel()
	return f(ctx, c, rec)
}

// Signal sends a signal to a container's first process. A sandbox that does not
// take a SIGKILL gets it itself.
func (r *Runner) Signal(ctx context.Context, ref string, signal int) error {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if signal == signalKill {
		wait, cancel = context.WithTimeout(ctx, stuckGrace)
	}
	defer cancel()
	err := r.call(wait, ref, func(ctx context.Context, c *control.Client, rec *state.Record) error {
		return c.Signal(ctx, rec.ID, signal, control.TargetInit)
	})
	if signal == signalKill && errors.Is(err, control.ErrClosed) {
		return nil // It ended faster than it could answer.
	}
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	rec, getErr := r.State.Get(ref)
	if getErr != nil || !rec.Sandbox.Alive() {
		return err
	}
	if signal != signalKill {
		return fmt.Errorf("%w: the sandbox, process %d, does not answer: SIGKILL ends it", err, rec.Sandbox.PID)
	}
	if err := killProcess(rec.Sandbox.PID); err != nil {
		return fmt.Errorf("kill the sandbox process %d of container %s: %w", rec.Sandbox.PID, rec.ID, err)
	}
	return nil
}

// Stats returns what a container uses now, a bundle's also before it is started.
func (r *Runner) Stats(ctx context.Context, ref string) (*state.Record, control.Stats, error) {
	var record *state.Record
	var stats control.Stats
	err := r.callBy(ctx, r.dialMade, ref, func(ctx context.Context, c *control.Client, rec *state.Record) (err error) {
		record = rec
		stats, err = c.Stats(ctx, rec.ID)
		return err
	})
	return record, stats, err
}

// Processes lists a container's processes. A bundle's that is not started has none, but
// for additional ones.
func (r *Runner) Processes(ctx context.Context, ref string) ([]control.Process, error) {
	var list []control.Process
	err := r.callBy(ctx, r.dialMade, ref, func(ctx context.Context, c *control.Client, rec *state.Record) (err error) {
		list, err = c.Processes(ctx, rec.ID)
		return err
	})
	return list, err
}

// Stop asks a container to end with its stop signal, and kills it when it has
// not within its timeout. timeout overrides the container's own; a negative
// one waits for ever. One that has stopped is no error.
func (r *Runner) Stop(ctx context.Context, ref string, signal int, timeout *time.Duration) error {
	rec, err := r.State.Get(ref)
	if err != nil {
		return err
	}
	if rec.State != api.StateRunning {
		return nil
	}
	if signal == 0 {
		signal = rec.StopSignal
	}
	grace := defaultStopTimeout
	if rec.Options.StopTimeout != nil {
		grace = time.Duration(*rec.Options.StopTimeout) * time.Second
	}
	if timeout != nil {
		grace = *timeout
	}
	err = r.Signal(ctx, rec.ID, signal)
	switch {
	case api.KindOf(err) == api.KindState:
		return nil
	case err != nil && !errors.Is(err, control.ErrClosed):
		return err
	}
	if rec.Paused && signal != signalKill {
		// As docker: a paused container could not obey.
		err := r.Unpause(ctx, rec.ID)
		if err != nil && api.KindOf(err) != api.KindState && !errors.Is(err, control.ErrClosed) {
			return err // It may have ended by the signal before it could answer.
		}
	}
	wait, cancel := ctx, context.CancelFunc(func() {})
	if grace >= 0 {
		wait, cancel = context.WithTimeout(ctx, grace)
	}
	err = r.State.WaitReleased(wait, rec.ID)
	cancel()
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return r.end(ctx, rec)
}

// defaultStopTimeout is docker's.
const defaultStopTimeout = 10 * time.Second

// stuckGrace is how long a sandbox may take to end its guests once they were
// killed. It takes milliseconds.
const stuckGrace = 5 * time.Second

// Remove removes a container. With force one that runs is killed first, and a
// record that cannot be read is removed all the same.
func (r *Runner) Remove(ctx context.Context, ref string, force bool) error {
	if !force {
		return r.removeEnded(ctx, ref)
	}
	id, err := r.State.Resolve(ref)
	if err != nil {
		return err
	}
	rec, err := r.State.Get(id)
	if err == nil && rec.State != api.StateStopped {
		if err := r.end(ctx, rec); err != nil {
			return err
		}
	}
	if err := r.State.Remove(id, true); err != nil && api.KindOf(err) != api.KindNotFound {
		return err // Not found: its launcher has removed it, as --rm says.
	}
	return nil
}

// removeEnded removes a container that has ended. One whose end is on record may be
// its launcher's for a moment longer.
func (r *Runner) removeEnded(ctx context.Context, ref string) error {
	err := r.State.Remove(ref, false)
	if api.KindOf(err) != api.KindState {
		return err
	}
	rec, getErr := r.State.Get(ref)
	if getErr != nil || rec.State != api.StateStopped || rec.Exit == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if r.State.WaitReleased(ctx, rec.ID) != nil {
		return err
	}
	return r.State.Remove(rec.ID, false)
}

// end kills a container and waits until its launcher has let go of it.
func (r *Runner) end(ctx context.Context, rec *state.Record) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err := r.Signal(ctx, rec.ID, signalKill)
	if err != nil && rec.Sandbox.Alive() {
		// It does not listen, or has not come that far: end the process.
		if err := killProcess(rec.Sandbox.PID); err != nil {
			return fmt.Errorf("kill the sandbox process %d of container %s: %w", rec.Sandbox.PID, rec.ID, err)
		}
	}
	// A guest can hold its kernel up so that nothing in it dies any more; then
	// the process has to.
	stuck := time.AfterFunc(stuckGrace, func() {
		if rec.Sandbox.Alive() {
			_ = killProcess(rec.Sandbox.PID)
		}
	})
	defer stuck.Stop()
	if err := r.State.WaitReleased(ctx, rec.ID); err != nil {
		return fmt.Errorf("wait for the launcher of container %s (process %d): %w", rec.ID, rec.Launcher.PID, err)
	}
	return nil
}
