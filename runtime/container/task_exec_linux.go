// SPDX-License-Identifier: Apache-2.0

// Additional processes of a bundle's container, whose streams an engine has made.

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/state"
)

// TaskProcess is an additional process that this one answers for: when this one
// ends, so does that.
type TaskProcess struct {
	control   *control.Client
	container string
	id        string
	pid       int
	streams   *taskStreams
	extras    *taskExtras

	done chan struct{}
	exit api.ExitStatus
	err  error
}

// Exec runs an additional process. It returns once that runs. The streams stay the
// caller's; with a terminal, in is its replica side.
func (t *Task) Exec(ctx context.Context, p *api.Process, in, out, errs *os.File) (*TaskProcess, error) {
	return startProcess(ctx, t.sandbox.control, t.sandbox.dir, t.handle.ID(), p, nil, in, out, errs)
}

// startProcess does it, for a container of the sandbox whose sockets are in dir.
func startProcess(ctx context.Context, c *control.Client, dir, container string, p *api.Process, extra []*os.File, in, out, errs *os.File) (*TaskProcess, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	streams, err := newTaskStreams(p.Terminal, in, out, errs)
	if err != nil {
		return nil, err
	}
	extras, err := newTaskExtras(extra)
	if err != nil {
		streams.close()
		return nil, err
	}
	p.ExtraFDs = extras.names()
	x := &TaskProcess{control: c, container: container, id: newExecID(), streams: streams, extras: extras, done: make(chan struct{})}
	files, err := streams.donation(p.Terminal)
	if err == nil {
		err = sendFiles(dir, x.id, slices.Concat(files, extras.files()))
	}
	if err != nil {
		streams.close()
		extras.close()
		return nil, err
	}
	streams.donated()
	extras.donated()
	go x.run(p)
	type answer struct {
		pid int
		err error
	}
	started := make(chan answer, 1)
	go func() {
		pid, err := c.ExecStarted(ctx, container, x.id)
		started <- answer{pid, err}
	}()
	select {
	case a := <-started:
		if a.err == nil {
			x.pid = a.pid
			return x, nil
		}
		select {
		case <-x.done: // It knows better.
		default:
			go x.abandon()
			return nil, a.err
		}
	case <-x.done:
	}
	if x.err != nil {
		return nil, x.err
	}
	return x, nil // So short that nobody saw it run.
}

// run waits for the process' end.
func (x *TaskProcess) run(p *api.Process) {
	res, err := x.control.Exec(context.Background(), x.container, &control.Exec{ID: x.id, Process: *p})
	if err != nil && !errors.Is(err, control.ErrClosed) {
		// It never ran, and wrote nothing; the sandbox may have its ends a while longer.
		x.streams.close()
		x.extras.close()
	} else {
		x.streams.drain(false, func(string, ...any) {})
		x.extras.drain(true, func(string, ...any) {})
	}
	if errors.Is(err, control.ErrClosed) {
		// The container ended under it.
		res.Exit, err = killedExit(), nil
	}
	x.exit, x.err = res.Exit, err
	close(x.done)
}

// abandon ends a process that nobody will ever ask about: its start was given up, and
// may come yet.
func (x *TaskProcess) abandon() {
	for {
		select {
		case <-x.done:
			return
		case <-time.After(leavePoll):
		}
		ctx, cancel := context.WithTimeout(context.Background(), stuckGrace)
		_ = x.Signal(ctx, signalKill, control.TargetInit)
		cancel()
	}
}

// PID is the process' id as the guest sees it.
func (x *TaskProcess) PID() int { return x.pid }

// Wait returns how the process ended, once it has.
func (x *TaskProcess) Wait(ctx context.Context) (api.ExitStatus, error) {
	select {
	case <-x.done:
		return x.exit, x.err
	case <-ctx.Done():
		return api.ExitStatus{}, ctx.Err()
	}
}

// Signal sends the process a signal, or its terminal's foreground.
func (x *TaskProcess) Signal(ctx context.Context, n int, target control.Target) error {
	return x.control.SignalExec(ctx, x.container, x.id, n, target)
}

// Resize sets the size of the process' terminal.
func (x *TaskProcess) Resize(ctx context.Context, rows, columns uint16) error {
	return x.control.ResizeExec(ctx, x.container, x.id, rows, columns)
}

// absolute makes paths absolute, as [TaskCreate]'s.
func (x *TaskExec) absolute() error {
	return makeAbsolute(&x.PIDFile, &x.ConsoleSocket, &x.PIDFDSocket)
}

// ExecTask runs an additional process in a bundle's container, whose terminal an
// engine gets, and returns how it ended.
func (r *Runner) ExecTask(ctx context.Context, x TaskExec) (api.ExitStatus, error) {
	extra, err := preservedFDs(x.PreserveFDs)
	if err != nil {
		return api.ExitStatus{}, err
	}
	return r.superviseExec(ctx, nil, &x, extra, nil)
}

// ExecTaskDetached runs an additional process in a bundle's container, with a
// process of the host's own that stands for it and ends with its exit code, and
// returns that one's number. argv are as for [Runner.StartTaskSupervisor].
func (r *Runner) ExecTaskDetached(ctx context.Context, argv []string, x TaskExec) (pid int, err error) {
	if err := x.absolute(); err != nil {
		return 0, err
	}
	extra, err := preservedFDs(x.PreserveFDs)
	if err != nil {
		return 0, err
	}
	pid, conn, err := startSupervisor(argv, &order{Exec: &x}, true, extra...)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, _, err = hearSupervisor(conn, api.EventStarted)
	return pid, err
}

// superviseExec is the life of that process. started is nil where nobody waits to
// be told.
func (r *Runner) superviseExec(ctx context.Context, gone <-chan struct{}, x *TaskExec, extra []*os.File, started func()) (api.ExitStatus, error) {
	var exit api.ExitStatus
	caught := make(chan os.Signal, queuedSignals)
	signal.Notify(caught, proxied...)
	signal.Ignore(syscall.SIGPIPE)
	rec, err := r.getTask(x.Container)
	if err != nil {
		return exit, err
	}
	if err := joinCgroup(rec, x.Cgroups, r.debugf); err != nil {
		return exit, err
	}
	c, err := r.dialMade(rec)
	if err != nil {
		return exit, err
	}
	defer c.Close()
	in, out, errs := os.Stdin, os.Stdout, os.Stderr
	if x.Process.Terminal {
		replica, err := openConsole(x.ConsoleSocket)
		if err != nil {
			return exit, err
		}
		defer replica.Close()
		in, out, errs = replica, replica, replica
	}
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := make(chan struct{})
	go func() {
		select {
		case <-gone:
			cancel()
		case <-begun:
		}
	}()
	p, err := startProcess(starting, c, r.taskDir(rec), rec.ID, &x.Process, extra, in, out, errs)
	close(begun)
	if err != nil {
		return exit, err
	}
	if err = sendPIDFD(x.PIDFDSocket); err == nil {
		err = writePIDFile(x.PIDFile, os.Getpid())
	}
	if err != nil {
		return exit, err
	}
	if started != nil {
		started()
		if p.streams.relay == nil {
			standAlone()
		}
	}
	go p.proxy(caught, x.Process.Terminal)
	return p.Wait(ctx)
}

// proxy hands on what this process is sent, as [Task.proxy] does.
func (x *TaskProcess) proxy(caught <-chan os.Signal, terminal bool) {
	for sig := range caught {
		ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
		_ = x.Signal(ctx, int(sig.(syscall.Signal)), signalTarget(sig, terminal))
		cancel()
	}
}

// signalTarget says who a signal is for: what a terminal sends, its foreground.
func signalTarget(sig os.Signal, terminal bool) control.Target {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH, syscall.SIGHUP, syscall.SIGCONT:
		if terminal {
			return control.TargetForeground
		}
	}
	return control.TargetInit
}

// joinCgroup moves this process into the host's cgroup of a container, or into those
// below it that somebody has chosen: engines count those that stand for something there.
func joinCgroup(rec *state.Record, below map[string]string, warn func(string, ...any)) error {
	if len(rec.Task.Cgroup) == 0 {
		if len(below) > 0 {
			return api.Errorf(api.KindUnsupported, "container %s has no cgroup on this host to choose one below", rec.Name)
		}
		return nil
	}
	group, err := openTaskCgroup(rec)
	if err == nil {
		err = group.AddBelow(os.Getpid(), below)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("join the cgroup of container %s: %w", rec.Name, err)
	if len(below) > 0 {
		return err
	}
	warn("%v", err)
	return nil
}

// openTaskCgroup opens the host's cgroup of a container.
func openTaskCgroup(rec *state.Record) (*hostcgroup.Container, error) {
	place := hostcgroup.Placement{Path: rec.Task.CgroupPath, ID: rec.Name, Systemd: rec.Task.Systemd}
	return hostcgroup.OpenContainer(place, rec.Task.Cgroup)
}
