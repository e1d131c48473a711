// SPDX-License-Identifier: Apache-2.0

package gvx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// hello is what a rungv of our version says first.
var hello = fmt.Sprintf(`echo '{"event":"hello","protocol":%d}' >&3; `, api.CallerProtocol)

// began and over are what it says of a command in a sandbox.
const (
	began = `echo '{"event":"started"}' >&3; `
	over  = `; echo '{"event":"ended","exit":{"code":0}}' >&3`
)

// peer is a shell script in rungv's place: what a rungv would say that is of
// another version, killed or under a guest's influence.
func peer(t *testing.T, script string) *runtime {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rungv")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &runtime{path: path}
}

// endless are so many bytes that no bound below lets them through.
type endless struct{ io.Reader }

func newEndless() endless { return endless{io.LimitReader(zeros{}, 64<<20)} }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBuffersHoldTheirBounds whichever way they are written to: io.Copy looks for
// better ones than Write.
func TestBuffersHoldTheirBounds(t *testing.T) {
	var limited limitedBuffer
	if _, err := io.Copy(&limited, newEndless()); err != nil || limited.b.Len() != stderrBytes {
		t.Errorf("%d bytes kept, %v", limited.b.Len(), err)
	}
	refused := 0
	bounded := boundedBuffer{max: 100, full: func() { refused++ }}
	if _, err := io.Copy(&bounded, newEndless()); !errors.Is(err, errTooLarge) || bounded.b.Len() > 100 || !bounded.over || refused != 1 {
		t.Errorf("%d bytes kept, refused %d times, %v", bounded.b.Len(), refused, err)
	}
	if n, err := (&boundedBuffer{max: 3}).Write([]byte("123")); n != 3 || err != nil {
		t.Errorf("what just fits: %d, %v", n, err)
	}
}

// TestVerbsOutputIsBounded, on both streams.
func TestVerbsOutputIsBounded(t *testing.T) {
	r := peer(t, hello+"head -c 80000000 /dev/zero; exit 0")
	if out, err := r.output(t.Context(), "ask"); err == nil || len(out) > maxAnswerBytes {
		t.Errorf("%d bytes taken, %v", len(out), err)
	}
	r = peer(t, hello+"head -c 80000000 /dev/zero | tr '\\0' x >&2; exit 1")
	if err := r.run(t.Context(), "ask", streams{}); err == nil || len(err.Error()) > 2*stderrBytes {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}

// TestOutputOfACommandIsBounded: one that never ends is killed.
func TestOutputOfACommandIsBounded(t *testing.T) {
	sb := &Sandbox{runtime: peer(t, hello+began+"exec yes"), state: running, exited: make(chan struct{})}
	out, err := sb.boundedOutput(t.Context(), 100<<10, []string{"yes"})
	if !errors.Is(err, ErrLimit) || len(out) > 100<<10 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// TestProgramsThatAreNotRungvAreEnded, though they would go on for ever.
func TestProgramsThatAreNotRungvAreEnded(t *testing.T) {
	for name, script := range map[string]string{
		"nonsense":  "echo nonsense >&3; exec sleep 1000",
		"too long":  "head -c 100000 /dev/zero >&3; exec sleep 1000",
		"other":     `echo '{"event":"hello","protocol":99}' >&3; exec sleep 1000`,
		"silent":    "exec 3>&-; exec sleep 1000",
		"no answer": "exit 0",
	} {
		if err := peer(t, script).run(t.Context(), "ask", streams{}); !errors.Is(err, ErrRuntime) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestZeroBytesAreRefused in any argument, and the terminal is given back.
func TestZeroBytesAreRefused(t *testing.T) {
	sb := &Sandbox{runtime: peer(t, hello), state: running, exited: make(chan struct{})}
	for _, tty := range []bool{false, true} {
		if _, err := sb.StartExec(t.Context(), Command{Args: []string{"a\x00b"}, TTY: tty}); !errors.Is(err, ErrInvalid) {
			t.Errorf("terminal %v: %v", tty, err)
		}
	}
}

// TestEgressRulesAreRulesOnly: neither flags nor names of files; none are those of
// a sandbox that was given none.
func TestEgressRulesAreRulesOnly(t *testing.T) {
	told := filepath.Join(t.TempDir(), "told")
	sb := &Sandbox{id: "id", runtime: peer(t, hello+"shift 2; echo \"$@\" > "+told), state: running, exited: make(chan struct{})}
	for _, rule := range []string{"@/etc/passwd", "--help", "", "maybe"} {
		if err := sb.SetEgress(t.Context(), rule); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", rule, err)
		}
		if err := (&Config{OCIImage: "i", Egress: []string{rule}}).check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("configuration, %q: %v", rule, err)
		}
	}
	if err := sb.SetEgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	if args, err := os.ReadFile(told); err != nil || string(args) != "network policy id set allow\n" {
		t.Errorf("%q, %v", args, err)
	}
}

// TestPortsSayOneThing: what would else be left out of a command line in silence.
func TestPortsSayOneThing(t *testing.T) {
	for _, p := range []Port{{Guest: 1, Transport: "sctp"}, {Guest: 1, Path: "/s", Transport: UDP}, {Guest: 1, Path: "/s", HostPort: 2}} {
		if err := (&Config{OCIImage: "i", Publish: []Port{p}}).check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// counted is a context that counts what waits for its end.
type counted struct {
	context.Context
	mu         sync.Mutex
	waiting    int
	done, gone chan struct{}
}

// Done differs from that of any context that package context knows.
func (c *counted) Done() <-chan struct{} { return c.done }

// AfterFunc is what [context.AfterFunc] calls if it is there.
func (c *counted) AfterFunc(func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting++
	return func() bool {
		c.gone <- struct{}{}
		return true
	}
}

// TestEndedCommandIsForgotten by a context that lives on.
func TestEndedCommandIsForgotten(t *testing.T) {
	ctx := &counted{Context: t.Context(), done: make(chan struct{}), gone: make(chan struct{}, 1)}
	sb := &Sandbox{runtime: peer(t, hello+began+"true"+over), state: running, exited: make(chan struct{})}
	p, err := sb.StartExec(ctx, Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if ctx.waiting != 1 {
		t.Fatalf("%d wait for the context's end", ctx.waiting)
	}
	<-ctx.gone
}

// TestInputIsTheCallersAgain when a verb has returned, though it did not read all.
func TestInputIsTheCallersAgain(t *testing.T) {
	sb := &Sandbox{runtime: peer(t, hello+"head -c 1 >/dev/null; exit 0"), state: running, exited: make(chan struct{})}
	archive := bytes.NewBuffer(make([]byte, 8<<20))
	if err := sb.CopyIn(t.Context(), "/", archive); err != nil {
		t.Fatal(err)
	}
	archive.Reset() // The race detector sees who else has it.
}

// TestEnvironmentIsTheCallersAgain when a command was started.
func TestEnvironmentIsTheCallersAgain(t *testing.T) {
	sb := &Sandbox{runtime: peer(t, hello+began+"tr '\\0' '\\n' < "+newEnvFile+over), state: running, exited: make(chan struct{})}
	env := []string{"A=1", "B=2"}
	var out bytes.Buffer
	p, err := sb.StartExec(t.Context(), Command{Args: []string{"env"}, Env: env, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	env[0], env[1] = "", ""
	if _, err := p.Wait(t.Context()); err != nil || out.String() != "A=1\nB=2\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestWarningsComeOneAtATime, of several verbs too.
func TestWarningsComeOneAtATime(t *testing.T) {
	var heard []string // The race detector sees who else writes it.
	sb := &Sandbox{runtime: peer(t, hello+began+`for i in 1 2 3 4 5 6 7 8; do echo '{"event":"warning","message":"w"}' >&3; done`+over),
		config: Config{Warn: func(m string) { heard = append(heard, m) }}, state: running, exited: make(chan struct{})}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := sb.Exec(t.Context(), Command{Args: []string{"true"}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if strings.Join(heard, "") != strings.Repeat("w", 32) {
		t.Errorf("%d warnings", len(heard))
	}
}

// TestLostOutputIsTold, of a writer that fails, one that never returns and one that
// shares its place with the other; none is held up for ever by it.
func TestLostOutputIsTold(t *testing.T) {
	defer func(d time.Duration) { outputGrace = d }(outputGrace)
	outputGrace = 100 * time.Millisecond
	many := "for i in 1 2 3 4 5 6 7 8; do echo out; echo err >&2; done"
	broken, stuck := refusing{errors.New("no room")}, make(stuck)
	defer close(stuck)
	for name, test := range map[string]struct {
		command Command
		cause   error
	}{
		"output":    {Command{Stdout: broken}, broken.err},
		"errors":    {Command{Stderr: broken}, broken.err},
		"both":      {Command{Stdout: broken, Stderr: broken}, broken.err},
		"terminal":  {Command{Stdout: broken, TTY: true}, broken.err},
		"stuck":     {Command{Stdout: stuck}, errSlowWriter},
		"shortened": {Command{Stdout: refusing{}}, io.ErrShortWrite},
	} {
		sb := &Sandbox{runtime: peer(t, hello+began+many+over), state: running, exited: make(chan struct{})}
		test.command.Args = []string{"x"}
		exit, err := sb.Exec(t.Context(), test.command)
		var typed *Error
		if !errors.Is(err, ErrOutput) || !errors.Is(err, test.cause) || !errors.As(err, &typed) || typed.Exit == nil || exit.Code != 0 {
			t.Errorf("%s: %+v, %v", name, exit, err)
		}
	}
}

// refusing is a writer that fails, or takes nothing and says so.
type refusing struct{ err error }

func (r refusing) Write([]byte) (int, error) { return 0, r.err }

// stuck is a writer that does not return before it is closed.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) { <-s; return len(p), nil }

// TestOneWriterForBothStreams gets both, from one goroutine.
func TestOneWriterForBothStreams(t *testing.T) {
	var out bytes.Buffer // The race detector sees who else writes it.
	sb := &Sandbox{runtime: peer(t, hello+began+"echo a; echo b >&2; echo c"+over), state: running, exited: make(chan struct{})}
	if _, err := sb.Exec(t.Context(), Command{Args: []string{"x"}, Stdout: &out, Stderr: &out}); err != nil || out.String() != "a\nb\nc\n" {
		t.Errorf("%q, %v", &out, err)
	}
}

// TestKilledRuntimeIsTold from a fault of it.
func TestKilledRuntimeIsTold(t *testing.T) {
	r := peer(t, hello+"kill -9 $$")
	if err := r.run(t.Context(), "ask", streams{}); !errors.Is(err, ErrKilled) {
		t.Errorf("a verb: %v", err)
	}
	if err := peer(t, "kill -9 $$").run(t.Context(), "ask", streams{}); !errors.Is(err, ErrKilled) {
		t.Errorf("before it introduced itself: %v", err)
	}
	r = peer(t, hello+began+"kill -9 $$")
	sb := &Sandbox{runtime: r, state: running, exited: make(chan struct{})}
	if _, err := sb.Exec(t.Context(), Command{Args: []string{"x"}}); !errors.Is(err, ErrKilled) {
		t.Errorf("a command: %v", err)
	}
	if err := peer(t, hello+"exit 3").run(t.Context(), "ask", streams{}); !errors.Is(err, ErrInternal) {
		t.Errorf("an end without a word: %v", err)
	}
}

// TestCommandsEndIsExact: an exit code above 128 is no signal, and what the memory
// limit did is told.
func TestCommandsEndIsExact(t *testing.T) {
	for said, want := range map[string]struct {
		exit ExitStatus
		err  error
	}{
		`{"code":130}`:                             {ExitStatus{Code: 130}, nil},
		`{"code":130,"signal":2}`:                  {ExitStatus{Code: 130, Signal: syscall.SIGINT}, nil},
		`{"code":137,"signal":9,"oomKilled":true}`: {ExitStatus{Code: 137, Signal: syscall.SIGKILL, OOMKilled: true}, ErrOOM},
		`{"code":0,"oomKilled":true}`:              {ExitStatus{OOMKilled: true}, nil},
	} {
		sb := &Sandbox{runtime: peer(t, hello+began+`echo '{"event":"ended","exit":`+said+`}' >&3`), state: running, exited: make(chan struct{})}
		exit, err := sb.Exec(t.Context(), Command{Args: []string{"x"}})
		if exit != want.exit || want.err == nil && err != nil || !errors.Is(err, want.err) {
			t.Errorf("%s: %+v, %v", said, exit, err)
		}
	}
}
