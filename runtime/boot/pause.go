// SPDX-License-Identifier: Apache-2.0

// Pausing containers, and changing their limits while they run.

package boot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

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

// pauser has the containers that are paused. Lock order: mu, gVisor's locks of tasks.
type pauser struct {
	mu       sync.Mutex
	stopped  map[*container]*stops
	watching bool
}

func (p *pauser) paused(c *container) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped[c] != nil
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
		if stood = s.stand(); !stood && time.Since(begun) > pausePatience {
			return api.Errorf(api.KindInternal, "a process of container %s does not stop: it has waited for the host for more than %v", c.spec.ID, pausePatience)
		}
	}
}

// watchPaused runs while any container is paused: it lets go who is to be killed.
func (sb *sandbox) watchPaused() {
	p := &sb.pause
	for {
		time.Sleep(frozenLook)
		p.mu.Lock()
		for c, s := range p.stopped {
			s.stop(func() []*kernel.Task { return sb.tasksOf(c) })
			if len(*s) == 0 {
				delete(p.stopped, c) // Nothing of it is left.
			}
		}
		if len(p.stopped) == 0 {
			p.watching = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// Pause implements controlv1.SandboxService.
func (s *service) Pause(_ context.Context, req *controlv1.PauseRequest) (*controlv1.PauseResponse, error) {
	c, _, err := s.running(req.GetContainer())
	if err != nil {
		return nil, err
	}
	p := &s.sb.pause
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped[c] != nil {
		return nil, api.Errorf(api.KindState, "container %s is already paused", req.GetContainer())
	}
	var stopped stops
	if err := s.sb.stopContainer(c, &stopped); err != nil {
		stopped.release()
		return nil, err
	}
	if p.stopped == nil {
		p.stopped = make(map[*container]*stops)
	}
	p.stopped[c] = &stopped
	if !p.watching {
		p.watching = true
		go s.sb.watchPaused()
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
	stopped := p.stopped[c]
	if stopped == nil {
		return nil, api.Errorf(api.KindState, "container %s is not paused", req.GetContainer())
	}
	stopped.release()
	delete(p.stopped, c)
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
