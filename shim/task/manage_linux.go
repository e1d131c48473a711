// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/metrics"
	"z.gfire.dev/gvx/shim/stdio"
)

// Exec adds a process to a container; Start runs it.
func (s *Service) Exec(_ context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.GetID())
	if err != nil {
		return nil, err
	}
	var spec specs.Process
	if err := fromAny(r.GetSpec().GetTypeUrl(), r.GetSpec().GetValue(), "Process", &spec); err != nil {
		return nil, toGRPC(err)
	}
	if r.GetExecID() == "" {
		return nil, fail(errdefs.ErrInvalidArgument, "container %s: an additional process needs an id", t.id)
	}
	spec.Terminal = r.GetTerminal()
	p := newProcess(r.GetExecID(), stdio.Config{
		ID: r.GetExecID(), Namespace: s.namespace, Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal(),
	})
	p.spec = &spec
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.execs[p.id] != nil:
		return nil, fail(errdefs.ErrAlreadyExists, "container %s: process %s exists", t.id, p.id)
	case t.ending:
		return nil, fail(errdefs.ErrFailedPrecondition, "container %s: its first process has ended", t.id)
	case len(t.execs) >= maxExecs:
		return nil, fail(errdefs.ErrResourceExhausted, "container %s has %d additional processes, the most it takes: delete those that have ended", t.id, maxExecs)
	}
	t.execs[p.id] = p
	s.events.put(&events.TaskExecAdded{ContainerID: t.id, ExecID: p.id})
	return &emptypb.Empty{}, nil
}

// startExec runs an additional process.
func (t *container) startExec(ctx context.Context, p *process) (*taskapi.StartResponse, error) {
	t.mu.Lock()
	switch {
	case t.ending:
		t.mu.Unlock()
		return nil, fail(errdefs.ErrFailedPrecondition, "start process %s: the first process of container %s has ended", p.id, t.id)
	case p.status != task.Status_CREATED:
		t.mu.Unlock()
		return nil, fail(errdefs.ErrFailedPrecondition, "start process %s of container %s: it is %s", p.id, t.id, statusName(p.status))
	}
	// From here on it counts as running: the container's end waits for it.
	p.status = task.Status_RUNNING
	t.mu.Unlock()

	running, io, err := t.runExec(ctx, p)

	t.mu.Lock()
	defer t.mu.Unlock()
	p.io = io
	if p.inputEnded {
		io.CloseInput()
	}
	if err == nil && p.status == task.Status_STOPPED {
		err = fail(errdefs.ErrFailedPrecondition, "start process %s: container %s has ended", p.id, t.id)
	}
	if err != nil {
		// It never ran, so that no exit is told.
		p.setExited(api.ExitStatus{Code: exitOf(err)})
		return nil, toGRPC(err)
	}
	p.exec, p.pid = running, running.PID()
	t.service.events.put(&events.TaskExecStarted{ContainerID: t.id, ExecID: p.id, Pid: uint32(p.pid)})
	go t.watchExec(p, running)
	return &taskapi.StartResponse{Pid: uint32(p.pid)}, nil
}

func (t *container) runExec(ctx context.Context, p *process) (Process, *stdio.Set, error) {
	io, err := stdio.Open(p.stdio)
	if err != nil {
		return nil, nil, err
	}
	// Its client is there already, and calls CloseIO when it is not.
	if err := io.HoldInput(); err != nil {
		io.Close(0)
		return nil, nil, err
	}
	running, err := t.runtime.Exec(ctx, ExecOptions{ID: p.id, Process: p.spec, Streams: streams(io)})
	io.Donated()
	if err != nil {
		io.Close(0)
		return nil, nil, err
	}
	io.OnKeys(keysTo(running))
	return running, io, nil
}

// keysTo sends what keys mean to whose terminal it is.
func keysTo(to interface {
	SignalForeground(ctx context.Context, signal int) error
}) func(syscall.Signal) {
	return func(sig syscall.Signal) {
		ctx, cancel := context.WithTimeout(context.Background(), keyPatience)
		defer cancel()
		// It may be on its way out.
		_ = to.SignalForeground(ctx, int(sig))
	}
}

// keyPatience bounds how long a key may hold up the next.
const keyPatience = 5 * time.Second

// exitOf is the exit code of a process that could not be started, as a shell
// gives it.
func exitOf(err error) int {
	switch api.KindOf(err) {
	case api.KindCommandNotFound:
		return 127
	case api.KindCommandNotExecutable:
		return 126
	}
	return 255
}

// deleteExec frees an additional process.
func (t *container) deleteExec(p *process) (*taskapi.DeleteResponse, error) {
	t.mu.Lock()
	if p.status != task.Status_STOPPED && p.status != task.Status_CREATED {
		defer t.mu.Unlock()
		return nil, fail(errdefs.ErrFailedPrecondition, "delete process %s of container %s: it is %s", p.id, t.id, statusName(p.status))
	}
	io := p.io
	t.mu.Unlock()
	if io != nil {
		io.Close(drainPatience)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.execs, p.id)
	return &taskapi.DeleteResponse{Pid: uint32(p.pid), ExitStatus: uint32(p.exit.Code), ExitedAt: p.exitedAt()}, nil
}

// closeAllIO ends the streams of all processes, after what they wrote has reached
// its readers. All of them have ended.
func (t *container) closeAllIO() {
	t.mu.Lock()
	sets := []*stdio.Set{t.init.io}
	for _, p := range t.execs {
		if p.io != nil {
			sets = append(sets, p.io)
		}
	}
	t.mu.Unlock()
	var closing sync.WaitGroup
	for _, set := range sets {
		closing.Go(func() { set.Close(drainPatience) })
	}
	closing.Wait()
}

// ResizePty sets the size of a process' terminal.
func (s *Service) ResizePty(ctx context.Context, r *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	rows, columns := uint16(min(r.GetHeight(), 1<<16-1)), uint16(min(r.GetWidth(), 1<<16-1))
	t.mu.Lock()
	status, running, io := p.status, p.exec, p.io
	if p.id != "" && running == nil {
		p.spec.ConsoleSize = &specs.Box{Height: uint(rows), Width: uint(columns)}
	}
	t.mu.Unlock()
	switch {
	case status == task.Status_STOPPED:
		return nil, errEnded(p)
	case status == task.Status_CREATED || p.id != "" && running == nil:
		// Nobody to tell yet: it finds the size when it starts.
		err = io.Resize(rows, columns)
	case p.id == "":
		err = t.runtime.Resize(ctx, rows, columns)
	default:
		err = running.Resize(ctx, rows, columns)
	}
	return &emptypb.Empty{}, toGRPC(err)
}

// CloseIO ends a process' input, that of an exec which is yet to start included.
func (s *Service) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	if !r.GetStdin() {
		return &emptypb.Empty{}, nil
	}
	t.mu.Lock()
	io := p.io
	p.inputEnded = true
	t.mu.Unlock()
	if io != nil {
		io.CloseInput()
	}
	return &emptypb.Empty{}, nil
}

// Kill sends a signal to a process, or to all of a container.
func (s *Service) Kill(ctx context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	t, p, err := s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	status, running := p.status, p.exec
	t.mu.Unlock()
	switch {
	case status == task.Status_STOPPED:
		return nil, errEnded(p)
	case p.id == "":
		err = t.runtime.Signal(ctx, int(r.GetSignal()), r.GetAll())
		if api.KindOf(err) == api.KindState {
			// It has ended, or is being started and has not begun: then its client would
			// wait for an end that nothing brings.
			t.awaitStart(ctx)
			err = t.runtime.Signal(ctx, int(r.GetSignal()), r.GetAll())
		}
	case running == nil:
		return nil, fail(errdefs.ErrFailedPrecondition, "signal process %s of container %s: it does not run yet", p.id, t.id)
	default:
		err = running.Signal(ctx, int(r.GetSignal()))
	}
	if kind := api.KindOf(err); kind == api.KindNotFound || kind == api.KindState {
		// It has ended meanwhile; its exit comes.
		return nil, errEnded(p)
	}
	return &emptypb.Empty{}, toGRPC(err)
}

// Pause stops the container's processes.
func (s *Service) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	return s.freeze(r.GetID(), task.Status_RUNNING, task.Status_PAUSED, &events.TaskPaused{ContainerID: r.GetID()},
		func(t *container) error { return t.runtime.Pause(ctx) })
}

// Resume lets them go on.
func (s *Service) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	return s.freeze(r.GetID(), task.Status_PAUSED, task.Status_RUNNING, &events.TaskResumed{ContainerID: r.GetID()},
		func(t *container) error { return t.runtime.Resume(ctx) })
}

// freeze takes a container from one state to another and tells of it.
func (s *Service) freeze(id string, from, to task.Status, event any, do func(*container) error) (*emptypb.Empty, error) {
	t, err := s.task(id)
	if err != nil {
		return nil, err
	}
	// Beside a start or another freeze the state would be anyone's guess.
	t.starting.Lock()
	defer t.starting.Unlock()
	t.mu.Lock()
	status := t.init.status
	t.mu.Unlock()
	if status != from {
		return nil, fail(errdefs.ErrFailedPrecondition, "container %s is %s, not %s", id, statusName(status), statusName(from))
	}
	if err := do(t); err != nil {
		return nil, toGRPC(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.init.status == from {
		t.init.status = to
		s.events.put(event)
	}
	return &emptypb.Empty{}, nil
}

// Update changes a container's limits.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.GetID())
	if err != nil {
		return nil, err
	}
	var resources specs.LinuxResources
	if err := fromAny(r.GetResources().GetTypeUrl(), r.GetResources().GetValue(), "LinuxResources", &resources); err != nil {
		return nil, toGRPC(err)
	}
	return &emptypb.Empty{}, toGRPC(t.runtime.Update(ctx, &resources))
}

// Stats tells what a container uses.
func (s *Service) Stats(ctx context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	t, err := s.task(r.GetID())
	if err != nil {
		return nil, err
	}
	u, err := t.runtime.Stats(ctx)
	if err != nil {
		return nil, toGRPC(err)
	}
	data, err := typeurl.MarshalAnyToProto(metrics.Of(s.stats, metrics.Usage(u)))
	if err != nil {
		return nil, toGRPC(err)
	}
	return &taskapi.StatsResponse{Stats: data}, nil
}

// Pids lists a container's processes: by their numbers inside, but for the first
// one, which is the host's process that stands for the container.
func (s *Service) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	t, err := s.task(r.GetID())
	if err != nil {
		return nil, err
	}
	inside, err := t.runtime.Processes(ctx)
	if err != nil {
		return nil, toGRPC(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(inside) == 0 && t.init.status == task.Status_CREATED {
		inside = []int{t.init.pid} // its process is made when it is started
	}
	response := &taskapi.PidsResponse{}
	for i, pid := range inside {
		if i == 0 {
			pid = t.init.pid
		}
		info := &task.ProcessInfo{Pid: uint32(pid)}
		for _, p := range t.execs {
			if i == 0 || p.pid != pid || p.status != task.Status_RUNNING {
				continue
			}
			if info.Info, err = typeurl.MarshalAnyToProto(&options.ProcessDetails{ExecID: p.id}); err != nil {
				return nil, toGRPC(err)
			}
		}
		response.Processes = append(response.Processes, info)
	}
	return response, nil
}

// Checkpoint is not offered.
func (s *Service) Checkpoint(_ context.Context, r *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	if _, err := s.task(r.GetID()); err != nil {
		return nil, err
	}
	return nil, fail(errdefs.ErrNotImplemented, "checkpoint container %s: not supported", r.GetID())
}

// fromAny decodes one of the OCI documents, which travel as JSON.
func fromAny(url string, value []byte, name string, to any) error {
	if url[strings.LastIndexByte(url, '/')+1:] != name {
		return api.Errorf(api.KindInvalid, "containerd sent a document of type %q in place of %s", url, name)
	}
	if err := json.Unmarshal(value, to); err != nil {
		return api.Errorf(api.KindInvalid, "decode %s: %w", name, err)
	}
	return nil
}

// statusName is a state in a user's words.
func statusName(s task.Status) string { return strings.ToLower(s.String()) }
