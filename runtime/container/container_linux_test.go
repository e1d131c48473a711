// SPDX-License-Identifier: Apache-2.0

// What a run makes and takes apart around its sandbox. Runs themselves are
// tested end to end in integration/run.

package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/state"
	"z.gfire.dev/gvx/runtime/volumes"
)

// runner returns a runner with empty stores, whose state lies deeper than a
// socket address is long.
func runner(t *testing.T) *Runner {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	s, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	i, err := images.Open(filepath.Join(dir, "images"), images.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &Runner{State: s, Images: i, Volumes: volumes.New(filepath.Join(dir, "volumes"), volumes.Options{})}
}

func create(t *testing.T, r *Runner, to api.State) *state.Handle {
	t.Helper()
	h, err := r.State.Create(state.Record{StopSignal: 15}, "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Update(func(rec *state.Record) error { return rec.SetState(to) }); err != nil {
		t.Fatal(err)
	}
	return h
}

// fakeSandbox answers on a control socket.
type fakeSandbox struct {
	controlv1.SandboxService
	signals chan int32
}

func (f *fakeSandbox) Signal(_ context.Context, req *controlv1.SignalRequest) (*controlv1.SignalResponse, error) {
	f.signals <- req.GetSignal()
	return &controlv1.SignalResponse{}, nil
}

func (f *fakeSandbox) Stats(context.Context, *controlv1.StatsRequest) (*controlv1.StatsResponse, error) {
	return &controlv1.StatsResponse{Pids: 3}, nil
}

func (f *fakeSandbox) Processes(context.Context, *controlv1.ProcessesRequest) (*controlv1.ProcessesResponse, error) {
	return nil, api.Errorf(api.KindState, "not now")
}

// serve makes a fake sandbox for a container.
func serve(t *testing.T, h *state.Handle) *fakeSandbox {
	t.Helper()
	file, err := listenUnix(h.Dir(), controlSocket, unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeSandbox{signals: make(chan int32, 8)}
	server, err := control.NewServer(f)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.ServeListener(context.Background(), l) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestSocketOfAnEarlierStart: a start that failed, or whose launcher was killed,
// leaves its sockets' names; the next one binds them all the same.
func TestSocketOfAnEarlierStart(t *testing.T) {
	h := create(t, runner(t), api.StateRunning)
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		name := fmt.Sprintf("socket-%d", kind)
		for range 2 {
			f, err := listenUnix(h.Dir(), name, kind)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
	}
	l, err := listenIn(h.Dir(), "served")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dialIn(h.Dir(), "served")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestManageThroughTheSocket(t *testing.T) {
	r := runner(t)
	h := create(t, r, api.StateRunning)
	f := serve(t, h)
	info, err := os.Stat(filepath.Join(h.Dir(), controlSocket))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("control socket: %v, %v", info.Mode(), err)
	}
	ctx := context.Background()
	if err := r.Signal(ctx, "box", 10); err != nil || <-f.signals != 10 {
		t.Errorf("signal: %v", err)
	}
	if _, s, err := r.Stats(ctx, "box"); err != nil || s.Pids != 3 {
		t.Errorf("stats: %+v, %v", s, err)
	}
	if _, err := r.Processes(ctx, "box"); api.KindOf(err) != api.KindState || err.Error() != "not now" {
		t.Errorf("processes: %v", err)
	}
	// The launcher of this "container" ends it when it is told to.
	go func() {
		if <-f.signals == 15 {
			h.Close()
		}
	}()
	if err := r.Stop(ctx, "box", 0, nil); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := r.Stop(ctx, "box", 0, nil); err != nil {
		t.Errorf("stop one that has stopped: %v", err)
	}
	if err := r.Signal(ctx, "box", 9); api.KindOf(err) != api.KindState {
		t.Errorf("signal one that has stopped: %v", err)
	}
	if err := r.Remove(ctx, "box", false); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func TestStopKillsWhoDoesNotEnd(t *testing.T) {
	r := runner(t)
	h := create(t, r, api.StateRunning)
	f := serve(t, h)
	got := make(chan []int32, 1)
	go func() {
		first, second := <-f.signals, <-f.signals
		got <- []int32{first, second}
		h.Close()
	}()
	at := time.Duration(0)
	if err := r.Stop(context.Background(), "box", 0, &at); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s[0] != 15 || s[1] != 9 {
		t.Errorf("signals %v, want 15 then 9", s)
	}
}

// TestRemoveOfOneThatHasJustEnded: its end is on record, and its launcher not gone yet.
func TestRemoveOfOneThatHasJustEnded(t *testing.T) {
	r := runner(t)
	h := create(t, r, api.StateRunning)
	if err := r.Remove(context.Background(), "box", false); api.KindOf(err) != api.KindState {
		t.Errorf("one that runs: %v", err)
	}
	if err := h.Update(func(rec *state.Record) error {
		rec.Exit = &api.ExitStatus{Code: 137}
		return rec.SetState(api.StateStopped)
	}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { h.Close() })
	if err := r.Remove(context.Background(), "box", false); err != nil {
		t.Error(err)
	}
}

func TestForcedRemoveOfOneThatDoesNotListen(t *testing.T) {
	r := runner(t)
	h := create(t, r, api.StateRunning)
	// Its sandbox process is another's number by now: it must be left alone.
	me, _ := state.Identify(os.Getpid())
	me.StartTicks++
	if err := h.Update(func(rec *state.Record) error {
		rec.Sandbox = me
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	go h.Close()
	if err := r.Remove(context.Background(), "box", true); err != nil {
		t.Error(err)
	}
	if err := r.Remove(context.Background(), "box", true); api.KindOf(err) != api.KindNotFound {
		t.Errorf("again: %v", err)
	}
}

func TestRunThatNeverStartsLeavesNothing(t *testing.T) {
	r := runner(t)
	cid := filepath.Join(t.TempDir(), "cid")
	o := RunOptions{Image: "nothing", Name: "box", CIDFile: cid, Pull: images.PullOptions{Policy: images.PullNever}}
	exit, err := r.Run(context.Background(), o)
	if api.KindOf(err) != api.KindImage || exit != (api.ExitStatus{}) {
		t.Errorf("run: %+v, %v", exit, err)
	}
	if _, err := os.Lstat(cid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the id file stays: %v", err)
	}
	if list, err := r.State.List(); err != nil || len(list) != 0 {
		t.Errorf("records: %v, %v", list, err)
	}
	if _, err := r.Run(context.Background(), o); api.KindOf(err) != api.KindImage {
		t.Errorf("the name again: %v", err)
	}
}

func TestSignalsBeforeTheGuestRuns(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := catchSignals(false, cancel)
	defer s.stop()
	<-s.all // Those that do not end a program: see Run.
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} {
		if err := unix.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	<-ctx.Done()
	if sig := s.fatal(); sig != syscall.SIGTERM {
		t.Errorf("ended by %v", sig)
	}
	// What does not end a program waits for the guest.
	if sig := <-s.c; sig != syscall.SIGUSR1 {
		t.Errorf("waiting: %v", sig)
	}
	// The guest ran before it could be kept from it: what was to end it waits.
	s.proxy()
	if sig := <-s.c; sig != syscall.SIGTERM {
		t.Errorf("the one that came too late: %v", sig)
	}
	if err := unix.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if sig := <-s.c; sig != syscall.SIGINT {
		t.Errorf("while the guest runs: %v", sig)
	}
}

// TestSignalsOnceThereIsARecord: whoever knows a container's id may send any
// signal. One that would end this program were it not caught is all it takes.
func TestSignalsOnceThereIsARecord(t *testing.T) {
	asked := false
	o := RunOptions{Image: "nothing", Pull: images.PullOptions{Policy: images.PullNever}}
	o.Created = func(string, string) {
		asked = true
		if err := unix.Kill(os.Getpid(), unix.SIGSTKFLT); err != nil {
			t.Error(err)
		}
	}
	if _, err := runner(t).Run(t.Context(), o); api.KindOf(err) != api.KindImage || !asked {
		t.Errorf("%v, told of its id: %v", err, asked)
	}
}

func TestExitCodes(t *testing.T) {
	for kind, want := range map[api.Kind]int{
		api.KindCommandNotFound: 127, api.KindCommandNotExecutable: 126, api.KindInternal: 125, api.KindImage: 125,
	} {
		if got := ExitCode(api.Errorf(kind, "x")); got != want {
			t.Errorf("%s: %d, want %d", kind, got, want)
		}
	}
	if ExitCode(nil) != 0 || ExitCode(errors.New("x")) != 125 {
		t.Error("no error, or one without a kind")
	}
}

// TestASandboxThatHasJustEndedIsNotRunning, whose record does not say so yet: its
// sockets are there, and nobody listens.
func TestASandboxThatHasJustEndedIsNotRunning(t *testing.T) {
	r := runner(t)
	h := create(t, r, api.StateRunning)
	defer h.Remove()
	if err := h.Update(func(rec *state.Record) error {
		rec.Options.Network = string(api.NetworkNAT)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	rec, err := r.State.Get(h.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []bool{false, true} {
		if made {
			for _, name := range []string{controlSocket, networkSocket} {
				f, err := listenUnix(h.Dir(), name, unix.SOCK_STREAM)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		}
		if _, err := r.Dial(rec); api.KindOf(err) != api.KindState {
			t.Errorf("sockets made %v: %v", made, err)
		}
		if err := r.Network(t.Context(), h.ID(), nil); api.KindOf(err) != api.KindState {
			t.Errorf("sockets made %v: the network: %v", made, err)
		}
	}
}
