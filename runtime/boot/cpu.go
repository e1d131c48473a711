// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// cpuPeriod is the period of Linux' bandwidth control as docker sets it.
	cpuPeriod = 100 * time.Millisecond
	// cpuTick is how often usage is looked at; the Sentry's own processor
	// clocks advance in steps of 10 ms.
	cpuTick = 10 * time.Millisecond
	// maxDebtPeriods are how many periods' quotas of debt are kept account of, beyond what
	// all processors can give in maxLookGap: what a late look finds, or what woke while
	// others stood, must not stop a guest for long.
	maxDebtPeriods = 5
	// maxLookGap is the longest time between two looks that are not late.
	maxLookGap = 5 * cpuTick
)

// cpuEnforcer holds guests to their share of processor time, without a host
// cgroup: in each period they run until the quota is used up and are then
// stopped until it is paid back. Usage is what the Sentry accounts to tasks.
type cpuEnforcer struct {
	throttledNanos atomic.Uint64
	// millis is the limit, which may change while guests run; 0 is none.
	millis atomic.Int64
	watch  sync.Once
}

// cpuUsed is the processor time of all guest tasks since boot.
func (sb *sandbox) cpuUsed() time.Duration {
	s := sb.k.CPUStats()
	return s.UserTime + s.SysTime
}

// enforceCPU starts the enforcer when the limit is below what the sandbox's
// processors can give: whole processors are limited by their number.
func (sb *sandbox) enforceCPU() { sb.limitCPU(sb.spec.Resources.CPUMillis) }

// limitCPU sets the limit, and starts the enforcer with the first one that
// means anything.
func (sb *sandbox) limitCPU(millis int64) {
	if millis >= 1000*int64(sb.head.Cores) {
		millis = 0
	}
	sb.cpu.millis.Store(millis)
	if millis > 0 {
		sb.cpu.watch.Do(func() { go sb.watchCPU() })
	}
}

// watchCPU is the enforcer. Without a limit it looks for one now and then.
func (sb *sandbox) watchCPU() {
	cores := int(sb.k.ApplicationCores())
	budget := newCPUBudget(cpuQuota(sb.cpu.millis.Load()), sb.cpuUsed(), cores)
	var (
		held       throttle
		everything bool // is stopped, with all that is made meanwhile.
		throttled  bool
	)
	ts := sb.k.TaskSet()
	stopEverything := func(stop bool) {
		switch {
		case stop && !everything:
			ts.BeginExternalStop()
		case !stop && everything:
			ts.EndExternalStop()
		}
		everything = stop
	}
	gap := cpuTick
	for last := time.Now(); ; {
		time.Sleep(gap)
		quota, now := cpuQuota(sb.cpu.millis.Load()), time.Now()
		elapsed := now.Sub(last)
		last, gap = now, cpuTick
		if throttled {
			sb.cpu.throttledNanos.Add(uint64(elapsed))
		}
		if quota != budget.quota {
			budget = newCPUBudget(quota, sb.cpuUsed(), cores)
		}
		used, pause := sb.cpuUsed(), time.Duration(0)
		if quota == 0 {
			gap = cpuPeriod
		} else {
			pause = budget.spend(used, elapsed)
		}
		if pause <= 0 {
			stopEverything(false)
			held.release()
			throttled = false
			continue
		}
		tasks := sb.k.RootPIDNamespace().Tasks
		gap, throttled = held.look(tasks, used)
		gap = min(gap, pause)
		stopEverything(held.all() && !slices.ContainsFunc(tasks(), killed))
	}
}

// cpuQuota is the processor time that millis thousandths of a processor give
// in one period.
func cpuQuota(millis int64) time.Duration {
	return cpuPeriod * time.Duration(millis) / 1000
}

// cpuBudget is a token bucket of processor time: it fills with quota/period
// and holds at most one period's quota.
type cpuBudget struct {
	quota time.Duration
	left  time.Duration
	used  time.Duration
	cores int
}

func newCPUBudget(quota, used time.Duration, cores int) *cpuBudget {
	return &cpuBudget{quota: quota, left: quota, used: used, cores: cores}
}

// spend accounts usage up to used over the elapsed time, and returns how long
// guests must stop for the budget to be positive again.
func (b *cpuBudget) spend(used, elapsed time.Duration) time.Duration {
	b.left = min(b.left+time.Duration(float64(elapsed)*float64(b.quota)/float64(cpuPeriod)), b.quota)
	debt := maxDebtPeriods*b.quota + time.Duration(b.cores)*maxLookGap
	b.left = max(b.left-max(used-b.used, 0), -debt)
	b.used = used
	if b.left > 0 {
		return 0
	}
	return time.Duration(float64(-b.left)*float64(cpuPeriod)/float64(b.quota)) + cpuTick
}
