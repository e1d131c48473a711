// SPDX-License-Identifier: Apache-2.0

// These tests run client and server against each other over a socket pair, as
// launcher and sandbox do.

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// fakeSandbox answers with what its fields hold.
type fakeSandbox struct {
	controlv1.SandboxService
	started   *controlv1.WaitStartedResponse
	exit      *controlv1.WaitResponse
	err       error
	processes *controlv1.ProcessesResponse
	block     chan struct{}
}

func (f *fakeSandbox) WaitStarted(context.Context, *controlv1.WaitStartedRequest) (*controlv1.WaitStartedResponse, error) {
	return f.started, f.err
}

func (f *fakeSandbox) Wait(ctx context.Context, _ *controlv1.WaitRequest) (*controlv1.WaitResponse, error) {
	if f.block != nil {
		<-f.block
	}
	return f.exit, f.err
}

func (f *fakeSandbox) Processes(context.Context, *controlv1.ProcessesRequest) (*controlv1.ProcessesResponse, error) {
	return f.processes, f.err
}

func (f *fakeSandbox) Stats(context.Context, *controlv1.StatsRequest) (*controlv1.StatsResponse, error) {
	return &controlv1.StatsResponse{Pids: 7}, nil
}

func connect(t *testing.T, f *fakeSandbox) (*Client, *Server, chan error) {
	t.Helper()
	near, far := net.Pipe()
	s, err := NewServer(f)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeConn(context.Background(), far) }()
	c := NewClient(near)
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c, s, served
}

func TestEveryKindCrosses(t *testing.T) {
	for kind := range codeOf {
		c, _, _ := connect(t, &fakeSandbox{err: fmt.Errorf("start: %w", api.Errorf(kind, "no such thing: %q", "x"))})
		_, err := c.WaitStarted(context.Background(), "c")
		if api.KindOf(err) != kind {
			t.Errorf("%s: crossed as %s", kind, api.KindOf(err))
		}
		if want := `start: no such thing: "x"`; err.Error() != want {
			t.Errorf("%s: message %q, want %q", kind, err, want)
		}
	}
}

func TestUntypedAndUnknownKindsAreInternal(t *testing.T) {
	for _, in := range []error{errors.New("plain"), api.Errorf("martian", "plain")} {
		c, _, _ := connect(t, &fakeSandbox{err: in})
		_, err := c.WaitStarted(context.Background(), "c")
		if api.KindOf(err) != api.KindInternal || err.Error() != "plain" {
			t.Errorf("got %s %q", api.KindOf(err), err)
		}
	}
}

func TestStartedAndExitCross(t *testing.T) {
	at := time.Unix(1700000000, 5).UTC()
	c, _, _ := connect(t, &fakeSandbox{
		started: &controlv1.WaitStartedResponse{Pid: 1, Lockdown: []string{"seccomp"},
			Phases: []*controlv1.BootPhase{{Name: "platform", AtNanos: 42}}},
		exit: &controlv1.WaitResponse{Code: 137, Signal: 9, OomKilled: true, At: timestamppb.New(at)},
	})
	s, err := c.WaitStarted(context.Background(), "c")
	if err != nil || s.PID != 1 || len(s.Phases) != 1 || s.Phases[0].At != 42 || s.Lockdown[0] != "seccomp" {
		t.Fatalf("started %+v, %v", s, err)
	}
	e, err := c.Wait(context.Background(), "c")
	if err != nil || e != (api.ExitStatus{Code: 137, Signal: 9, OOMKilled: true, At: at}) {
		t.Fatalf("exit %+v, %v", e, err)
	}
	st, err := c.Stats(context.Background(), "c")
	if err != nil || st.Pids != 7 {
		t.Fatalf("stats %+v, %v", st, err)
	}
}

func TestHostileAnswersAreBounded(t *testing.T) {
	f := &fakeSandbox{
		exit:      &controlv1.WaitResponse{Code: 100000},
		started:   &controlv1.WaitStartedResponse{},
		processes: &controlv1.ProcessesResponse{Processes: []*controlv1.Process{{Command: "\x1b[2Jevil\r" + strings.Repeat("x", 1<<20)}}},
	}
	for range 1000 {
		f.started.Phases = append(f.started.Phases, &controlv1.BootPhase{Name: "p"})
		f.started.Lockdown = append(f.started.Lockdown, "l")
	}
	c, _, _ := connect(t, f)
	if _, err := c.Wait(context.Background(), "c"); api.KindOf(err) != api.KindInternal {
		t.Errorf("exit code 100000: %v", err)
	}
	s, err := c.WaitStarted(context.Background(), "c")
	if err != nil || len(s.Phases) != maxPhases || len(s.Lockdown) != maxLayers {
		t.Errorf("started: %d phases, %d layers, %v", len(s.Phases), len(s.Lockdown), err)
	}
	p, err := c.Processes(context.Background(), "c")
	if err != nil || len(p) != 1 || strings.ContainsAny(p[0].Command, "\x1b\r") || len(p[0].Command) > maxCommandBytes+16 {
		t.Errorf("processes: %v", err)
	}
}

func TestCloseEndsCallsOnBothSides(t *testing.T) {
	f := &fakeSandbox{block: make(chan struct{})}
	defer close(f.block)
	c, s, served := connect(t, f)
	got := make(chan error, 1)
	go func() {
		_, err := c.Wait(context.Background(), "c")
		got <- err
	}()
	// A second call proves that the channel is up before it is cut.
	if _, err := c.Stats(context.Background(), "c"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("wait on a closed channel: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("ServeConn: %v", err)
	}
	<-c.Closed()
}

func TestClientGoneEndsServeConn(t *testing.T) {
	c, _, served := connect(t, &fakeSandbox{})
	c.Close()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("ServeConn: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("ServeConn did not return after its client closed")
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttab\n":     "plain\ttab\n",
		"\x1b]0;t\x07":     "�]0;t�",
		"bad\xff":          "bad�",
		"ünïcode ok\u2028": "ünïcode ok\u2028",
	} {
		if got := Clean(in, 100); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Clean("aaé", 3); got != "aa…" {
		t.Errorf("cut inside a rune: %q", got)
	}
}
