// SPDX-License-Identifier: Apache-2.0

// The client's side of exec: streams made here, handed to the sandbox, and
// copied until the process has ended.

package container

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/control/handover"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
)

// execution is one exec under way.
type execution struct {
	*Runner
	o       *ExecOptions
	rec     *state.Record
	id      string
	control *control.Client
	streams *launch.Streams
	extras  *taskExtras
	// caught is closed once every signal is caught; nil where none is.
	caught <-chan struct{}
}

// Exec runs an additional process in a container and returns how it ended, or
// that it goes on without us. When this process ends first, so does that one.
func (r *Runner) Exec(ctx context.Context, ref string, o ExecOptions) (res control.ExecResult, err error) {
	rec, err := r.State.Get(ref)
	if err == nil && !takesExec(rec) {
		rec, err = r.awaitRunning(ctx, ref)
	}
	if err != nil {
		return res, err
	}
	p, err := o.process(rec)
	if err != nil {
		return res, err
	}
	e := &execution{Runner: r, o: &o, rec: rec, id: newExecID()}
	if len(o.Cgroups) > 0 {
		if err := joinCgroup(rec, o.Cgroups, r.debugf); err != nil {
			return res, err
		}
	}
	extra, err := preservedFDs(o.PreserveFDs)
	if err != nil {
		return res, err
	}
	if e.extras, err = newTaskExtras(extra); err != nil {
		return res, err
	}
	defer e.extras.close()
	p.ExtraFDs = e.extras.names()
	if e.control, err = r.dialMade(rec); err != nil {
		return res, err
	}
	defer e.control.Close()
	if !o.Detach || o.TTY {
		if err := e.openStreams(&p); err != nil {
			return res, err
		}
		defer e.streams.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := e.watch(ctx, cancel)
	defer stop()
	if err := sendPIDFD(o.PIDFDSocket); err != nil {
		return res, err
	}
	if err := writePIDFile(o.PIDFile, os.Getpid()); err != nil {
		return res, err
	}
	told := e.announce(ctx)
	res, err = e.control.Exec(ctx, rec.ID, &control.Exec{ID: e.id, Process: p, Detach: o.Detach, Program: o.Program != nil})
	told(err == nil)
	if e.streams != nil {
		if res.Running {
			e.streams.Restore()
			return res, err
		}
		if ferr := e.streams.Finish(); ferr != nil && err == nil {
			r.warnf("%v", ferr)
		}
		e.streams.Restore()
		e.extras.drain(true, r.warnf)
	}
	if errors.Is(err, control.ErrClosed) {
		// The container ended under it.
		res.Exit = api.ExitStatus{Code: exitSignalBase + signalKill, Signal: signalKill}
		res.ContainerEnded = true
		return res, nil
	}
	return res, err
}

// announce tells who wants to know that the process runs. What it returns is called
// when the process has ended, and with whether it ever ran: one may be so short that
// nobody sees it.
func (e *execution) announce(ctx context.Context) (ended func(ran bool)) {
	if e.o.Started == nil {
		return func(bool) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan bool, 1)
	started := func() {
		if e.caught != nil {
			<-e.caught // A signal that comes upon this is passed on, not lost.
		}
		e.o.Started()
	}
	go func() {
		_, err := e.control.ExecStarted(ctx, e.rec.ID, e.id)
		if err == nil {
			started()
		}
		seen <- err == nil
	}()
	return func(ran bool) {
		cancel()
		if !<-seen && ran {
			started()
		}
	}
}

// newExecID returns an id that nobody guesses.
func newExecID() string {
	var b [control.ExecIDBytes / 2]byte
	_, _ = rand.Read(b[:]) // It does not fail.
	return hex.EncodeToString(b[:])
}

// openStreams makes the process' streams and hands them over.
func (e *execution) openStreams(p *api.Process) error {
	var err error
	e.streams, err = launch.NewStreams(launch.StreamOptions{
		In: e.o.Stdin, Interactive: e.o.Interactive && !e.o.Detach, Out: e.o.Stdout, Err: e.o.Stderr, TTY: e.o.TTY,
		DetachKeys: e.o.DetachKeys, Signal: e.signalForeground,
	})
	if err != nil {
		return err
	}
	p.Rows, p.Columns, _ = e.streams.UserSize()
	files, err := e.streams.Donation()
	if err == nil {
		if e.o.Program != nil {
			files = append(files, e.o.Program)
		}
		err = sendFiles(e.taskDir(e.rec), e.id, slices.Concat(files, e.extras.files()))
	}
	if err == nil && !e.o.Detach {
		err = e.streams.MakeRaw()
	}
	if err != nil {
		e.streams.Close()
		return err
	}
	e.streams.Start()
	e.extras.donated()
	return nil
}

// sendFiles hands descriptors to the sandbox whose container has directory dir.
func sendFiles(dir, id string, files []*os.File) error {
	fail := func(err error) error { return fmt.Errorf("hand the streams to the sandbox: %w", err) }
	path, done, err := socketIn(dir, streamsSocket)
	if err != nil {
		return fail(err)
	}
	defer done()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	// The sandbox empties its queue at once: to wait for room longer means
	// that it is stuck.
	timeout := unix.NsecToTimeval(int64(dialTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return fail(os.NewSyscallError("setsockopt", err))
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fail(os.NewSyscallError("connect", err))
	}
	if err := handover.SendFiles(fd, []byte(id), files); err != nil {
		return fail(err)
	}
	return nil
}

// watch passes on signals, sizes and the wish to leave, until stop is called.
func (e *execution) watch(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	var caught <-chan os.Signal
	end := func() {}
	if !e.o.NoSignals {
		s := catchSignals(e.o.TTY, cancel)
		s.proxy()
		caught, end, e.caught = s.c, s.stop, s.all
	}
	var detached <-chan struct{}
	if e.streams != nil {
		detached = e.streams.Detached()
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-caught:
				e.signal(sig.(syscall.Signal), cancel)
			case <-detached:
				detached = nil
				dctx, c := context.WithTimeout(ctx, callTimeout)
				if err := e.control.Detach(dctx, e.rec.ID, e.id); err != nil {
					cancel()
				}
				c()
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		end()
	}
}

// signal passes one on.
func (e *execution) signal(n syscall.Signal, cancel context.CancelFunc) {
	ctx, stop := context.WithTimeout(context.Background(), callTimeout)
	defer stop()
	switch {
	case e.o.TTY && (n == syscall.SIGWINCH || n == syscall.SIGCONT):
		if n == syscall.SIGCONT {
			_ = e.streams.MakeRaw()
		}
		if rows, columns, ok := e.streams.UserSize(); ok {
			_ = e.control.ResizeExec(ctx, e.rec.ID, e.id, rows, columns)
		}
	case e.o.TTY && ends(n):
		// The user's terminal is gone, and the process goes with it: a shell
		// at a terminal heeds nothing else.
		_ = e.control.SignalExec(ctx, e.rec.ID, e.id, int(syscall.SIGHUP), control.TargetForeground)
		time.AfterFunc(hangupGrace, cancel)
	case ends(n):
		// To the group, as a terminal would: a shell waits for its command.
		if err := e.control.SignalExec(ctx, e.rec.ID, e.id, int(n), control.TargetForeground); err != nil {
			cancel() // It does not run yet, or nobody answers.
		}
	default:
		_ = e.control.SignalExec(ctx, e.rec.ID, e.id, int(n), control.TargetInit)
	}
}

// hangupGrace is how long a process may take to put its things in order when
// its user's terminal has gone.
const hangupGrace = time.Second

// signalForeground carries ^C, ^\ and ^Z to whom the terminal belongs.
func (e *execution) signalForeground(sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_ = e.control.SignalExec(ctx, e.rec.ID, e.id, int(sig), control.TargetForeground)
}
