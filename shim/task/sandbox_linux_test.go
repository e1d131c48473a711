// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"z.gfire.dev/gvx/runtime/api"
)

// createPod makes the sandbox of the pod "p".
func (w *world) createPod() *fakeContainer {
	w.t.Helper()
	_, err := sandboxes{w.service}.CreateSandbox(w.t.Context(), &sandboxapi.CreateSandboxRequest{
		SandboxID: "p", BundlePath: w.bundle("p", nil), NetnsPath: "/run/netns/x", Options: &anypb.Any{TypeUrl: "type", Value: []byte("config")},
	})
	if err != nil {
		w.t.Fatalf("CreateSandbox: %v", err)
	}
	return w.runtime.made["p"]
}

// runPod makes it, and starts it.
func (w *world) runPod() *fakeContainer {
	w.t.Helper()
	c := w.createPod()
	started, err := sandboxes{w.service}.StartSandbox(w.t.Context(), &sandboxapi.StartSandboxRequest{SandboxID: "p"})
	if err != nil || started.Pid != uint32(c.pid) || started.CreatedAt == nil {
		w.t.Fatalf("StartSandbox = %v, %v", started, err)
	}
	return c
}

// join makes a container of the pod.
func (w *world) join(id string) error {
	w.t.Helper()
	bundle := w.bundle(id, map[string]string{containerTypeAnnotation: "container", sandboxIDAnnotation: "p"})
	_, err := w.service.Create(w.t.Context(), &taskapi.CreateTaskRequest{ID: id, Bundle: bundle})
	return err
}

// shutdownPod has the shim end, and sees that it does so behind the answer.
func (w *world) shutdownPod() {
	w.t.Helper()
	ctx, answered := context.WithCancel(w.t.Context())
	if _, err := (sandboxes{w.service}).ShutdownSandbox(ctx, &sandboxapi.ShutdownSandboxRequest{SandboxID: "p"}); err != nil {
		w.t.Errorf("ShutdownSandbox: %v", err)
	}
	if n := w.ends.Load(); n != 0 {
		w.t.Errorf("the shim has ended %d times before the answer", n)
	}
	answered()
	for deadline := time.Now().Add(30 * time.Second); w.ends.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("the shim does not end")
		}
	}
}

func (w *world) podStatus() *sandboxapi.SandboxStatusResponse {
	w.t.Helper()
	status, err := sandboxes{w.service}.SandboxStatus(w.t.Context(), &sandboxapi.SandboxStatusRequest{SandboxID: "p", Verbose: true})
	if err != nil {
		w.t.Fatalf("SandboxStatus: %v", err)
	}
	return status
}

func TestLifeOfASandbox(t *testing.T) {
	w := newWorld(t)
	x, ctx := sandboxes{w.service}, t.Context()
	c := w.createPod()
	if o := w.runtime.lastPod; o.ID != "p" || o.Netns != "/run/netns/x" || o.ConfigType != "type" || string(o.Config) != "config" {
		t.Errorf("made of %+v", o)
	}
	if s := w.podStatus(); s.State != sandboxNotReady {
		t.Errorf("before it runs it is %v", s)
	}
	want(t, "a container before the sandbox runs", w.join("early"), errdefs.ErrFailedPrecondition)
	if _, err := x.StartSandbox(ctx, &sandboxapi.StartSandboxRequest{SandboxID: "p"}); err != nil {
		t.Fatal(err)
	}
	_, err := x.StartSandbox(ctx, &sandboxapi.StartSandboxRequest{SandboxID: "p"})
	want(t, "a second start", err, errdefs.ErrFailedPrecondition)
	if s := w.podStatus(); s.State != sandboxReady || s.Pid != uint32(c.pid) || !strings.Contains(s.Info["info"], `"running"`) {
		t.Errorf("status %v", s)
	}
	if _, err := x.PingSandbox(ctx, &sandboxapi.PingRequest{SandboxID: "p"}); err != nil {
		t.Error(err)
	}
	if p, err := x.Platform(ctx, &sandboxapi.PlatformRequest{SandboxID: "p"}); err != nil || p.Platform.OS != "linux" || p.Platform.Architecture != runtime.GOARCH {
		t.Errorf("Platform = %v, %v", p, err)
	}
	c.stats = Stats{MemoryBytes: 4096}
	if m, err := x.SandboxMetrics(ctx, &sandboxapi.SandboxMetricsRequest{SandboxID: "p"}); err != nil || m.Metrics.ID != "p" || len(m.Metrics.Data.Value) == 0 {
		t.Errorf("SandboxMetrics = %v, %v", m, err)
	}
	if err := w.join("a"); err != nil || w.runtime.last.Sandbox != Container(c) {
		t.Errorf("join: %v, %+v", err, w.runtime.last)
	}
	// containerd asks this about a sandbox, too, when it is started again.
	if r, err := w.service.Connect(ctx, &taskapi.ConnectRequest{ID: "p"}); err != nil || r.TaskPid != uint32(c.pid) {
		t.Errorf("Connect = %v, %v", r, err)
	}
	at := time.Now().Add(-time.Second).UTC()
	c.end(api.ExitStatus{Code: 3, At: at}, nil)
	waited, err := x.WaitSandbox(ctx, &sandboxapi.WaitSandboxRequest{SandboxID: "p"})
	if err != nil || waited.ExitStatus != 3 || !waited.ExitedAt.AsTime().Equal(at) {
		t.Errorf("WaitSandbox = %v, %v", waited, err)
	}
	if s := w.podStatus(); s.State != sandboxNotReady || s.Pid != 0 || !s.ExitedAt.AsTime().Equal(at) {
		t.Errorf("when it has ended: %v", s)
	}
	if e, err := ReadExit(filepath.Join(w.dir, "p")); err != nil || e.Status != 3 {
		t.Errorf("ReadExit = %+v, %v", e, err)
	}
	_, err = x.PingSandbox(ctx, &sandboxapi.PingRequest{SandboxID: "p"})
	want(t, "Ping when it has ended", err, errdefs.ErrUnavailable)
	want(t, "a container when it has ended", w.join("late"), errdefs.ErrFailedPrecondition)
}

func TestSandboxThatIsStopped(t *testing.T) {
	for name, listens := range map[string]bool{"gently": true, "by force": false} {
		w := newWorld(t)
		c := w.runPod()
		c.onSignal = func(n int) {
			if listens || n == int(syscall.SIGKILL) {
				c.end(api.ExitStatus{At: time.Now()}, nil)
			}
		}
		for range 2 { // It may be repeated.
			if _, err := (sandboxes{w.service}).StopSandbox(t.Context(), &sandboxapi.StopSandboxRequest{SandboxID: "p", TimeoutSecs: 1}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.mu.Lock()
		got := c.signals
		c.mu.Unlock()
		if (len(got) == 1) != listens || got[0] != int(syscall.SIGTERM) {
			t.Errorf("%s: signals %v", name, got)
		}
	}
}

func TestSandboxThatDoesNotEnd(t *testing.T) {
	w := newWorld(t)
	w.runPod()
	_, err := sandboxes{w.service}.StopSandbox(t.Context(), &sandboxapi.StopSandboxRequest{SandboxID: "p", TimeoutSecs: 1})
	want(t, "Stop", err, errdefs.ErrUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sandboxes{w.service}.WaitSandbox(ctx, &sandboxapi.WaitSandboxRequest{SandboxID: "p"})
	want(t, "Wait", err, context.Canceled)
}

func TestSandboxThatCannotBeMade(t *testing.T) {
	w := newWorld(t)
	x, ctx := sandboxes{w.service}, t.Context()
	w.runtime.failing = api.Errorf(api.KindUnsupported, "host network")
	_, err := x.CreateSandbox(ctx, &sandboxapi.CreateSandboxRequest{SandboxID: "p", BundlePath: w.dir})
	want(t, "Create", err, errdefs.ErrNotImplemented)
	_, err = x.SandboxStatus(ctx, &sandboxapi.SandboxStatusRequest{SandboxID: "p"})
	want(t, "Status", err, errdefs.ErrNotFound)
	// containerd has the shim end.
	w.shutdownPod()
	_, err = x.CreateSandbox(ctx, &sandboxapi.CreateSandboxRequest{SandboxID: "p", BundlePath: w.dir})
	want(t, "Create in a shim that ends", err, errdefs.ErrUnavailable)
}

func TestSandboxThatDoesNotStart(t *testing.T) {
	w := newWorld(t)
	c := w.createPod()
	c.startErr = errors.New("no")
	if _, err := (sandboxes{w.service}).StartSandbox(t.Context(), &sandboxapi.StartSandboxRequest{SandboxID: "p"}); err == nil {
		t.Error("it started")
	}
	if s := w.podStatus(); s.State != sandboxNotReady {
		t.Errorf("status %v", s)
	}
}

func TestOneSandboxForAShim(t *testing.T) {
	w := newWorld(t)
	x, ctx := sandboxes{w.service}, t.Context()
	w.runPod()
	_, err := x.CreateSandbox(ctx, &sandboxapi.CreateSandboxRequest{SandboxID: "q", BundlePath: w.dir})
	want(t, "a second one", err, errdefs.ErrAlreadyExists)
	_, err = x.ShutdownSandbox(ctx, &sandboxapi.ShutdownSandboxRequest{SandboxID: "q"})
	want(t, "Shutdown of another", err, errdefs.ErrNotFound)
	want(t, "a container with the sandbox's id", w.join("p"), errdefs.ErrAlreadyExists)

	other := newWorld(t)
	other.run("a")
	_, err = sandboxes{other.service}.CreateSandbox(ctx, &sandboxapi.CreateSandboxRequest{SandboxID: "p", BundlePath: w.dir})
	want(t, "beside a container of its own", err, errdefs.ErrFailedPrecondition)
	_, err = sandboxes{other.service}.ShutdownSandbox(ctx, &sandboxapi.ShutdownSandboxRequest{SandboxID: "p"})
	want(t, "Shutdown beside a container of its own", err, errdefs.ErrNotFound)
}

// TestShimOfASandboxStays when its containers have gone: containerd asks it to end
// after each.
func TestShimOfASandboxStays(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.runPod()
	if err := w.join("a"); err != nil {
		t.Fatal(err)
	}
	w.runtime.made["a"].end(api.ExitStatus{At: time.Now()}, nil)
	if _, err := w.service.Wait(ctx, &taskapi.WaitRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.service.Shutdown(ctx, &taskapi.ShutdownRequest{ID: "a"}); err != nil || w.ends.Load() != 0 {
		t.Errorf("Shutdown: %v, the shim has ended %d times", err, w.ends.Load())
	}
	w.shutdownPod()
	if _, err := (sandboxes{w.service}).ShutdownSandbox(ctx, &sandboxapi.ShutdownSandboxRequest{SandboxID: "p"}); err != nil || c.deletes != 1 {
		t.Errorf("ShutdownSandbox again: %v, the sandbox was freed %d times", err, c.deletes)
	}
}

func TestLimitsOfASandboxThatChange(t *testing.T) {
	w := newWorld(t)
	c := w.createPod()
	update := func(url, doc string) error {
		_, err := sandboxes{w.service}.UpdateSandbox(t.Context(), &sandboxapi.UpdateSandboxRequest{
			SandboxID: "p", Sandbox: &types.Sandbox{Extensions: map[string]*anypb.Any{updatedResources: {TypeUrl: url, Value: []byte(doc)}}},
		})
		return err
	}
	const url = "io.containerd.cri.v1/UpdatedResources"
	const doc = `{"Overhead":null,"Resources":{"cpu_period":100000,"cpu_quota":50000,"memory_limit_in_bytes":4096}}`
	want(t, "before it runs", update(url, doc), errdefs.ErrFailedPrecondition)
	if _, err := (sandboxes{w.service}).StartSandbox(t.Context(), &sandboxapi.StartSandboxRequest{SandboxID: "p"}); err != nil {
		t.Fatal(err)
	}
	if err := update(url, doc); err != nil || *c.updated.Memory.Limit != 4096 || *c.updated.CPU.Quota != 50000 || *c.updated.CPU.Period != 100000 {
		t.Errorf("Update: %v, %+v", err, c.updated)
	}
	if err := update(url, `{"Resources":null}`); err != nil || c.updated.Memory != nil || c.updated.CPU != nil {
		t.Errorf("nothing said: %v, %+v", err, c.updated)
	}
	want(t, "another document", update("x/Other", doc), errdefs.ErrInvalidArgument)
	want(t, "a damaged one", update(url, "{"), errdefs.ErrInvalidArgument)
	if _, err := (sandboxes{w.service}).UpdateSandbox(t.Context(), &sandboxapi.UpdateSandboxRequest{SandboxID: "p"}); err != nil {
		t.Errorf("no new limits: %v", err)
	}
}
