// SPDX-License-Identifier: Apache-2.0

// Limits of an OCI bundle in the form of the cgroup library.

package hostcgroup

import (
	"maps"
	"regexp"
	"strings"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// A guest's task is a thread of a stub process on the host, which has some of
	// its own besides; the Sentry has its threads too. A host's limit that is the
	// guest's would be met long before the guest meets it, and would end the
	// sandbox instead of failing a fork.
	hostTasksPerTask = 4
	hostTasksBesides = 1024
	// maxUnified bounds the settings of version 2 in a bundle.
	maxUnified = 256
)

// ForSandbox returns limits for the host's cgroup of a sandbox whose guests are
// held to r by the sandbox itself. They are r's, but for the number of tasks,
// which is that of host threads there: see hostTasksPerTask. A nil r stays nil.
func ForSandbox(r *specs.LinuxResources) *specs.LinuxResources {
	if r == nil || r.Pids == nil || r.Pids.Limit == nil || *r.Pids.Limit < 0 {
		return r
	}
	c := *r
	limit := int64(-1)                         // More than any kernel has.
	if n := max(*r.Pids.Limit, 1); n < 1<<32 { // 0 is 1, as in runc.
		limit = n*hostTasksPerTask + hostTasksBesides
	}
	c.Pids = &specs.LinuxPids{Limit: &limit}
	return &c
}

// pageSize is how the kernel names sizes of huge pages: the name becomes part of
// a file's.
var pageSize = regexp.MustCompile(`^[1-9][0-9]{0,9}[KMGT]B$`)

// resources converts. Rules about devices are left out: a sandbox opens none,
// and its guests have those of the Sentry.
func resources(r *specs.LinuxResources) (*cgroups.Resources, error) {
	c := &cgroups.Resources{}
	if r == nil {
		return c, nil
	}
	memory(c, r.Memory)
	cpu(c, r.CPU)
	if r.Pids != nil {
		c.PidsLimit = r.Pids.Limit
	}
	blockIO(c, r.BlockIO)
	for _, l := range r.HugepageLimits {
		if !pageSize.MatchString(l.Pagesize) {
			return nil, api.Errorf(api.KindInvalid, "linux.resources.hugepageLimits: page size %q", l.Pagesize)
		}
		c.HugetlbLimit = append(c.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
	}
	for device, l := range r.Rdma {
		if c.Rdma == nil {
			c.Rdma = make(map[string]cgroups.LinuxRdma, len(r.Rdma))
		}
		c.Rdma[device] = cgroups.LinuxRdma{HcaHandles: l.HcaHandles, HcaObjects: l.HcaObjects}
	}
	if n := r.Network; n != nil {
		if n.ClassID != nil {
			c.NetClsClassid = *n.ClassID
		}
		for _, p := range n.Priorities {
			c.NetPrioIfpriomap = append(c.NetPrioIfpriomap, &cgroups.IfPrioMap{Interface: p.Name, Priority: int64(p.Priority)})
		}
	}
	if err := checkUnified(r.Unified); err != nil {
		return nil, err
	}
	if len(r.Unified) > 0 {
		c.Unified = maps.Clone(r.Unified)
	}
	return c, nil
}

// checkUnified refuses files that are no limits: cgroup.procs would move any
// process of the host, cgroup.kill end them.
func checkUnified(unified map[string]string) error {
	if len(unified) > maxUnified {
		return api.Errorf(api.KindLimit, "linux.resources.unified: %d settings, at most %d", len(unified), maxUnified)
	}
	for name := range unified {
		controller, parameter, ok := strings.Cut(name, ".")
		bounds := name == "cgroup.max.depth" || name == "cgroup.max.descendants"
		if !ok || controller == "" || parameter == "" || strings.ContainsAny(name, "/\x00") || controller == "cgroup" && !bounds {
			return api.Errorf(api.KindInvalid, "linux.resources.unified: %q is no limit of a controller", name)
		}
	}
	return nil
}

func memory(c *cgroups.Resources, m *specs.LinuxMemory) {
	if m == nil {
		return
	}
	set(&c.Memory, m.Limit)
	set(&c.MemoryReservation, m.Reservation)
	set(&c.MemorySwap, m.Swap)
	set(&c.OomKillDisable, m.DisableOOMKiller)
	set(&c.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
	c.MemorySwappiness = m.Swappiness
}

func cpu(c *cgroups.Resources, p *specs.LinuxCPU) {
	if p == nil {
		return
	}
	if p.Shares != nil {
		c.CpuShares = *p.Shares
		c.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(c.CpuShares)
	}
	set(&c.CpuQuota, p.Quota)
	set(&c.CpuPeriod, p.Period)
	set(&c.CpuRtRuntime, p.RealtimeRuntime)
	set(&c.CpuRtPeriod, p.RealtimePeriod)
	c.CpuBurst, c.CPUIdle = p.Burst, p.Idle
	c.CpusetCpus, c.CpusetMems = p.Cpus, p.Mems
}

func blockIO(c *cgroups.Resources, b *specs.LinuxBlockIO) {
	if b == nil {
		return
	}
	set(&c.BlkioWeight, b.Weight)
	set(&c.BlkioLeafWeight, b.LeafWeight)
	for _, d := range b.WeightDevice {
		var weight, leaf uint16
		set(&weight, d.Weight)
		set(&leaf, d.LeafWeight)
		c.BlkioWeightDevice = append(c.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, weight, leaf))
	}
	throttle := func(to *[]*cgroups.ThrottleDevice, list []specs.LinuxThrottleDevice) {
		for _, d := range list {
			*to = append(*to, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate))
		}
	}
	throttle(&c.BlkioThrottleReadBpsDevice, b.ThrottleReadBpsDevice)
	throttle(&c.BlkioThrottleWriteBpsDevice, b.ThrottleWriteBpsDevice)
	throttle(&c.BlkioThrottleReadIOPSDevice, b.ThrottleReadIOPSDevice)
	throttle(&c.BlkioThrottleWriteIOPSDevice, b.ThrottleWriteIOPSDevice)
}

// set takes a value where there is one.
func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
