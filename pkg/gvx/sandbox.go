// SPDX-License-Identifier: Apache-2.0

// The life of a sandbox.

package gvx

import (
	"context"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// Operations, as errors name them.
const (
	opNew   = "create sandbox"
	opStart = "start sandbox"
	opRun   = "run sandbox"
	opWait  = "wait for sandbox"
)

// ExitStatus is how a guest or a command in it ended.
type ExitStatus struct {
	// Code is 0 to 255; 128+n for signal n.
	Code int
	// Signal is the signal that ended it, 0 if it exited by itself.
	Signal syscall.Signal
	// OOMKilled says that the memory limit was the cause.
	OOMKilled bool
	// At is when it ended.
	At time.Time
}

// state is where a sandbox is in its life.
type state int

const (
	prepared state = iota
	starting
	running
	closed
)

// Sandbox is one sandbox. Its methods may be called by several goroutines.
type Sandbox struct {
	runtime *runtime
	config  Config
	// dir is a directory of the host for what belongs to this sandbox, or "".
	dir  string
	id   string
	verb *verb
	// control is the path of the control socket.
	control string

	// mu guards state.
	mu    sync.Mutex
	state state
	// exited is closed when the guest has ended; then exit or exitErr is set.
	exited  chan struct{}
	exit    ExitStatus
	exitErr error
	tty     *terminal
	// warning is held while Config.Warn is called, closing by Close.
	warning sync.Mutex
	closing sync.Once
}

// New prepares a sandbox; see the package's description. ctx bounds the
// preparation: the sandbox stays when it is done later.
func New(ctx context.Context, config Config) (*Sandbox, error) {
	if goruntime.GOOS != "linux" {
		return nil, errorf(KindUnsupported, opNew, "sandboxes are not supported on %s: use Linux", goruntime.GOOS)
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(opNew, ctx)
	}
	r, err := findRuntime(config.RuntimePath, config.Root)
	if err != nil {
		return nil, err
	}
	sb := &Sandbox{runtime: r, config: config, exited: make(chan struct{})}
	if err := sb.prepare(ctx); err != nil {
		sb.abandon()
		return nil, err
	}
	return sb, nil
}

// prepare starts rungv and waits until all but the guest is there.
func (sb *Sandbox) prepare(ctx context.Context) error {
	c := &sb.config
	if c.Docker {
		dir, err := os.MkdirTemp("", "gvx-")
		if err != nil {
			return errorf(KindPermission, opNew, "make a directory for the engine's socket: %w", err)
		}
		sb.dir = dir
	}
	s := streams{in: c.Stdin, out: c.Stdout, err: c.Stderr}
	if c.TTY {
		var err error
		if sb.tty, err = openTerminal(opNew, &s); err != nil {
			return err
		}
		s.tty = sb.tty
	}
	env := c.Envv
	if env == nil {
		env = []string{}
	}
	var err error
	if sb.verb, err = sb.runtime.start(opNew, s, env, sb.warn, c.runArgs(sb.dir)...); err != nil {
		return err
	}
	created, err := sb.verb.await(ctx, opNew, api.EventCreated)
	if err != nil {
		return err
	}
	sb.id, sb.control = created.Container, created.Control
	_, err = sb.verb.await(ctx, opNew, api.EventReady)
	return err
}

// abandon gives back what a failed preparation has made.
func (sb *Sandbox) abandon() {
	if sb.verb != nil {
		sb.verb.stop()
	}
	if sb.dir != "" {
		_ = os.RemoveAll(sb.dir)
	}
}

// warn hands a warning of any of the sandbox's verbs to the caller.
func (sb *Sandbox) warn(message string) {
	if sb.config.Warn == nil {
		return
	}
	sb.warning.Lock()
	defer sb.warning.Unlock()
	sb.config.Warn(message)
}

// ID is the container's identifier, as rungv shows it.
func (sb *Sandbox) ID() string { return sb.id }

// Start lets the guest run. It returns when its first process runs, or with
// [ErrStart] if its command is missing or cannot be run. A sandbox starts once.
func (sb *Sandbox) Start(ctx context.Context) error {
	sb.mu.Lock()
	if sb.state != prepared {
		sb.mu.Unlock()
		return errorf(KindState, opStart, "it was started or closed before: make a new one")
	}
	sb.state = starting
	sb.mu.Unlock()

	if err := sb.verb.say(api.CallerStart); err != nil {
		// It has ended; why is read below.
		_ = err
	}
	if _, err := sb.verb.await(ctx, opStart, api.EventStarted); err != nil {
		sb.verb.stop()
		sb.finish(ExitStatus{}, err)
		return err
	}
	sb.mu.Lock()
	if sb.state == starting {
		sb.state = running
	}
	sb.mu.Unlock()
	go sb.follow()
	return nil
}

// follow waits for the guest's end.
func (sb *Sandbox) follow() {
	e, err := sb.verb.await(context.Background(), opRun, api.EventEnded)
	<-sb.verb.ended // All output is delivered.
	if err != nil {
		sb.finish(ExitStatus{}, err)
		return
	}
	if e.Exit == nil {
		sb.finish(ExitStatus{}, errorf(KindInternal, opWait, "rungv reported no exit status"))
		return
	}
	sb.finish(ExitStatus{Code: e.Exit.Code, Signal: syscall.Signal(e.Exit.Signal), OOMKilled: e.Exit.OOMKilled, At: e.Exit.At}, nil)
}

// finish records the end, once.
func (sb *Sandbox) finish(exit ExitStatus, err error) {
	sb.exit, sb.exitErr = exit, err
	close(sb.exited)
}

// Wait waits until the guest has ended and its output is delivered, and
// returns how. A guest that the memory limit ended gives [ErrOOM] besides. When
// ctx is done Wait stops waiting; the guest goes on.
func (sb *Sandbox) Wait(ctx context.Context) (ExitStatus, error) {
	sb.mu.Lock()
	s := sb.state
	sb.mu.Unlock()
	if s == prepared {
		return ExitStatus{}, errorf(KindState, opWait, "it was not started")
	}
	select {
	case <-sb.exited:
	case <-ctx.Done():
		return ExitStatus{}, contextError(opWait, ctx)
	}
	switch {
	case sb.exitErr != nil:
		return ExitStatus{}, sb.exitErr
	case sb.exit.OOMKilled:
		exit := sb.exit
		return exit, &Error{Kind: KindOOM, Op: opWait, Exit: &exit,
			Err: fmt.Errorf("the guest needed more than its %d bytes of memory: raise Resources.MemoryBytes", sb.config.Resources.MemoryBytes)}
	}
	return sb.exit, nil
}

// Run starts the guest, waits for its end and returns its exit code. When ctx
// is done it kills the guest and returns [ErrTimeout] or [ErrCanceled].
func (sb *Sandbox) Run(ctx context.Context) (exitCode int, err error) {
	if err := sb.Start(ctx); err != nil {
		return 0, err
	}
	exit, err := sb.Wait(ctx)
	if errors.Is(err, ErrTimeout) || errors.Is(err, ErrCanceled) {
		sb.verb.stop()
		<-sb.exited
		return 0, &Error{Kind: err.(*Error).Kind, Op: opRun, Err: err.(*Error).Err}
	}
	return exit.Code, err
}

// Close ends the sandbox at once, whatever it is doing, and removes what it
// has made on the host but for volumes and kept clones. It returns when the last
// of its processes is gone. Closing twice is allowed.
//
// A guest that still runs ends as by a power cut: what it wrote to a volume and
// did not sync may be lost, though the volume is whole. Where it is to be kept,
// call [Sandbox.Stop] first.
func (sb *Sandbox) Close() error {
	sb.mu.Lock()
	before := sb.state
	sb.state = closed
	sb.mu.Unlock()
	var err error
	sb.closing.Do(func() { err = sb.end(before) })
	return err
}

// end is Close in the given state, once: who closes meanwhile waits for it.
func (sb *Sandbox) end(before state) error {
	sb.verb.stop()
	if before == prepared {
		sb.finish(ExitStatus{}, errorf(KindState, opWait, "it was closed before it was started"))
	}
	<-sb.exited
	if sb.dir != "" {
		if err := os.RemoveAll(sb.dir); err != nil {
			return errorf(KindPermission, "close sandbox", "%w", err)
		}
	}
	return nil
}

// alive returns an error unless the guest runs.
func (sb *Sandbox) alive(op string) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	switch sb.state {
	case prepared, starting:
		return errorf(KindState, op, "the sandbox was not started")
	case closed:
		return errorf(KindState, op, "the sandbox was closed")
	}
	select {
	case <-sb.exited:
		return errorf(KindState, op, "the guest has ended")
	default:
		return nil
	}
}
