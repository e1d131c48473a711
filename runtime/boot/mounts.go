// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"errors"
	"fmt"
	"path"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/dev"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devpts"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/mqfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/runtime/api"
)

// defaultShmSizeBytes is docker's default size of /dev/shm.
const defaultShmSizeBytes = 64 << 20

// consolePath is where docker shows a container's terminal too.
const consolePath = "/dev/console"

// submount is one mount below the root.
type submount struct {
	source, fsType, target string
	data                   string
	internal               any
	options                vfs.MountOptions
}

// mountDefaults mounts what every container has.
func (m *mounter) mountDefaults() error {
	if m.spec.Explicit {
		return nil
	}
	shm := m.spec.ShmSizeBytes
	if shm == 0 {
		shm = defaultShmSizeBytes
	}
	quiet := vfs.MountOptions{Flags: vfs.MountFlags{NoExec: true, NoSUID: true, NoDev: true}}
	nodes := vfs.MountOptions{Flags: vfs.MountFlags{NoExec: true, NoSUID: true}}
	for _, s := range []submount{
		{source: "proc", fsType: proc.Name, target: "/proc", internal: &proc.InternalData{}, options: quiet},
		{source: "dev", fsType: dev.Name, target: "/dev", options: vfs.MountOptions{Flags: vfs.MountFlags{NoSUID: true}}},
		{source: "devpts", fsType: devpts.Name, target: "/dev/pts", options: nodes},
		{source: "mqueue", fsType: mqfs.Name, target: "/dev/mqueue", options: quiet},
		{source: "shm", fsType: tmpfs.Name, target: "/dev/shm", data: fmt.Sprintf("mode=1777,size=%d", shm), options: quiet},
		{source: "sysfs", fsType: sys.Name, target: "/sys", internal: &sys.InternalData{}, options: quiet},
		{source: "cgroup", fsType: cgroup2fs.Name, target: "/sys/fs/cgroup", options: quiet},
	} {
		if err := m.mount(&s); err != nil {
			return err
		}
	}
	return nil
}

// mountExtra makes the directories and then the mounts that the spec adds, in
// its order.
func (m *mounter) mountExtra() error {
	for _, dir := range m.spec.Directories {
		if err := m.makeDirectories(dir); err != nil {
			return err
		}
	}
	for i := range m.spec.Mounts {
		e := &m.spec.Mounts[i]
		opts := vfs.MountOptions{
			ReadOnly: e.ReadOnly,
			Flags:    vfs.MountFlags{NoExec: e.NoExec, NoSUID: e.NoSUID, NoDev: e.NoDev, NoATime: e.NoATime},
		}
		var err error
		switch e.Type {
		case api.MountVolume:
			// In /proc/mounts and df each volume is a device of its own.
			err = m.mountExtraVolume(e, fmt.Sprintf("/dev/volume%d", i), opts)
		case api.MountTmpfs:
			err = m.mountExtraTmpfs(e, opts)
		case api.MountBind:
			err = m.mountBind(e, fmt.Sprintf("mount/%d", i), opts)
		default:
			err = m.mountSentry(e, opts)
		}
		if err == nil {
			err = m.setPropagationAt(e.Target, e.Propagation)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *mounter) mountExtraTmpfs(e *api.Mount, opts vfs.MountOptions) error {
	mode := e.Mode
	if mode == 0 && m.spec.Explicit {
		// As runc has it: a directory that is covered lends its own.
		covered, err := m.existing(e.Target)
		if err != nil {
			return err
		}
		mode = uint32(covered.Permissions() | covered.ExtraBits())
	}
	if mode == 0 && !m.spec.Explicit {
		mode = 0o1777
	}
	data := fmt.Sprintf("uid=%d,gid=%d", e.UID, e.GID)
	if mode != 0 { // Else it is that of every tmpfs, which is not shown.
		data += fmt.Sprintf(",mode=%o", mode)
	}
	if e.SizeBytes > 0 {
		data += fmt.Sprintf(",size=%d", e.SizeBytes)
	}
	for _, o := range e.Options {
		data += "," + o
	}
	if e.Target == devDirectory {
		// Nodes are made there first: see makeDevices.
		opts.ReadOnly = false
	}
	s := &submount{source: "tmpfs", fsType: tmpfs.Name, target: e.Target, data: data, options: opts}
	if e.Source != "" {
		s.source = e.Source
	}
	switch {
	case e.Shared != "":
		return m.mountShared(s, e.Shared)
	case e.CopyUp:
		return m.mountFilled(s, e)
	}
	return m.mount(s)
}

func (m *mounter) mountExtraVolume(e *api.Mount, source string, opts vfs.MountOptions) error {
	mnt, err := m.mountVolume(e.Volume, source, opts)
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	if e.Populate {
		if err := m.populate(mnt, e); err != nil {
			return fmt.Errorf("copy what the image has at %s into volume %s: %w", e.Target, e.Volume.Name, err)
		}
	}
	m.noteSource(e.Target, mnt.Filesystem().FilesystemType().Name(), source)
	return m.connect(mnt, e.Target)
}

// mount makes one mount.
func (m *mounter) mount(s *submount) error {
	mnt, err := m.disconnected(s)
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	m.noteSource(s.target, mnt.Filesystem().FilesystemType().Name(), s.source)
	return m.connect(mnt, s.target)
}

// disconnected makes a mount that is connected to nothing yet. The caller owns it.
func (m *mounter) disconnected(s *submount) (*vfs.Mount, error) {
	opts := s.options
	opts.GetFilesystemOptions = vfs.GetFilesystemOptions{InternalMount: true, Data: s.data, InternalData: s.internal}
	mnt, err := m.vfs.MountDisconnected(m.ctx, m.creds, s.source, s.fsType, &opts)
	if err != nil {
		return nil, fmt.Errorf("mount %s on %s: %w", s.fsType, s.target, err)
	}
	return mnt, nil
}

// connect puts a mount where guests see it; a missing target directory is made
// first.
func (m *mounter) connect(mnt *vfs.Mount, target string) error {
	if err := m.makeDirectories(target); err != nil {
		return err
	}
	if err := m.vfs.ConnectMountAt(m.ctx, m.creds, mnt, m.at(target)); err != nil {
		return fmt.Errorf("mount %s on %s: %w", mnt.Filesystem().FilesystemType().Name(), target, err)
	}
	return nil
}

// placeFiles puts each small file of the spec over the root as a bind mount of
// a file in a hidden tmpfs: like docker's, it can be written, but not renamed
// over or removed.
func (m *mounter) placeFiles() error {
	if len(m.spec.Files) == 0 {
		return nil
	}
	hidden, err := m.vfs.MountDisconnected(m.ctx, m.creds, "files", tmpfs.Name, &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true, Data: "mode=0755"},
	})
	if err != nil {
		return fmt.Errorf("mount the files of container %s: %w", m.spec.ID, err)
	}
	defer hidden.DecRef(m.ctx)
	base := vfs.MakeVirtualDentry(hidden, hidden.Root())
	for i := range m.spec.Files {
		f := &m.spec.Files[i]
		name := fmt.Sprintf("/%d", i)
		if err := m.writeFile(base, name, f); err != nil {
			return fmt.Errorf("place file %s: %w", f.Path, err)
		}
		if err := m.bindFile(hidden, base, name, f.Path); err != nil {
			return fmt.Errorf("place file %s: %w", f.Path, err)
		}
	}
	return nil
}

// placeMtab makes /etc/mtab, which older programs read instead of
// /proc/mounts, where the image has none: docker does so too. An image whose
// /etc is odd goes without.
func (m *mounter) placeMtab() error {
	if m.spec.Explicit {
		return nil
	}
	pop := m.at("/etc/mtab")
	pop.FollowFinalSymlink = false
	if err := m.vfs.SymlinkAt(m.ctx, m.creds, pop, "/proc/mounts"); err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
		log.Debugf("make /etc/mtab: %v", err)
	}
	return nil
}

// writeFile makes the file name below base.
func (m *mounter) writeFile(base vfs.VirtualDentry, name string, f *api.File) error {
	fd, err := m.vfs.OpenAt(m.ctx, m.creds, pathAt(base, name), &vfs.OpenOptions{
		Flags: linux.O_WRONLY | linux.O_CREAT | linux.O_EXCL,
		Mode:  linux.FileMode(f.Mode & 0o777),
	})
	if err != nil {
		return err
	}
	defer fd.DecRef(m.ctx)
	for rest := f.Data; len(rest) > 0; {
		n, err := fd.Write(m.ctx, usermem.BytesIOSequence(rest), vfs.WriteOptions{})
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// bindFile mounts base's file name on target, which is made when missing.
func (m *mounter) bindFile(hidden *vfs.Mount, base vfs.VirtualDentry, name, target string) error {
	source, err := m.vfs.GetDentryAt(m.ctx, m.creds, pathAt(base, name), &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer source.DecRef(m.ctx)
	mnt, err := m.cloneMount(hidden, source.Dentry(), vfs.MountOptions{})
	if err != nil {
		return err
	}
	defer mnt.DecRef(m.ctx)
	if err := m.makeDirectories(path.Dir(target)); err != nil {
		return err
	}
	if err := m.makeFile(target, 0o644); err != nil {
		return err
	}
	return m.vfs.ConnectMountAt(m.ctx, m.creds, mnt, m.at(target))
}

// cloneMount clones a mount, with root for its root, to be connected somewhere.
// gVisor makes such a clone a shared mount in one ring with a private one, and
// loops for ever over that ring when anything is mounted on the clone, by us
// or by the guest: so it is made private.
func (m *mounter) cloneMount(of *vfs.Mount, root *vfs.Dentry, opts vfs.MountOptions) (*vfs.Mount, error) {
	mnt, err := m.vfs.CloneMountAt(of, root, &opts)
	if err != nil {
		return nil, err
	}
	if err := m.vfs.SetMountPropagation(mnt, linux.MS_PRIVATE, false); err != nil {
		mnt.DecRef(m.ctx)
		return nil, fmt.Errorf("make the mount private: %w", err)
	}
	return mnt, nil
}

// mountConsole makes the process' terminal, a file of no file system that the
// guest can see, appear as /dev/console. That is where ttyname(3) finds it,
// without which tmux, screen and gpg take it for no terminal at all.
func (m *mounter) mountConsole(terminal *vfs.FileDescription) error {
	mnt, err := m.cloneMount(terminal.Mount(), terminal.Dentry(), vfs.MountOptions{})
	if err != nil {
		return fmt.Errorf("mount the terminal: %w", err)
	}
	defer mnt.DecRef(m.ctx)
	if err := m.makeFile(consolePath, 0o620); err != nil {
		return fmt.Errorf("make %s: %w", consolePath, err)
	}
	if err := m.vfs.ConnectMountAt(m.ctx, m.creds, mnt, m.at(consolePath)); err != nil {
		return fmt.Errorf("mount the terminal on %s: %w", consolePath, err)
	}
	return nil
}

// caused reports whether an error has the given one in its chain, where gVisor
// looks at its end only.
func caused(e *gverrors.Error, err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if linuxerr.Equals(e, err) {
			return true
		}
	}
	return false
}

// pathAt is the path operation for an absolute path below root.
func pathAt(root vfs.VirtualDentry, p string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(p), FollowFinalSymlink: true}
}

// writeGuestFile writes data to an existing guest file, in one write.
func writeGuestFile(ctx context.Context, m *mounter, p string, data []byte) error {
	fd, err := m.vfs.OpenAt(ctx, m.creds, m.at(p), &vfs.OpenOptions{Flags: linux.O_WRONLY})
	if err != nil {
		return err
	}
	defer fd.DecRef(ctx)
	_, err = fd.Write(ctx, usermem.BytesIOSequence(data), vfs.WriteOptions{})
	return err
}
