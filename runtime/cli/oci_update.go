// SPDX-License-Identifier: Apache-2.0

// `rungv update` of an OCI bundle's container, with runc's flags.

package cli

import (
	"encoding/json"
	"io"
	"os"
	"strconv"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
)

// maxResourcesBytes bounds the document of --resources.
const maxResourcesBytes = 1 << 20

// updateTaskFlags are those of `update` that only a bundle's container has.
type updateTaskFlags struct {
	resources                                                 string
	cpuPeriod, cpuRTPeriod, cpuShares, cpuBurst               uint64
	cpuQuota, cpuRTRuntime, cpuIdle                           int64
	cpusetCPUs, cpusetMems, memorySwap, memoryReservation     string
	blkioWeight                                               uint16
	kernelMemory, kernelMemoryTCP, l3CacheSchema, memBwSchema string
}

func (f *updateTaskFlags) register(fl *pflag.FlagSet) {
	fl.StringVarP(&f.resources, "resources", "r", "", "Of an OCI bundle's container: file with the resources to update, - for standard input")
	fl.Uint16Var(&f.blkioWeight, "blkio-weight", 0, "Likewise: per cgroup block IO weight")
	fl.Uint64Var(&f.cpuBurst, "cpu-burst", 0, "Likewise: CPU CFS burst in microseconds")
	fl.Int64Var(&f.cpuIdle, "cpu-idle", 0, "Likewise: 1 for cgroup SCHED_IDLE, 0 for the default")
	fl.Uint64Var(&f.cpuPeriod, "cpu-period", 0, "Likewise: CPU CFS period in microseconds")
	fl.Int64Var(&f.cpuQuota, "cpu-quota", 0, "Likewise: CPU CFS quota in microseconds")
	fl.Uint64Var(&f.cpuShares, "cpu-share", 0, "Likewise: CPU shares")
	fl.StringVar(&f.cpusetCPUs, "cpuset-cpus", "", "Likewise: processors to use")
	fl.StringVar(&f.cpusetMems, "cpuset-mems", "", "Likewise: memory nodes to use")
	fl.StringVar(&f.memorySwap, "memory-swap", "", "Likewise: memory and swap in bytes, -1 for no limit")
	fl.StringVar(&f.memoryReservation, "memory-reservation", "", "Likewise: memory reservation in bytes")
	fl.Uint64Var(&f.cpuRTPeriod, "cpu-rt-period", 0, "Likewise: CPU realtime period in microseconds, where the host's cgroups have one")
	fl.Int64Var(&f.cpuRTRuntime, "cpu-rt-runtime", 0, "Likewise: CPU realtime runtime in microseconds")
	// What the kernel has dropped, or a sandbox does not have.
	fl.StringVar(&f.kernelMemory, "kernel-memory", "", "")
	fl.StringVar(&f.kernelMemoryTCP, "kernel-memory-tcp", "", "")
	fl.StringVar(&f.l3CacheSchema, "l3-cache-schema", "", "")
	fl.StringVar(&f.memBwSchema, "mem-bw-schema", "", "")
	for _, name := range []string{"kernel-memory", "kernel-memory-tcp", "l3-cache-schema", "mem-bw-schema"} {
		_ = fl.MarkHidden(name)
	}
}

// updateTask changes the limits of one container.
func updateTask(cmd *cobra.Command, r *container.Runner, f *updateTaskFlags, args []string) error {
	if len(args) != 1 {
		return &usageError{err: api.Errorf(api.KindInvalid, "'%s' takes one container of a bundle", cmd.CommandPath()), verb: cmd.CommandPath()}
	}
	var res *specs.LinuxResources
	var err error
	if f.resources != "" {
		res, err = readResources(cmd, f.resources)
	} else {
		res, err = f.collect(cmd.Flags())
	}
	if err != nil {
		return err
	}
	return r.UpdateTask(cmd.Context(), args[0], res)
}

// readResources reads the document of --resources.
func readResources(cmd *cobra.Command, name string) (*specs.LinuxResources, error) {
	from := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, api.Errorf(api.KindInvalid, "--resources: %w", err)
		}
		defer f.Close()
		from = f
	}
	doc, err := io.ReadAll(io.LimitReader(from, maxResourcesBytes+1))
	if err == nil && len(doc) > maxResourcesBytes {
		err = api.Errorf(api.KindLimit, "a document of more than %d bytes", maxResourcesBytes)
	}
	res := &specs.LinuxResources{}
	if err == nil {
		err = json.Unmarshal(doc, res)
	}
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "--resources: %w", err)
	}
	return res, nil
}

// collect is what the single flags say.
func (f *updateTaskFlags) collect(fl *pflag.FlagSet) (*specs.LinuxResources, error) {
	res := &specs.LinuxResources{Memory: &specs.LinuxMemory{}, CPU: &specs.LinuxCPU{Cpus: f.cpusetCPUs, Mems: f.cpusetMems}}
	if fl.Changed("blkio-weight") {
		res.BlockIO = &specs.LinuxBlockIO{Weight: &f.blkioWeight}
	}
	if fl.Changed("cpu-period") {
		res.CPU.Period = &f.cpuPeriod
	}
	if fl.Changed("cpu-burst") {
		res.CPU.Burst = &f.cpuBurst
	}
	if fl.Changed("cpu-idle") {
		res.CPU.Idle = &f.cpuIdle
	}
	if fl.Changed("cpu-rt-period") {
		res.CPU.RealtimePeriod = &f.cpuRTPeriod
	}
	if fl.Changed("cpu-rt-runtime") {
		res.CPU.RealtimeRuntime = &f.cpuRTRuntime
	}
	if fl.Changed("cpu-quota") {
		res.CPU.Quota = &f.cpuQuota
	}
	if fl.Changed("cpu-share") {
		res.CPU.Shares = &f.cpuShares
	}
	if fl.Changed("pids-limit") {
		n, err := fl.GetInt64("pids-limit")
		if err != nil {
			return nil, err
		}
		res.Pids = &specs.LinuxPids{Limit: &n}
	}
	for _, m := range []struct {
		flag string
		to   **int64
	}{{"memory-swap", &res.Memory.Swap}, {"memory-reservation", &res.Memory.Reservation}} {
		if !fl.Changed(m.flag) {
			continue
		}
		n, err := parseTaskBytes(fl.Lookup(m.flag).Value.String())
		if err != nil {
			return nil, api.Errorf(api.KindInvalid, "--%s: %w", m.flag, err)
		}
		*m.to = &n
	}
	if m, ok := fl.Lookup("memory").Value.(*bytesFlag); ok && fl.Changed("memory") {
		n := int64(*m)
		res.Memory.Limit = &n
	}
	return res, nil
}

// parseTaskBytes reads a size; -1 is no limit.
func parseTaskBytes(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	return units.RAMInBytes(s)
}
