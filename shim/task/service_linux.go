// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/containerd/containerd/api/events"
	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/stdio"
)

// maxTasks bounds the containers of one shim: those of one pod.
const maxTasks = 512

// Options are what a service needs.
type Options struct {
	Runtime Runtime
	// Namespace is the one of containerd's that the shim belongs to.
	Namespace string
	// EventsAddress is containerd's ttrpc address.
	EventsAddress string
	// Shutdown ends the shim. It is called at most once, when containerd asks
	// for it and no task is left.
	Shutdown func()
	// StatsVersion is that of the host's cgroups, 1 or 2: in its form metrics
	// are told.
	StatsVersion int
}

// Service is the task service of one shim.
type Service struct {
	runtime   Runtime
	namespace string
	events    *eventQueue
	shutdown  func()
	stats     int

	mu    sync.Mutex
	tasks map[string]*container
	// creating are ids whose Create is under way.
	creating map[string]bool
	// pod is the sandbox of containerd's sandbox API, nil if there is none;
	// makingPod says that its creation is under way.
	pod       *pod
	makingPod bool
	ending    bool
}

var _ taskapi.TTRPCTaskService = (*Service)(nil)

// New makes a service without tasks.
func New(o Options) (*Service, error) {
	to, err := dialEvents(o.EventsAddress)
	if err != nil {
		return nil, err
	}
	return newService(o, to), nil
}

func newService(o Options, to forwarder) *Service {
	return &Service{
		runtime: o.Runtime, namespace: o.Namespace, events: newEventQueue(o.Namespace, to), shutdown: o.Shutdown,
		stats: o.StatsVersion, tasks: make(map[string]*container), creating: make(map[string]bool),
	}
}

// RegisterTTRPC offers the service, and the sandbox API, on a server.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	sandboxapi.RegisterTTRPCSandboxService(server, sandboxes{s})
	return nil
}

// Close ends all tasks and tells containerd what is still untold.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	var left []*container
	for _, t := range s.tasks {
		left = append(left, t)
	}
	p := s.pod
	s.mu.Unlock()
	var errs []error
	for _, t := range left {
		errs = append(errs, t.runtime.Delete(ctx))
		select {
		case <-t.watched:
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
		}
	}
	if p != nil {
		errs = append(errs, p.free(ctx))
	}
	return errors.Join(append(errs, s.events.close())...)
}

// task returns a task by its id.
func (s *Service) task(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fail(errdefs.ErrNotFound, "container %s: no such task", id)
}

// find returns a task and one of its processes.
func (s *Service) find(id, exec string) (*container, *process, error) {
	t, err := s.task(id)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.process(exec)
	if p == nil {
		return nil, nil, errNoProcess(t, exec)
	}
	return t, p, nil
}

// reserve takes an id for a Create, and finds the sandbox that it joins.
func (s *Service) reserve(id, sandbox string) (join Container, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return nil, fail(errdefs.ErrUnavailable, "create container %s: the shim is ending", id)
	case s.tasks[id] != nil || s.creating[id] || s.pod != nil && s.pod.id == id:
		return nil, fail(errdefs.ErrAlreadyExists, "create container %s: it exists", id)
	case len(s.tasks)+len(s.creating) >= maxTasks:
		return nil, fail(errdefs.ErrResourceExhausted, "create container %s: the shim has %d, the most it takes", id, maxTasks)
	}
	if sandbox != "" && sandbox != id {
		if join, err = s.sandbox(sandbox); err != nil {
			return nil, fail(err, "create container %s: its pod's sandbox %s is not in this shim, or has ended", id, sandbox)
		}
	}
	s.creating[id] = true
	return join, nil
}

// sandbox finds what containers of a pod join: its sandbox, or the task of its pause
// container. The error is one of containerd's classes. Call it with mu held.
func (s *Service) sandbox(id string) (Container, error) {
	if t := s.tasks[id]; t != nil {
		return t.runtime, nil
	}
	switch {
	case s.pod == nil || s.pod.id != id:
		return nil, errdefs.ErrNotFound
	case !s.pod.ready():
		return nil, errdefs.ErrFailedPrecondition
	}
	return s.pod.runtime, nil
}

// Create makes a container and its sandbox, or adds it to that of its pod.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (_ *taskapi.CreateTaskResponse, err error) {
	if r.GetCheckpoint() != "" {
		return nil, fail(errdefs.ErrFailedPrecondition, "create container %s: restoring a checkpoint (%s) is not supported", r.GetID(), r.GetCheckpoint())
	}
	sandbox, err := podSandbox(r.GetBundle())
	if err != nil {
		return nil, toGRPC(err)
	}
	join, err := s.reserve(r.GetID(), sandbox)
	if err != nil {
		return nil, err
	}
	defer func() {
		s.mu.Lock()
		delete(s.creating, r.GetID())
		s.mu.Unlock()
	}()
	t := &container{id: r.GetID(), bundle: r.GetBundle(), service: s, watched: make(chan struct{}), execs: make(map[string]*process)}
	t.init = newProcess("", stdio.Config{
		ID: r.GetID(), Namespace: s.namespace, Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal(),
	})
	if t.init.io, err = stdio.Open(t.init.stdio); err != nil {
		return nil, toGRPC(err)
	}
	o := CreateOptions{
		ID: r.GetID(), Namespace: s.namespace, Bundle: r.GetBundle(), Mounts: fromMounts(r.GetRootfs()),
		OptionsType: r.GetOptions().GetTypeUrl(), Options: r.GetOptions().GetValue(), Streams: streams(t.init.io), Sandbox: join,
	}
	t.runtime, err = s.runtime.Create(ctx, o)
	t.init.io.Donated()
	if err != nil {
		t.init.io.Close(0)
		if api.KindOf(err) == api.KindUnsupported {
			// For containerd, "not implemented" is the call: it would try version 2
			// of the API, and report that.
			return nil, fail(errdefs.ErrFailedPrecondition, "%w", err)
		}
		return nil, toGRPC(err)
	}
	t.init.io.OnKeys(keysTo(t.runtime))
	t.init.pid = t.runtime.PID()
	s.mu.Lock()
	s.tasks[t.id] = t
	s.mu.Unlock()
	s.events.put(&events.TaskCreate{
		ContainerID: r.GetID(), Bundle: r.GetBundle(), Rootfs: r.GetRootfs(), Checkpoint: r.GetCheckpoint(), Pid: uint32(t.init.pid),
		IO: &events.TaskIO{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()},
	})
	go t.watch()
	return &taskapi.CreateTaskResponse{Pid: uint32(t.init.pid)}, nil
}

// Start lets a container's first process run, or runs an exec.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	if p.id != "" {
		return t.startExec(ctx, p)
	}
	t.starting.Lock()
	defer t.starting.Unlock()
	t.mu.Lock()
	status := p.status
	t.mu.Unlock()
	if status != task.Status_CREATED {
		return nil, fail(errdefs.ErrFailedPrecondition, "start container %s: it is %s", t.id, statusName(status))
	}
	if err := p.io.HoldInput(); err != nil {
		return nil, toGRPC(err)
	}
	if err := t.runtime.Start(ctx); err != nil {
		return nil, toGRPC(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.status == task.Status_CREATED {
		p.status = task.Status_RUNNING
	}
	s.events.put(&events.TaskStart{ContainerID: t.id, Pid: uint32(p.pid)})
	return &taskapi.StartResponse{Pid: uint32(p.pid)}, nil
}

// Delete frees a container that has ended or never ran, or an exec.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	if p.id != "" {
		return t.deleteExec(p)
	}
	return s.deleteTask(ctx, t)
}

func (s *Service) deleteTask(ctx context.Context, t *container) (*taskapi.DeleteResponse, error) {
	t.mu.Lock()
	status := t.init.status
	if t.deleting || status != task.Status_STOPPED && status != task.Status_CREATED {
		t.mu.Unlock()
		return nil, fail(errdefs.ErrFailedPrecondition, "delete container %s: it is %s", t.id, statusName(status))
	}
	t.deleting = true
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.deleting = false
		t.mu.Unlock()
	}()
	if status == task.Status_STOPPED {
		// Output first: freeing the sandbox would not cut it off, but a reader
		// may take what is in the pipe as the whole.
		t.closeAllIO()
	}
	if err := t.runtime.Delete(ctx); err != nil {
		return nil, toGRPC(err)
	}
	// A container that never ran ends by this; its exit is told first.
	if err := t.init.wait(ctx); err != nil {
		return nil, toGRPC(err)
	}
	t.closeAllIO()
	s.mu.Lock()
	delete(s.tasks, t.id)
	s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.init
	s.events.put(&events.TaskDelete{ContainerID: t.id, Pid: uint32(p.pid), ExitStatus: uint32(p.exit.Code), ExitedAt: p.exitedAt()})
	return &taskapi.DeleteResponse{Pid: uint32(p.pid), ExitStatus: uint32(p.exit.Code), ExitedAt: p.exitedAt()}, nil
}

// Wait returns when a process has ended.
func (s *Service) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	if err := p.wait(ctx); err != nil {
		return nil, toGRPC(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return &taskapi.WaitResponse{ExitStatus: uint32(p.exit.Code), ExitedAt: p.exitedAt()}, nil
}

// State tells how a process is.
func (s *Service) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.state(t), nil
}

// Connect tells a containerd that was started again whom it talks to.
func (s *Service) Connect(_ context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	response := &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid())}
	if t, err := s.task(r.GetID()); err == nil {
		response.TaskPid = uint32(t.init.pid)
	} else if p, err := s.podOf(r.GetID()); err == nil {
		response.TaskPid = uint32(p.runtime.PID())
	}
	return response, nil
}

// Shutdown ends the shim if it has no task, and is not a sandbox's: that one's end is
// ShutdownSandbox. containerd asks after each deleted container of a pod, too.
func (s *Service) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	idle := len(s.tasks) == 0 && len(s.creating) == 0 && s.pod == nil && !s.makingPod && !s.ending
	if idle {
		s.ending = true
	}
	s.mu.Unlock()
	if idle {
		s.shutdown()
	}
	return &emptypb.Empty{}, nil
}
