// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// want checks the class that an error has for containerd.
func want(t *testing.T, what string, err, class error) {
	t.Helper()
	if !errors.Is(errgrpc.ToNative(err), class) {
		t.Errorf("%s: %v, want %v", what, err, class)
	}
}

func TestLifeOfATask(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.run("a")
	state, err := w.service.State(ctx, &taskapi.StateRequest{ID: "a"})
	if err != nil || state.Status != task.Status_RUNNING || state.Pid != 1000 || state.ExitedAt != nil {
		t.Errorf("State = %v, %v", state, err)
	}
	_, err = w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"})
	want(t, "Delete while it runs", err, errdefs.ErrFailedPrecondition)
	at := time.Now().Add(-time.Minute).UTC()
	c.end(api.ExitStatus{Code: 7, At: at}, nil)
	waited, err := w.service.Wait(ctx, &taskapi.WaitRequest{ID: "a"})
	if err != nil || waited.ExitStatus != 7 || !waited.ExitedAt.AsTime().Equal(at) {
		t.Errorf("Wait = %v, %v", waited, err)
	}
	_, err = w.service.Kill(ctx, &taskapi.KillRequest{ID: "a", Signal: 9})
	want(t, "Kill when it has ended", err, errdefs.ErrNotFound)
	// What the shim's own death must not lose.
	if e, err := ReadExit(filepath.Join(w.dir, "a")); err != nil || e.Status != 7 || e.PID != 1000 || !e.At.Equal(at) {
		t.Errorf("ReadExit = %+v, %v", e, err)
	}
	deleted, err := w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"})
	if err != nil || deleted.ExitStatus != 7 || c.deletes != 1 {
		t.Errorf("Delete = %v, %v after %d", deleted, err, c.deletes)
	}
	_, err = w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"})
	want(t, "Delete again", err, errdefs.ErrNotFound)
	w.wantEvents("create", "start", "exit a 7", "delete 7")
}

// TestExitIsNotToldBeforeStart: a process that has ended before its start has
// been told.
func TestExitIsNotToldBeforeStart(t *testing.T) {
	w := newWorld(t)
	c := w.create("a")
	c.onStart = func() {
		c.end(api.ExitStatus{Code: 0, At: time.Now()}, nil)
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := w.service.Start(t.Context(), &taskapi.StartRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	w.wantEvents("create", "start", "exit a 0")
}

func TestOwnExitIsTheLast(t *testing.T) {
	w := newWorld(t)
	c := w.run("a")
	one, two := w.runExec("a", "one"), w.runExec("a", "two")
	w.addExec("a", "never")
	c.onKill = func() {
		go func() {
			time.Sleep(10 * time.Millisecond)
			two.end(137)
		}()
	}
	one.end(3)
	w.wantEvents("create", "start", "exec-added one", "exec-started one", "exec-added two", "exec-started two", "exec-added never", "exit one 3")
	c.end(api.ExitStatus{Code: 1, At: time.Now(), OOMKilled: true}, nil)
	w.wantEvents("create", "start", "exec-added one", "exec-started one", "exec-added two", "exec-started two", "exec-added never",
		"exit one 3", "exit two 137", "oom", "exit a 1")
	_, err := w.service.Start(t.Context(), &taskapi.StartRequest{ID: "a", ExecID: "never"})
	want(t, "Start when the container has ended", err, errdefs.ErrFailedPrecondition)
	_, err = w.service.Exec(t.Context(), &taskapi.ExecProcessRequest{ID: "a", ExecID: "late", Spec: ociAny(t, "Process", specs.Process{})})
	want(t, "Exec when the container has ended", err, errdefs.ErrFailedPrecondition)
}

// TestSandboxThatDies: whatever kills it, the task ends as if killed.
func TestSandboxThatDies(t *testing.T) {
	w := newWorld(t)
	w.create("a").end(api.ExitStatus{}, errors.New("the sandbox was killed"))
	waited, err := w.service.Wait(t.Context(), &taskapi.WaitRequest{ID: "a"})
	if err != nil || waited.ExitStatus != 137 {
		t.Errorf("Wait = %v, %v", waited, err)
	}
	w.wantEvents("create", "exit a 137")
}

// TestKillOfWhatEndsMeanwhile: clients take "not found" for an end.
func TestKillOfWhatEndsMeanwhile(t *testing.T) {
	w := newWorld(t)
	c := w.run("a")
	for _, kind := range []api.Kind{api.KindState, api.KindNotFound} {
		c.killErr = api.Errorf(kind, "its process has ended")
		_, err := w.service.Kill(t.Context(), &taskapi.KillRequest{ID: "a", Signal: 9})
		want(t, "Kill", err, errdefs.ErrNotFound)
	}
	c.killErr = nil
}

func TestDeleteOfWhatNeverRan(t *testing.T) {
	w := newWorld(t)
	c := w.create("a")
	c.failDel = api.Errorf(api.KindUnavailable, "busy")
	_, err := w.service.Delete(t.Context(), &taskapi.DeleteRequest{ID: "a"})
	want(t, "Delete that fails", err, errdefs.ErrUnavailable)
	c.failDel = nil
	deleted, err := w.service.Delete(t.Context(), &taskapi.DeleteRequest{ID: "a"})
	if err != nil || deleted.ExitStatus != 137 {
		t.Errorf("Delete = %v, %v", deleted, err)
	}
	w.wantEvents("create", "exit a 137", "delete 137")
}

func TestExecs(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.run("a")
	w.addExec("a", "x")
	_, err := w.service.Exec(ctx, &taskapi.ExecProcessRequest{ID: "a", ExecID: "x", Spec: ociAny(t, "Process", specs.Process{})})
	want(t, "Exec with an id that is taken", err, errdefs.ErrAlreadyExists)
	_, err = w.service.Kill(ctx, &taskapi.KillRequest{ID: "a", ExecID: "x", Signal: 15})
	want(t, "Kill before the start", err, errdefs.ErrFailedPrecondition)
	if _, err := w.service.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: "a", ExecID: "x", Width: 90, Height: 30}); err != nil {
		t.Errorf("ResizePty before the start: %v", err)
	}
	started, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "a", ExecID: "x"})
	if err != nil || started.Pid != 20 {
		t.Fatalf("Start = %v, %v", started, err)
	}
	p := c.execs["x"]
	if box := p.options.Process.ConsoleSize; box == nil || *box != (specs.Box{Height: 30, Width: 90}) {
		t.Errorf("the process' terminal has size %v", box)
	}
	pids, err := w.service.Pids(ctx, &taskapi.PidsRequest{ID: "a"})
	if err != nil || len(pids.Processes) != 2 || pids.Processes[0].Pid != 1000 || pids.Processes[1].Pid != 20 || pids.Processes[1].Info == nil {
		t.Errorf("Pids = %v, %v", pids, err)
	}
	if _, err := w.service.Kill(ctx, &taskapi.KillRequest{ID: "a", ExecID: "x", Signal: 15}); err != nil || !slices.Equal(p.signals, []int{15}) {
		t.Errorf("Kill: %v, signals %v", err, p.signals)
	}
	_, err = w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a", ExecID: "x"})
	want(t, "Delete while it runs", err, errdefs.ErrFailedPrecondition)
	p.end(5)
	if waited, err := w.service.Wait(ctx, &taskapi.WaitRequest{ID: "a", ExecID: "x"}); err != nil || waited.ExitStatus != 5 {
		t.Errorf("Wait = %v, %v", waited, err)
	}
	if deleted, err := w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a", ExecID: "x"}); err != nil || deleted.ExitStatus != 5 {
		t.Errorf("Delete = %v, %v", deleted, err)
	}
	_, err = w.service.State(ctx, &taskapi.StateRequest{ID: "a", ExecID: "x"})
	want(t, "State when it is deleted", err, errdefs.ErrNotFound)
	// The id can be used again.
	w.runExec("a", "x").end(0)
	w.wantEvents("create", "start", "exec-added x", "exec-started x", "exit x 5", "exec-added x", "exec-started x", "exit x 0")
}

// TestExecThatCannotStart has an exit code and tells no exit.
func TestExecThatCannotStart(t *testing.T) {
	w := newWorld(t)
	c := w.run("a")
	c.execErr = api.Errorf(api.KindCommandNotFound, "no such program")
	w.addExec("a", "x")
	if _, err := w.service.Start(t.Context(), &taskapi.StartRequest{ID: "a", ExecID: "x"}); err == nil {
		t.Error("Start: no error")
	}
	deleted, err := w.service.Delete(t.Context(), &taskapi.DeleteRequest{ID: "a", ExecID: "x"})
	if err != nil || deleted.ExitStatus != 127 {
		t.Errorf("Delete = %v, %v", deleted, err)
	}
	c.end(api.ExitStatus{At: time.Now()}, nil)
	w.wantEvents("create", "start", "exec-added x", "exit a 0")
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.create("a")
	_, err := w.service.Pause(ctx, &taskapi.PauseRequest{ID: "a"})
	want(t, "Pause before the start", err, errdefs.ErrFailedPrecondition)
	if _, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	_, err = w.service.Start(ctx, &taskapi.StartRequest{ID: "a"})
	want(t, "Start again", err, errdefs.ErrFailedPrecondition)
	if _, err := w.service.Pause(ctx, &taskapi.PauseRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if s, _ := w.service.State(ctx, &taskapi.StateRequest{ID: "a"}); s.GetStatus() != task.Status_PAUSED {
		t.Errorf("State = %v", s)
	}
	_, err = w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"})
	want(t, "Delete while it is paused", err, errdefs.ErrFailedPrecondition)
	if _, err := w.service.Resume(ctx, &taskapi.ResumeRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	_, err = w.service.Resume(ctx, &taskapi.ResumeRequest{ID: "a"})
	want(t, "Resume again", err, errdefs.ErrFailedPrecondition)
	c.end(api.ExitStatus{At: time.Now()}, nil)
	w.wantEvents("create", "start", "paused", "resumed", "exit a 0")
}

func TestCreateThatFails(t *testing.T) {
	w := newWorld(t)
	for kind, class := range map[api.Kind]error{
		api.KindInvalid: errdefs.ErrInvalidArgument, api.KindUnsupported: errdefs.ErrFailedPrecondition,
		api.KindNoSpace: errdefs.ErrResourceExhausted, api.KindInternal: errdefs.ErrUnknown,
		// Not containerd's "not found", which is about tasks.
		api.KindCommandNotFound: errdefs.ErrUnknown,
	} {
		w.runtime.failing = api.Errorf(kind, "for a reason")
		_, err := w.service.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "a", Bundle: w.bundle("a", nil)})
		want(t, "Create that fails: "+string(kind), err, class)
	}
	w.runtime.failing = nil
	w.create("a")
	_, err := w.service.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "a", Bundle: w.bundle("a", nil)})
	want(t, "Create with an id that is taken", err, errdefs.ErrAlreadyExists)
	_, err = w.service.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "b", Bundle: w.bundle("b", nil), Checkpoint: "/x"})
	want(t, "Create from a checkpoint", err, errdefs.ErrFailedPrecondition)
	_, err = w.service.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "b", Bundle: filepath.Join(w.dir, "none")})
	if err == nil {
		t.Error("Create without a bundle: no error")
	}
	_, err = w.service.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "a"})
	want(t, "Checkpoint", err, errdefs.ErrNotImplemented)
	w.wantEvents("create")
}

func TestPods(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	container := map[string]string{containerTypeAnnotation: "container", sandboxIDAnnotation: "pod"}
	_, err := w.service.Create(ctx, &taskapi.CreateTaskRequest{ID: "c", Bundle: w.bundle("c", container)})
	want(t, "Create without the pod's sandbox", err, errdefs.ErrNotFound)
	pod := w.bundle("pod", map[string]string{containerTypeAnnotation: "sandbox", sandboxIDAnnotation: "pod"})
	for id, bundle := range map[string]string{"pod": pod, "c": filepath.Join(w.dir, "c")} {
		if group, err := Group(bundle); err != nil || group != "pod" {
			t.Errorf("Group(%s) = %q, %v", id, group, err)
		}
	}
	for _, id := range []string{"pod", "c"} {
		if _, err := w.service.Create(ctx, &taskapi.CreateTaskRequest{ID: id, Bundle: filepath.Join(w.dir, id)}); err != nil {
			t.Fatalf("Create %s: %v", id, err)
		}
	}
	if w.runtime.last.Sandbox != Container(w.runtime.made["pod"]) {
		t.Error("the container has not joined its pod's sandbox")
	}
}

func TestShutdownStaysWhileTasksRemain(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.run("a")
	shut := func() {
		t.Helper()
		if _, err := w.service.Shutdown(ctx, &taskapi.ShutdownRequest{ID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if shut(); w.ends.Load() != 0 {
		t.Error("the shim ends while a container runs")
	}
	c.end(api.ExitStatus{At: time.Now()}, nil)
	if _, err := w.service.Wait(ctx, &taskapi.WaitRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if shut(); w.ends.Load() != 0 {
		t.Error("the shim ends before the container is deleted")
	}
	if _, err := w.service.Delete(ctx, &taskapi.DeleteRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	shut()
	if shut(); w.ends.Load() != 1 {
		t.Errorf("the shim was ended %d times", w.ends.Load())
	}
	_, err := w.service.Create(ctx, &taskapi.CreateTaskRequest{ID: "b", Bundle: w.bundle("b", nil)})
	want(t, "Create when the shim ends", err, errdefs.ErrUnavailable)
}

// TestContainerdThatIsAway: events keep their order, and none is lost.
func TestContainerdThatIsAway(t *testing.T) {
	w := newWorld(t)
	w.told.away = 3
	w.run("a").end(api.ExitStatus{Code: 2, At: time.Now()}, nil)
	w.wantEvents("create", "start", "exit a 2")
}

func TestCallsAreHandedOn(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.run("a")
	limit := int64(64 << 20)
	if _, err := w.service.Update(ctx, &taskapi.UpdateTaskRequest{ID: "a", Resources: ociAny(t, "LinuxResources", specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}})}); err != nil || *c.updated.Memory.Limit != limit {
		t.Errorf("Update: %v, %+v", err, c.updated)
	}
	_, err := w.service.Update(ctx, &taskapi.UpdateTaskRequest{ID: "a", Resources: ociAny(t, "WindowsResources", specs.WindowsResources{})})
	want(t, "Update of another system", err, errdefs.ErrInvalidArgument)
	if _, err := w.service.Kill(ctx, &taskapi.KillRequest{ID: "a", Signal: uint32(syscall.SIGHUP)}); err != nil || !slices.Equal(c.signals, []int{1}) {
		t.Errorf("Kill: %v, %v", err, c.signals)
	}
	if _, err := w.service.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: "a", Width: 100000, Height: 40}); err != nil || c.size != [2]uint16{40, 65535} {
		t.Errorf("ResizePty: %v, %v", err, c.size)
	}
	c.stats = Stats{MemoryBytes: 10, MemoryLimitBytes: 100, CPUUser: time.Second, CPUSystem: time.Second, Pids: 3}
	r, err := w.service.Stats(ctx, &taskapi.StatsRequest{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := typeurl.UnmarshalAny(r.Stats)
	if m, ok := v.(*v1.Metrics); err != nil || !ok || m.Memory.Usage.Usage != 10 || m.Memory.Usage.Limit != 100 || m.CPU.Usage.Total != 2e9 || m.Pids.Current != 3 {
		t.Errorf("Stats = %v, %v", v, err)
	}
	if r, err := w.service.Connect(ctx, &taskapi.ConnectRequest{ID: "a"}); err != nil || int(r.ShimPid) != os.Getpid() || r.TaskPid != 1000 {
		t.Errorf("Connect = %v, %v", r, err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	_, err = w.service.Wait(stopped, &taskapi.WaitRequest{ID: "a"})
	want(t, "Wait that is given up", err, context.Canceled)
}

// TestProcessesOfATaskWithout: before its start a task is the host's process that stands
// for it, as the client was told; one without processes has none later.
func TestProcessesOfATaskWithout(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	c := w.create("a")
	c.lonely = true
	if r, err := w.service.Pids(ctx, &taskapi.PidsRequest{ID: "a"}); err != nil || len(r.Processes) != 1 || r.Processes[0].Pid != 1000 {
		t.Errorf("before the start: %v, %v", r, err)
	}
	if _, err := w.service.Start(ctx, &taskapi.StartRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if r, err := w.service.Pids(ctx, &taskapi.PidsRequest{ID: "a"}); err != nil || len(r.Processes) != 0 {
		t.Errorf("later: %v, %v", r, err)
	}
}

// TestCloseIOOfAnExecThatIsYetToStart is not lost: ctr calls it as soon as its own
// input has ended.
func TestCloseIOOfAnExecThatIsYetToStart(t *testing.T) {
	for _, when := range []string{"before the start", "during it", "after it"} {
		w := newWorld(t)
		c := w.run("a")
		path := filepath.Join(t.TempDir(), "in")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := w.service.Exec(t.Context(), &taskapi.ExecProcessRequest{ID: "a", ExecID: "x", Stdin: path, Spec: ociAny(t, "Process", specs.Process{})})
		if err != nil {
			t.Fatal(err)
		}
		closeIO := func(now string) {
			if now != when {
				return
			}
			if _, err := w.service.CloseIO(t.Context(), &taskapi.CloseIORequest{ID: "a", ExecID: "x", Stdin: true}); err != nil {
				t.Error(err)
			}
		}
		var guest *os.File
		c.onExec = func(o ExecOptions) {
			fd, err := unix.FcntlInt(o.Streams.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
			}
			guest = os.NewFile(uintptr(fd), "guest")
			closeIO("during it")
		}
		closeIO("before the start")
		if _, err := w.service.Start(t.Context(), &taskapi.StartRequest{ID: "a", ExecID: "x"}); err != nil {
			t.Fatal(err)
		}
		closeIO("after it")
		fds := []unix.PollFd{{Fd: int32(guest.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil || fds[0].Revents != unix.POLLHUP {
			t.Errorf("%s: events %#x of the input, %v", when, fds[0].Revents, err)
		}
		guest.Close()
		c.execs["x"].end(0)
		c.end(api.ExitStatus{At: time.Now()}, nil)
	}
}
