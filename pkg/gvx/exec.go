// SPDX-License-Identifier: Apache-2.0

// Commands in a running sandbox.

package gvx

import (
	"context"
	"fmt"
	"io"
	"path"
	"sync"
	"syscall"

	"z.gfire.dev/gvx/runtime/api"
)

const opExec = "execute in sandbox"

// Command is a command to be run in a sandbox besides its first process.
type Command struct {
	// Args is the command line; its first word is looked up in the guest's PATH.
	Args []string
	// Env adds to the container's environment, NAME=value each.
	Env []string
	// Dir is the working directory, the container's if empty.
	Dir string
	// User is name|uid[:group|gid], the container's if empty.
	User string
	// TTY gives the command a terminal; all it writes comes through Stdout.
	TTY bool
	// Stdin, Stdout and Stderr are as in [Config].
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// check finds what rungv would misunderstand.
func (c *Command) check() error {
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return errorf(KindInvalid, opExec, "Command.Args is empty: name a command")
	case c.Dir != "" && !path.IsAbs(c.Dir):
		return errorf(KindInvalid, opExec, "Command.Dir %q is not absolute", c.Dir)
	}
	if err := checkEnv(c.Env); err != nil {
		return &Error{Kind: KindInvalid, Op: opExec, Err: fmt.Errorf("Command.Env: %w", err)}
	}
	return nil
}

// Process is a command that was started in a sandbox. Its methods may be called
// by several goroutines.
type Process struct {
	verb *verb
	tty  *terminal

	// mu guards what follows: why we ended the command, if we did.
	mu    sync.Mutex
	cause *Error
	hit   bool

	// once sets exit and err: how it ended.
	once sync.Once
	exit ExitStatus
	err  error
}

// StartExec starts a command in the sandbox. It returns when the command runs, or
// with [ErrStart] if it is missing or cannot be run. The command is killed when ctx
// is done, and when the sandbox ends. Call [Process.Wait] to know its end.
func (sb *Sandbox) StartExec(ctx context.Context, c Command) (*Process, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := sb.alive(opExec); err != nil {
		return nil, err
	}
	s := streams{in: c.Stdin, out: c.Stdout, err: c.Stderr}
	p := &Process{}
	if c.TTY {
		var err error
		if p.tty, err = openTerminal(opExec, &s); err != nil {
			return nil, err
		}
		s.tty = p.tty
	}
	a := &arguments{list: []string{"exec", "--detach-keys=", "--env-zero-file", newEnvFile}}
	a.value("--workdir", c.Dir)
	a.value("--user", c.User)
	a.set("--tty", c.TTY)
	a.set("--interactive", c.Stdin != nil)
	env := c.Env
	if env == nil {
		env = []string{}
	}
	v, err := sb.runtime.start(opExec, s, env, sb.warn, append(append(a.list, sb.id), c.Args...)...)
	if err != nil {
		return nil, err
	}
	p.verb = v
	if _, err := v.await(ctx, opExec, api.EventStarted); err != nil {
		v.stop()
		return nil, err
	}
	forget := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.cause = contextError(opExec, ctx)
		p.mu.Unlock()
		v.stop()
	})
	go func() {
		<-v.ended
		forget() // ctx may outlive many commands.
	}()
	return p, nil
}

// Wait waits until the command has ended and its output is delivered, and
// returns how. A command that the memory limit ended gives [ErrOOM] besides, one
// whose output a writer did not take [ErrOutput], and one whose sandbox has ended
// under it [ErrState]. When ctx is done Wait stops waiting; the command goes on.
func (p *Process) Wait(ctx context.Context) (ExitStatus, error) {
	select {
	case <-p.verb.ended:
	default:
		select {
		case <-p.verb.ended:
		case <-ctx.Done():
			return ExitStatus{}, contextError(opExec, ctx)
		}
	}
	p.once.Do(func() {
		p.exit, p.err = p.verb.outcome(opExec)
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.err != nil && p.cause != nil:
			p.err = p.cause
		case p.err != nil && p.hit:
			p.exit, p.err = ExitStatus{Code: signalBase + int(syscall.SIGKILL), Signal: syscall.SIGKILL}, nil
		case p.err == nil:
			p.err = outOfMemory(opExec, p.exit)
		}
	})
	return p.exit, p.err
}

// signalBase is added to a signal's number to make an exit code of it.
const signalBase = 128

// linuxStop is SIGSTOP, which not every system that this builds on has.
const linuxStop = syscall.Signal(19)

// Resize sets the size of the command's terminal.
func (p *Process) Resize(rows, columns uint16) error {
	if p.tty == nil {
		return errorf(KindState, "resize terminal", "the command has none: set Command.TTY")
	}
	if err := p.tty.resize(rows, columns); err != nil {
		return errorf(KindState, "resize terminal", "%w", err)
	}
	return nil
}

// Signal sends a signal to the command.
func (p *Process) Signal(sig syscall.Signal) error {
	// rungv passes on what it gets, but for what nobody can catch.
	if sig == syscall.SIGKILL || sig == linuxStop {
		return errorf(KindInvalid, "signal command", "%v cannot be passed on: use Kill", sig)
	}
	if err := p.verb.cmd.Process.Signal(sig); err != nil {
		return errorf(KindState, "signal command", "%w", err)
	}
	return nil
}

// Kill ends the command, as by SIGKILL, and returns when it is gone.
func (p *Process) Kill() {
	p.mu.Lock()
	p.hit = true
	p.mu.Unlock()
	p.verb.stop()
}

// Exec runs a command in the sandbox and returns how it ended. When ctx is done
// the command is killed, with [ErrTimeout] or [ErrCanceled].
func (sb *Sandbox) Exec(ctx context.Context, c Command) (ExitStatus, error) {
	p, err := sb.StartExec(ctx, c)
	if err != nil {
		return ExitStatus{}, err
	}
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil && (err != nil || exit.Code != 0) {
		p.Kill()
		return exit, contextError(opExec, ctx)
	}
	return exit, err
}

// MaxOutputBytes bounds what Output returns: it is all in memory.
const MaxOutputBytes = 1 << 30

// Output runs a command in the sandbox and returns what it writes to its
// standard output, of MaxOutputBytes at most: one that writes more is killed,
// with [ErrLimit]. A status other than zero is [ErrExit], which quotes the
// beginning of its standard error.
func (sb *Sandbox) Output(ctx context.Context, args ...string) ([]byte, error) {
	return sb.boundedOutput(ctx, MaxOutputBytes, args)
}

func (sb *Sandbox) boundedOutput(ctx context.Context, max int, args []string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := boundedBuffer{max: max, full: cancel}
	var said limitedBuffer
	exit, err := sb.Exec(ctx, Command{Args: args, Stdout: &out, Stderr: &said})
	switch {
	case out.over:
		return nil, errorf(KindLimit, opExec, "%s writes more than %d bytes: use Exec", args[0], max)
	case err == nil && exit.Code != 0:
		err = &Error{Kind: KindExit, Op: opExec, Exit: &exit,
			Err: fmt.Errorf("%s: exit status %d: %s", args[0], exit.Code, said.String())}
	}
	return out.b.Bytes(), err
}
