// SPDX-License-Identifier: Apache-2.0

// Containers as an OCI bundle has them: every mount named, devices made in /dev,
// paths hidden and write-protected.

package boot

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devpts"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/mqfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// devDirectory is where device nodes are.
	devDirectory = "/dev"
	// maskData keeps a masking directory empty for good.
	maskData = "mode=0755,nr_inodes=1,size=4096"
)

// everyDevice are the nodes that the runtime specification gives to every
// container.
var everyDevice = []api.Device{
	{Path: "/dev/null", Type: api.DeviceChar, Major: 1, Minor: 3, Mode: 0o666},
	{Path: "/dev/zero", Type: api.DeviceChar, Major: 1, Minor: 5, Mode: 0o666},
	{Path: "/dev/full", Type: api.DeviceChar, Major: 1, Minor: 7, Mode: 0o666},
	{Path: "/dev/random", Type: api.DeviceChar, Major: 1, Minor: 8, Mode: 0o666},
	{Path: "/dev/urandom", Type: api.DeviceChar, Major: 1, Minor: 9, Mode: 0o666},
	{Path: "/dev/tty", Type: api.DeviceChar, Major: 5, Minor: 0, Mode: 0o666},
}

// everyLink are the symbolic links that it gives them, too.
var everyLink = []struct{ name, target string }{
	{"/dev/fd", "/proc/self/fd"},
	{"/dev/stdin", "/proc/self/fd/0"},
	{"/dev/stdout", "/proc/self/fd/1"},
	{"/dev/stderr", "/proc/self/fd/2"},
}

// propagationFlags are what mount(2) calls the propagations.
var propagationFlags = map[string]uint32{
	"private": linux.MS_PRIVATE, "slave": linux.MS_SLAVE, "shared": linux.MS_SHARED, "unbindable": linux.MS_UNBINDABLE,
}

// mountSentry mounts a file system of the Sentry's own.
func (m *mounter) mountSentry(e *api.Mount, opts vfs.MountOptions) error {
	s := &submount{target: e.Target, options: opts, data: strings.Join(e.Options, ",")}
	if e.Type == api.MountProc || e.Type == api.MountSysfs {
		if err := m.ordinaryDirectory(e); err != nil {
			return err
		}
	}
	switch e.Type {
	case api.MountProc:
		s.source, s.fsType, s.internal = "proc", proc.Name, &proc.InternalData{}
	case api.MountSysfs:
		s.source, s.fsType, s.internal = "sysfs", sys.Name, &sys.InternalData{}
	case api.MountDevpts:
		// Terminals are a container's own. What gVisor takes for the mode and the
		// owner of the directory are those of the terminals in Linux: a terminal
		// here belongs to who opened it.
		options := slices.DeleteFunc(slices.Clone(e.Options), func(o string) bool { return !strings.HasPrefix(o, "ptmxmode=") })
		s.source, s.fsType, s.data = "devpts", devpts.Name, strings.Join(append(options, "newinstance", "mode=755"), ",")
	case api.MountMqueue:
		s.source, s.fsType = "mqueue", mqfs.Name
	case api.MountCgroup:
		s.source, s.fsType = "cgroup", cgroup2fs.Name
	default:
		return api.Errorf(api.KindInternal, "mount %s: type %q came this far", e.Target, e.Type)
	}
	if e.Source != "" {
		s.source = e.Source
	}
	return m.mount(s)
}

// mountShared mounts a tmpfs that containers have in common: the first one makes
// it, and it stays as long as the sandbox.
func (m *mounter) mountShared(s *submount, name string) error {
	m.sb.sharedMu.Lock()
	defer m.sb.sharedMu.Unlock()
	common := m.sb.shared[name]
	if common == nil {
		first := *s
		first.options.ReadOnly = false
		mnt, err := m.disconnected(&first)
		if err != nil {
			return err
		}
		if m.sb.shared == nil {
			m.sb.shared = make(map[string]*vfs.Mount)
		}
		m.sb.shared[name], common = mnt, mnt
	}
	mnt, err := m.cloneMount(common, common.Root(), s.options)
	if err != nil {
		return fmt.Errorf("mount the shared %s on %s: %w", name, s.target, err)
	}
	defer mnt.DecRef(m.ctx)
	m.noteSource(s.target, mnt.Filesystem().FilesystemType().Name(), s.source)
	return m.connect(mnt, s.target)
}

// mountFilled mounts a tmpfs with what the root has at its place.
func (m *mounter) mountFilled(s *submount, e *api.Mount) error {
	filling := *s
	filling.options.ReadOnly = false
	mnt, err := m.disconnected(&filling)
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	if err := m.populate(mnt, e); err != nil {
		return fmt.Errorf("copy what the root has at %s: %w", e.Target, err)
	}
	if s.options.ReadOnly {
		if err := m.vfs.SetMountReadOnly(mnt, true); err != nil {
			return fmt.Errorf("make %s read-only: %w", e.Target, err)
		}
	}
	return m.connect(mnt, e.Target)
}

// setPropagation gives a mount its propagation; "" leaves it private.
func (m *mounter) setPropagation(mnt *vfs.Mount, p api.Propagation) error {
	if p == "" {
		return nil
	}
	kind, recursive := strings.CutPrefix(string(p), "r")
	if err := m.vfs.SetMountPropagation(mnt, propagationFlags[kind], recursive); err != nil {
		return fmt.Errorf("make a mount %s: %w", p, err)
	}
	if kind == "unbindable" && !m.sb.unbindable.set(mnt.ID, true) {
		return api.Errorf(api.KindLimit, "more than %d unbindable mounts", maxUnbindable)
	}
	return nil
}

// setPropagationAt is setPropagation for what is mounted somewhere.
func (m *mounter) setPropagationAt(target string, p api.Propagation) error {
	if p == "" {
		return nil
	}
	vd, err := m.vfs.GetDentryAt(m.ctx, m.creds, m.at(target), &vfs.GetDentryOptions{})
	if err != nil {
		return fmt.Errorf("find the mount on %s: %w", target, err)
	}
	defer vd.DecRef(m.ctx)
	return m.setPropagation(vd.Mount(), p)
}

// makeDevices makes the nodes and links of an Explicit container's /dev, unless
// that is a directory of the host's.
func (m *mounter) makeDevices() error {
	isDev := func(e api.Mount) bool { return e.Target == devDirectory }
	if !m.spec.Explicit || slices.ContainsFunc(m.spec.Mounts, func(e api.Mount) bool { return isDev(e) && e.Type == api.MountBind }) {
		return nil
	}
	for _, d := range everyDevice {
		if slices.ContainsFunc(m.spec.Devices, func(own api.Device) bool { return own.Path == d.Path }) {
			continue
		}
		if err := m.makeDevice(&d); err != nil {
			return err
		}
	}
	for i := range m.spec.Devices {
		if err := m.makeDevice(&m.spec.Devices[i]); err != nil {
			return err
		}
	}
	// The multiplexer is that of the container's own terminals.
	ptmx := m.at("/dev/ptmx")
	ptmx.FollowFinalSymlink = false
	if err := m.vfs.UnlinkAt(m.ctx, m.creds, ptmx); err != nil && !linuxerr.Equals(linuxerr.ENOENT, err) {
		log.Debugf("replace /dev/ptmx: %v", err)
	}
	links := append(everyLink[:len(everyLink):len(everyLink)], struct{ name, target string }{"/dev/ptmx", "pts/ptmx"})
	for _, l := range links {
		pop := m.at(l.name)
		pop.FollowFinalSymlink = false
		if err := m.vfs.SymlinkAt(m.ctx, m.creds, pop, l.target); err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
			return fmt.Errorf("make the link %s: %w", l.name, err)
		}
	}
	return nil
}

// makeDevice makes a node. Where the file system takes none, it is one of our own,
// mounted on a file, as runc does it in user namespaces.
func (m *mounter) makeDevice(d *api.Device) error {
	if err := m.makeDirectories(path.Dir(d.Path)); err != nil {
		return err
	}
	err := m.makeNode(m.root, d.Path, d)
	switch {
	case err == nil, linuxerr.Equals(linuxerr.EEXIST, err):
		return nil
	case linuxerr.Equals(linuxerr.EPERM, err), linuxerr.Equals(linuxerr.EACCES, err), linuxerr.Equals(linuxerr.EROFS, err),
		linuxerr.Equals(linuxerr.EOPNOTSUPP, err), linuxerr.Equals(linuxerr.EINVAL, err):
		err = m.bindNode(d, d.Path)
	}
	if err != nil {
		return fmt.Errorf("make device %s: %w", d.Path, err)
	}
	return nil
}

// makeNode makes a node below root.
func (m *mounter) makeNode(root vfs.VirtualDentry, name string, d *api.Device) error {
	kind := map[api.DeviceType]linux.FileMode{api.DeviceChar: linux.ModeCharacterDevice, api.DeviceBlock: linux.ModeBlockDevice, api.DeviceFIFO: linux.ModeNamedPipe}[d.Type]
	pop := pathAt(root, name)
	pop.FollowFinalSymlink = false
	a := m.admin()
	if err := m.vfs.MknodAt(a.ctx, a.creds, pop, &vfs.MknodOptions{
		Mode: kind | linux.FileMode(d.Mode&0o777), DevMajor: d.Major, DevMinor: d.Minor,
	}); err != nil {
		return err
	}
	uid, gid := m.userns.MapToKUID(auth.UID(d.UID)), m.userns.MapToKGID(auth.GID(d.GID))
	if !uid.Ok() || !gid.Ok() {
		return api.Errorf(api.KindInvalid, "its owner %d:%d has no mapping in the user namespace", d.UID, d.GID)
	}
	if uid == auth.RootKUID && gid == auth.RootKGID {
		return nil
	}
	return m.vfs.SetStatAt(a.ctx, a.creds, pop, &vfs.SetStatOptions{
		Stat: linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: uint32(uid), GID: uint32(gid)},
	})
}

// bindNode mounts a node on a file, which is made where it is missing.
func (m *mounter) bindNode(d *api.Device, target string) error {
	mnt, err := m.disconnected(&submount{source: "devices", fsType: tmpfs.Name, target: target, data: "mode=0755"})
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	base := vfs.MakeVirtualDentry(mnt, mnt.Root())
	if err := m.makeNode(base, "/node", d); err != nil {
		return err
	}
	return m.bindFile(mnt, base, "/node", target)
}

// guardPaths hides and write-protects paths. It comes last of all that mounts.
func (m *mounter) guardPaths() error {
	for _, p := range m.spec.ReadonlyPaths {
		if err := m.protect(p); err != nil {
			return fmt.Errorf("make %s read-only: %w", p, err)
		}
	}
	var empty *vfs.Mount
	defer func() {
		if empty != nil {
			empty.DecRef(m.ctx)
		}
	}()
	for _, p := range m.spec.MaskedPaths {
		if err := m.mask(p, &empty); err != nil {
			return fmt.Errorf("mask %s: %w", p, err)
		}
	}
	for i := range m.spec.Mounts {
		if e := &m.spec.Mounts[i]; e.Target == devDirectory && e.Type == api.MountTmpfs && e.ReadOnly {
			return m.setReadOnlyAt(devDirectory)
		}
	}
	return nil
}

// existing is the mode of what a path leads to, 0 where there is nothing.
func (m *mounter) existing(p string) (linux.FileMode, error) {
	st, err := m.vfs.StatAt(m.ctx, m.creds, m.at(p), &vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_MODE})
	if linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.ENOTDIR, err) {
		return 0, nil
	}
	return linux.FileMode(st.Mode), err
}

// protect mounts a path on itself, with all that is mounted below it, read-only.
func (m *mounter) protect(p string) error {
	if mode, err := m.existing(p); err != nil || mode == 0 {
		return err
	}
	if err := m.vfs.BindAt(m.ctx, m.creds, m.at(p), m.at(p), true); err != nil {
		return err
	}
	return m.setReadOnlyAt(p)
}

func (m *mounter) setReadOnlyAt(p string) error {
	vd, err := m.vfs.GetDentryAt(m.ctx, m.creds, m.at(p), &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(m.ctx)
	return m.vfs.SetMountReadOnly(vd.Mount(), true)
}

// mask puts an empty directory over a directory, and the null device over all else.
// All directories have the same one, empty, which the first of them makes.
func (m *mounter) mask(p string, empty **vfs.Mount) error {
	mode, err := m.existing(p)
	if err != nil || mode == 0 {
		return err
	}
	if !mode.IsDir() {
		return m.bindNode(&everyDevice[0], p)
	}
	if *empty == nil {
		if *empty, err = m.disconnected(&submount{source: "tmpfs", fsType: tmpfs.Name, target: p, data: maskData}); err != nil {
			return err
		}
	}
	mnt, err := m.cloneMount(*empty, (*empty).Root(), vfs.MountOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	m.noteSource(p, mnt.Filesystem().FilesystemType().Name(), "tmpfs")
	return m.connect(mnt, p)
}
