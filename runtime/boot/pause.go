// SPDX-License-Identifier: Apache-2.0

// Pausing guests, and changing their limits while they run.

package boot

import (
	"context"
	"fmt"
	"sync"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// pauser remembers whether guests are paused: the kernel counts, users do not.
type pauser struct {
	mu sync.Mutex
	on bool
}

func (p *pauser) paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.on
}

// resume lets guests go on and reports whether they were paused.
func (sb *sandbox) resume() bool {
	sb.pause.mu.Lock()
	defer sb.pause.mu.Unlock()
	if !sb.pause.on {
		return false
	}
	sb.pause.on = false
	sb.k.Unpause()
	return true
}

// Pause implements controlv1.SandboxService.
func (s *service) Pause(_ context.Context, req *controlv1.PauseRequest) (*controlv1.PauseResponse, error) {
	if _, _, err := s.running(req.GetContainer()); err != nil {
		return nil, err
	}
	s.sb.pause.mu.Lock()
	defer s.sb.pause.mu.Unlock()
	if s.sb.pause.on {
		return nil, api.Errorf(api.KindState, "container %s is already paused", req.GetContainer())
	}
	s.sb.k.Pause()
	s.sb.pause.on = true
	return &controlv1.PauseResponse{}, nil
}

// Resume implements controlv1.SandboxService.
func (s *service) Resume(_ context.Context, req *controlv1.ResumeRequest) (*controlv1.ResumeResponse, error) {
	if _, _, err := s.running(req.GetContainer()); err != nil {
		return nil, err
	}
	if !s.sb.resume() {
		return nil, api.Errorf(api.KindState, "container %s is not paused", req.GetContainer())
	}
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
