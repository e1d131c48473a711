// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"testing"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

var used = Usage{
	MemoryBytes: 10, MemoryLimitBytes: 100, MemoryPeakBytes: 20, CPUUser: 3 * time.Second, CPUSystem: time.Second,
	CPUThrottled: time.Millisecond, Pids: 4, PidsLimit: 50, OOMKills: 2,
}

func TestVersion1(t *testing.T) {
	m, ok := Of(1, used).(*v1.Metrics)
	if !ok || m.CPU.Usage.Total != 4e9 || m.CPU.Usage.User != 3e9 || m.CPU.Usage.Kernel != 1e9 || m.CPU.Throttling.ThrottledTime != 1e6 {
		t.Errorf("processor: %v", m)
	}
	if m.Memory.Usage.Usage != 10 || m.Memory.Usage.Limit != 100 || m.Memory.Usage.Max != 20 || m.MemoryOomControl.OomKill != 2 {
		t.Errorf("memory: %v", m.Memory)
	}
	if m.Pids.Current != 4 || m.Pids.Limit != 50 {
		t.Errorf("pids: %v", m.Pids)
	}
	// CRI takes a limit below this for one.
	if m := Of(1, Usage{}).(*v1.Metrics); m.Memory.Usage.Limit != math.MaxInt64&^0xfff {
		t.Errorf("no limit is shown as %d", m.Memory.Usage.Limit)
	}
}

func TestVersion2(t *testing.T) {
	m, ok := Of(2, used).(*v2.Metrics)
	if !ok || m.CPU.UsageUsec != 4e6 || m.CPU.UserUsec != 3e6 || m.CPU.SystemUsec != 1e6 || m.CPU.ThrottledUsec != 1e3 {
		t.Errorf("processor: %v", m)
	}
	if m.Memory.Usage != 10 || m.Memory.UsageLimit != 100 || m.Memory.MaxUsage != 20 || m.MemoryEvents.OomKill != 2 {
		t.Errorf("memory: %v", m.Memory)
	}
	if m.Pids.Current != 4 || m.Pids.Limit != 50 {
		t.Errorf("pids: %v", m.Pids)
	}
	if m := Of(2, Usage{CPUUser: -1}).(*v2.Metrics); m.Memory.UsageLimit != math.MaxUint64 || m.CPU.UserUsec != 0 {
		t.Errorf("no limit is shown as %d, a clock that went back as %d", m.Memory.UsageLimit, m.CPU.UserUsec)
	}
}
