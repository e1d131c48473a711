// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
	"z.gfire.dev/gvx/runtime/state"
)

// fakePod is a sandbox with containers that run, are prepared, or are being made.
type fakePod struct {
	controlv1.SandboxService
	mu         sync.Mutex
	containers map[string]string
	calls      int
}

func (p *fakePod) Delete(_ context.Context, req *controlv1.DeleteRequest) (*controlv1.DeleteResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	switch p.containers[req.GetContainer()] {
	case "":
		return nil, api.Errorf(api.KindNotFound, "no container %q", req.GetContainer())
	case "making":
		p.containers[req.GetContainer()] = "prepared"
		return nil, api.Errorf(api.KindState, "it is being made")
	case "runs":
		return nil, api.Errorf(api.KindState, "it runs")
	}
	delete(p.containers, req.GetContainer())
	return &controlv1.DeleteResponse{}, nil
}

func (p *fakePod) Signal(_ context.Context, req *controlv1.SignalRequest) (*controlv1.SignalResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.containers[req.GetContainer()] != "runs" {
		return nil, api.Errorf(api.KindState, "it has no process")
	}
	if req.GetSignal() == int32(syscall.SIGKILL) && req.GetTarget() == controlv1.SignalRequest_ALL {
		p.containers[req.GetContainer()] = "ended"
	}
	return &controlv1.SignalResponse{}, nil
}

func (p *fakePod) connect(t *testing.T) *control.Client {
	t.Helper()
	near, far := net.Pipe()
	s, err := control.NewServer(p)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.ServeConn(context.Background(), far) }()
	c := control.NewClient(near)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c
}

// TestLeaveSandbox: whatever state a container is in, its sandbox has nothing of it
// afterwards, and the others are as they were.
func TestLeaveSandbox(t *testing.T) {
	for _, was := range []string{"", "making", "prepared", "runs", "ended"} {
		p := &fakePod{containers: map[string]string{"other": "runs"}}
		if was != "" {
			p.containers["c"] = was
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := leaveSandbox(ctx, p.connect(t), "c"); err != nil {
			t.Errorf("%s: %v", was, err)
		}
		if len(p.containers) != 1 || p.containers["other"] != "runs" {
			t.Errorf("%s: the sandbox has %v", was, p.containers)
		}
	}
}

// newTestTask is a container that has joined p and was not started.
func newTestTask(t *testing.T, p *fakePod) (*Task, *Runner) {
	t.Helper()
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{State: store}
	h, err := store.Create(state.Record{Task: &state.Task{}}, "c")
	if err != nil {
		t.Fatal(err)
	}
	task := &Task{r: r, handle: h, joined: true, ended: make(chan struct{}), sandbox: &taskSandbox{control: p.connect(t)}}
	p.containers = map[string]string{h.ID(): "prepared"}
	return task, r
}

// TestEndsOnce: whoever notes a container's end first is right, and the others do
// no harm: a start whose hook fails and the guest's end come together.
func TestEndsOnce(t *testing.T) {
	task, _ := newTestTask(t, &fakePod{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { task.finish(api.ExitStatus{Code: 3}, nil) })
	}
	all.Wait()
	task.finish(api.ExitStatus{Code: 4}, nil)
	if exit, err := task.Wait(t.Context()); exit.Code != 3 || err != nil {
		t.Errorf("%+v, %v", exit, err)
	}
}

// TestSignalsOfTheUnstarted: those that programs ignore unless they ask for them
// end nothing; others end the container, and its sandbox forgets it.
func TestSignalsOfTheUnstarted(t *testing.T) {
	p := &fakePod{}
	task, _ := newTestTask(t, p)
	for _, n := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGCHLD, syscall.SIGURG} {
		if err := task.Signal(t.Context(), int(n), control.TargetInit); err != nil || task.running() || p.calls > 0 {
			t.Errorf("%v: %v, started %t, %d calls", n, err, task.running(), p.calls)
		}
	}
	if err := task.Signal(t.Context(), int(syscall.SIGTERM), control.TargetInit); err != nil {
		t.Error(err)
	}
	if exit, err := task.Wait(t.Context()); exit.Code != 143 || err != nil || len(p.containers) > 0 {
		t.Errorf("%+v, %v; the sandbox has %v", exit, err, p.containers)
	}
}

// TestTaskReferences: the beginning of an id that nobody has been shown is no
// container, so that what an engine calls "1f" is not somebody else's.
func TestTaskReferences(t *testing.T) {
	task, r := newTestTask(t, &fakePod{})
	id := task.handle.ID()
	for ref, there := range map[string]bool{"c": true, id: true, id[:12]: true, id[:2]: false, id[:11]: false, id[:13]: false, "d": false} {
		_, err := r.getTask(ref)
		if there != (err == nil) || !there && api.KindOf(err) != api.KindNotFound {
			t.Errorf("%q of %s: %v", ref, id, err)
		}
	}
	if err := r.DeleteTask(t.Context(), id[:2], true); err != nil {
		t.Error(err)
	}
	if _, err := r.getTask("c"); err != nil {
		t.Errorf("it has been deleted: %v", err)
	}
}

// TestManyDeletes: whoever deletes a container at once with others has it deleted,
// and its hooks run once.
func TestManyDeletes(t *testing.T) {
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{State: store, Warn: t.Errorf}
	said := filepath.Join(t.TempDir(), "said")
	hook := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "echo gone >> " + said}}
	h, err := store.Create(state.Record{Task: &state.Task{Bundle: t.TempDir(), Poststop: []specs.Hook{hook}}}, "c")
	if err == nil {
		err = h.Update(func(rec *state.Record) error { return rec.SetState(api.StateCreated) })
	}
	if err == nil {
		err = h.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	rec, err := r.getTask("c")
	if err != nil {
		t.Fatal(err)
	}
	// As those who have found the record at the same time.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := r.removeTask(t.Context(), rec); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if text, err := os.ReadFile(said); string(text) != "gone\n" {
		t.Errorf("the hook has said %q, %v", text, err)
	}
}

// TestNamespacesOfAPod: containers that are known by the sandbox's process share its
// namespaces, whoever else has joined it before; others are told by their own.
func TestNamespacesOfAPod(t *testing.T) {
	task, r := newTestTask(t, &fakePod{})
	task.sandbox.id, task.sandbox.pid = "sandbox", 7
	for name, pids := range map[string][2]int{"earlier": {6, 7}, "own": {8, 7}} {
		h, err := r.State.Create(state.Record{Task: &state.Task{Sandbox: "sandbox"}}, name)
		if err == nil {
			err = h.Update(func(rec *state.Record) error {
				rec.Launcher.PID, rec.Sandbox.PID = pids[0], pids[1]
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	own, err := r.getTask("own")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/proc/7/ns/ipc": "sandbox", "/proc/7/ns/pid": "sandbox", "/proc/8/ns/pid": own.ID, "/proc/9/ns/pid": "", "/run/ns": ""} {
		if got, ok := task.containerOf(specs.IPCNamespace, path); got != want || ok != (want != "") {
			t.Errorf("%s is of %q, %t, want %q", path, got, ok, want)
		}
	}
}
