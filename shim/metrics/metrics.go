// SPDX-License-Identifier: Apache-2.0

// Package metrics says what a container uses in the words of the host's version of
// cgroups, in which containerd, CRI and their clients expect it. It measures
// nothing.
package metrics

import (
	"math"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Usage is what a container uses. Sizes are bytes; a limit of 0 is none.
type Usage struct {
	MemoryBytes, MemoryLimitBytes, MemoryPeakBytes uint64
	CPUUser, CPUSystem, CPUThrottled               time.Duration
	Pids, PidsLimit                                uint64
	OOMKills                                       uint64
}

// pageCounterMax is what a memory cgroup of version 1 shows for "no limit".
const pageCounterMax = math.MaxInt64 &^ 0xfff

// Of returns the metrics message for a version of cgroups.
func Of(version int, u Usage) any {
	if version == 2 {
		return unified(u)
	}
	return legacy(u)
}

func unified(u Usage) *v2.Metrics {
	limit, pids := u.MemoryLimitBytes, u.PidsLimit
	if limit == 0 {
		limit = math.MaxUint64
	}
	return &v2.Metrics{
		Pids: &v2.PidsStat{Current: u.Pids, Limit: pids},
		CPU: &v2.CPUStat{
			UsageUsec: micros(u.CPUUser + u.CPUSystem), UserUsec: micros(u.CPUUser), SystemUsec: micros(u.CPUSystem),
			ThrottledUsec: micros(u.CPUThrottled),
		},
		Memory:       &v2.MemoryStat{Usage: u.MemoryBytes, UsageLimit: limit, MaxUsage: u.MemoryPeakBytes, Anon: u.MemoryBytes},
		MemoryEvents: &v2.MemoryEvents{OomKill: u.OOMKills},
	}
}

func legacy(u Usage) *v1.Metrics {
	limit := u.MemoryLimitBytes
	if limit == 0 {
		limit = pageCounterMax
	}
	return &v1.Metrics{
		Pids: &v1.PidsStat{Current: u.Pids, Limit: u.PidsLimit},
		CPU: &v1.CPUStat{
			Usage:      &v1.CPUUsage{Total: nanos(u.CPUUser + u.CPUSystem), User: nanos(u.CPUUser), Kernel: nanos(u.CPUSystem)},
			Throttling: &v1.Throttle{ThrottledTime: nanos(u.CPUThrottled)},
		},
		Memory: &v1.MemoryStat{
			RSS: u.MemoryBytes, TotalRSS: u.MemoryBytes, HierarchicalMemoryLimit: limit,
			Usage: &v1.MemoryEntry{Usage: u.MemoryBytes, Max: u.MemoryPeakBytes, Limit: limit, Failcnt: u.OOMKills},
			// That is memory and swap together, of which a guest has none. What the
			// sandbox' own kernel holds for it is in Usage.
			Swap: &v1.MemoryEntry{Usage: u.MemoryBytes, Max: u.MemoryPeakBytes, Limit: limit}, Kernel: &v1.MemoryEntry{},
		},
		MemoryOomControl: &v1.MemoryOomControl{OomKill: u.OOMKills},
	}
}

func nanos(d time.Duration) uint64 { return uint64(max(d, 0)) }

func micros(d time.Duration) uint64 { return uint64(max(d, 0) / time.Microsecond) }
