// SPDX-License-Identifier: Apache-2.0

// The fork, ahead of everything else.

package launch

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/handover"
	"z.gfire.dev/gvx/runtime/lockdown"
)

const (
	// ProcessName is argv[0] of a sandbox process; cmd/rungv's main looks for it.
	ProcessName = "gvx-sandbox"
	// selfExecutable is the binary that is running, whatever became of its path.
	selfExecutable = "/proc/self/exe"
	// firstInheritedFD follows the launcher's own standard streams.
	firstInheritedFD = 3
	// maxFD is close_range's word for all.
	maxFD = 1<<32 - 1
)

// ForkConfig is what has to be known before there is a spec.
type ForkConfig struct {
	// HeadStart is what the process begins with; its Lockdown is filled in.
	HeadStart api.HeadStart
	// Outer are the layers to put around the process. Where the host refuses
	// them, it is made without.
	Outer *lockdown.Outer
	// Log takes the Sentry's log and, should it come to that, its last words;
	// nil drops them. It stays the caller's, who may close it once the process
	// has been started or discarded.
	Log *os.File
}

// Embryo is a sandbox process that waits for its spec. It must be started or
// discarded.
type Embryo struct {
	sender *handover.Sender
	// forked is closed once child and err are set.
	forked chan struct{}
	child  *Process
	err    error
}

// Fork begins to make a sandbox process, and returns at once: what it takes to
// execute a binary and to set it up goes on beside whatever the caller does next.
func Fork(cfg *ForkConfig) *Embryo {
	e := &Embryo{forked: make(chan struct{})}
	sender, far, err := handover.Pair()
	if err != nil {
		e.err = fmt.Errorf("start sandbox: %w", err)
		close(e.forked)
		return e
	}
	e.sender = sender
	// What this process inherited itself is not close-on-exec, as a rule. The
	// sandbox closes it too: this is for kernels that can spare it the work.
	_ = unix.CloseRange(firstInheritedFD, maxFD, unix.CLOSE_RANGE_CLOEXEC)
	go func() {
		defer close(e.forked)
		defer far.Close()
		if e.child, e.err = e.begin(cfg, far); e.err != nil {
			e.err = fmt.Errorf("start sandbox: %w", e.err)
		}
	}()
	return e
}

// begin forks and sends the head start.
func (e *Embryo) begin(cfg *ForkConfig, far *os.File) (*Process, error) {
	outer := cfg.Outer
	child, err := fork(cfg, outer, far)
	if err != nil && lockdown.Refused(err) {
		outer = outer.Without()
		child, err = fork(cfg, outer, far)
	}
	if err != nil {
		return nil, fmt.Errorf("execute %s as %s: %w", selfExecutable, ProcessName, err)
	}
	h := cfg.HeadStart
	h.Lockdown = api.Lockdown{Namespaces: outer.Namespaces, Landlock: outer.Landlock, EmptyRoot: outer.EmptyRoot}
	if err := e.sender.HeadStart(&h); err != nil {
		child.Kill()
		return child, err
	}
	return child, nil
}

// process waits for the fork.
func (e *Embryo) process() (*Process, error) {
	<-e.forked
	return e.child, e.err
}

// PID waits for the fork and returns the process id.
func (e *Embryo) PID() (int, error) {
	p, err := e.process()
	if err != nil {
		return 0, err
	}
	return p.PID, nil
}

// Discard ends the process, and returns when it is gone. It does nothing to one
// that was started.
func (e *Embryo) Discard() {
	p, _ := e.process()
	if e.sender != nil {
		// Not before: begin may be sending on it, and the number could be another
		// file's by then.
		e.sender.Close()
	}
	if p != nil && p.Control == nil {
		p.Kill()
		p.Ending()
	}
}

// fork makes the child, from a thread that stays until it is reaped.
func fork(cfg *ForkConfig, outer *lockdown.Outer, socket *os.File) (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := []*os.File{null, null, null, socket}
	if cfg.Log != nil {
		files[2] = cfg.Log
	}
	return execute(ProcessName, files, outer)
}

// forking counts children that may still have copies of this process' descriptors.
var forking atomic.Int32

// Forking says whether a child of this process may still have copies of descriptors that
// were open a moment ago, as it has not become its program yet.
func Forking() bool { return forking.Load() > 0 }

// execute runs this very binary under another name, from a thread that stays until
// the process is reaped. The files become its descriptors from 0 on.
func execute(name string, files []*os.File, outer *lockdown.Outer) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	forked := make(chan error, 1)
	lockdown.OnOwnThread(func() {
		attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := outer.Apply(attr); err != nil {
			forked <- err
			return
		}
		forking.Add(1)
		child, err := os.StartProcess(selfExecutable, []string{name}, &os.ProcAttr{
			Dir:   "/",
			Env:   []string{},
			Files: files,
			Sys:   attr,
		})
		forking.Add(-1)
		if err != nil {
			forked <- err
			return
		}
		p.process, p.PID = child, child.Pid
		forked <- nil
		p.reap()
	})
	if err := <-forked; err != nil {
		return nil, err
	}
	return p, nil
}
