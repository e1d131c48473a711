// SPDX-License-Identifier: Apache-2.0

// Directories and files of the host, which a gofer process serves.

package boot

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// rootTree is what a container's root is called among its trees.
const rootTree = "root"

// hasTrees says whether a gofer serves the sandbox, or may do so later.
func (sb *sandbox) hasTrees() bool {
	return sb.spec.LateTrees || len(sb.spec.Container.TreeFDs()) > 0
}

// reserveTrees moves the sockets to the gofer where the allow-list can tell them
// from all others: on these alone messages can be sent. Containers that join later
// bring theirs on any number, which the spec has to allow; on the host's network
// messages can be sent on all.
func (sb *sandbox) reserveTrees() error {
	// Asked for now: it is not allowed later, when containers join.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		sb.openFiles = limit.Cur
	}
	if sb.spec.LateTrees || sb.hostNetwork != nil {
		return muteStreams(sb.spec.StreamsFD)
	}
	fds := sb.spec.Container.TreeFDs()
	if len(fds) == 0 {
		return nil
	}
	var err error
	if sb.treesFD, err = lockdown.ReserveAbove(fds); err != nil {
		return fmt.Errorf("reserve descriptors for host directories: %w", err)
	}
	return nil
}

// mountTree mounts a tree, connected to nothing yet. The mount owns the descriptor
// from now on; the caller owns the mount.
func (m *mounter) mountTree(h *api.HostTree, name string, opts vfs.MountOptions) (*vfs.Mount, error) {
	m.treesTaken[h] = true
	hello := api.GoferHello{UID: m.treeUser.UID, GID: m.treeUser.GID}
	if _, err := unix.Write(int(h.FD), hello.Marshal()); err != nil {
		unix.Close(int(h.FD))
		return nil, fmt.Errorf("mount host directory %s: greet the gofer: %w", h.Name, err)
	}
	cache := "remote_revalidating"
	if h.Exclusive {
		cache = "fscache"
	}
	opts.GetFilesystemOptions = vfs.GetFilesystemOptions{
		InternalMount: true,
		// A host directory may lie on an overlay, whose files are others once
		// somebody has written them. Pipes of the host are not opened.
		Data:         fmt.Sprintf("trans=fd,rfdno=%d,wfdno=%d,cache=%s,dcache=%d,overlayfs_stale_read,disable_fifo_open", h.FD, h.FD, cache, m.dentries()),
		InternalData: gofer.InternalFilesystemOptions{UniqueID: m.resource("tree/" + name)},
	}
	mnt, err := m.vfs.MountDisconnected(m.ctx, m.creds, "none", gofer.Name, &opts)
	if err != nil {
		return nil, fmt.Errorf("mount host directory %s: %w", h.Name, err)
	}
	return mnt, nil
}

// muteStreams keeps the socket on which streams arrive from sending: it is connected
// to nobody, so that a message on it could go to any socket of the host's. Its
// clients are not answered.
func muteStreams(fd api.FD) error {
	if fd == api.NoFD {
		return nil
	}
	if err := unix.Shutdown(int(fd), unix.SHUT_WR); err != nil {
		return fmt.Errorf("keep the socket of streams from sending: %w", err)
	}
	return nil
}

const (
	// maxDentries is how many names a tree remembers at most, each for some
	// hundred bytes; minDentries is gVisor's least that is of use.
	maxDentries = 8192
	minDentries = 64
	// filesPerDentry is what a remembered name may cost of the limit on open
	// files, in the sandbox or in the gofer, whose limit is the same.
	filesPerDentry = 4
)

// dentries is how many names each tree of the container may remember.
func (m *mounter) dentries() int {
	trees := uint64(max(1, len(m.spec.TreeFDs())))
	return int(min(maxDentries, max(minDentries, m.sb.openFiles/filesPerDentry/trees)))
}

// mountBind mounts a tree where the guest sees it. What is missing of the way there
// is made, as runc does: directories, or an empty file below a file.
func (m *mounter) mountBind(e *api.Mount, name string, opts vfs.MountOptions) error {
	m.setTreeUser()
	mnt, err := m.mountTree(e.Host, name, opts)
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	if !e.Host.IsFile {
		return m.connect(mnt, e.Target)
	}
	if err := m.makeDirectories(path.Dir(e.Target)); err != nil {
		return err
	}
	if err := m.makeFile(e.Target, 0o755); err != nil {
		return fmt.Errorf("make the file %s to mount %s on: %w", e.Target, e.Host.Name, err)
	}
	if err := m.vfs.ConnectMountAt(m.ctx, m.creds, mnt, m.at(e.Target)); err != nil {
		return fmt.Errorf("mount host file %s on %s: %w", e.Host.Name, e.Target, err)
	}
	return nil
}

// hostUser are ids of a user namespace as the sandbox counts, which is what the
// gofer deals in. Those without a mapping are root's, which nobody there is.
func hostUser(ns *auth.UserNamespace, uid, gid uint32) api.HostUser {
	kuid, kgid := ns.MapToKUID(auth.UID(uid)), ns.MapToKGID(auth.GID(gid))
	if !kuid.Ok() || !kgid.Ok() {
		return api.HostUser{}
	}
	return api.HostUser{UID: uint32(kuid), GID: uint32(kgid)}
}

// setTreeUser finds out whom the host's user is in the guest: the container's. It
// looks at what the image says; a user that is not found is reported later.
func (m *mounter) setTreeUser() {
	if m.treeUserKnown {
		return
	}
	m.treeUserKnown = true
	if acc, err := m.resolveAccount(&m.spec.Process); err == nil {
		m.treeUser = hostUser(m.userns, acc.uid, acc.gid)
	}
}
