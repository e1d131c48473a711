// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/refs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// This file has the operations that make and remove names. On a volume that
// cannot change they do all that Linux does before it finds the mount
// read-only, so that a guest sees EEXIST, ENOENT or EACCES where it would there.

// beginChange checks that a directory's names may be changed through a mount,
// by creds. If so, the caller ends with mnt.EndWrite.
func (d *dentry) beginChange(mnt *vfs.Mount, creds *auth.Credentials) error {
	if d.inode.w == nil {
		return linuxerr.EROFS
	}
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	if err := d.inode.checkPermissions(creds, vfs.MayWrite); err != nil {
		mnt.EndWrite()
		return err
	}
	if d.unhashed.Load() {
		mnt.EndWrite()
		return linuxerr.ENOENT // removed, and still open
	}
	return nil
}

// create makes a file at rp by the means of its caller, who returns the inode
// with a name counted.
func (fs *filesystem) create(ctx context.Context, rp *vfs.ResolvingPath, dir bool, make func(parent *dentry, name string) (*inode, error)) error {
	parent, err := resolveSearchable(ctx, rp, startOf(rp))
	if err != nil {
		return err
	}
	defer parent.DecRef(ctx)
	name := rp.Component()
	if name == "." || name == ".." {
		return linuxerr.EEXIST
	}
	parent.inode.dirMu.Lock()
	defer parent.inode.dirMu.Unlock()
	child, err := parent.lookupLocked(name)
	switch {
	case err == nil:
		child.DecRef(ctx)
		return linuxerr.EEXIST
	case !linuxerr.Equals(linuxerr.ENOENT, err):
		return err
	case rp.MustBeDir() && !dir:
		return linuxerr.ENOENT
	}
	if err := parent.beginChange(rp.Mount(), rp.Credentials()); err != nil {
		return err
	}
	defer rp.Mount().EndWrite()
	i, err := make(parent, name)
	if err != nil {
		return err
	}
	d := fs.newDentry(parent, name, i)
	fs.dentries.enter(d)
	d.DecRef(ctx)
	events := uint32(linux.IN_CREATE)
	if dir {
		events |= linux.IN_ISDIR
	}
	parent.inode.watches.Notify(ctx, name, events, 0, vfs.InodeEvent, false)
	return nil
}

// setGroupExec makes a program run with its file's group.
const setGroupExec = linux.S_ISGID | linux.ModeGroupExec

// newNode says what a file that creds make in a directory is: the group and the
// ACLs can come from the directory.
func (fs *filesystem) newNode(creds *auth.Credentials, dir *inode, mode linux.FileMode) (*NewNode, error) {
	a := dir.access.Load()
	n := &NewNode{Mode: mode, UID: uint32(creds.EffectiveKUID), GID: uint32(creds.EffectiveKGID)}
	if a.mode&linux.S_ISGID != 0 {
		n.GID = a.gid
		if mode.IsDir() {
			n.Mode |= linux.S_ISGID
		} else if mode&setGroupExec == setGroupExec && vfs.ShouldClearSGID(creds, mode, auth.KUID(n.UID), auth.KGID(n.GID)) {
			n.Mode &^= linux.S_ISGID
		}
	}
	if mode.FileType() == linux.S_IFLNK {
		return n, nil
	}
	def, err := dir.posixACL(vfs.DefaultACL)
	if err != nil || def == nil {
		return n, err
	}
	acl := def.MaskNewFileMode(uint16(n.Mode))
	perm, equivalent := acl.Mode()
	n.Mode = n.Mode&^linux.PermissionsMask | linux.FileMode(perm)
	if !equivalent {
		n.AccessACL = acl.Serialize(fs.rootNS)
	}
	if mode.IsDir() {
		n.DefaultACL = def.Serialize(fs.rootNS)
	}
	return n, nil
}

// makeNode makes a file in a directory, and its inode.
func (fs *filesystem) makeNode(creds *auth.Credentials, dir *dentry, name string, mode linux.FileMode, more func(*NewNode)) (*inode, error) {
	n, err := fs.newNode(creds, dir.inode, mode)
	if err != nil {
		return nil, err
	}
	if more != nil {
		more(n)
	}
	if mode.FileType() != linux.S_IFCHR {
		if err := fs.roomForFile(); err != nil {
			return nil, err
		}
	}
	id, node, err := dir.inode.w.Make(name, n)
	if err != nil {
		return nil, fs.answer("create a file in directory", dir.inode.id, err)
	}
	return fs.adopt(id, node)
}

// LinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) LinkAt(ctx context.Context, rp *vfs.ResolvingPath, vd vfs.VirtualDentry) error {
	return fs.create(ctx, rp, false, func(parent *dentry, name string) (*inode, error) {
		if rp.Mount() != vd.Mount() {
			return nil, linuxerr.EXDEV
		}
		i := vd.Dentry().Impl().(*dentry).inode
		if i.isDir() {
			return nil, linuxerr.EPERM
		}
		if i.unlinkable.Load() {
			return nil, linuxerr.ENOENT
		}
		a := i.access.Load()
		if err := vfs.MayLink(rp.Credentials(), a.mode, a.acl, a.kuid(), a.kgid()); err != nil {
			return nil, err
		}
		if err := parent.inode.w.Link(name, i.w); err != nil {
			return nil, fs.answer("link inode", i.id, err)
		}
		fs.addName(i)
		i.watches.Notify(ctx, "", linux.IN_ATTRIB, 0, vfs.InodeEvent, false)
		return i, nil
	})
}

// MkdirAt implements vfs.FilesystemImpl.
func (fs *filesystem) MkdirAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.MkdirOptions) error {
	return fs.create(ctx, rp, true, func(parent *dentry, name string) (*inode, error) {
		return fs.makeNode(rp.Credentials(), parent, name, linux.S_IFDIR|opts.Mode&0o1777, nil)
	})
}

// MknodAt implements vfs.FilesystemImpl.
func (fs *filesystem) MknodAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.MknodOptions) error {
	if fs.makesWhiteout(rp.Mount(), &opts) {
		return fs.makeWhiteout(ctx, rp, &opts)
	}
	return fs.makeFile(ctx, rp, &opts)
}

func (fs *filesystem) makeFile(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.MknodOptions) error {
	return fs.create(ctx, rp, false, func(parent *dentry, name string) (*inode, error) {
		mode := opts.Mode
		if mode.FileType() == 0 {
			mode |= linux.S_IFREG
		}
		i, err := fs.makeNode(rp.Credentials(), parent, name, mode, func(n *NewNode) {
			n.RdevMajor, n.RdevMinor = opts.DevMajor, opts.DevMinor
		})
		if err == nil && opts.Endpoint != nil {
			i.open.Store(&openState{endpoint: opts.Endpoint})
		}
		return i, err
	})
}

// makeWhiteout makes a whiteout for an overlay, whose path is a name in a
// directory. What is there already is the whiteout that a rename has left, or the file
// itself, where both names of a rename are its.
func (fs *filesystem) makeWhiteout(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.MknodOptions) error {
	if rp.Final() && fs.below(rp.Mount()).spares(startOf(rp), rp.Component()) {
		return nil
	}
	err := fs.makeFile(ctx, rp, opts)
	if linuxerr.Equals(linuxerr.EEXIST, err) {
		return nil
	}
	return fs.forgive(rp.Mount(), err)
}

// SymlinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) SymlinkAt(ctx context.Context, rp *vfs.ResolvingPath, target string) error {
	return fs.create(ctx, rp, false, func(parent *dentry, name string) (*inode, error) {
		return fs.makeNode(rp.Credentials(), parent, name, linux.S_IFLNK|0o777, func(n *NewNode) { n.Target = target })
	})
}

// remove removes the name at rp by the means of its caller, with special errors
// for the names that stand for directories.
func (fs *filesystem) remove(ctx context.Context, rp *vfs.ResolvingPath, dot, dotdot error, remove func(parent, child *dentry) error) error {
	parent, err := resolveSearchable(ctx, rp, startOf(rp))
	if err != nil {
		return err
	}
	defer parent.DecRef(ctx)
	name := rp.Component()
	switch name {
	case ".":
		return dot
	case "..":
		return dotdot
	}
	if parent.inode.w == nil {
		return linuxerr.EROFS
	}
	if err := rp.Mount().CheckBeginWrite(); err != nil {
		return err
	}
	defer rp.Mount().EndWrite()

	// Forgetting what is mounted here can release this very file system, and the
	// last reference on a large file frees it, which takes its time.
	var forget []refs.RefCounter
	var child *dentry
	defer func() {
		for _, r := range forget {
			r.DecRef(ctx)
		}
		child.DecRef(ctx)
	}()
	parent.inode.dirMu.Lock()
	defer parent.inode.dirMu.Unlock()
	if child, err = parent.lookupLocked(name); err != nil {
		child = nil
		return err
	}
	if err := parent.mayRemove(rp.Credentials(), child); err != nil {
		return err
	}
	if child.inode.isSymlink() && rp.MustBeDir() {
		return linuxerr.ENOTDIR
	}
	m := mountPoints{ctx: ctx, vfs: rp.VirtualFilesystem()}
	defer m.done()
	if err := m.prepareDelete(&child.vfsd); err != nil {
		return err
	}
	if err := remove(parent, child); err != nil {
		m.abortDelete(&child.vfsd)
		return fs.answer("remove a name from directory", parent.inode.id, err)
	}
	fs.dentries.unhash(child)
	child.unhashed.Store(true)
	forget = m.commitDelete(&child.vfsd)
	return nil
}

// mayRemove reports whether creds may take child's name from d.
func (d *dentry) mayRemove(creds *auth.Credentials, child *dentry) error {
	if err := d.inode.checkPermissions(creds, vfs.MayWrite); err != nil {
		return err
	}
	a, c := d.inode.access.Load(), child.inode.access.Load()
	return vfs.CheckDeleteSticky(creds, a.mode, a.kuid(), c.kuid(), c.kgid())
}

// RmdirAt implements vfs.FilesystemImpl.
func (fs *filesystem) RmdirAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	return fs.remove(ctx, rp, linuxerr.EINVAL, linuxerr.ENOTEMPTY, func(parent, child *dentry) error {
		if !child.inode.isDir() {
			return linuxerr.ENOTDIR
		}
		if err := parent.inode.w.Rmdir(child.name); err != nil {
			return err
		}
		parent.inode.watches.Notify(ctx, child.name, linux.IN_DELETE|linux.IN_ISDIR, 0, vfs.InodeEvent, true)
		return nil
	})
}

// UnlinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) UnlinkAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	return fs.remove(ctx, rp, linuxerr.EISDIR, linuxerr.EISDIR, func(parent, child *dentry) error {
		switch {
		case child.inode.isDir():
			return linuxerr.EISDIR
		case rp.MustBeDir():
			return linuxerr.ENOTDIR
		}
		if err := parent.inode.w.Unlink(child.name); err != nil {
			return err
		}
		vfs.InotifyRemoveChild(ctx, &child.inode.watches, &parent.inode.watches, child.name)
		return nil
	})
}

// mountPoints tells the mount table of dentries that go. Before a mount
// namespace exists nothing can be mounted anywhere.
type mountPoints struct {
	ctx    context.Context
	vfs    *vfs.VirtualFilesystem
	ns     *vfs.MountNamespace
	rename vfs.RenameHandle
}

func (m *mountPoints) done() {
	if m.ns != nil {
		m.ns.DecRef(m.ctx)
	}
}

func (m *mountPoints) prepareDelete(d *vfs.Dentry) error {
	if m.ns = vfs.MountNamespaceFromContext(m.ctx); m.ns == nil {
		return nil
	}
	return m.vfs.PrepareDeleteDentry(m.ns, d)
}

func (m *mountPoints) abortDelete(d *vfs.Dentry) {
	if m.ns != nil {
		m.vfs.AbortDeleteDentry(d)
	}
}

func (m *mountPoints) commitDelete(d *vfs.Dentry) []refs.RefCounter {
	if m.ns == nil {
		return m.vfs.InvalidateDentry(m.ctx, d)
	}
	return m.vfs.CommitDeleteDentry(m.ctx, d)
}
