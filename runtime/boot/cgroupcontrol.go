// SPDX-License-Identifier: Apache-2.0

// The guest's freezer and its memory limits: see guestCgroups.

package boot

import (
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const (
	// frozenLook is how often frozen groups are looked at for tasks that have
	// come in, and for those that are to be killed.
	frozenLook = 50 * time.Millisecond
	// limitLookMin keeps a container near its limit from costing much: usage of
	// a cgroup is counted page by page.
	limitLookMin = 20 * time.Millisecond
	// victimGrace is how long a killed process may take to give its memory back
	// before the next one is chosen, on a machine that is busy.
	victimGrace = 2 * time.Second
)

func (g *guestCgroups) isFrozen(cg kernel.Cgroup2) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.groups[cg]
	return s != nil && s.frozen
}

func (g *guestCgroups) kills(cg kernel.Cgroup2) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.groups[cg]; s != nil {
		return s.kills
	}
	return 0
}

// freeze stops the tasks of a group.
func (g *guestCgroups) freeze(cg kernel.Cgroup2) {
	g.stopMu.Lock()
	defer g.stopMu.Unlock()
	g.mu.Lock()
	s := g.state(cg)
	if s.frozen {
		g.mu.Unlock()
		return
	}
	s.frozen = true
	start := !g.watchingFrozen
	g.watchingFrozen = true
	g.mu.Unlock()
	s.stopped.stop(func() []*kernel.Task { return g.members(cg) })
	if start {
		go g.watchFrozen()
	}
}

// thaw lets them go on.
func (g *guestCgroups) thaw(cg kernel.Cgroup2) {
	g.stopMu.Lock()
	defer g.stopMu.Unlock()
	g.mu.Lock()
	s := g.groups[cg]
	if s == nil || !s.frozen {
		g.mu.Unlock()
		return
	}
	s.frozen = false
	g.mu.Unlock()
	s.stopped.release()
}

// tendFrozen stops who has come into a frozen group meanwhile. One that is gone
// can have left tasks that moved out of it.
func (g *guestCgroups) tendFrozen(cg kernel.Cgroup2, s *cgroupState) {
	if cg.Deleted() {
		g.thaw(cg)
		return
	}
	g.stopMu.Lock()
	defer g.stopMu.Unlock()
	g.mu.Lock()
	frozen := s.frozen
	g.mu.Unlock()
	if frozen {
		s.stopped.stop(func() []*kernel.Task { return g.members(cg) })
	}
}

// watchFrozen runs while any group is frozen.
func (g *guestCgroups) watchFrozen() {
	for {
		time.Sleep(frozenLook)
		frozen := make(map[kernel.Cgroup2]*cgroupState)
		g.mu.Lock()
		g.forget()
		for cg, s := range g.groups {
			if s.frozen {
				frozen[cg] = s
			}
		}
		if len(frozen) == 0 {
			g.watchingFrozen = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		for cg, s := range frozen {
			g.tendFrozen(cg, s)
		}
	}
}

// watchLimit has the memory of a group watched whose limit may be about to be
// set.
func (g *guestCgroups) watchLimit(cg kernel.Cgroup2) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state(cg).limited = true
	if !g.watchingLimits {
		g.watchingLimits = true
		go g.watchLimits()
	}
}

// watchLimits runs while there is any group that has, had, or may get a limit: it kills the largest process of
// a group that is above it, as Linux does.
func (g *guestCgroups) watchLimits() {
	ctx := g.sb.k.SupervisorContext()
	for {
		began := time.Now()
		var limited []kernel.Cgroup2
		g.mu.Lock()
		g.forget()
		for cg, s := range g.groups {
			if s.limited {
				limited = append(limited, cg)
			}
		}
		if len(limited) == 0 {
			g.watchingLimits = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		next := memoryPollMax
		for _, cg := range limited {
			next = min(next, g.holdToLimit(ctx, cg))
		}
		time.Sleep(max(next, limitLookMin, quotaLookShare*time.Since(began)))
	}
}

// holdToLimit looks at one group, and returns how long it may go unseen.
func (g *guestCgroups) holdToLimit(ctx context.Context, cg kernel.Cgroup2) time.Duration {
	limit, ok := readBytes(ctx, cg, "memory.max")
	if !ok {
		return memoryPollMax
	}
	used, ok := readBytes(ctx, cg, "memory.current")
	if !ok || used <= limit {
		return memoryPollInterval(limit - min(used, limit))
	}
	g.killIn(ctx, cg, used, limit)
	return limitLookMin
}

// killIn kills the process of a group that holds most.
func (g *guestCgroups) killIn(ctx context.Context, cg kernel.Cgroup2, used, limit uint64) {
	var (
		victim *kernel.ThreadGroup
		most   uint64
	)
	for _, t := range g.members(cg) {
		if n := residentBytes(t.ThreadGroup()); n > most {
			victim, most = t.ThreadGroup(), n
		}
	}
	if victim == nil {
		return
	}
	log.Warningf("cgroup %s holds %d bytes of %d: killing %q, which holds %d", cg.Path(), used, limit, victim.Leader().Name(), most)
	// Who watches learns of it before the process' parent does.
	g.mu.Lock()
	g.state(cg).kills++
	g.mu.Unlock()
	g.notify(ctx, cg, "memory.events")
	if err := g.sb.k.SendExternalSignalThreadGroup(victim, &linux.SignalInfo{Signo: int32(linux.SIGKILL)}); err != nil {
		log.Warningf("cgroup %s: kill %q: %v", cg.Path(), victim.Leader().Name(), err)
	}
	// What it held is counted until its pages are given back, which is some time
	// after it is gone: the next must not pay for it.
	for deadline := time.Now().Add(victimGrace); time.Now().Before(deadline); time.Sleep(limitLookMin) {
		if used, ok := readBytes(ctx, cg, "memory.current"); !ok || used <= limit {
			return
		}
	}
}

// notify wakes those who watch a file of a group by inotify.
func (g *guestCgroups) notify(ctx context.Context, cg kernel.Cgroup2, name string) {
	dir, ok := cg.(interface {
		Lookup(ctx context.Context, name string) (kernfs.Inode, error)
	})
	if !ok {
		return
	}
	file, err := dir.Lookup(ctx, name)
	if err != nil {
		return
	}
	defer file.DecRef(ctx)
	file.Watches().Notify(ctx, "", linux.IN_MODIFY, 0, vfs.InodeEvent, false)
}

// readBytes reads a figure of a group; "max" is none.
func readBytes(ctx context.Context, cg kernel.Cgroup2, name string) (uint64, bool) {
	text, err := cg.ReadControl(ctx, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return n, err == nil
}
