// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"z.gfire.dev/gvx/runtime/api"
)

// fakeRuntime makes containers that do what a test tells them.
type fakeRuntime struct {
	mu      sync.Mutex
	made    map[string]*fakeContainer
	failing error
	last    CreateOptions
	lastPod PodOptions
}

func (r *fakeRuntime) Create(_ context.Context, o CreateOptions) (Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = o
	if r.failing != nil {
		return nil, r.failing
	}
	c := &fakeContainer{pid: 1000 + len(r.made), ended: make(chan struct{}), execs: map[string]*fakeProcess{}}
	r.made[o.ID] = c
	return c, nil
}

func (r *fakeRuntime) CreatePod(_ context.Context, o PodOptions) (Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastPod = o
	if r.failing != nil {
		return nil, r.failing
	}
	c := &fakeContainer{pid: 1000 + len(r.made), ended: make(chan struct{}), execs: map[string]*fakeProcess{}}
	r.made[o.ID] = c
	return c, nil
}

// fakeContainer is a container whose test ends it.
type fakeContainer struct {
	pid int

	mu       sync.Mutex
	ended    chan struct{}
	exit     api.ExitStatus
	exitErr  error
	startErr error
	onStart  func()
	onKill   func()
	onSignal func(int)
	onExec   func(ExecOptions)
	killErr  error
	execErr  error
	stats    Stats
	signals  []int
	updated  *specs.LinuxResources
	size     [2]uint16
	deletes  int
	failDel  error
	// lonely has no processes.
	lonely bool
	execs  map[string]*fakeProcess
}

// end lets the first process end.
func (c *fakeContainer) end(exit api.ExitStatus, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ended:
	default:
		c.exit, c.exitErr = exit, err
		close(c.ended)
	}
}

func (c *fakeContainer) Start(context.Context) error {
	if c.startErr != nil {
		return c.startErr
	}
	if c.onStart != nil {
		c.onStart()
	}
	return nil
}

func (c *fakeContainer) Wait(ctx context.Context) (api.ExitStatus, error) {
	<-c.ended
	return c.exit, c.exitErr
}

func (c *fakeContainer) SignalForeground(ctx context.Context, n int) error {
	return c.Signal(ctx, n, false)
}

func (c *fakeContainer) Signal(_ context.Context, signal int, all bool) error {
	c.mu.Lock()
	c.signals = append(c.signals, signal)
	kill, err, hear := c.onKill, c.killErr, c.onSignal
	c.mu.Unlock()
	if hear != nil {
		hear(signal)
	}
	if err != nil {
		return err
	}
	if all && kill != nil {
		kill()
	}
	return nil
}

func (c *fakeContainer) Resize(_ context.Context, rows, columns uint16) error {
	c.size = [2]uint16{rows, columns}
	return nil
}
func (c *fakeContainer) Pause(context.Context) error  { return nil }
func (c *fakeContainer) Resume(context.Context) error { return nil }
func (c *fakeContainer) Update(_ context.Context, r *specs.LinuxResources) error {
	c.updated = r
	return nil
}
func (c *fakeContainer) Stats(context.Context) (Stats, error) { return c.stats, nil }
func (c *fakeContainer) Processes(context.Context) ([]int, error) {
	if c.lonely {
		return nil, nil
	}
	pids := []int{1}
	for _, p := range c.execs {
		pids = append(pids, p.pid)
	}
	return pids, nil
}

func (c *fakeContainer) Exec(_ context.Context, o ExecOptions) (Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execErr != nil {
		return nil, c.execErr
	}
	p := &fakeProcess{pid: 20 + len(c.execs), ended: make(chan struct{}), options: o}
	c.execs[o.ID] = p
	if c.onExec != nil {
		c.onExec(o)
	}
	return p, nil
}

func (c *fakeContainer) Delete(context.Context) error {
	c.mu.Lock()
	c.deletes++
	err := c.failDel
	c.mu.Unlock()
	if err != nil {
		return err
	}
	c.end(api.ExitStatus{Code: 137, Signal: 9, At: time.Now()}, nil)
	return nil
}

func (c *fakeContainer) PID() int { return c.pid }

// fakeProcess is an exec.
type fakeProcess struct {
	pid     int
	options ExecOptions
	once    sync.Once
	ended   chan struct{}
	exit    api.ExitStatus
	signals []int
}

func (p *fakeProcess) end(code int) {
	p.once.Do(func() {
		p.exit = api.ExitStatus{Code: code, At: time.Now()}
		close(p.ended)
	})
}
func (p *fakeProcess) Wait(context.Context) (api.ExitStatus, error) {
	<-p.ended
	return p.exit, nil
}
func (p *fakeProcess) Signal(_ context.Context, n int) error {
	p.signals = append(p.signals, n)
	return nil
}
func (p *fakeProcess) SignalForeground(ctx context.Context, n int) error { return p.Signal(ctx, n) }

func (p *fakeProcess) Resize(context.Context, uint16, uint16) error { return nil }
func (p *fakeProcess) PID() int                                     { return p.pid }

// recorder is the containerd that events go to.
type recorder struct {
	mu     sync.Mutex
	events []string
	// away makes it fail while it is positive, and is counted down.
	away   int
	closed bool
}

func (r *recorder) Forward(_ context.Context, e *types.Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away > 0 {
		r.away--
		return errors.New("containerd is away")
	}
	v, err := typeurl.UnmarshalAny(e.GetEvent())
	if err != nil {
		return err
	}
	text := e.GetTopic()[len("/tasks/"):]
	switch v := v.(type) {
	case *events.TaskExit:
		text += fmt.Sprintf(" %s %d", v.ID, v.ExitStatus)
	case *events.TaskExecAdded:
		text += " " + v.ExecID
	case *events.TaskExecStarted:
		text += " " + v.ExecID
	case *events.TaskDelete:
		text += fmt.Sprintf(" %d", v.ExitStatus)
	}
	r.events = append(r.events, text)
	return nil
}

func (r *recorder) Close() error {
	r.closed = true
	return nil
}

// world is a service over fakes.
type world struct {
	t       *testing.T
	service *Service
	runtime *fakeRuntime
	told    *recorder
	// ends counts how often the shim was told to end.
	ends atomic.Int32
	dir  string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, runtime: &fakeRuntime{made: map[string]*fakeContainer{}}, told: &recorder{}, dir: t.TempDir()}
	w.service = newService(Options{Runtime: w.runtime, Namespace: "test", Shutdown: func() { w.ends.Add(1) }, StatsVersion: 1}, w.told)
	t.Cleanup(func() {
		if err := w.service.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

// bundle makes a bundle with annotations.
func (w *world) bundle(id string, annotations map[string]string) string {
	w.t.Helper()
	dir := filepath.Join(w.dir, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	data, err := json.Marshal(specs.Spec{Annotations: annotations})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// create makes a task without streams.
func (w *world) create(id string) *fakeContainer {
	w.t.Helper()
	if _, err := w.service.Create(w.t.Context(), &taskapi.CreateTaskRequest{ID: id, Bundle: w.bundle(id, nil)}); err != nil {
		w.t.Fatalf("Create: %v", err)
	}
	return w.runtime.made[id]
}

// run makes a task and starts it.
func (w *world) run(id string) *fakeContainer {
	w.t.Helper()
	c := w.create(id)
	if _, err := w.service.Start(w.t.Context(), &taskapi.StartRequest{ID: id}); err != nil {
		w.t.Fatalf("Start: %v", err)
	}
	return c
}

// addExec adds a process to a task.
func (w *world) addExec(id, exec string) {
	w.t.Helper()
	_, err := w.service.Exec(w.t.Context(), &taskapi.ExecProcessRequest{ID: id, ExecID: exec, Spec: ociAny(w.t, "Process", specs.Process{Args: []string{"true"}})})
	if err != nil {
		w.t.Fatalf("Exec: %v", err)
	}
}

// runExec adds a process and starts it.
func (w *world) runExec(id, exec string) *fakeProcess {
	w.t.Helper()
	w.addExec(id, exec)
	if _, err := w.service.Start(w.t.Context(), &taskapi.StartRequest{ID: id, ExecID: exec}); err != nil {
		w.t.Fatalf("Start: %v", err)
	}
	return w.runtime.made[id].execs[exec]
}

func ociAny(t *testing.T, name string, v any) *anypb.Any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/" + name, Value: data}
}

// wantEvents waits until containerd has been told what is listed, and no more.
func (w *world) wantEvents(want ...string) {
	w.t.Helper()
	var got []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.told.mu.Lock()
		got = slices.Clone(w.told.events)
		w.told.mu.Unlock()
		if len(got) >= len(want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("events\n %q, want\n %q", got, want)
	}
}
