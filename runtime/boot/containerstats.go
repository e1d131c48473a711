// SPDX-License-Identifier: Apache-2.0

// What one container of several uses, and whether it used too much. The first one
// stands for the sandbox as a whole.

package boot

import (
	"fmt"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// containerStats is what a further container uses; the network is the sandbox's.
func (sb *sandbox) containerStats(c *container) *controlv1.StatsResponse {
	ctx := sb.k.SupervisorContext()
	r := &controlv1.StatsResponse{}
	r.NetworkReceivedBytes, r.NetworkSentBytes = sb.networkBytes()
	for _, tg := range sb.threadGroups(c.spec.ID) {
		r.Pids += uint64(tg.Count())
	}
	if c.cgroup == nil {
		return r
	}
	used, _ := sb.cgroups.usedBy(ctx, c.cgroup)
	_, _, throttledFor := sb.cgroups.throttling(c.cgroup)
	r.CpuUserNanos, r.CpuSystemNanos, r.CpuThrottledNanos = uint64(used.user), uint64(used.system), uint64(throttledFor)
	// Without a limit, a file says "max".
	r.MemoryLimitBytes, _ = readBytes(ctx, c.cgroup, "memory.max")
	r.PidsLimit, _ = readBytes(ctx, c.cgroup, "pids.max")
	r.MemoryBytes, _ = readBytes(ctx, c.cgroup, "memory.current")
	if peak, ok := readBytes(ctx, c.cgroup, "memory.peak"); ok {
		r.MemoryPeakBytes = peak
	}
	r.MemoryPeakBytes = max(r.MemoryPeakBytes, r.MemoryBytes)
	r.OomKills = sb.cgroups.kills(c.cgroup)
	return r
}

// limitContainer changes the limits of a further container.
func (sb *sandbox) limitContainer(c *container, req *controlv1.UpdateRequest) error {
	for name, n := range map[string]*int64{"memory.max": req.MemoryBytes, "pids.max": req.Pids, "cpu.max": req.CpuMillis} {
		if n == nil {
			continue
		}
		if err := sb.writeCgroup(c.spec.ID+"/"+name, limitText(name, *n)); err != nil {
			return fmt.Errorf("update: set %s of container %s: %w", name, c.spec.ID, err)
		}
	}
	if req.MemoryBytes != nil && c.cgroup != nil {
		sb.cgroups.watchLimit(c.cgroup)
	}
	if req.CpuMillis != nil && c.cgroup != nil {
		sb.cgroups.watchQuota(c.cgroup)
	}
	return nil
}

// memoryKills is how many processes the container's memory limit, and that of the
// sandbox, have killed so far.
func (sb *sandbox) memoryKills(c *container) uint64 {
	n := sb.memory.kills.Load()
	if c.cgroup != nil {
		n += sb.cgroups.kills(c.cgroup)
	}
	return n
}

// outOfMemory says whether a memory limit had a part in a container's end: docker's
// OOMKilled does not ask whether the process that was killed was the first.
func (sb *sandbox) outOfMemory(c *container, exit api.ExitStatus) bool {
	if c == sb.first {
		return sb.memory.killed()
	}
	if c.cgroup != nil && sb.cgroups.kills(c.cgroup) > 0 {
		return true
	}
	// The sandbox' own limit kills in any container.
	return sb.memory.killed() && exit.Signal == int(unix.SIGKILL)
}
