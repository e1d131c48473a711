// SPDX-License-Identifier: Apache-2.0

// The client's side of attach.

package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// Attach joins the user's streams to a detached container's until it ends, or
// until the user detaches: then detached is set.
func (r *Runner) Attach(ctx context.Context, ref string, o AttachOptions) (exit api.ExitStatus, detached bool, err error) {
	rec, err := r.awaitRunning(ctx, ref)
	switch {
	case err != nil:
		return exit, false, err
	case rec.Paused:
		return exit, false, api.Errorf(api.KindState, "You cannot attach to a paused container, unpause it first")
	case !rec.Detached:
		return exit, false, api.Errorf(api.KindUnsupported, "cannot attach to container %s: its streams are those of the rungv that runs it (process %d): only run -d and start leave them to others", rec.Name, rec.Launcher.PID)
	}
	conn, err := dialIn(r.State.Dir(rec.ID), attachSocket)
	if err != nil {
		return exit, false, fmt.Errorf("attach to container %s: %w", rec.Name, err)
	}
	defer conn.Close()
	a := &attachment{conn: conn, o: &o, tty: rec.Options.TTY}
	if !rec.Options.Interactive {
		o.Stdin = nil
	}
	restore, err := a.makeRaw()
	if err != nil {
		return exit, false, err
	}
	defer restore()
	stop := a.signals(ctx, r, rec.ID)
	defer stop()
	return a.run()
}

// attachment is one attach under way.
type attachment struct {
	conn net.Conn
	o    *AttachOptions
	tty  bool
}

// makeRaw puts the user's terminal into raw mode for a container with one.
func (a *attachment) makeRaw() (restore func(), err error) {
	if !a.tty || a.o.Stdin == nil || !term.IsTerminal(int(a.o.Stdin.Fd())) {
		return func() {}, nil
	}
	fd := int(a.o.Stdin.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, os.NewSyscallError("set the terminal to raw mode", err)
	}
	return func() { _ = term.Restore(fd, before) }, nil
}

// signals passes on what this process gets, and the terminal's size.
func (a *attachment) signals(ctx context.Context, r *Runner, id string) (stop func()) {
	a.sendSize()
	if !a.o.SignalProxy && !a.tty {
		return func() {}
	}
	s := catchSignals(a.tty, func() {})
	s.proxy()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-s.c:
				n := sig.(syscall.Signal)
				switch {
				case a.tty && (n == syscall.SIGWINCH || n == syscall.SIGCONT):
					a.sendSize()
				case n == syscall.SIGHUP || !a.o.SignalProxy && ends(n):
					// The user's terminal is gone, not the container.
					a.conn.Close()
				case a.o.SignalProxy:
					_ = r.Signal(ctx, id, int(n))
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		s.stop()
	}
}

// sendSize tells the container its terminal's size.
func (a *attachment) sendSize() {
	if !a.tty {
		return
	}
	for _, f := range []any{a.o.Stdout, a.o.Stdin} {
		if f, ok := f.(*os.File); ok && f != nil {
			if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
				_ = writeFrame(a.conn, frameSize, sizePayload(w.Row, w.Col))
				return
			}
		}
	}
}

// run copies both ways until one side ends.
func (a *attachment) run() (exit api.ExitStatus, detached bool, err error) {
	left := make(chan struct{})
	if a.o.Stdin != nil {
		go func() {
			in := launch.NewDetachReader(a.o.Stdin, a.o.DetachKeys)
			buf := make([]byte, maxFrameBytes/2)
			for {
				n, err := in.Read(buf)
				if n > 0 && writeFrame(a.conn, frameInput, buf[:n]) != nil {
					return
				}
				if errors.Is(err, launch.ErrDetached) {
					close(left)
					a.conn.Close()
				}
				if err != nil {
					return
				}
			}
		}()
	}
	exit, err = a.receive()
	select {
	case <-left:
		return exit, true, nil
	default:
	}
	return exit, false, err
}

// receive delivers the guest's output until it has ended.
func (a *attachment) receive() (api.ExitStatus, error) {
	buf := new([maxFrameBytes]byte)
	ready := false
	for {
		t, payload, err := readFrame(a.conn, buf)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
				err = api.Errorf(api.KindState, "the container's supervisor has ended")
				if !ready {
					err = api.Errorf(api.KindState, "the container has ended, or %d clients are attached already", maxAttached)
				}
			}
			return api.ExitStatus{Code: exitSignalBase + signalKill}, err
		}
		switch t {
		case frameReady:
			ready = true
			if a.o.Ready != nil {
				a.o.Ready()
			}
		case frameStdout, frameStderr:
			to := a.o.Stdout
			if t == frameStderr {
				to = a.o.Stderr
			}
			if _, err := to.Write(payload); err != nil {
				return api.ExitStatus{Code: exitOwnFailure}, fmt.Errorf("write the container's output: %w", err)
			}
		case frameExit:
			return parseExit(payload)
		}
	}
}
