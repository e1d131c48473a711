// SPDX-License-Identifier: Apache-2.0

// The life of a sandbox.

package gvx

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
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
	opClose = "close sandbox"
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
	// socket is the host's for the engine inside, or "".
	socket string
	id     string
	verb   *verb
	// control is the path of the control socket.
	control string

	// mu guards state, and endedBy: why we ended the guest, if we did.
	mu      sync.Mutex
	state   state
	endedBy *Error
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
		sb.socket = newSocketPath()
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
	if sb.verb, err = sb.runtime.start(opNew, s, env, sb.warn, c.runArgs(sb.socket)...); err != nil {
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
		sb.sweep()
	}
}

// sweep removes what rungv removes itself, unless it was killed.
//
// Preconditions: the process has ended.
func (sb *Sandbox) sweep() {
	if !sb.verb.killed() && !sb.verb.shot.Load() {
		return
	}
	if sb.socket != "" {
		_ = os.Remove(sb.socket)
	}
	if sb.id != "" {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		_ = sb.runtime.run(ctx, opClose, streams{}, "rm", "--force", sb.id)
	}
}

// newSocketPath is a name that nobody has or guesses, in the directory for
// temporary files: the socket needs no directory of its own, which would be left
// when this program is killed.
func newSocketPath() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // It does not fail.
	name := "gvx-" + hex.EncodeToString(b[:]) + ".sock"
	path := filepath.Join(os.TempDir(), name)
	if abs, err := filepath.Abs(path); err == nil && len(abs) <= maxSocketPathBytes {
		return abs
	}
	return "/tmp/" + name // Clients could not name the other.
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
		err = sb.because(err)
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
	<-sb.verb.ended // All output is delivered.
	exit, err := sb.verb.outcome(opRun)
	sb.finish(exit, sb.because(err))
}

// because is why the guest ended with err: because we ended it, if we did.
func (sb *Sandbox) because(err error) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err != nil && sb.endedBy != nil {
		return sb.endedBy
	}
	return err
}

// endFor records why we are about to end the guest; the first reason counts.
func (sb *Sandbox) endFor(reason *Error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.endedBy == nil {
		sb.endedBy = reason
	}
}

// finish records the end, once.
func (sb *Sandbox) finish(exit ExitStatus, err error) {
	sb.exit, sb.exitErr = exit, err
	close(sb.exited)
}

// Wait waits until the guest has ended and its output is delivered, and
// returns how. A guest that failed after the memory limit had killed any of its
// processes gives [ErrOOM] besides, one whose output a writer did not take
// [ErrOutput]. A sandbox that was closed meanwhile is [ErrState], one that somebody
// else killed [ErrKilled]. When ctx is done Wait stops waiting; the guest goes on.
func (sb *Sandbox) Wait(ctx context.Context) (ExitStatus, error) {
	sb.mu.Lock()
	s := sb.state
	sb.mu.Unlock()
	if s == prepared {
		return ExitStatus{}, errorf(KindState, opWait, "it was not started")
	}
	select {
	case <-sb.exited:
	default:
		select {
		case <-sb.exited:
		case <-ctx.Done():
			return ExitStatus{}, contextError(opWait, ctx)
		}
	}
	if sb.exitErr != nil {
		return sb.exit, sb.exitErr
	}
	return sb.exit, outOfMemory(opWait, sb.exit)
}

// outOfMemory is an error if the memory limit ended what has ended so. One that
// coped with the end of a process of its own has not failed.
func outOfMemory(op string, exit ExitStatus) error {
	if !exit.OOMKilled || exit.Code == 0 {
		return nil
	}
	return &Error{Kind: KindOOM, Op: op, Exit: &exit,
		Err: fmt.Errorf("exit status %d: the memory limit killed a process: raise Resources.MemoryBytes", exit.Code)}
}

// Run starts the guest, waits for its end and returns its exit code, as
// [Sandbox.Wait] does. When ctx is done it kills the guest and returns [ErrTimeout]
// or [ErrCanceled].
func (sb *Sandbox) Run(ctx context.Context) (exitCode int, err error) {
	if err := sb.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case <-sb.exited:
	case <-ctx.Done():
		sb.endFor(contextError(opRun, ctx))
		sb.verb.stop()
	}
	exit, err := sb.Wait(context.Background())
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
	sb.endFor(errorf(KindState, opWait, "the sandbox was closed"))
	sb.closing.Do(func() { sb.end(before) })
	return nil
}

// end is Close in the given state, once: who closes meanwhile waits for it.
func (sb *Sandbox) end(before state) {
	sb.verb.stop()
	if before == prepared {
		sb.finish(ExitStatus{}, errorf(KindState, opWait, "it was closed before it was started"))
	}
	<-sb.exited
	sb.sweep()
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
