// SPDX-License-Identifier: Apache-2.0

// The process that stands for a container of a bundle towards the host: what
// `rungv create` starts, whose number the pid file has, and whose end is the
// container's, exit code included.

package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/netns"
)

// absolute makes paths absolute: the process that opens them has another working
// directory.
func (c *TaskCreate) absolute() error {
	return makeAbsolute(&c.Bundle, &c.PIDFile, &c.ConsoleSocket, &c.PIDFDSocket)
}

func makeAbsolute(paths ...*string) error {
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// StartTaskSupervisor creates a container of a bundle, with a process of its own
// that answers for it, and returns that one's number once the container is
// created. argv are the arguments with which this program becomes it, as for
// [Detach]; its standard streams are this process'.
func (r *Runner) StartTaskSupervisor(ctx context.Context, argv []string, c TaskCreate) (pid int, err error) {
	if err := c.absolute(); err != nil {
		return 0, err
	}
	b, err := bundle.Load(c.Bundle)
	if err != nil {
		return 0, err
	}
	// Found here rather than there: nothing has been made yet.
	if rec, err := r.State.Get(c.ID); err == nil && rec.Name == c.ID {
		return 0, api.Errorf(api.KindExists, "container with given ID already exists: %s", c.ID)
	}
	extra, err := preservedFDs(c.PreserveFDs)
	if err != nil {
		return 0, err
	}
	var conn net.Conn
	err = inNetwork(b.Spec, func() (err error) {
		pid, conn, err = startSupervisor(argv, &order{Create: &c}, true, extra...)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, _, err = hearSupervisor(conn, api.EventCreated)
	return pid, err
}

// inNetwork calls f, which forks, on a thread that is in the network namespace of
// the container: processes find that by the number of the one that stands for it.
func inNetwork(spec *specs.Spec, f func() error) error {
	var ns *specs.LinuxNamespace
	if spec.Linux != nil {
		for i := range spec.Linux.Namespaces {
			if spec.Linux.Namespaces[i].Type == specs.NetworkNamespace {
				ns = &spec.Linux.Namespaces[i]
			}
		}
	}
	if ns == nil {
		return f()
	}
	var n *netns.Namespace
	var err error
	if ns.Path != "" {
		n, err = netns.Open(ns.Path)
	} else if n, err = netns.New(); api.KindOf(err) == api.KindPermission {
		return f() // One that may not be made is done without.
	}
	if err != nil {
		return err
	}
	defer n.Close()
	return n.Do(f)
}

// callersNetwork is the network namespace of the process that started this one,
// nil if it is this one's too.
func callersNetwork() *netns.Namespace {
	n, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		return nil // It has gone: nobody else's would be the right one.
	}
	theirs, err1 := n.File().Stat()
	ours, err2 := os.Stat("/proc/self/ns/net")
	if err1 != nil || err2 != nil || os.SameFile(theirs, ours) {
		n.Close()
		return nil
	}
	return n
}

// superviseTask is the life of the process: it creates the container, reports
// that, starts it when it is told, and ends with it.
func (r *Runner) superviseTask(ctx context.Context, gone <-chan struct{}, c *TaskCreate, created func(id, control string)) (api.ExitStatus, error) {
	var exit api.ExitStatus
	caught := make(chan os.Signal, queuedSignals)
	signal.Notify(caught, proxied...)
	signal.Ignore(syscall.SIGPIPE)
	b, err := bundle.Load(c.Bundle)
	if err != nil {
		return exit, err
	}
	o := TaskOptions{
		ID: c.ID, Bundle: b, Systemd: c.Systemd, HostNetwork: c.HostNetwork, Self: true, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Note: r.debugf,
	}
	if o.Extra, err = inheritedFDs(supervisorExtraFD, c.PreserveFDs); err != nil {
		return exit, err
	}
	if o.Outside = callersNetwork(); o.Outside != nil {
		defer o.Outside.Close()
	}
	if b.Spec.Process.Terminal {
		replica, err := openConsole(c.ConsoleSocket)
		if err != nil {
			return exit, err
		}
		defer replica.Close()
		o.Stdin, o.Stdout, o.Stderr = replica, replica, replica
	}
	creating, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		select {
		case <-gone: // Whoever wanted it does not want it any more.
			cancel()
		case <-done:
		}
	}()
	t, err := r.CreateTask(creating, o)
	close(done)
	if err != nil {
		return exit, err
	}
	l, err := listenIn(t.handle.Dir(), taskSocket)
	if err == nil {
		err = t.showRoot()
	}
	if err == nil {
		err = sendPIDFD(c.PIDFDSocket)
	}
	if err == nil {
		err = writePIDFile(c.PIDFile, os.Getpid())
	}
	if err != nil {
		t.undo()
		return exit, err
	}
	created(t.handle.ID(), "")
	if t.streams.relay == nil {
		standAlone()
	}
	go t.serve(l)
	go t.proxy(caught)
	exit, err = t.Wait(ctx)
	t.answered.Wait() // Who ended it hears of that.
	return exit, errors.Join(err, t.handle.Close())
}

// serve answers orders until the process ends.
func (t *Task) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			t.note("wait for orders: %v", err)
			return
		}
		t.answered.Add(1)
		go func() {
			defer t.answered.Done()
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(taskPatience))
			t.answer(conn)
		}()
	}
}

// answer does what one order says.
func (t *Task) answer(conn net.Conn) {
	var what taskOrder
	err := json.NewDecoder(io.LimitReader(conn, maxTaskMessageBytes)).Decode(&what)
	ctx, cancel := context.WithTimeout(context.Background(), taskPatience)
	defer cancel()
	switch {
	case err != nil:
		err = api.Errorf(api.KindInvalid, "an order that cannot be read: %w", err)
	case what.Do == "start":
		err = t.Start(ctx)
	case what.Do == "signal":
		target := control.TargetInit
		if what.All {
			target = control.TargetAll
		}
		err = t.Signal(ctx, what.Signal, target)
	default:
		err = api.Errorf(api.KindInvalid, "an unknown order %q", what.Do)
	}
	var answer taskAnswer
	if err != nil {
		answer = taskAnswer{Kind: api.KindOf(err), Message: err.Error()}
		answer.Message = answer.Message[:min(len(answer.Message), maxTaskMessageBytes/8)]
	}
	_ = json.NewEncoder(conn).Encode(answer)
}

// proxy hands on what this process is sent: it stands for the container. What a
// terminal sends goes to the terminal's foreground.
func (t *Task) proxy(caught <-chan os.Signal) {
	for sig := range caught {
		n := int(sig.(syscall.Signal))
		target := signalTarget(sig, t.spec.Process.Terminal)
		if sig == syscall.SIGWINCH && !t.running() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
		if err := t.Signal(ctx, n, target); err != nil && api.KindOf(err) != api.KindState {
			t.note("signal %d: %v", n, err)
		}
		cancel()
	}
}

func (t *Task) running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

// writePIDFile writes a process' number, whole or not at all.
func writePIDFile(path string, pid int) error {
	if path == "" {
		return nil
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_SYNC, 0o666)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(pid))
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = os.Rename(temp, path)
		}
		if err != nil {
			os.Remove(temp)
		}
	}
	if err != nil {
		return api.Errorf(api.KindInvalid, "write the pid file: %w", err)
	}
	return nil
}

// openConsole makes a terminal, gives its primary side to whoever listens on the
// socket, and takes the replica as this process' own, which then hears of its
// size and its keys.
func openConsole(socket string) (*os.File, error) {
	if socket == "" {
		return nil, api.Errorf(api.KindInvalid, "cannot allocate tty if runc will detach without setting console socket")
	}
	primary, replica, err := launch.OpenTerminal()
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	defer primary.Close()
	if err := sendConsole(socket, primary); err != nil {
		replica.Close()
		return nil, err
	}
	if err := unix.IoctlSetInt(int(replica.Fd()), unix.TIOCSCTTY, 0); err != nil {
		replica.Close()
		return nil, fmt.Errorf("make the terminal this process' own: %w", err)
	}
	return replica, nil
}

// sendConsole sends a terminal's primary side.
func sendConsole(socket string, primary *os.File) error {
	if err := sendOne(socket, primary); err != nil {
		return fmt.Errorf("send the terminal to the console socket: %w", err)
	}
	return nil
}

// sendPIDFD sends a descriptor of this process, where somebody wants one.
func sendPIDFD(socket string) error {
	if socket == "" {
		return nil
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("make a descriptor of this process: %w", os.NewSyscallError("pidfd_open", err))
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if err := sendOne(socket, f); err != nil {
		return fmt.Errorf("send a descriptor of the container's process to the pidfd socket: %w", err)
	}
	return nil
}

// sendOne sends a file to who listens on a socket, as runc does: in one message
// whose text is the file's name.
func sendOne(socket string, f *os.File) error {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return api.Errorf(api.KindInvalid, "%w", err)
	}
	defer conn.Close()
	return withFD(f, func(fd uintptr) error {
		_, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte(f.Name()), unix.UnixRights(int(fd)), nil)
		return err
	})
}
