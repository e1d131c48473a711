// SPDX-License-Identifier: Apache-2.0

// A bundle's container in the foreground: `rungv run --bundle`.

package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/api"
)

// maxConsoleNameBytes bounds the text that comes with a terminal.
const maxConsoleNameBytes = 4096

// RunTask creates, starts, awaits and deletes a container of a bundle, whose streams
// are this process', and returns how it ended. With keep it stays, stopped. argv
// are as for [Runner.StartTaskSupervisor].
func (r *Runner) RunTask(ctx context.Context, argv []string, c TaskCreate, keep bool) (exit api.ExitStatus, err error) {
	b, err := bundle.Load(c.Bundle)
	if err != nil {
		return exit, err
	}
	caught := make(chan os.Signal, queuedSignals)
	signal.Notify(caught, proxied...)
	var console *foregroundConsole
	if b.Spec.Process.Terminal && c.ConsoleSocket == "" {
		if console, err = newForegroundConsole(); err != nil {
			return exit, err
		}
		defer console.close()
		c.ConsoleSocket = console.socket
	}
	if _, err := r.StartTaskSupervisor(ctx, argv, c); err != nil {
		return exit, err
	}
	rec, err := r.getTask(c.ID)
	if err != nil {
		return exit, err
	}
	if !keep {
		defer func() { err = errors.Join(err, r.DeleteTask(context.WithoutCancel(ctx), rec.ID, true)) }()
	}
	if console != nil {
		if err := console.attach(); err != nil {
			return exit, err
		}
	}
	if err := r.StartTask(ctx, rec.ID); err != nil {
		return exit, err
	}
	released := make(chan error, 1)
	go func() { released <- r.State.WaitReleased(ctx, rec.ID) }()
	for {
		select {
		case sig := <-caught:
			if console != nil && sig == syscall.SIGWINCH {
				console.resize()
				continue
			}
			// It may be on its way out.
			_ = r.KillTask(ctx, rec.ID, int(sig.(syscall.Signal)), false)
		case err := <-released:
			if err != nil {
				return exit, err
			}
			if console != nil {
				console.drain()
			}
			ended, err := r.getTask(rec.ID)
			if err != nil {
				return exit, err
			}
			if ended.Exit == nil {
				return exit, api.Errorf(api.KindInternal, "container %s ended without a word: %s", c.ID, ended.Error)
			}
			return *ended.Exit, nil
		}
	}
}

// foregroundConsole joins a container's terminal to the user's.
type foregroundConsole struct {
	dir, socket string
	listener    *net.UnixListener
	primary     *os.File
	user        *term.State
	copied      chan struct{}
}

// newForegroundConsole listens for the terminal, in a directory of this user's.
func newForegroundConsole() (*foregroundConsole, error) {
	dir, err := os.MkdirTemp("", "gvx-console-")
	if err != nil {
		return nil, fmt.Errorf("make a console socket: %w", err)
	}
	c := &foregroundConsole{dir: dir, socket: filepath.Join(dir, "console.sock"), copied: make(chan struct{})}
	if c.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: c.socket, Net: "unix"}); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("make a console socket: %w", err)
	}
	return c, nil
}

// attach takes the terminal, which has been sent, and begins to copy.
func (c *foregroundConsole) attach() error {
	conn, err := c.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("take the container's terminal: %w", err)
	}
	defer conn.Close()
	name, rights := make([]byte, maxConsoleNameBytes), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, rights)
	if err != nil {
		return fmt.Errorf("take the container's terminal: %w", err)
	}
	list, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(list) != 1 {
		return api.Errorf(api.KindInternal, "take the container's terminal: %d files came, %v", len(list), err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		return api.Errorf(api.KindInternal, "take the container's terminal: %d descriptors came, %v", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return os.NewSyscallError("fcntl", err)
	}
	c.primary = os.NewFile(uintptr(fds[0]), "terminal")
	c.resize()
	if err := c.makeRaw(); err != nil {
		return fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	go func() { _, _ = io.Copy(c.primary, os.Stdin) }()
	go func() {
		defer close(c.copied)
		_, _ = io.Copy(os.Stdout, c.primary) // EIO is its end.
	}()
	return nil
}

// makeRaw leaves it to the user's terminal, which becomes raw otherwise, to end lines
// with a carriage return: what does not go to one, but to a file, has none, as with runc.
func (c *foregroundConsole) makeRaw() error {
	if err := withFD(c.primary, func(fd uintptr) error { return setOutputMode(int(fd), unix.ONLCR, 0) }); err != nil {
		return err
	}
	stdin := int(os.Stdin.Fd())
	if !term.IsTerminal(stdin) {
		return nil
	}
	var err error
	if c.user, err = term.MakeRaw(stdin); err != nil {
		return err
	}
	return setOutputMode(stdin, 0, unix.OPOST)
}

// setOutputMode clears and sets bits of how a terminal treats output.
func setOutputMode(fd int, clear, set uint32) error {
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return os.NewSyscallError("TCGETS", err)
	}
	mode.Oflag = mode.Oflag&^clear | set
	return os.NewSyscallError("TCSETS", unix.IoctlSetTermios(fd, unix.TCSETS, mode))
}

// resize gives the container's terminal the size of the user's.
func (c *foregroundConsole) resize() {
	size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil || c.primary == nil {
		return
	}
	_ = withFD(c.primary, func(fd uintptr) error { return unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
}

// drain waits for the last output: nobody holds the other side any more.
func (c *foregroundConsole) drain() {
	if c.primary != nil {
		<-c.copied
	}
}

func (c *foregroundConsole) close() {
	c.listener.Close()
	os.RemoveAll(c.dir)
	if c.user != nil {
		_ = term.Restore(int(os.Stdin.Fd()), c.user)
	}
	if c.primary != nil {
		c.primary.Close()
	}
}
