// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/shim/stdio"
)

// drainPatience is how long a deleted process' output may still take to reach its
// reader: one that does not read must not keep the container from going.
const drainPatience = 2 * time.Second

// process is what a container's first process and its execs have in common. Its
// fields, but for those set before it is in a table, are guarded by the task's mu.
type process struct {
	// id is "" for the first process.
	id     string
	stdio  stdio.Config
	status task.Status
	pid    int
	exit   api.ExitStatus
	// exited is closed when exit is set.
	exited chan struct{}
	// io carries the streams; nil before there are any.
	io *stdio.Set
	// inputEnded says that CloseIO was called, perhaps before there was io.
	inputEnded bool

	// spec is an exec's, exec the running process.
	spec *specs.Process
	exec Process
}

func newProcess(id string, config stdio.Config) *process {
	return &process{id: id, stdio: config, status: task.Status_CREATED, exited: make(chan struct{})}
}

// setExited records how the process ended. Call it with the task's mu held.
func (p *process) setExited(exit api.ExitStatus) {
	if p.status == task.Status_STOPPED {
		return
	}
	if exit.At.IsZero() {
		exit.At = time.Now()
	}
	if p.io != nil {
		p.io.Exited()
	}
	p.exit, p.status = exit, task.Status_STOPPED
	close(p.exited)
}

// wait returns when the process has exited.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exitedAt is the time of the exit, nil before it.
func (p *process) exitedAt() *timestamppb.Timestamp {
	if p.exit.At.IsZero() {
		return nil
	}
	return timestamppb.New(p.exit.At)
}

// state answers containerd's question for the process. Call it with the task's mu
// held.
func (p *process) state(t *container) *taskapi.StateResponse {
	r := &taskapi.StateResponse{
		ID: t.id, Bundle: t.bundle, ExecID: p.id, Pid: uint32(p.pid), Status: p.status,
		Stdin: p.stdio.Stdin, Stdout: p.stdio.Stdout, Stderr: p.stdio.Stderr, Terminal: p.stdio.Terminal,
	}
	if p.status == task.Status_STOPPED {
		r.ExitStatus, r.ExitedAt = uint32(p.exit.Code), p.exitedAt()
	}
	if p.id != "" {
		r.ID = p.id
	}
	return r
}

// errNoProcess is the answer to a call for an exec that does not exist.
func errNoProcess(t *container, id string) error {
	return fail(errdefs.ErrNotFound, "container %s has no process %s", t.id, id)
}

// errEnded is the answer to signals for what has ended. containerd and its
// clients take "not found" for that, as runc answers.
func errEnded(p *process) error {
	return fail(errdefs.ErrNotFound, "%s", fmt.Sprintf("process %q already finished", p.id))
}
