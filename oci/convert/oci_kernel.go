// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/bundle"
	"z.gfire.dev/gvx/runtime/api"
)

// deviceMode is that of a device that has none.
const deviceMode = 0o666

// guestDevices are the character devices that a guest's kernel drives, by their
// numbers. Others can be made, looked at, and not opened.
var guestDevices = map[[2]int64]bool{
	{1, 3}: true, {1, 5}: true, {1, 7}: true, {1, 8}: true, {1, 9}: true, // null, zero, full, random, urandom
	{5, 0}: true, {5, 1}: true, {5, 2}: true, // tty, console, ptmx
	{10, 200}: true, {10, 229}: true, // net/tun, fuse
}

// devices are the nodes that the bundle wants besides the usual ones.
func (c *ociConversion) devices() error {
	foreign := 0
	for _, d := range c.linux.Devices {
		out := api.Device{Path: path.Clean(d.Path), Type: api.DeviceType(d.Type), Major: uint32(d.Major), Minor: uint32(d.Minor), Mode: deviceMode}
		if d.Type == "u" {
			out.Type = api.DeviceChar
		}
		if d.FileMode != nil {
			out.Mode = uint32(d.FileMode.Perm())
		}
		if d.UID != nil {
			out.UID = *d.UID
		}
		if d.GID != nil {
			out.GID = *d.GID
		}
		if out.Type == api.DeviceBlock || out.Type == api.DeviceChar && !guestDevices[[2]int64{d.Major, d.Minor}] {
			foreign++
		}
		c.container.Devices = append(c.container.Devices, out)
	}
	if foreign > 0 {
		c.note("%d devices have nodes and no driver: a guest has no device of the host's", foreign)
	}
	return nil
}

// namespaces are those of the container: of its own, or shared with others of
// its sandbox.
func (c *ociConversion) namespaces() error {
	given := make(map[specs.LinuxNamespaceType]*specs.LinuxNamespace)
	for i := range c.linux.Namespaces {
		given[c.linux.Namespaces[i].Type] = &c.linux.Namespaces[i]
	}
	if err := c.network(given[specs.NetworkNamespace]); err != nil {
		return err
	}
	n := &c.container.Namespaces
	for _, ns := range []struct {
		kind specs.LinuxNamespaceType
		to   *string
	}{{specs.PIDNamespace, &n.PID}, {specs.IPCNamespace, &n.IPC}, {specs.UTSNamespace, &n.UTS}} {
		*ns.to = c.shared(ns.kind, given[ns.kind])
	}
	if mnt := given[specs.MountNamespace]; mnt != nil && mnt.Path != "" {
		return api.Errorf(api.KindUnsupported, "mount namespace %s: a container's mounts are its own", mnt.Path)
	}
	if t := given[specs.TimeNamespace]; t != nil {
		if t.Path != "" || len(c.linux.TimeOffsets) > 0 {
			return api.Errorf(api.KindUnsupported, "time namespaces are not supported: the guest's kernel has one clock")
		}
		c.note("the time namespace is the guest's own, and there is no other in it")
	}
	c.container.Hostname, c.container.Domainname = c.spec.Hostname, c.spec.Domainname
	if c.container.Hostname == "" {
		c.container.Hostname = c.in.HostName
	}
	if err := CheckHostname(c.container.Hostname); err != nil {
		return err
	}
	return c.userNamespace(given[specs.UserNamespace])
}

// shared is the id of the container whose namespace is shared, "" for none.
func (c *ociConversion) shared(kind specs.LinuxNamespaceType, ns *specs.LinuxNamespace) string {
	switch {
	case ns == nil && c.in.Joins != "":
		// The engine's own: of all there is in the sandbox, the first's.
		return c.in.Joins
	case ns == nil:
		c.note("the %s namespace is the sandbox' own: the host's is not shared", kind)
		return ""
	case ns.Path == "":
		return ""
	case c.in.Joins == "":
		c.note("the %s namespace %s is not joined: a new sandbox has its own", kind, ns.Path)
		return ""
	}
	if c.in.ContainerOf != nil {
		if id, ok := c.in.ContainerOf(kind, ns.Path); ok {
			return id
		}
	}
	return c.in.Joins
}

// network is where the network of a new sandbox comes from. Who joins one has
// that one's.
func (c *ociConversion) network(ns *specs.LinuxNamespace) error {
	if len(c.linux.NetDevices) > 0 {
		return api.Errorf(api.KindUnsupported, "netDevices: devices of the host are not moved into a sandbox")
	}
	n := &c.out.Network
	switch {
	case c.in.Joins != "" && ns == nil:
		n.Kind = NetworkOfHost
	case ns == nil:
		if !c.in.HostNetwork {
			return api.Errorf(api.KindUnsupported, "no network namespace: a sandbox does not get the host's network unless its configuration allows it (host_network of the shim, --allow-host-network of rungv)")
		}
		n.Kind = NetworkOfHost
	case ns.Path == "":
		n.Kind = NetworkOfItsOwn
	default:
		n.Kind, n.Path = NetworkOfPath, ns.Path
	}
	return nil
}

// userNamespace takes over the mappings of ids.
func (c *ociConversion) userNamespace(ns *specs.LinuxNamespace) error {
	if ns == nil {
		return nil
	}
	if len(c.linux.UIDMappings) == 0 || len(c.linux.GIDMappings) == 0 {
		return api.Errorf(api.KindUnsupported, "user namespace %s: without mappings for both uids and gids it is not supported", ns.Path)
	}
	convert := func(list []specs.LinuxIDMapping) []api.IDMapping {
		out := make([]api.IDMapping, len(list))
		for i, m := range list {
			out[i] = api.IDMapping{Inside: m.ContainerID, Outside: m.HostID, Size: m.Size}
		}
		return out
	}
	c.container.Namespaces.User = &api.UserNamespace{UIDs: convert(c.linux.UIDMappings), GIDs: convert(c.linux.GIDMappings)}
	return nil
}

// guards are the paths that are hidden or write-protected.
func (c *ociConversion) guards() error {
	c.container.Propagation = api.Propagation(c.linux.RootfsPropagation)
	if c.open {
		return nil
	}
	clean := func(list []string) []string {
		var out []string
		seen := make(map[string]bool, len(list))
		for _, p := range list {
			if p = path.Clean(p); p != "/" && !seen[p] {
				seen[p] = true
				out = append(out, p)
			}
		}
		return out
	}
	c.container.MaskedPaths, c.container.ReadonlyPaths = clean(c.linux.MaskedPaths), clean(c.linux.ReadonlyPaths)
	return nil
}

// kernel is what is set in the guest's kernel for the container.
func (c *ociConversion) kernel() error {
	for _, given := range slices.Sorted(maps.Keys(c.linux.Sysctl)) {
		if c.container.Sysctls == nil {
			c.container.Sysctls = make(map[string]string)
		}
		c.container.Sysctls[bundle.SysctlName(given)] = c.linux.Sysctl[given]
	}
	if name := "kernel.domainname"; c.container.Sysctls[name] != "" {
		// There is a member of the specification for it by now.
		c.container.Domainname = c.container.Sysctls[name]
		delete(c.container.Sysctls, name)
	}
	switch l := c.linux; {
	case l.Personality != nil && l.Personality.Domain == specs.PerLinux32:
		return api.Errorf(api.KindUnsupported, "personality %s: the guest's kernel has 64 bits only", l.Personality.Domain)
	case l.IntelRdt != nil:
		return api.Errorf(api.KindUnsupported, "intelRdt is specified in config, but Intel RDT is not supported")
	case l.MemoryPolicy != nil:
		return api.Errorf(api.KindUnsupported, "memoryPolicy is specified in config, but a guest has one node of memory")
	case l.MountLabel != "":
		c.note("the mount label %s does not apply: the guest's kernel has no SELinux", l.MountLabel)
	}
	return nil
}

// resources are the limits that the sandbox itself enforces; all of them are
// those of the host's cgroup too.
func (c *ociConversion) resources() error {
	r := c.linux.Resources
	if r == nil {
		return nil
	}
	out := &c.container.Resources
	*out = OCILimits(r)
	if cpu := r.CPU; cpu != nil {
		set, err := countCPUs(cpu.Cpus)
		if err != nil {
			return err
		}
		c.out.Cores = set
		if millis := out.CPUMillis; millis > 0 {
			if cores := int((millis + 999) / 1000); c.out.Cores == 0 || cores < c.out.Cores {
				c.out.Cores = cores
			}
		}
	}
	return nil
}

// OCILimits are the limits that a sandbox holds its guests to by itself.
func OCILimits(r *specs.LinuxResources) api.Resources {
	var out api.Resources
	if m := r.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		out.MemoryBytes = *m.Limit
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit >= 0 {
		out.Pids = max(*p.Limit, 1) // As runc: systemd knows no limit of 0.
	}
	if cpu := r.CPU; cpu != nil {
		var quota int64
		var period uint64
		if cpu.Quota != nil {
			quota = *cpu.Quota
		}
		if cpu.Period != nil {
			period = *cpu.Period
		}
		out.CPUMillis = cpuMillis(quota, period)
	}
	return out
}

// cpuPeriod is Linux' default period of a quota, in microseconds.
const cpuPeriod = 100000

// cpuMillis is a quota in thousandths of a processor, 0 for none.
func cpuMillis(quota int64, period uint64) int64 {
	if quota <= 0 {
		return 0
	}
	if period == 0 {
		period = cpuPeriod
	}
	if quota > math.MaxInt64/1000 {
		return 0
	}
	return int64(min(max(uint64(quota)*1000/period, 1), api.MaxCores*1000))
}

// countCPUs is how many processors a list such as 0-3,7 names; 0 for none.
func countCPUs(list string) (int, error) {
	list = strings.TrimSpace(list)
	if list == "" {
		return 0, nil
	}
	bad := api.Errorf(api.KindInvalid, "cpus %q is no list of processors", list)
	seen := make(map[uint64]bool)
	for part := range strings.SplitSeq(list, ",") {
		lowText, highText, both := strings.Cut(strings.TrimSpace(part), "-")
		low, err := strconv.ParseUint(lowText, 10, 16)
		high := low
		if err == nil && both {
			high, err = strconv.ParseUint(highText, 10, 16)
		}
		if err != nil || low > high {
			return 0, bad
		}
		for n := low; n <= high; n++ {
			seen[n] = true
		}
	}
	return min(len(seen), api.MaxCores), nil
}
