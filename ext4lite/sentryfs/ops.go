// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// This file has the operations on paths. Those that would change a volume do
// all that Linux does before it finds the mount read-only, so that a guest sees
// EEXIST, ENOENT or EACCES where it would there.

// AccessAt implements vfs.FilesystemImpl.
func (fs *filesystem) AccessAt(ctx context.Context, rp *vfs.ResolvingPath, creds *auth.Credentials, ats vfs.AccessTypes) error {
	d, err := resolve(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	if ats.MayWrite() && d.inode.readOnly() {
		return linuxerr.EROFS
	}
	return d.inode.checkPermissions(creds, ats)
}

// GetDentryAt implements vfs.FilesystemImpl.
func (fs *filesystem) GetDentryAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.GetDentryOptions) (*vfs.Dentry, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	if opts.CheckSearchable {
		err := error(linuxerr.ENOTDIR)
		if d.inode.isDir() {
			err = d.inode.checkPermissions(rp.Credentials(), vfs.MayExec)
		}
		if err != nil {
			d.DecRef(ctx)
			return nil, err
		}
	}
	return &d.vfsd, nil
}

// GetParentDentryAt implements vfs.FilesystemImpl.
func (fs *filesystem) GetParentDentryAt(ctx context.Context, rp *vfs.ResolvingPath) (*vfs.Dentry, error) {
	d, err := resolveParent(ctx, rp, startOf(rp))
	if err != nil {
		return nil, err
	}
	return &d.vfsd, nil
}

// create refuses to create a file at rp.
func (fs *filesystem) create(ctx context.Context, rp *vfs.ResolvingPath, dir bool) error {
	parent, err := resolveSearchable(ctx, rp, startOf(rp))
	if err != nil {
		return err
	}
	defer parent.DecRef(ctx)
	name := rp.Component()
	if name == "." || name == ".." {
		return linuxerr.EEXIST
	}
	child, err := parent.lookup(name)
	switch {
	case err == nil:
		child.DecRef(ctx)
		return linuxerr.EEXIST
	case !linuxerr.Equals(linuxerr.ENOENT, err):
		return err
	case rp.MustBeDir() && !dir:
		return linuxerr.ENOENT
	}
	return linuxerr.EROFS
}

// LinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) LinkAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.VirtualDentry) error {
	return fs.create(ctx, rp, false)
}

// MkdirAt implements vfs.FilesystemImpl.
func (fs *filesystem) MkdirAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.MkdirOptions) error {
	return fs.create(ctx, rp, true)
}

// MknodAt implements vfs.FilesystemImpl.
func (fs *filesystem) MknodAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.MknodOptions) error {
	return fs.create(ctx, rp, false)
}

// SymlinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) SymlinkAt(ctx context.Context, rp *vfs.ResolvingPath, _ string) error {
	return fs.create(ctx, rp, false)
}

// remove refuses to remove the file at rp, with special errors for the names
// that stand for directories.
func (fs *filesystem) remove(ctx context.Context, rp *vfs.ResolvingPath, dot, dotdot error) error {
	parent, err := resolveSearchable(ctx, rp, startOf(rp))
	if err != nil {
		return err
	}
	parent.DecRef(ctx)
	switch rp.Component() {
	case ".":
		return dot
	case "..":
		return dotdot
	}
	return linuxerr.EROFS
}

// RmdirAt implements vfs.FilesystemImpl.
func (fs *filesystem) RmdirAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	return fs.remove(ctx, rp, linuxerr.EINVAL, linuxerr.ENOTEMPTY)
}

// UnlinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) UnlinkAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	return fs.remove(ctx, rp, linuxerr.EISDIR, linuxerr.EISDIR)
}

// RenameAt implements vfs.FilesystemImpl.
func (fs *filesystem) RenameAt(ctx context.Context, rp *vfs.ResolvingPath, oldParent vfs.VirtualDentry, _ string, opts vfs.RenameOptions) error {
	dots := error(linuxerr.EBUSY)
	if opts.Flags&linux.RENAME_NOREPLACE != 0 {
		dots = linuxerr.EEXIST
	}
	err := fs.remove(ctx, rp, dots, dots)
	if linuxerr.Equals(linuxerr.EROFS, err) && rp.Mount() != oldParent.Mount() {
		return linuxerr.EXDEV
	}
	return err
}

// OpenAt implements vfs.FilesystemImpl.
func (fs *filesystem) OpenAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	if opts.Flags&linux.O_CREAT != 0 {
		return fs.openCreating(ctx, rp, opts)
	}
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	if opts.Flags&linux.O_TMPFILE == linux.O_TMPFILE {
		return nil, linuxerr.EROFS
	}
	return d.openFile(ctx, rp, &opts)
}

// openCreating opens the file at rp with O_CREAT: only one that exists.
func (fs *filesystem) openCreating(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	excl := opts.Flags&linux.O_EXCL != 0
	d := startOf(rp)
	d.IncRef()
	defer func() { d.DecRef(ctx) }()
	for !rp.Done() {
		parent, err := resolveSearchable(ctx, rp, d)
		if err != nil {
			return nil, err
		}
		d.DecRef(ctx)
		d = parent
		if rp.MustBeDir() {
			return nil, linuxerr.EISDIR
		}
		next, followed, err := d.step(ctx, rp)
		switch {
		case followed && excl:
			if err == nil {
				next.DecRef(ctx)
			}
			return nil, linuxerr.EEXIST
		case linuxerr.Equals(linuxerr.ENOENT, err):
			return nil, linuxerr.EROFS
		case err != nil:
			return nil, err
		}
		d.DecRef(ctx)
		d = next
	}
	switch {
	case rp.MustBeDir():
		return nil, linuxerr.EISDIR
	case excl:
		return nil, linuxerr.EEXIST
	}
	return d.openFile(ctx, rp, &opts)
}

// ReadlinkAt implements vfs.FilesystemImpl.
func (fs *filesystem) ReadlinkAt(ctx context.Context, rp *vfs.ResolvingPath) (string, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return "", err
	}
	defer d.DecRef(ctx)
	if !d.inode.isSymlink() {
		return "", linuxerr.EINVAL
	}
	return d.inode.readlink()
}

// SetStatAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetStatAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.SetStatOptions) error {
	return refuseChange(ctx, rp)
}

// refuseChange refuses to change a file that exists.
func refuseChange(ctx context.Context, rp *vfs.ResolvingPath) error {
	d, err := resolve(ctx, rp)
	if err != nil {
		return err
	}
	d.DecRef(ctx)
	return linuxerr.EROFS
}

// StatAt implements vfs.FilesystemImpl.
func (fs *filesystem) StatAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.StatOptions) (linux.Statx, error) {
	var st linux.Statx
	if rp.Done() && !rp.MustBeDir() {
		// fstat, and what overlay does all the time: rp holds the dentry.
		startOf(rp).inode.statTo(&st)
		return st, nil
	}
	d, err := resolve(ctx, rp)
	if err != nil {
		return linux.Statx{}, err
	}
	d.inode.statTo(&st)
	d.DecRef(ctx)
	return st, nil
}

// StatFSAt implements vfs.FilesystemImpl.
func (fs *filesystem) StatFSAt(ctx context.Context, rp *vfs.ResolvingPath) (linux.Statfs, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return linux.Statfs{}, err
	}
	d.DecRef(ctx)
	return fs.statFS(), nil
}

// BoundEndpointAt implements vfs.FilesystemImpl. A socket in an image has
// nobody behind it.
func (fs *filesystem) BoundEndpointAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.BoundEndpointOptions) (transport.BoundEndpoint, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayWrite); err != nil {
		return nil, err
	}
	return nil, linuxerr.ECONNREFUSED
}
