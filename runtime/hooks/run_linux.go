// SPDX-License-Identifier: Apache-2.0

// How one hook runs, and how it ends.

package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// maxOutputBytes is how much of the end of a hook's output is kept for the
	// message about its failure.
	maxOutputBytes = 8 << 10
	// outputPatience is how long the output of a hook that has ended is waited
	// for: a daemon that it left behind may hold the pipe for ever.
	outputPatience = time.Second
)

// Options are what hooks need to know besides themselves.
type Options struct {
	// State is the container's. Its status, and for poststop its process id, are
	// set by kind.
	State specs.State
	// Dir is the working directory, the bundle's if empty.
	Dir string
	// Enter calls its argument, which starts a hook's process, on a thread that
	// is in the container's namespaces, for createContainer; nil means those of
	// the caller. With a Sentry that is the network namespace: the container's
	// files, processes and names are inside the sandbox, where no process of the
	// host can be. See netns.Namespace.Do.
	Enter func(start func() error) error
	// Leave is the same for all others, and the runtime's namespaces: for a caller
	// that is in a container's itself. Nil means those of the caller.
	Leave func(start func() error) error
	// Warn is told of poststop hooks that fail; nil drops that.
	Warn func(format string, args ...any)
}

// ErrTimeout says that a hook ran longer than it may.
var ErrTimeout = errors.New("ran past its time limit")

// Run runs the hooks of one kind in their order. It returns at the first that
// fails, and with it the container's life should end; except for poststop, whose
// failures are warnings, and whose rest still runs. A ctx that ends ends the hook
// under way with all its children.
//
// It may be called for many containers at once.
func Run(ctx context.Context, k Kind, list []specs.Hook, o Options) error {
	state := o.State
	state.Status = k.status()
	if k == Poststop {
		state.Pid = 0
	}
	text, err := json.Marshal(state)
	if err != nil {
		return api.Errorf(api.KindInternal, "%s hooks: write the state: %w", k, err)
	}
	for i := range list {
		err := run(ctx, k, &list[i], text, &o)
		if err == nil {
			continue
		}
		err = fmt.Errorf("error running %s hook #%d: %s: %w", k, i, list[i].Path, err)
		if k != Poststop {
			return err
		}
		if o.Warn != nil {
			o.Warn("%v", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// run runs one hook to its end.
func run(ctx context.Context, k Kind, h *specs.Hook, state []byte, o *Options) error {
	if err := validate(h); err != nil {
		return err
	}
	if h.Timeout != nil {
		var cancel context.CancelFunc
		limit := time.Duration(*h.Timeout) * time.Second
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w of %v", ErrTimeout, limit))
		defer cancel()
	}
	cmd := &exec.Cmd{Path: h.Path, Args: h.Args, Env: h.Env, Dir: o.Dir}
	if len(cmd.Args) == 0 {
		cmd.Args = []string{h.Path}
	}
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would be our own.
	}
	if cmd.Dir == "" {
		cmd.Dir = o.State.Bundle
	}
	// A session of its own makes it possible to find all that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	streams, err := attach(cmd)
	if err != nil {
		return err
	}
	defer streams.close()
	by := o.Leave
	if k == CreateContainer {
		by = o.Enter
	}
	if by == nil || k == StartContainer {
		by = func(start func() error) error { return start() }
	}
	if err := by(cmd.Start); err != nil {
		return api.Errorf(api.KindInvalid, "%w", err)
	}
	streams.started(state)
	err = wait(ctx, cmd)
	if err == nil {
		return nil
	}
	stdout, stderr := streams.said()
	return fmt.Errorf("%w, stdout: %s, stderr: %s", err, stdout, stderr)
}

// wait waits for a hook's end, or ends it.
func wait(ctx context.Context, cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			// It is left unreaped, so that its number stays its own while
			// descendants are looked for.
			err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-over:
		return cmd.Wait()
	case <-ctx.Done():
	}
	killTree(pid)
	<-over
	if err := cmd.Wait(); err == nil {
		return nil // It had just ended by itself, and well.
	}
	return context.Cause(ctx)
}

// tail keeps the end of what is written to it.
type tail struct{ bytes []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if extra := len(t.bytes) - maxOutputBytes; extra > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[extra:]...)
	}
	return len(p), nil
}

// streams are a hook's standard streams: pipes, since that is what hooks get from
// other runtimes.
type streams struct {
	// near are our ends, far those of the hook, in the order 0, 1, 2.
	near, far [3]*os.File
	// heard delivers each output once its pipe is closed.
	heard [2]chan []byte
}

// attach makes a command's streams.
func attach(cmd *exec.Cmd) (*streams, error) {
	s := &streams{}
	for i := range s.near {
		r, w, err := os.Pipe()
		if err != nil {
			s.close()
			return nil, api.Errorf(api.KindInternal, "make its streams: %w", err)
		}
		if s.near[i], s.far[i] = r, w; i == 0 {
			s.near[i], s.far[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.far[0], s.far[1], s.far[2]
	return s, nil
}

// started writes the state and collects output. The reader of each pipe goes on
// for as long as anybody holds the other end: a daemon that a hook leaves behind
// must neither block nor die of what it says.
func (s *streams) started(state []byte) {
	for _, f := range s.far {
		f.Close()
	}
	go func(in *os.File) {
		// A hook need not read it: a closed pipe is no error.
		_, _ = in.Write(state)
		in.Close()
	}(s.near[0])
	for i := range s.heard {
		s.heard[i] = make(chan []byte, 1)
		go func(out *os.File, heard chan<- []byte) {
			defer out.Close()
			var t tail
			buf := make([]byte, 4<<10)
			for {
				n, err := out.Read(buf)
				_, _ = t.Write(buf[:n])
				if err != nil {
					heard <- t.bytes
					return
				}
			}
		}(s.near[1+i], s.heard[i])
	}
	s.near = [3]*os.File{}
}

// said returns what the hook wrote, as far as it has come.
func (s *streams) said() (stdout, stderr string) {
	patience := time.NewTimer(outputPatience)
	defer patience.Stop()
	var out [2]string
	for i, heard := range s.heard {
		select {
		case b := <-heard:
			out[i] = strings.ToValidUTF8(string(bytes.TrimSpace(b)), "?")
		case <-patience.C:
			patience.Reset(0)
			out[i] = "(held open by a process that it left behind)"
		}
	}
	return out[0], out[1]
}

// close closes what has not been handed to anybody.
func (s *streams) close() {
	for i := range s.near {
		if s.near[i] != nil {
			s.near[i].Close()
		}
		if s.far[i] != nil {
			s.far[i].Close() // A second close is an error that nobody minds.
		}
	}
}

// RunArgument runs the hooks of an [Argument] inside the guest, in the process
// that will become the user's program. Nothing limits ctx but each hook's own
// time limit.
func RunArgument(s string) error {
	var a argument
	text, ok := strings.CutPrefix(s, argumentPrefix)
	if !ok {
		return api.Errorf(api.KindInvalid, "startContainer hooks: none given")
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return api.Errorf(api.KindInvalid, "startContainer hooks: %w", err)
	}
	a.State.Pid = os.Getpid() // As the container sees it.
	for i := range a.Hooks {
		if a.Hooks[i].Env == nil {
			a.Hooks[i].Env = os.Environ() // That of the container's process, as with runc.
		}
	}
	return Run(context.Background(), StartContainer, a.Hooks, Options{State: a.State, Dir: "/"})
}
