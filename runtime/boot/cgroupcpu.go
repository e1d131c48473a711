// SPDX-License-Identifier: Apache-2.0

// The guest's limits of processor time: see guestCgroups.

package boot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const (
	// unlimitedLook is how long one without a limit may that has had one, or may get
	// one. A group with a limit is looked at every cpuTick while it is busy, and every
	// maxLookGap else.
	unlimitedLook = time.Second
	// unlimitedLooksMost is how often a group without a limit is looked at more often,
	// after its cpu.max was opened.
	unlimitedLooksMost = 20
	// leastQuota is the shortest share of a cpuPeriod that is kept account of.
	leastQuota = 10 * time.Microsecond
	// quotaLookShare bounds what looking costs, however many groups there are: a
	// round of looks is followed by that many times its length without.
	quotaLookShare = 4
	// quotaRound is how long a round may take before those wait that were due last.
	quotaRound = 50 * time.Millisecond
)

// bandwidth holds one cgroup to its cpu.max, as Linux' bandwidth control does: its
// tasks are stopped while it has used more than its share. Only watchQuotas touches
// it, but for the figures, which guestCgroups.mu guards, and what is held, which
// stopMu guards.
type bandwidth struct {
	budget *cpuBudget
	looked time.Time
	// seen is what the group had used at the last look, and carried what it had
	// used and does not count any more: of groups below it that are gone.
	seen, carried time.Duration
	// dipped says that it had used less, once: a task that ends is not counted for a
	// moment.
	dipped    bool
	throttled bool
	stands    bool // Some of it does, being throttled.
	// due is when to look again; guarded by guestCgroups.mu, as is unlimitedLooks.
	due            time.Time
	unlimitedLooks int

	held throttle

	// active is how long the group was busy or throttled, throttledFor how long it
	// was stopped, throttles how often.
	active, throttledFor time.Duration
	throttles            uint64
}

// watchQuota has a group watched whose limit of processor time may be about to be
// set.
func (g *guestCgroups) watchQuota(cg kernel.Cgroup2) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bandwidths == nil {
		g.bandwidths = make(map[kernel.Cgroup2]*bandwidth)
	}
	b := g.bandwidths[cg]
	if b == nil {
		b = &bandwidth{}
		g.bandwidths[cg] = b
	}
	b.unlimitedLooks, b.due = 0, time.Time{}
	if g.lookAtQuotas == nil {
		g.lookAtQuotas = make(chan struct{}, 1)
	}
	if !g.watchingQuotas {
		g.watchingQuotas = true
		go g.watchQuotas()
	}
	select {
	case g.lookAtQuotas <- struct{}{}:
	default: // It will look.
	}
}

// watchQuotas runs while there is any group that has, had, or may get a limit.
func (g *guestCgroups) watchQuotas() {
	ctx := g.sb.k.SupervisorContext()
	for {
		began := time.Now()
		var due []dueGroup
		g.mu.Lock()
		for cg, b := range g.bandwidths {
			switch {
			case cg.Deleted() && !b.throttled:
				delete(g.bandwidths, cg)
			case !b.due.After(began):
				due = append(due, dueGroup{cg, b, b.due})
			}
		}
		if len(g.bandwidths) == 0 {
			g.watchingQuotas = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		slices.SortFunc(due, func(a, b dueGroup) int { return a.since.Compare(b.since) })
		for _, d := range due {
			// Whoever wants a look from now on gets another one.
			g.mu.Lock()
			d.bandwidth.due = began.Add(unlimitedLook)
			g.mu.Unlock()
			wait := g.holdToQuota(ctx, d.group, d.bandwidth)
			g.mu.Lock()
			if !d.bandwidth.due.IsZero() {
				d.bandwidth.due = time.Now().Add(wait)
			}
			g.mu.Unlock()
			if time.Since(began) > quotaRound {
				break
			}
		}
		// Not more of the time than is due to it, whatever there is.
		time.Sleep(quotaLookShare * time.Since(began))
		next := unlimitedLook
		g.mu.Lock()
		for _, b := range g.bandwidths {
			next = min(next, time.Until(b.due))
		}
		g.mu.Unlock()
		select {
		case <-time.After(next):
		case <-g.lookAtQuotas:
		}
	}
}

// dueGroup is a group to look at, and since when.
type dueGroup struct {
	group     kernel.Cgroup2
	bandwidth *bandwidth
	since     time.Time
}

// holdToQuota looks at one group, and returns how long it may go unseen.
func (g *guestCgroups) holdToQuota(ctx context.Context, cg kernel.Cgroup2, b *bandwidth) time.Duration {
	quota := g.quota(ctx, cg)
	var used processorTime
	limited := quota > 0 && !cg.Deleted()
	if limited {
		used, limited = g.usedBy(ctx, cg)
	}
	now := time.Now()
	if !limited {
		g.mu.Lock()
		b.unlimitedLooks++
		seldom := b.unlimitedLooks > unlimitedLooksMost
		g.mu.Unlock()
		b.budget = nil
		g.release(b)
		if seldom {
			return unlimitedLook
		}
		return maxLookGap
	}
	switch n := used.total(); {
	case n >= b.seen:
		b.seen, b.dipped = n, false
	case !b.dipped:
		b.dipped = true
	default:
		b.carried += b.seen - n
		b.seen, b.dipped = n, false
	}
	total := b.seen + b.carried
	if b.budget == nil || b.budget.quota != quota {
		b.budget, b.looked = newCPUBudget(quota, total, int(g.sb.k.ApplicationCores())), now
		g.release(b)
		return cpuTick
	}
	busy, elapsed := total > b.budget.used, now.Sub(b.looked)
	pause := b.budget.spend(total, elapsed)
	b.looked = now
	g.mu.Lock()
	b.unlimitedLooks = 0
	if b.stands {
		b.throttledFor += elapsed
	} else if pause > 0 && !b.throttled {
		b.throttles++
	}
	if busy || b.throttled {
		b.active += elapsed
	}
	g.mu.Unlock()
	switch {
	case pause > 0:
		g.stopMu.Lock()
		gap, stands := b.held.look(func() []*kernel.Task { return g.members(cg) }, total)
		g.stopMu.Unlock()
		b.throttled, b.stands = true, stands
		return min(pause, gap)
	case b.throttled:
		g.release(b)
	case !busy:
		return maxLookGap
	}
	return cpuTick
}

// release lets a group's tasks go on.
func (g *guestCgroups) release(b *bandwidth) {
	if !b.throttled {
		return
	}
	g.stopMu.Lock()
	defer g.stopMu.Unlock()
	b.held.release()
	b.throttled, b.stands = false, false
}

// quota is the processor time that a group may use in one cpuPeriod, whatever period
// its cpu.max has; 0 is no limit, as is what all processors together cannot exceed.
func (g *guestCgroups) quota(ctx context.Context, cg kernel.Cgroup2) time.Duration {
	text, err := cg.ReadControl(ctx, "cpu.max")
	if err != nil {
		return 0
	}
	return quotaOf(text, int(g.sb.k.ApplicationCores()))
}

// quotaOf reads cpu.max.
func quotaOf(text string, cores int) time.Duration {
	var quota, period int64
	if _, err := fmt.Sscan(text, &quota, &period); err != nil || quota <= 0 || period <= 0 {
		return 0 // "max".
	}
	share := float64(quota) / float64(period)
	if share >= float64(cores) {
		return 0
	}
	return max(time.Duration(share*float64(cpuPeriod)), leastQuota)
}

// processorTime is what a group and all below it have used, ended tasks included.
type processorTime struct{ user, system time.Duration }

func (p processorTime) total() time.Duration { return p.user + p.system }

func (g *guestCgroups) usedBy(ctx context.Context, cg kernel.Cgroup2) (processorTime, bool) {
	text, err := cg.ReadControl(ctx, "cpu.stat")
	if err != nil {
		return processorTime{}, false
	}
	var p processorTime
	for line := range strings.Lines(text) {
		name, figure, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(figure, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "user_usec":
			p.user = time.Duration(n) * time.Microsecond
		case "system_usec":
			p.system = time.Duration(n) * time.Microsecond
		}
	}
	return p, true
}

// throttling returns how often a group was stopped, and for how long, of how many
// periods in which it did something.
func (g *guestCgroups) throttling(cg kernel.Cgroup2) (periods, throttles uint64, throttledFor time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.bandwidths[cg]
	if b == nil {
		return 0, 0, 0
	}
	return max(uint64(b.active/cpuPeriod), b.throttles), b.throttles, b.throttledFor
}

// throttles says whether a group was ever stopped.
func (g *guestCgroups) throttles(cg kernel.Cgroup2) bool {
	_, n, _ := g.throttling(cg)
	return n > 0
}

// cpuStat is a group's cpu.stat with what we know of its throttling.
func (g *guestCgroups) cpuStat(ctx context.Context, cg kernel.Cgroup2) (string, error) {
	text, err := cg.ReadControl(ctx, "cpu.stat")
	if err != nil {
		return "", err
	}
	periods, throttles, throttledFor := g.throttling(cg)
	return strings.NewReplacer(
		"nr_periods 0\n", fmt.Sprintf("nr_periods %d\n", periods),
		"nr_throttled 0\n", fmt.Sprintf("nr_throttled %d\n", throttles),
		"throttled_usec 0\n", fmt.Sprintf("throttled_usec %d\n", throttledFor.Microseconds()),
	).Replace(text), nil
}
