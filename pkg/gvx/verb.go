// SPDX-License-Identifier: Apache-2.0

// One rungv process under our eyes: its events, its end.

package gvx

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// envRuntime names the binary where the configuration does not.
	envRuntime = "GVX_RUNGV"
	// callerFD is the socket's number in the child, and envFD the pipe's: the
	// first and second of the extra files.
	callerFD = "3"
	// closeGrace is how long rungv has to end its sandbox once it was left: a
	// few milliseconds, but a host in distress must not leave a file behind.
	closeGrace = 15 * time.Second
	// outputGrace is how long output may be on its way after rungv's end, and
	// inputGrace how long the reader of input may take to notice it.
	outputGrace = 10 * time.Second
	inputGrace  = time.Second
	// opSockets is what fails before a verb is known.
	opSockets = "execute rungv"
	// stderrBytes bounds what is kept of the standard error of a verb that has
	// no guest.
	stderrBytes = 16 << 10
	// maxAnswerBytes bounds what a verb without a guest prints.
	maxAnswerBytes = 64 << 20
)

// runtime is a rungv binary and the directory it is to use.
type runtime struct {
	path, root string
}

// findRuntime looks where the configuration, the environment and PATH say.
func findRuntime(path, root string) (*runtime, error) {
	if path == "" {
		path = os.Getenv(envRuntime)
	}
	if path == "" {
		path = "rungv"
	}
	found, err := exec.LookPath(path)
	if err != nil {
		return nil, errorf(KindRuntime, "find rungv", "%w: install it with 'go install z.gfire.dev/gvx/cmd/rungv@latest', or set Config.RuntimePath or $%s", err, envRuntime)
	}
	return &runtime{path: found, root: root}, nil
}

// streams are the standard streams of a verb. A nil one is nothing.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// tty, if not nil, is behind them.
	tty *terminal
}

// verb is a rungv process.
type verb struct {
	op   string
	cmd  *exec.Cmd
	conn net.Conn
	warn func(string)

	// events are all but warnings and the hello, in order; it is closed behind
	// the last. The process sends few enough never to wait.
	events chan api.Event
	// ended is closed when the process is gone and its output delivered; then
	// waitErr is set.
	ended chan struct{}
	// waitErr is what [exec.Cmd.Wait] returned: also that output was lost.
	waitErr error
	// fed is closed when the caller's input is not read any more.
	fed chan struct{}

	// failed is what the process said went wrong, and greeted whether it has
	// introduced itself; both are set before events is closed.
	failed  *api.Event
	greeted bool
	badPeer error

	stopOnce sync.Once
}

// maxEvents is more than any verb sends: created, ready, started, ended.
const maxEvents = 16

// start executes rungv with the arguments. env, if not nil, is what it finds at
// newEnvFile.
func (r *runtime) start(op string, s streams, env []string, warn func(string), args ...string) (*verb, error) {
	for _, a := range args {
		if strings.IndexByte(a, 0) >= 0 {
			s.tty.abort()
			return nil, errorf(KindInvalid, op, "%q holds a zero byte", a)
		}
	}
	near, far, err := socketPair()
	if err != nil {
		s.tty.abort()
		return nil, err
	}
	v := &verb{op: op, conn: near, warn: warn, events: make(chan api.Event, maxEvents), ended: make(chan struct{}), fed: make(chan struct{})}
	global := []string{"--caller-fd", callerFD}
	if r.root != "" {
		global = append(global, "--root", r.root)
	}
	v.cmd = exec.Command(r.path, append(global, args...)...)
	v.cmd.ExtraFiles = []*os.File{far}
	v.cmd.Stdout, v.cmd.Stderr = s.out, s.err
	v.cmd.WaitDelay = outputGrace
	if s.tty != nil {
		s.tty.control(v.cmd)
	} else {
		prepareCommand(v.cmd)
	}
	err = v.launch(s.in, env)
	far.Close()
	if err != nil {
		near.Close()
		s.tty.abort()
		return nil, errorf(KindRuntime, op, "execute %s: %w", r.path, err)
	}
	if s.tty != nil {
		s.tty.start()
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		if v.read(r.path); v.badPeer != nil {
			_ = v.cmd.Process.Kill() // Nobody knows what it is about to do.
		}
	}()
	go func() {
		v.waitErr = v.cmd.Wait()
		// What it said is there, unless a process of its own still has the socket.
		_ = v.conn.SetReadDeadline(time.Now().Add(outputGrace))
		<-read
		v.conn.Close()
		if s.tty != nil {
			s.tty.close()
		}
		close(v.ended)
	}()
	return v, nil
}

// launch starts the process, with its input and environment coming through
// pipes. Input is copied by a goroutine of ours, for which nobody waits for long:
// it may be stuck in a Read that never returns.
func (v *verb) launch(in io.Reader, env []string) error {
	if env != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		v.cmd.ExtraFiles = append(v.cmd.ExtraFiles, r)
		var all strings.Builder // env is the caller's again when this returns.
		for _, e := range env {
			all.WriteString(e + "\x00")
		}
		go func() {
			_, _ = io.WriteString(w, all.String())
			_ = w.Close()
		}()
	}
	file, isFile := in.(*os.File)
	if in == nil || isFile {
		if isFile {
			v.cmd.Stdin = file
		}
		close(v.fed)
		return v.cmd.Start()
	}
	w, err := v.cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := v.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(v.fed)
		_, _ = io.Copy(w, in)
		_ = w.Close()
	}()
	return nil
}

// read takes the process' events until there are no more.
func (v *verb) read(path string) {
	defer close(v.events)
	lines := bufio.NewScanner(v.conn)
	lines.Buffer(nil, api.MaxEventBytes)
	for lines.Scan() {
		var e api.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			v.badPeer = errorf(KindRuntime, v.op, "%s sends what is no event: is it rungv?", path)
			return
		}
		switch e.Type {
		case api.EventHello:
			if e.Protocol != api.CallerProtocol {
				v.badPeer = errorf(KindRuntime, v.op, "%s (version %s) speaks version %d of the caller protocol and this package version %d: update the older of the two",
					path, e.Version, e.Protocol, api.CallerProtocol)
				return
			}
			v.greeted = true
		case api.EventWarning:
			if v.warn != nil {
				v.warn(e.Message)
			}
		case api.EventFailed:
			v.failed = &e
		default:
			select {
			case v.events <- e:
			default: // No verb sends that many: not ours.
			}
		}
	}
	if !v.greeted {
		v.badPeer = errorf(KindRuntime, v.op, "%s did not introduce itself: it is older than this package, or not rungv: update it", path)
	}
}

// await returns the next event of the type, or why there will be none.
func (v *verb) await(ctx context.Context, op string, want api.EventType) (api.Event, error) {
	for {
		select {
		case e, more := <-v.events:
			if !more {
				return e, v.reason(op)
			}
			if e.Type == want {
				return e, nil
			}
		case <-ctx.Done():
			return api.Event{}, contextError(op, ctx)
		}
	}
}

// reason is why the process ended without the event that was wanted.
//
// Preconditions: events is closed.
func (v *verb) reason(op string) error {
	switch {
	case v.badPeer != nil:
		return v.badPeer
	case v.failed != nil:
		return failure(op, v.failed)
	}
	<-v.ended
	return errorf(KindInternal, op, "rungv ended without a word: %v", v.cmd.ProcessState)
}

// say sends a word to the process.
func (v *verb) say(word string) error {
	_, err := io.WriteString(v.conn, word+"\n")
	return err
}

// stop leaves the process, which then ends its guest, and waits for its end. It
// is killed when it takes its time; its sandbox dies with it.
func (v *verb) stop() {
	v.stopOnce.Do(func() {
		hangUp(v.conn)
		select {
		case <-v.ended:
		case <-time.After(closeGrace):
			_ = v.cmd.Process.Kill()
			<-v.ended
		}
	})
	<-v.ended
}

// run executes a verb that has no guest, to its end.
func (r *runtime) run(ctx context.Context, op string, s streams, args ...string) error {
	var said limitedBuffer
	if s.err == nil {
		s.err = &said
	}
	v, err := r.start(op, s, nil, nil, args...)
	if err != nil {
		return err
	}
	select {
	case <-v.ended:
	case <-ctx.Done():
		v.stop()
		err = contextError(op, ctx)
	}
	select {
	case <-v.fed: // The input is the caller's again.
	case <-time.After(inputGrace):
	}
	switch {
	case err != nil:
		return err
	case v.badPeer != nil:
		return v.badPeer
	case v.failed != nil:
		return failure(op, v.failed)
	case v.waitErr != nil:
		return errorf(KindInternal, op, "rungv: %w: %s", v.waitErr, said.String())
	}
	return nil
}

// output executes a verb that has no guest and returns what it prints.
func (r *runtime) output(ctx context.Context, op string, args ...string) ([]byte, error) {
	out := boundedBuffer{max: maxAnswerBytes}
	err := r.run(ctx, op, streams{out: &out}, args...)
	return out.b.Bytes(), err
}
