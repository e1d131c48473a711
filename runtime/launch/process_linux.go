// SPDX-License-Identifier: Apache-2.0

// A sandbox process from the outside: alive, killed, ended.

package launch

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control"
)

// Process is a sandbox process.
type Process struct {
	// PID is its process id on the host.
	PID int
	// Control is the launcher's control channel. Closing it ends the sandbox.
	Control *control.Client

	process *os.Process
	done    chan struct{}
	ending  Ending
}

// Ending is how a sandbox process ended.
type Ending struct {
	// Signal ended it, or 0.
	Signal syscall.Signal
	// Code is its exit code where no signal ended it.
	Code int
	// Err says why its end could not be learned.
	Err error
}

// String describes the ending for an error message.
func (e Ending) String() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("its end could not be learned: %v", e.Err)
	case e.Signal != 0:
		return fmt.Sprintf("killed by signal %d (%s)", int(e.Signal), unix.SignalName(e.Signal))
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// Done is closed once the process has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ending returns how the process ended; it blocks until it has.
func (p *Process) Ending() Ending {
	<-p.done
	return p.ending
}

// Kill kills the process, by a descriptor of it and not by its number. It may
// have ended already.
func (p *Process) Kill() { _ = p.process.Kill() }

// End closes the control channel, upon which the sandbox ends by itself, and
// kills the process if it has not ended within grace.
func (p *Process) End(grace time.Duration) Ending {
	p.Control.Close()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.Kill()
		<-p.done
	}
	return p.ending
}

// reap waits for the process; the forking thread runs it.
func (p *Process) reap() {
	defer close(p.done)
	state, err := p.process.Wait()
	if err != nil {
		p.ending.Err = err
		return
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		p.ending.Signal = ws.Signal()
		return
	}
	p.ending.Code = state.ExitCode()
}
