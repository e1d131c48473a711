// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/timestamppb"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// execsPatience is how long a container's execs may take to be gone once its
	// first process is: they were killed with it. Afterwards they count as killed.
	execsPatience = 10 * time.Second
	// killPatience bounds the call that kills them.
	killPatience = 5 * time.Second
	// maxExecs bounds the additional processes of one container, ended ones
	// that nobody deleted included: each keeps streams and goroutines.
	maxExecs = 4096
	// killed is what a process' exit code is when nobody knows it.
	killed = 128 + int(syscall.SIGKILL)
)

// container is one task of the service.
type container struct {
	id, bundle string
	service    *Service

	// runtime is set before the container is in the table.
	runtime Container
	// watched is closed when the first process' end has been told.
	watched chan struct{}

	// starting is held while the first process is let run and that is told, so
	// that its end is not told before.
	starting sync.Mutex

	mu    sync.Mutex
	init  *process
	execs map[string]*process
	// ending says that the first process has ended and no exec may start.
	ending bool
	// deleting says that a Delete is under way.
	deleting bool
}

// process returns the first process for "", or an exec; nil if there is none.
// Call it with mu held.
func (t *container) process(id string) *process {
	if id == "" {
		return t.init
	}
	return t.execs[id]
}

// awaitStart returns when the first process is not being started, or is no more, or
// the context has ended.
func (t *container) awaitStart(ctx context.Context) {
	for !t.starting.TryLock() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
	t.starting.Unlock()
}

// watch waits for the first process' end and tells of it, after the execs' ends.
// It runs from the container's creation on, since a sandbox can die before it is
// started.
func (t *container) watch() {
	defer close(t.watched)
	exit, err := t.runtime.Wait(context.Background())
	if err != nil {
		log.L.WithError(err).Warnf("container %s: its sandbox has ended", t.id)
		exit = api.ExitStatus{Code: killed, Signal: int(syscall.SIGKILL), At: time.Now(), OOMKilled: exit.OOMKilled}
	}
	t.starting.Lock()
	t.mu.Lock()
	t.ending = true
	t.starting.Unlock()
	var running []*process
	for _, p := range t.execs {
		if p.status == task.Status_RUNNING {
			running = append(running, p)
		}
	}
	t.mu.Unlock()
	t.endExecs(running)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.init.setExited(exit)
	if err := writeExit(t.bundle, Exit{PID: t.init.pid, Status: t.init.exit.Code, At: t.init.exit.At}); err != nil {
		log.L.WithError(err).Errorf("container %s: keep its exit status", t.id)
	}
	if exit.OOMKilled {
		t.service.events.put(&events.TaskOOM{ContainerID: t.id})
	}
	t.tellExit(t.init)
}

// endExecs kills what runs beside a first process that has ended, and returns
// when the exits have been told.
func (t *container) endExecs(running []*process) {
	if len(running) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	// The guest's kernel has mostly done so already.
	if err := t.runtime.Signal(ctx, int(syscall.SIGKILL), true); err != nil {
		log.L.WithError(err).Debugf("container %s: kill its processes", t.id)
	}
	cancel()
	patience := time.NewTimer(execsPatience)
	defer patience.Stop()
	for _, p := range running {
		select {
		case <-p.exited:
		case <-patience.C:
			patience.Reset(0)
			log.L.Warnf("container %s: process %s has not ended with it", t.id, p.id)
			t.execExited(p, api.ExitStatus{Code: killed, Signal: int(syscall.SIGKILL), At: time.Now()})
		}
	}
}

// watchExec waits for an exec's end and tells of it.
func (t *container) watchExec(p *process, running Process) {
	exit, err := running.Wait(context.Background())
	if err != nil {
		log.L.WithError(err).Debugf("container %s: process %s", t.id, p.id)
		exit = api.ExitStatus{Code: killed, Signal: int(syscall.SIGKILL), At: time.Now()}
	}
	t.execExited(p, exit)
}

func (t *container) execExited(p *process, exit api.ExitStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.status == task.Status_STOPPED {
		return
	}
	p.setExited(exit)
	t.tellExit(p)
}

// tellExit queues a process' exit. Call it with mu held.
func (t *container) tellExit(p *process) {
	id := p.id
	if id == "" {
		id = t.id
	}
	t.service.events.put(&events.TaskExit{
		ContainerID: t.id, ID: id, Pid: uint32(p.pid), ExitStatus: uint32(p.exit.Code), ExitedAt: timestamppb.New(p.exit.At),
	})
}
