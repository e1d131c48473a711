// SPDX-License-Identifier: Apache-2.0

// A container of an OCI bundle, looked after by this process: created, started,
// ended, deleted.

package container

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hooks"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/netns"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
)

// Task is a container of an OCI bundle. This process answers for it: when it
// ends, so does the container. Its methods may be called concurrently.
type Task struct {
	r      *Runner
	o      TaskOptions
	spec   *specs.Spec
	handle *state.Handle
	group  *hostcgroup.Container
	// seat is where this process was before it moved into group, nil if it did not.
	seat *hostcgroup.Seat
	// sandbox is the one it runs in; own says that it began with this container.
	sandbox *taskSandbox
	own     bool
	// joined says that the sandbox knows it, and has others.
	joined  bool
	gofer   *launch.Gofer
	log     *launch.Log
	volumes []*volumes.Opened
	streams *taskStreams
	extras  *taskExtras
	// view is what the host is shown of its files.
	view rootView
	// opened are closed once they have been donated.
	opened []*os.File
	began  int64

	// answered counts orders that are being carried out.
	answered sync.WaitGroup
	// ended is closed once exit is set; finishing has that happen once: where a hook
	// fails after the start, both who starts and who waits see the end.
	ended     chan struct{}
	finishing sync.Once

	mu      sync.Mutex
	started bool
	exit    api.ExitStatus
	exitErr error

	// deleting is held by who deletes it; deleted is its own.
	deleting sync.Mutex
	deleted  bool
}

// taskSandbox is a sandbox as those of its containers see it that live in this
// process.
type taskSandbox struct {
	control *control.Client
	// id is its first container's, dir that one's directory, where its sockets
	// are.
	id, dir string
	// process is nil where another process launched it; log is its log.
	process *launch.Process
	log     *launch.Log
	pid     int

	// netns is what the sandbox has for its network, nil for none; taken what it
	// has got of it.
	netns *netns.Namespace
	taken *netns.Taken
	// stopArrivals ends what comes to the guest by way of the namespace; nil
	// before it has begun.
	stopArrivals func()
}

// Start lets the container's first process run. It returns once it does.
func (t *Task) Start(ctx context.Context) error {
	t.mu.Lock()
	if t.started {
		t.mu.Unlock()
		return api.Errorf(api.KindState, "cannot start a container that has stopped, or runs already")
	}
	t.started = true
	t.mu.Unlock()
	if err := t.run(ctx); err != nil {
		t.leave()
		t.finish(api.ExitStatus{Code: exitOwnFailure, At: time.Now().UTC()}, err)
		return err
	}
	return nil
}

// run is the way from created to running.
func (t *Task) run(ctx context.Context) error {
	links, id, err := t.takeNetwork()
	if err != nil {
		return err
	}
	// Asked before: it may end at once.
	ended := make(chan waited, 1)
	go func() {
		// A sandbox that goes on without this process goes on without the container.
		exit, err := t.sandbox.control.Own(context.Background(), t.handle.ID())
		ended <- waited{exit, err}
	}()
	if err := t.sandbox.control.Start(ctx, t.handle.ID(), links, id); err != nil {
		return t.explain(err)
	}
	if err := t.handle.Update(func(rec *state.Record) error {
		rec.StartedAt = time.Now().UTC()
		return rec.SetState(api.StateRunning)
	}); err != nil {
		t.note("%v", err)
	}
	if sb := t.sandbox; t.own && sb.taken != nil {
		sb.stopArrivals = serveArrivals(sb.taken, sb.dir, t.note)
	}
	go t.await(ended)
	if err := t.hooks(ctx, hooks.Poststart); err != nil {
		t.kill()
		return err
	}
	return nil
}

// takeNetwork reads what the network namespace holds by now, and has the sandbox
// get what it needs of it.
func (t *Task) takeNetwork() (links []api.Link, files string, err error) {
	sb := t.sandbox
	if !t.own || sb.netns == nil {
		return nil, "", nil
	}
	if sb.taken, err = sb.netns.Take(); err != nil {
		return nil, "", err
	}
	defer sb.taken.CloseFiles()
	for _, server := range t.loopbackResolvers() {
		if err := sb.taken.AddResolver(server); err != nil {
			t.note("%v", err)
		}
	}
	if len(sb.taken.Files) == 0 {
		return sb.taken.Links, "", nil
	}
	files = newExecID()
	return sb.taken.Links, files, sendFiles(sb.dir, files, sb.taken.Files)
}

// await takes note of the container's end.
func (t *Task) await(ended <-chan waited) {
	var w waited
	var lost error
	select {
	case w = <-ended:
	case <-goferDone(t.gofer):
		// Its sandbox may have hung up, with all else that ends then.
		if lost = goferFailed(t.gofer, t.log); lost != nil {
			t.kill()
		}
		w = <-ended
	}
	err := w.err
	if lost != nil {
		t.finish(killedExit(), lost)
		return
	}
	if err != nil {
		w.exit = killedExit()
		if t.sandbox.process != nil {
			t.sandbox.process.Kill()
			err = lostSandbox(t.sandbox.process.PID, t.sandbox.process.Ending(), t.sandbox.log)
		} else if errors.Is(err, control.ErrClosed) {
			err = nil // The sandbox ended with its first container.
		}
	}
	t.finish(w.exit, err)
}

// finish enters how the container ended, ends a sandbox that was its own, and
// tells waiters. It does so once.
func (t *Task) finish(exit api.ExitStatus, cause error) {
	t.finishing.Do(func() { t.end(exit, cause) })
}

func (t *Task) end(exit api.ExitStatus, cause error) {
	// What the Sentry itself takes counts against the host's limit, which may be met
	// before the guest meets its own: then the host kills the sandbox, the gofer, or the
	// process that a guest's runs in.
	if exit.Signal == signalKill && !exit.OOMKilled {
		kills, err := t.group.OOMKills()
		exit.OOMKilled = err == nil && kills > 0
	}
	if t.own {
		if t.sandbox.process != nil {
			t.sandbox.process.End(endGrace)
		}
		t.releaseNetwork()
	}
	// In a sandbox that goes on, another container may have been handed its ends.
	t.streams.drain(t.joined, t.note)
	t.extras.drain(t.joined, t.note)
	if t.gofer != nil {
		t.gofer.End(endGrace)
	}
	for _, v := range t.volumes {
		v.Close()
	}
	if err := t.handle.Update(func(rec *state.Record) error {
		rec.FinishedAt, rec.Exit = exit.At, &exit
		if cause != nil {
			rec.Error = cause.Error()
		}
		return rec.SetState(api.StateStopped)
	}); err != nil {
		t.note("%v", err)
	}
	t.mu.Lock()
	t.exit, t.exitErr = exit, cause
	t.mu.Unlock()
	close(t.ended)
}

func (t *Task) releaseNetwork() {
	sb := t.sandbox
	if sb.stopArrivals != nil {
		sb.stopArrivals()
		sb.stopArrivals = nil
	}
	if sb.taken != nil {
		if err := sb.taken.Release(); err != nil {
			t.note("%v", err)
		}
		sb.taken = nil
	}
	if sb.netns != nil {
		sb.netns.Close()
		sb.netns = nil
	}
}

// Wait returns how the container ended, once it has. The error says what went
// wrong beside.
func (t *Task) Wait(ctx context.Context) (api.ExitStatus, error) {
	select {
	case <-t.ended:
	case <-ctx.Done():
		return api.ExitStatus{}, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit, t.exitErr
}

// PID is the host's process that stands for the container.
func (t *Task) PID() int {
	if t.o.Self {
		return os.Getpid()
	}
	return t.sandbox.pid
}

// kill ends the container, whatever it does.
func (t *Task) kill() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckGrace)
	defer cancel()
	err := t.sandbox.control.Signal(ctx, t.handle.ID(), signalKill, control.TargetAll)
	if err != nil && t.own && t.sandbox.process != nil {
		t.sandbox.process.Kill()
	}
}

// Signal sends a signal to the container's first process, or to more of them. One
// that was not started has none: signals that end programs end it.
func (t *Task) Signal(ctx context.Context, n int, target control.Target) error {
	t.mu.Lock()
	started := t.started
	idle := !started && (n == 0 || ignored(n))
	if !idle {
		t.started = true
	}
	t.mu.Unlock()
	select {
	case <-t.ended:
		return api.Errorf(api.KindState, "container not running")
	default:
	}
	if idle && n != 0 {
		return nil
	}
	if started || n == 0 {
		return t.sandbox.control.Signal(ctx, t.handle.ID(), n, target)
	}
	t.leave()
	t.finish(api.ExitStatus{Code: exitSignalBase + n, Signal: n, At: time.Now().UTC()}, nil)
	return nil
}

// ignored says whether a signal does nothing to a process that has not asked for it.
func ignored(n int) bool {
	switch syscall.Signal(n) {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH:
		return true
	}
	return false
}

// Delete removes what is left of a container that has stopped. It may be called
// again, also when it has failed: the record stays until the cgroup that it names is
// gone.
func (t *Task) Delete(ctx context.Context) error {
	select {
	case <-t.ended:
	default:
		return api.Errorf(api.KindState, "cannot delete container %s that is not stopped", t.o.ID)
	}
	t.deleting.Lock()
	defer t.deleting.Unlock()
	if t.deleted {
		return nil
	}
	t.leave()
	rec := t.handle.Record()
	if err := t.r.removeTaskCgroup(&rec); err != nil {
		return err
	}
	t.deleted = true
	return errors.Join(t.handle.Remove(), t.r.poststop(ctx, &rec))
}

// removeTaskCgroup removes the host's cgroup of a container that has ended.
func (r *Runner) removeTaskCgroup(rec *state.Record) error {
	if len(rec.Task.Cgroup) == 0 {
		return nil
	}
	group, err := openTaskCgroup(rec)
	if err != nil {
		return err
	}
	return group.Remove()
}

// poststop runs the hooks that want to know that a container is gone.
func (r *Runner) poststop(ctx context.Context, rec *state.Record) error {
	st := taskState(rec)
	return hooks.Run(ctx, hooks.Poststop, rec.Task.Poststop, hooks.Options{State: st.State, Warn: r.warnf})
}

// hooks runs the bundle's hooks of some kinds.
func (t *Task) hooks(ctx context.Context, kinds ...hooks.Kind) error {
	if t.spec.Hooks == nil {
		return nil
	}
	rec := t.handle.Record()
	st := taskState(&rec)
	st.Pid = t.hookPID()
	for _, k := range kinds {
		o := hooks.Options{State: st.State, Dir: t.o.Bundle.Dir, Warn: t.note}
		if k == hooks.CreateContainer && t.sandbox.netns != nil {
			o.Enter = t.sandbox.netns.Do
		}
		if t.o.Outside != nil {
			o.Leave = t.o.Outside.Do
		}
		if err := hooks.Run(ctx, k, hooks.Of(t.spec.Hooks, k), o); err != nil {
			return err
		}
	}
	return nil
}

// hookPID is the process that hooks are told of: the one whose network namespace
// is the container's.
func (t *Task) hookPID() int {
	if t.o.Self || t.sandbox == nil || t.sandbox.pid == 0 {
		return os.Getpid()
	}
	return t.sandbox.pid
}

func (t *Task) note(format string, args ...any) {
	if t.o.Note != nil {
		t.o.Note(format, args...)
	}
}

// lostSandbox is the error about a sandbox process that ended before it should.
func lostSandbox(pid int, ending launch.Ending, log *launch.Log) error {
	err := api.Errorf(api.KindInternal, "the sandbox process %d ended before its guest did: %v", pid, ending)
	if ending.Signal == syscall.SIGKILL {
		return err // Of a sandbox that somebody killed the log tells nothing.
	}
	return withLastWords(err, log)
}

func (t *Task) closeOpened() {
	for _, f := range t.opened {
		f.Close()
	}
	t.opened = nil
}
