// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readyPatience is how long a logging program may take to say that it is
	// ready: it may have to reach a server.
	readyPatience = 10 * time.Second
	// loggerPatience is how long it may take to write out what it has when it was
	// asked to end.
	loggerPatience = 12 * time.Second
)

// logger is a program that takes a process' output from descriptors 3 and 4, and
// closes 5 when it is ready: containerd's logging protocol.
type logger struct {
	cmd *exec.Cmd
	// guest are the ends of its pipes for the guest.
	guest [2]*os.File
	done  chan struct{}
}

// startLogger starts the program and waits until it is ready.
func (s *Set) startLogger(c Config, t target) (err error) {
	l := &logger{done: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			for _, f := range l.guest {
				if f != nil {
					f.Close()
				}
			}
		}
	}()
	for i := range l.guest {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		l.guest[i] = os.NewFile(uintptr(fds[1]), "pipe")
		theirs = append(theirs, os.NewFile(uintptr(fds[0]), "pipe"))
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	theirs = append(theirs, readyEnd)

	l.cmd = exec.Command(t.path, t.args...)
	l.cmd.Env = []string{"CONTAINER_ID=" + c.ID, "CONTAINER_NAMESPACE=" + c.Namespace}
	l.cmd.ExtraFiles = theirs
	if err := l.cmd.Start(); err != nil {
		return fmt.Errorf("start logging program %s: %w", t.path, err)
	}
	go func() {
		_ = l.cmd.Wait()
		close(l.done)
	}()
	readyEnd.Close()
	if err := awaitReady(ready, t.scheme == schemeBinaryV2); err != nil {
		_ = l.cmd.Process.Kill()
		<-l.done
		return fmt.Errorf("logging program %s: %w", t.path, err)
	}
	s.mu.Lock()
	s.logger = l
	s.mu.Unlock()
	return nil
}

// awaitReady waits for the program's word. In the second version of the protocol
// that is a byte; in the first, closing the descriptor counts, which dying does
// too.
func awaitReady(ready *os.File, byByte bool) error {
	if err := ready.SetReadDeadline(time.Now().Add(readyPatience)); err != nil {
		return err
	}
	n, err := ready.Read(make([]byte, 1))
	switch {
	case n == 0 && byByte:
		return fmt.Errorf("it has not said that it is ready: %w", io.ErrUnexpectedEOF)
	case err != nil && err != io.EOF:
		return fmt.Errorf("it has not said that it is ready: %w", err)
	}
	return nil
}

// end waits for the program, which has seen the end of its input unless a process
// of the guest's holds that, and ends it when it takes long.
func (l *logger) end(patience time.Duration) {
	select {
	case <-l.done:
		return
	case <-time.After(patience):
	}
	_ = l.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-l.done:
	case <-time.After(loggerPatience):
		_ = l.cmd.Process.Kill()
		<-l.done
	}
}
