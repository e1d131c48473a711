// SPDX-License-Identifier: Apache-2.0

// What others than the process that answers for it may do with a container of a
// bundle: they have its record, its sandbox's control socket, and the one of the
// process that looks after it.

package container

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

// taskOrder is what the process that answers for a container is asked.
type taskOrder struct {
	// Do is "start" or "signal".
	Do string `json:"do"`
	// Signal and All go with "signal".
	Signal int  `json:"signal,omitempty"`
	All    bool `json:"all,omitempty"`
}

// getTask returns the record of a container of a bundle, by the name that its engine
// gave it or by its id, whole or as lists show it. Any other beginning of an id is
// nobody's: an engine that deletes what it calls "c1" must not hit somebody else's.
func (r *Runner) getTask(ref string) (*state.Record, error) {
	rec, err := r.State.Get(ref)
	if err == nil && ref != rec.Name && ref != rec.ID && ref != rec.ShortID() {
		return nil, api.Errorf(api.KindNotFound, "container does not exist: %s", ref)
	}
	if api.KindOf(err) == api.KindNotFound {
		return nil, api.Errorf(api.KindNotFound, "container does not exist: %s", ref)
	}
	if err == nil && rec.Task == nil {
		err = errNoTask(ref)
	}
	return rec, err
}

// taskDir is the directory with the sockets of a container's sandbox.
func (r *Runner) taskDir(rec *state.Record) string {
	if rec.Task != nil && rec.Task.Sandbox != "" {
		return r.State.Dir(rec.Task.Sandbox)
	}
	return r.State.Dir(rec.ID)
}

// taskState is what a record says in the words of the runtime specification.
func taskState(rec *state.Record) TaskState {
	t := TaskState{Rootfs: rec.Task.Rootfs, Created: rec.CreatedAt.Format(time.RFC3339Nano)}
	t.State = specs.State{
		Version: specs.Version, ID: rec.Name, Status: specs.ContainerState(rec.State), Bundle: rec.Task.Bundle,
		Annotations: rec.Task.Annotations,
	}
	if rec.Paused {
		t.Status = "paused"
	}
	if rec.State != api.StateStopped {
		t.Pid = rec.Launcher.PID
	}
	return t
}

// TaskState returns the state of a container of a bundle.
func (r *Runner) TaskState(ref string) (*TaskState, error) {
	rec, err := r.getTask(ref)
	if err != nil {
		return nil, err
	}
	t := taskState(rec)
	return &t, nil
}

// Tasks lists the containers of bundles, the newest last as runc does.
func (r *Runner) Tasks() ([]TaskState, error) {
	records, err := r.State.List()
	list := []TaskState{}
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Task != nil {
			list = append(list, taskState(records[i]))
			list[len(list)-1].Owner = ownerName(r.State.Dir(records[i].ID))
		}
	}
	return list, err
}

// ownerName is the name of the user a file belongs to, or its number.
func ownerName(path string) string {
	uid, ok := fileOwner(path)
	if !ok {
		return ""
	}
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// StartTask lets the first process of a created container run.
func (r *Runner) StartTask(ctx context.Context, ref string) error {
	rec, err := r.getTask(ref)
	if err != nil {
		return err
	}
	switch rec.State {
	case api.StateCreated:
		return r.orderTask(ctx, rec, &taskOrder{Do: "start"})
	case api.StateStopped:
		return api.Errorf(api.KindState, "cannot start a container that has stopped")
	}
	return api.Errorf(api.KindState, "cannot start an already running container")
}

// KillTask sends a signal to the first process of a container, or to all of them.
// One that was created and not started has none: a signal that ends programs
// ends it.
func (r *Runner) KillTask(ctx context.Context, ref string, signal int, all bool) error {
	rec, err := r.getTask(ref)
	if err != nil {
		return err
	}
	switch rec.State {
	case api.StateStopped:
		if all {
			return nil // As runc: there is nobody left to signal.
		}
		return api.Errorf(api.KindState, "container not running")
	case api.StateRunning:
		if all {
			return r.call(ctx, rec.ID, func(ctx context.Context, c *control.Client, rec *state.Record) error {
				return c.Signal(ctx, rec.ID, signal, control.TargetAll)
			})
		}
		return r.Signal(ctx, rec.ID, signal)
	}
	return r.orderTask(ctx, rec, &taskOrder{Do: "signal", Signal: signal, All: all})
}

// DeleteTask removes a container that has stopped or, with force, any.
func (r *Runner) DeleteTask(ctx context.Context, ref string, force bool) error {
	rec, err := r.getTask(ref)
	if err != nil {
		if force && api.KindOf(err) == api.KindNotFound {
			return nil
		}
		return err
	}
	switch {
	case rec.State == api.StateCreated:
		// As runc: what was never started needs no force.
		force = true
	case rec.State != api.StateStopped && !force:
		return api.Errorf(api.KindState, "cannot delete container %s that is not stopped: %s", ref, taskState(rec).Status)
	}
	if err := r.endTask(ctx, rec, force); err != nil {
		return err
	}
	return r.removeTask(ctx, rec)
}

// removeTask removes what is left of a container that nobody holds any more.
func (r *Runner) removeTask(ctx context.Context, rec *state.Record) error {
	if err := r.leaveTask(ctx, rec); err != nil {
		return err
	}
	// Before the record: without it nobody would find the cgroup any more. As runc, one
	// that is busy keeps it, for the next delete.
	if err := r.removeTaskCgroup(rec); err != nil {
		return fmt.Errorf("delete container %s: %w: end its processes, and delete it again", rec.Name, err)
	}
	err := r.State.Remove(rec.ID, true)
	if api.KindOf(err) == api.KindNotFound {
		return nil // Somebody else was faster, and runs the hooks.
	}
	if err != nil {
		return err
	}
	return r.poststop(ctx, rec)
}

// endTask waits until nobody holds a container any more, which force sees to.
func (r *Runner) endTask(ctx context.Context, rec *state.Record, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if force && rec.State != api.StateStopped {
		quick, done := context.WithTimeout(ctx, stuckGrace)
		err := r.KillTask(quick, rec.ID, signalKill, rec.State == api.StateRunning)
		done()
		if err != nil && rec.Launcher.Alive() {
			// It does not listen: its sandbox and its gofer go with it.
			if err := killProcess(rec.Launcher.PID); err != nil {
				return fmt.Errorf("kill process %d, which looks after container %s: %w", rec.Launcher.PID, rec.Name, err)
			}
		}
	}
	if err := r.State.WaitReleased(ctx, rec.ID); err != nil {
		return fmt.Errorf("wait for process %d, which looks after container %s: %w", rec.Launcher.PID, rec.Name, err)
	}
	return nil
}
