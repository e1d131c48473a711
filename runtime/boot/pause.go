// SPDX-License-Identifier: Apache-2.0

// Pausing containers, and changing their limits while they run.

package boot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

const (
	// pausePatience bounds how long processes may take to stop, and pauseLook is how
	// often that is asked: one that waits for the host does not before it has its answer.
	pausePatience = 10 * time.Second
	pauseLook     = time.Millisecond
)

// pauser has the containers that are paused. Lock order: mu; one container's; gVisor's
// locks of tasks.
type pauser struct {
	mu       sync.Mutex
	paused   map[*container]*pausedContainer
	watching bool
}

// pausedContainer is one that is paused, or about to be.
type pausedContainer struct {
	mu      sync.Mutex
	stopped stops
}

func (p *pauser) isPaused(c *container) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused[c] != nil
}

// tasksOf returns the tasks of a container, wherever they are in the guest.
func (sb *sandbox) tasksOf(c *container) []*kernel.Task {
	return slices.DeleteFunc(sb.k.RootPIDNamespace().Tasks(), func(t *kernel.Task) bool { return t.ContainerID() != c.spec.ID })
}

// stopContainer stops all tasks of a container, and returns when they stand still: no
// task is made any more.
func (sb *sandbox) stopContainer(c *container, s *stops) error {
	list := func() []*kernel.Task { return sb.tasksOf(c) }
	stood := false
	for begun := time.Now(); ; time.Sleep(pauseLook) {
		came := s.stop(list)
		if stood && !came {
			return nil
		}
		if stood = s.stand(); time.Since(begun) > pausePatience {
			return api.Errorf(api.KindInternal, "the processes of container %s do not stop: one has waited for the host for more than %v, or they make others faster than they can be stopped", c.spec.ID, pausePatience)
		}
	}
}

// killAll kills all processes of a container, with those that they make meanwhile.
func (sb *sandbox) killAll(c *container, info *linux.SignalInfo) error {
	err := sb.k.SendContainerSignal(c.spec.ID, info)
	for begun := time.Now(); time.Since(begun) < endPatience; time.Sleep(pauseLook) {
		if !slices.ContainsFunc(sb.tasksOf(c), func(t *kernel.Task) bool { return !killed(t) && t.ExitState() < kernel.TaskExitInitiated }) {
			break
		}
		if e := sb.k.SendContainerSignal(c.spec.ID, info); !linuxerr.Equals(linuxerr.ESRCH, e) {
			err = e
		}
	}
	sb.pause.mu.Lock()
	defer sb.pause.mu.Unlock()
	sb.pause.tend(sb) // The paused cannot die.
	return err
}

// tend lets go who is to be killed, and forgets containers of which nothing is left.
//
// Preconditions: mu is held.
func (p *pauser) tend(sb *sandbox) {
	for c, paused := range p.paused {
		if !paused.mu.TryLock() {
			continue // It is being paused.
		}
		paused.stopped.stop(func() []*kernel.Task { return sb.tasksOf(c) })
		if len(paused.stopped) == 0 {
			delete(p.paused, c)
		}
		paused.mu.Unlock()
	}
}

// watchPaused runs while any container is paused.
func (sb *sandbox) watchPaused() {
	p := &sb.pause
	for watching := true; watching; {
		time.Sleep(frozenLook)
		p.mu.Lock()
		p.tend(sb)
		watching = len(p.paused) > 0
		p.watching = watching
		p.mu.Unlock()
	}
}

// Pause implements controlv1.SandboxService.
func (s *service) Pause(_ context.Context, req *controlv1.PauseRequest) (*controlv1.PauseResponse, error) {
	c, _, err := s.running(req.GetContainer())
	if err != nil {
		return nil, err
	}
	p, paused := &s.sb.pause, &pausedContainer{}
	paused.mu.Lock()
	defer paused.mu.Unlock()
	p.mu.Lock()
	if p.paused[c] != nil {
		p.mu.Unlock()
		return nil, api.Errorf(api.KindState, "container %s is already paused", req.GetContainer())
	}
	if p.paused == nil {
		p.paused = make(map[*container]*pausedContainer)
	}
	p.paused[c] = paused
	start := !p.watching
	p.watching = true
	p.mu.Unlock()
	if start {
		go s.sb.watchPaused()
	}
	if err := s.sb.stopContainer(c, &paused.stopped); err != nil {
		paused.stopped.release() // Without any, it is forgotten.
		return nil, err
	}
	return &controlv1.PauseResponse{}, nil
}

// Resume implements controlv1.SandboxService.
func (s *service) Resume(_ context.Context, req *controlv1.ResumeRequest) (*controlv1.ResumeResponse, error) {
	c, _, err := s.running(req.GetContainer())
	if err != nil {
		return nil, err
	}
	p := &s.sb.pause
	p.mu.Lock()
	defer p.mu.Unlock()
	paused := p.paused[c]
	if paused == nil || !paused.mu.TryLock() {
		return nil, api.Errorf(api.KindState, "container %s is not paused", req.GetContainer())
	}
	defer paused.mu.Unlock()
	paused.stopped.release()
	delete(p.paused, c)
	return &controlv1.ResumeResponse{}, nil
}

// Update implements controlv1.SandboxService.
func (s *service) Update(_ context.Context, req *controlv1.UpdateRequest) (*controlv1.UpdateResponse, error) {
	c, err := s.created(req.GetContainer())
	if err != nil {
		return nil, err
	}
	sb := s.sb
	for name, n := range map[string]*int64{"memory": req.MemoryBytes, "processor": req.CpuMillis, "pids": req.Pids} {
		if n != nil && *n < 0 {
			return nil, api.Errorf(api.KindInvalid, "update: negative %s limit", name)
		}
	}
	if c != sb.first {
		return &controlv1.UpdateResponse{}, sb.limitContainer(c, req)
	}
	if n := req.Pids; n != nil {
		if !c.cgroupEntry.Ok() {
			return nil, api.Errorf(api.KindUnsupported, "update: container %s was started without a limit on processes, which cannot be added while it runs", c.spec.ID)
		}
		if err := sb.writeCgroup(c.spec.ID+"/pids.max", limitText("pids.max", *n)); err != nil {
			return nil, fmt.Errorf("update: limit processes of container %s: %w", c.spec.ID, err)
		}
		sb.pids.Store(uint64(*n))
	}
	if n := req.MemoryBytes; n != nil {
		sb.limitMemory(uint64(*n))
	}
	if n := req.CpuMillis; n != nil {
		sb.limitCPU(*n)
	}
	return &controlv1.UpdateResponse{}, nil
}
