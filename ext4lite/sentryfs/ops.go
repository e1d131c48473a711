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

// This file has the operations on paths that change no names: see namei.go and
// rename.go for those.

// AccessAt implements vfs.FilesystemImpl.
func (fs *filesystem) AccessAt(ctx context.Context, rp *vfs.ResolvingPath, creds *auth.Credentials, ats vfs.AccessTypes) error {
	d, err := resolve(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	if ats.MayWrite() && d.inode.stored() && (d.inode.w == nil || rp.Mount().ReadOnly()) {
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
	d.inode.touchAtime(rp.Mount(), 0)
	return d.inode.readlink()
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

// BoundEndpointAt implements vfs.FilesystemImpl. A socket in an image, or one of
// an earlier sandbox, has nobody behind it.
func (fs *filesystem) BoundEndpointAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.BoundEndpointOptions) (transport.BoundEndpoint, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayWrite); err != nil {
		return nil, err
	}
	if o := d.inode.open.Load(); o != nil && o.endpoint != nil {
		return o.endpoint, nil
	}
	return nil, linuxerr.ECONNREFUSED
}
