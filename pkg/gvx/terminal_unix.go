// SPDX-License-Identifier: Apache-2.0

//go:build unix

// A terminal between the user's streams and rungv's.

package gvx

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/creack/pty"
)

// terminal is a pseudo-terminal whose replica rungv has.
type terminal struct {
	primary, replica *os.File
	in               io.Reader
	out              *watchedWriter
	interactive      bool
	drained          chan struct{}
}

// openTerminal puts a terminal in the place of the streams.
func openTerminal(op string, s *streams) (*terminal, error) {
	primary, replica, err := pty.Open()
	if err != nil {
		return nil, errorf(KindLimit, op, "open a terminal: %w", err)
	}
	t := &terminal{primary: primary, replica: replica, in: s.in, interactive: s.in != nil, drained: make(chan struct{})}
	t.out = &watchedWriter{w: s.out}
	if s.out == nil {
		t.out.w = io.Discard
	}
	*s = streams{out: replica, err: replica}
	if t.interactive {
		s.in = replica
	}
	return t, nil
}

// control makes the terminal that of the process, so that its size and hang-up
// are noticed.
func (t *terminal) control(cmd *exec.Cmd) {
	ctty := 1
	if t.interactive {
		ctty = 0
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: ctty}
}

// start relays, once the process has the replica.
func (t *terminal) start() {
	t.replica.Close()
	if t.in != nil {
		go func() { _, _ = io.Copy(t.primary, t.in) }()
	}
	go func() {
		defer close(t.drained)
		_, _ = io.Copy(t.out, t.primary)      // Ends with EIO: nobody has the replica any more.
		_, _ = io.Copy(io.Discard, t.primary) // Or with the writer's error: the guest goes on.
	}()
}

// watched is what takes the terminal's output.
func (t *terminal) watched() *watchedWriter { return t.out }

// close ends the relay when the last output is through.
func (t *terminal) close() {
	t.replica.Close()
	select {
	case <-t.drained:
	case <-time.After(outputGrace):
	}
	t.primary.Close()
}

// abort closes a terminal that no process got; nil is none.
func (t *terminal) abort() {
	if t != nil {
		t.replica.Close()
		t.primary.Close()
	}
}

func (t *terminal) resize(rows, columns uint16) error {
	return pty.Setsize(t.primary, &pty.Winsize{Rows: rows, Cols: columns})
}
