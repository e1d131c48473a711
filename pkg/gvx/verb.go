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
	"sync/atomic"
	"syscall"
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
	// peerGrace is how long a process that closed its end of the socket, or writes
	// nonsense to it, has to go by itself.
	peerGrace = time.Second
	// inputGrace is how long the reader of input may take to notice rungv's end.
	inputGrace = time.Second
	// opSockets is what fails before a verb is known.
	opSockets = "execute rungv"
	// stderrBytes bounds what is kept of the standard error of a verb that has
	// no guest.
	stderrBytes = 16 << 10
	// maxAnswerBytes bounds what a verb without a guest prints.
	maxAnswerBytes = 64 << 20
)

// outputGrace is how long output may be on its way after rungv's end: it waits for
// the caller's writers. Tests are less patient.
var outputGrace = 10 * time.Second

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

	// out and errs watch the caller's writers.
	out, errs *watchedWriter

	stopOnce sync.Once
	// gone is closed when the process is, and shot says that we killed it.
	gone chan struct{}
	shot atomic.Bool
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
	v := &verb{op: op, conn: near, warn: warn, events: make(chan api.Event, maxEvents), ended: make(chan struct{}), fed: make(chan struct{}), gone: make(chan struct{})}
	global := []string{"--caller-fd", callerFD}
	if r.root != "" {
		global = append(global, "--root", r.root)
	}
	v.cmd = exec.Command(r.path, append(global, args...)...)
	v.cmd.ExtraFiles = []*os.File{far}
	if s.tty != nil {
		s.tty.control(v.cmd)
	} else {
		prepareCommand(v.cmd)
	}
	given, err := v.pipeOutput(&s)
	if err == nil {
		err = v.launch(s.in, env)
		given(err == nil)
	}
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
			v.shoot(peerGrace) // Nobody knows what it is about to do.
		}
	}()
	go func() {
		v.waitErr = v.cmd.Wait()
		close(v.gone)
		v.awaitOutput()
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
	if v.failed != nil && v.badPeer == nil {
		return failure(op, v.failed)
	}
	<-v.ended
	switch {
	case v.killed(): // Perhaps before it could introduce itself.
		return errorf(KindKilled, op, "rungv was killed, and what it did ended with it")
	case v.badPeer != nil:
		return v.badPeer
	}
	return errorf(KindInternal, op, "rungv ended without a word: %v", v.cmd.ProcessState)
}

// outcome is how the guest of the process ended, once that has.
//
// Preconditions: ended is closed, and the guest was seen to start.
func (v *verb) outcome(op string) (ExitStatus, error) {
	e, err := v.await(context.Background(), op, api.EventEnded)
	if lost := v.undelivered(op); lost != nil {
		exit := newExitStatus(e.Exit)
		lost.Exit = &exit
		return exit, lost
	}
	if err != nil {
		return ExitStatus{}, err
	}
	if e.Exit == nil {
		return ExitStatus{}, errorf(KindInternal, op, "rungv reported no exit status")
	}
	return newExitStatus(e.Exit), nil
}

// newExitStatus translates what rungv reports; nil is nothing known.
func newExitStatus(e *api.ExitStatus) ExitStatus {
	if e == nil {
		return ExitStatus{}
	}
	return ExitStatus{Code: e.Code, Signal: syscall.Signal(e.Signal), OOMKilled: e.OOMKilled, At: e.At}
}

// killed says whether somebody else killed the process.
//
// Preconditions: ended is closed.
func (v *verb) killed() bool {
	status, ok := v.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL && !v.shot.Load()
}

// shoot kills the process, unless it is gone within the time given.
func (v *verb) shoot(after time.Duration) {
	select {
	case <-v.gone:
	case <-time.After(after):
		v.shot.Store(true)
		_ = v.cmd.Process.Kill()
	}
}

// pipeOutput gives the process its output: files, a terminal's too, as they are, and
// pipes for other writers, which are copied by goroutines of ours: those of
// [exec.Cmd] are waited for, also when a writer never returns. What it returns
// is called when the process has got them, or has not been started.
func (v *verb) pipeOutput(s *streams) (given func(started bool), err error) {
	if s.tty != nil {
		v.cmd.Stdout, v.cmd.Stderr, v.out = s.out, s.err, s.tty.watched()
		return func(bool) {}, nil
	}
	var far []*os.File
	pipe := func(w io.Writer) (io.Writer, *watchedWriter) {
		if _, file := w.(*os.File); file || w == nil || err != nil {
			return w, nil
		}
		r, f, perr := os.Pipe()
		if perr != nil {
			err = perr
			return nil, nil
		}
		far = append(far, f)
		return f, &watchedWriter{w: w, from: r, done: make(chan struct{})}
	}
	v.cmd.Stdout, v.out = pipe(s.out)
	if sameWriter(s.out, s.err) {
		v.cmd.Stderr = v.cmd.Stdout // One goroutine writes both.
	} else {
		v.cmd.Stderr, v.errs = pipe(s.err)
	}
	given = func(started bool) {
		for _, f := range far {
			f.Close()
		}
		for _, w := range []*watchedWriter{v.out, v.errs} {
			switch {
			case w == nil:
			case started:
				go w.copy()
			default:
				w.from.Close()
			}
		}
	}
	if err != nil {
		given(false)
	}
	return given, err
}

// awaitOutput waits for writers of the caller's, not for ever.
func (v *verb) awaitOutput() {
	late := time.After(outputGrace)
	for _, w := range []*watchedWriter{v.out, v.errs} {
		if w == nil || w.from == nil {
			continue
		}
		select {
		case <-w.done:
		case <-late:
			late = time.After(0)
			w.from.Close()
		}
	}
}

// undelivered is an error if output was lost on the caller's side.
//
// Preconditions: ended is closed.
func (v *verb) undelivered(op string) *Error {
	for _, w := range []*watchedWriter{v.out, v.errs} {
		if err := w.lost(); err != nil {
			return errorf(KindOutput, op, "output is not complete: %w", err)
		}
	}
	return nil
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
			v.shoot(0)
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
	case v.killed():
		return errorf(KindKilled, op, "rungv was killed")
	case v.badPeer != nil:
		return v.badPeer
	}
	if lost := v.undelivered(op); lost != nil {
		return lost
	}
	switch {
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
	if out.over {
		err = errorf(KindLimit, op, "rungv prints more than %d bytes", maxAnswerBytes)
	}
	return out.b.Bytes(), err
}
