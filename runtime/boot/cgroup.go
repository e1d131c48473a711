// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"strconv"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/runtime/api"
)

// guestControllers are those of the guest's cgroup v2 hierarchy.
const guestControllers = "+cpu +memory +pids +cpuset"

// setupCgroups mounts the guest's cgroup v2 hierarchy, hidden, and enables all
// controllers for the cgroups below its root.
func (sb *sandbox) setupCgroups() error {
	sb.cgroupMount = cgroup2fs.NewInternalMount(sb.k, sb.k.VFS())
	cgroup2fs.SetNSDelegate(sb.k, true)
	if err := sb.writeCgroup("cgroup.subtree_control", guestControllers); err != nil {
		return fmt.Errorf("enable cgroup controllers: %w", err)
	}
	sb.cgroups.extendRoot()
	return nil
}

// containerCgroup decides where a container's first process starts. For one of
// docker's kind without limits that is the root cgroup, whose processes may coexist
// with enabled controllers: a Docker engine inside need not move itself first. With
// a limit on processes it is a cgroup of its own, at the root of a cgroup namespace,
// and so for every container of a bundle, as with runc, and for every further one,
// which is held to its own limits there.
func (sb *sandbox) containerCgroup(m *mounter, c *container) (kernel.Cgroup2, *kernel.CgroupNamespace, error) {
	limits, id := c.spec.Resources, c.spec.ID
	if c == sb.first {
		// Its memory is the sandbox's: see memoryEnforcer.
		limits = api.Resources{Pids: sb.spec.Resources.Pids}
		if limits.Pids <= 0 && !c.spec.Explicit {
			return nil, nil, nil
		}
	}
	root := sb.cgroupRoot()
	where := &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(id)}
	if err := m.vfs.MkdirAt(m.ctx, m.creds, where, &vfs.MkdirOptions{Mode: 0o755}); err != nil {
		return nil, nil, fmt.Errorf("create cgroup of container %s: %w", id, err)
	}
	for name, limit := range map[string]int64{"pids.max": limits.Pids, "memory.max": limits.MemoryBytes, "cpu.max": limits.CPUMillis} {
		if limit <= 0 {
			continue
		}
		if err := sb.writeCgroup(id+"/"+name, limitText(name, limit)); err != nil {
			return nil, nil, fmt.Errorf("set %s of container %s: %w", name, id, err)
		}
	}
	vd, err := m.vfs.GetDentryAt(m.ctx, m.creds, where, &vfs.GetDentryOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("find cgroup of container %s: %w", id, err)
	}
	// The cgroup lives as long as the container; so may the reference.
	c.cgroupEntry = vd
	cg, ok := cgroup2fs.CgroupFromDentry(vd.Dentry())
	if !ok {
		return nil, nil, fmt.Errorf("cgroup of container %s is none", id)
	}
	if limits.MemoryBytes > 0 {
		sb.cgroups.watchLimit(cg)
	}
	if limits.CPUMillis > 0 {
		sb.cgroups.watchQuota(cg)
	}
	return cg, sb.k.NewCgroupNamespace(m.ctx, cg, sb.userns), nil
}

// limitText is a limit as a cgroup's file of that name has it; none is not above 0.
func limitText(name string, limit int64) string {
	switch {
	case limit <= 0:
		return "max"
	case name == "cpu.max":
		return fmt.Sprintf("%d %d", cpuQuota(limit).Microseconds(), cpuPeriod.Microseconds())
	}
	return strconv.FormatInt(limit, 10)
}

// removeCgroup removes the cgroup of a further container that is forgotten, where
// it has one that nobody is in.
func (sb *sandbox) removeCgroup(c *container) {
	sb.mu.Lock()
	entry := c.cgroupEntry
	c.cgroupEntry = vfs.VirtualDentry{}
	sb.mu.Unlock()
	if !entry.Ok() {
		return
	}
	ctx := sb.k.SupervisorContext()
	entry.DecRef(ctx)
	root := sb.cgroupRoot()
	where := &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(c.spec.ID)}
	if err := sb.k.VFS().RmdirAt(ctx, auth.NewRootCredentials(sb.userns), where); err != nil {
		log.Debugf("remove cgroup of container %s: %v", c.spec.ID, err)
	}
}

func (sb *sandbox) cgroupRoot() vfs.VirtualDentry {
	return vfs.MakeVirtualDentry(sb.cgroupMount, sb.cgroupMount.Root())
}

// writeCgroup writes a file of the guest's cgroup hierarchy.
func (sb *sandbox) writeCgroup(name, value string) error {
	ctx := sb.k.SupervisorContext()
	root := sb.cgroupRoot()
	f, err := sb.k.VFS().OpenAt(ctx, auth.NewRootCredentials(sb.userns), pathAt(root, "/"+name), &vfs.OpenOptions{Flags: linux.O_WRONLY})
	if err != nil {
		return err
	}
	defer f.DecRef(ctx)
	_, err = f.Write(ctx, usermem.BytesIOSequence([]byte(value)), vfs.WriteOptions{})
	return err
}
