// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"strconv"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
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

// containerCgroup decides where a container's first process starts. Without
// limits that is the root cgroup, whose processes may coexist with enabled
// controllers: a Docker engine inside need not move itself first. With a limit
// on processes it is a cgroup of its own, at the root of a cgroup namespace.
func (sb *sandbox) containerCgroup(m *mounter, id string) (kernel.Cgroup2, *kernel.CgroupNamespace, error) {
	limit := sb.spec.Resources.Pids
	if limit <= 0 {
		return nil, nil, nil
	}
	root := sb.cgroupRoot()
	where := &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(id)}
	if err := m.vfs.MkdirAt(m.ctx, m.creds, where, &vfs.MkdirOptions{Mode: 0o755}); err != nil {
		return nil, nil, fmt.Errorf("create cgroup of container %s: %w", id, err)
	}
	if err := sb.writeCgroup(id+"/pids.max", strconv.FormatInt(limit, 10)); err != nil {
		return nil, nil, fmt.Errorf("limit processes of container %s: %w", id, err)
	}
	vd, err := m.vfs.GetDentryAt(m.ctx, m.creds, where, &vfs.GetDentryOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("find cgroup of container %s: %w", id, err)
	}
	// The cgroup lives as long as the sandbox; so may the reference.
	cg, ok := cgroup2fs.CgroupFromDentry(vd.Dentry())
	if !ok {
		return nil, nil, fmt.Errorf("cgroup of container %s is none", id)
	}
	return cg, sb.k.NewCgroupNamespace(m.ctx, cg, sb.userns), nil
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
