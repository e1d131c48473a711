// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/ext4lite/sentryfs"
	"z.gfire.dev/gvx/runtime/api"
)

// mounter builds one container's mount namespace, with the credentials of the
// guest's root and before any guest code runs.
type mounter struct {
	sb    *sandbox
	spec  *api.Container
	ctx   context.Context
	vfs   *vfs.VirtualFilesystem
	creds *auth.Credentials
	// userns is the container's user namespace, whose root creds are from once the
	// root is mounted.
	userns *auth.UserNamespace
	// root is the container's root once it is mounted; mounter owns a reference.
	root vfs.VirtualDentry
	// sources are those of what was mounted, nil where nobody asks.
	sources mountSources
	// volumes are those that were mounted.
	volumes []*volume
	// treeUser is whom a host user that owns host directories is in the guest.
	treeUser      api.HostUser
	treeUserKnown bool
	// treesTaken are the container's trees whose descriptors a mount owns.
	treesTaken map[*api.HostTree]bool
}

// inNamespace is a context of a mount namespace, which that of a process to be
// made is not: it has the one of the sandbox's first process, or none.
type inNamespace struct {
	context.Context
	mns *vfs.MountNamespace
}

// Value implements context.Context.
func (c inNamespace) Value(key any) any {
	if key == vfs.CtxMountNamespace {
		c.mns.IncRef() // Who asks gives it back.
		return c.mns
	}
	return c.Context.Value(key)
}

// admin is m with all rights, for what a container's own root may not do.
func (m *mounter) admin() *mounter {
	a := *m
	a.creds = auth.NewRootCredentials(m.sb.userns)
	a.ctx = auth.ContextWithCredentials(m.ctx, a.creds)
	return &a
}

// at is the path operation for an absolute guest path, following symlinks
// within the container's root only.
func (m *mounter) at(path string) *vfs.PathOperation {
	return pathAt(m.root, path)
}

// mountRoot makes the container's mount namespace with its root file system.
func (m *mounter) mountRoot() (*vfs.MountNamespace, error) {
	root, err := m.rootMount()
	if err != nil {
		return nil, err
	}
	defer root.DecRef(m.ctx)

	// The namespace's own root is an empty read-only mount that the container
	// never sees: a guest cannot unmount the mount it stands on.
	mns, err := m.vfs.NewMountNamespace(m.ctx, m.creds, "rootfs", tmpfs.Name,
		&vfs.MountOptions{ReadOnly: true, Locked: true}, m.sb.k)
	if err != nil {
		return nil, fmt.Errorf("create mount namespace: %w", err)
	}
	base := mns.Root(m.ctx)
	defer base.DecRef(m.ctx)
	if err := m.vfs.ConnectMountAt(m.ctx, m.creds, root, pathAt(base, "/")); err != nil {
		return nil, fmt.Errorf("connect root file system: %w", err)
	}
	m.root = mns.Root(m.ctx)
	return mns, nil
}

// rootMount makes the root file system, connected to nothing: a host directory
// itself, or the layers, lowest first in the spec, or a host directory in their
// place, below a writable upper.
func (m *mounter) rootMount() (*vfs.Mount, error) {
	r := &m.spec.Rootfs
	if m.spec.Idle {
		return m.mountUpperTmpfs()
	}
	flags := vfs.MountFlags{NoSUID: r.NoSUID, NoDev: r.NoDev, NoExec: r.NoExec}
	if r.Host != nil && r.Upper == nil {
		return m.mountTree(r.Host, rootTree, vfs.MountOptions{Flags: flags})
	}
	lowers, err := m.mountLowers()
	defer func() {
		for _, l := range lowers {
			l.Mount().DecRef(m.ctx)
		}
	}()
	if err != nil {
		return nil, err
	}
	upper, err := m.mountUpper(lowers)
	if err != nil {
		return nil, err
	}
	defer upper.Mount().DecRef(m.ctx)
	root, err := m.vfs.MountDisconnected(m.ctx, m.creds, "overlay", overlay.Name, &vfs.MountOptions{
		Flags: flags,
		GetFilesystemOptions: vfs.GetFilesystemOptions{
			InternalMount: true,
			InternalData:  overlay.FilesystemOptions{UpperRoot: upper, LowerRoots: lowers},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount root file system: stack %d layers: %w", len(lowers), err)
	}
	return root, nil
}

// mountLowers mounts what lies below the upper, as mountLayers returns it.
func (m *mounter) mountLowers() ([]vfs.VirtualDentry, error) {
	h := m.spec.Rootfs.Host
	if h == nil {
		return m.mountLayers()
	}
	mnt, err := m.mountTree(h, rootTree, vfs.MountOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return []vfs.VirtualDentry{vfs.MakeVirtualDentry(mnt, mnt.Root())}, nil
}

// mountLayers mounts the read-only layers, topmost first as overlay wants
// them. The caller owns a reference on each returned dentry's mount, on error
// too; the dentries live as long as their mounts.
func (m *mounter) mountLayers() ([]vfs.VirtualDentry, error) {
	layers := m.spec.Rootfs.Layers
	roots := make([]vfs.VirtualDentry, 0, len(layers))
	for i := len(layers) - 1; i >= 0; i-- {
		l := &layers[i]
		var st unix.Stat_t
		if err := unix.Fstat(int(l.FD), &st); err != nil {
			return roots, fmt.Errorf("layer %s: %w", l.DiffID, err)
		}
		mnt, err := m.vfs.MountDisconnected(m.ctx, m.creds, l.DiffID, sentryfs.EROFSName, &vfs.MountOptions{
			ReadOnly: true,
			GetFilesystemOptions: vfs.GetFilesystemOptions{
				InternalMount: true,
				InternalData: sentryfs.EROFSOptions{
					FD:   int(l.FD),
					Size: st.Size,
					ID:   m.resource(fmt.Sprintf("layer/%d", i)),
				},
			},
		})
		if err != nil {
			return roots, api.Errorf(api.KindImage, "mount layer %s: %w: the store's copy of it is damaged: remove the image and pull it again", l.DiffID, err)
		}
		roots = append(roots, vfs.MakeVirtualDentry(mnt, mnt.Root()))
	}
	return roots, nil
}

// mountUpper makes the writable layer: the donated volume, or else memory. Its
// root takes over the attributes of the topmost layer below.
func (m *mounter) mountUpper(lowers []vfs.VirtualDentry) (vfs.VirtualDentry, error) {
	var mnt *vfs.Mount
	var err error
	if v := m.spec.Rootfs.Upper; v != nil {
		mnt, err = m.mountUpperVolume(v)
	} else {
		mnt, err = m.mountUpperTmpfs()
	}
	if err != nil {
		return vfs.VirtualDentry{}, err
	}
	sentryfs.MarkUpper(mnt, &sentryfs.Lowers{VFS: m.vfs, Creds: m.creds, Roots: slices.Clone(lowers)})
	upper := vfs.MakeVirtualDentry(mnt, mnt.Root())

	const mask = linux.STATX_UID | linux.STATX_GID | linux.STATX_MODE
	st, err := m.vfs.StatAt(m.ctx, m.creds, pathAt(lowers[0], "/"), &vfs.StatOptions{Mask: mask})
	if err == nil {
		err = m.vfs.SetStatAt(m.ctx, m.creds, pathAt(upper, "/"), &vfs.SetStatOptions{
			Stat: linux.Statx{Mask: mask & st.Mask, UID: st.UID, GID: st.GID, Mode: st.Mode},
		})
	}
	if err != nil {
		mnt.DecRef(m.ctx)
		return vfs.VirtualDentry{}, fmt.Errorf("copy the root directory's attributes: %w", err)
	}
	return upper, nil
}

// mountUpperVolume mounts a volume as the writable layer. Where e2fsck would put
// what it finds is no part of an image.
func (m *mounter) mountUpperVolume(v *api.Volume) (*vfs.Mount, error) {
	mnt, err := m.mountVolume(v, "upper", vfs.MountOptions{})
	if err != nil {
		return nil, err
	}
	if dir := m.spec.Rootfs.UpperDirectory; dir != "" {
		return m.upperDirectory(mnt, dir)
	}
	lost := pathAt(vfs.MakeVirtualDentry(mnt, mnt.Root()), "/lost+found")
	lost.FollowFinalSymlink = false
	if err := m.vfs.RmdirAt(m.ctx, m.creds, lost); err != nil && !linuxerr.Equals(linuxerr.ENOENT, err) {
		mnt.DecRef(m.ctx)
		return nil, fmt.Errorf("clear volume %s: %w", v.Name, err)
	}
	return mnt, nil
}

// mountUpperTmpfs mounts a tmpfs in the sandbox's memory.
func (m *mounter) mountUpperTmpfs() (*vfs.Mount, error) {
	mnt, err := m.vfs.MountDisconnected(m.ctx, m.creds, "upper", tmpfs.Name, &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{
			InternalMount: true,
			InternalData:  tmpfs.FilesystemOpts{RootFileType: linux.S_IFDIR},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount the writable layer: %w", err)
	}
	return mnt, nil
}

// resource names a host file of this container, so that a restored sandbox
// finds the descriptor it is given for it.
func (m *mounter) resource(path string) checkpoint.ResourceID {
	return checkpoint.ResourceID{ContainerName: m.spec.ID, Path: path}
}
