// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

func startOf(rp *vfs.ResolvingPath) *dentry {
	return rp.Start().Impl().(*dentry)
}

// step resolves one path component below d and returns where it leads, with a
// reference, and whether it followed a symbolic link (then d itself is
// returned, and the link's target is what remains of rp). An error with
// followed set, too, is one for vfs to handle.
//
// Preconditions: !rp.Done(), and the caller holds a reference on d.
func (d *dentry) step(ctx context.Context, rp *vfs.ResolvingPath) (next *dentry, followed bool, err error) {
	if !d.inode.isDir() {
		return nil, false, linuxerr.ENOTDIR
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return nil, false, err
	}
	switch name := rp.Component(); name {
	case ".":
		rp.Advance()
		d.IncRef()
		return d, false, nil
	case "..":
		next, err := d.stepUp(ctx, rp)
		return next, false, err
	default:
		next, err = d.lookup(name)
		if err != nil {
			return nil, false, err
		}
	}
	if err := rp.CheckMount(ctx, &next.vfsd); err != nil {
		next.DecRef(ctx)
		return nil, false, err
	}
	if next.inode.isSymlink() && rp.ShouldFollowSymlink() {
		target, err := next.inode.readlink()
		next.inode.touchAtime(rp.Mount(), 0)
		next.DecRef(ctx)
		if err != nil {
			return nil, false, err
		}
		followed, err := rp.HandleSymlink(target)
		if err != nil {
			return nil, followed, err
		}
		d.IncRef()
		return d, followed, nil
	}
	rp.Advance()
	return next, false, nil
}

// stepUp resolves "..".
func (d *dentry) stepUp(ctx context.Context, rp *vfs.ResolvingPath) (*dentry, error) {
	atRoot, err := rp.CheckRoot(ctx, &d.vfsd)
	if err != nil {
		return nil, err
	}
	up := d
	if !atRoot {
		up = d.up()
	} else {
		up.IncRef()
	}
	if up != d {
		if err := rp.CheckMount(ctx, &up.vfsd); err != nil {
			up.DecRef(ctx)
			return nil, err
		}
	}
	rp.Advance()
	return up, nil
}

// up returns the directory that d is in, or d if it is the root, with a
// reference.
func (d *dentry) up() *dentry {
	d.fs.treeMu.RLock()
	defer d.fs.treeMu.RUnlock()
	up := d.parent
	if up == nil {
		up = d
	}
	up.IncRef()
	return up
}

// walk takes steps from d while more says so, and returns the last dentry, with
// a reference. It does not consume the caller's reference on d.
func walk(ctx context.Context, rp *vfs.ResolvingPath, d *dentry, more func() bool) (*dentry, error) {
	d.IncRef()
	for more() {
		next, _, err := d.step(ctx, rp)
		d.DecRef(ctx)
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// resolve resolves all of rp to an existing file, with a reference.
func resolve(ctx context.Context, rp *vfs.ResolvingPath) (*dentry, error) {
	d, err := walk(ctx, rp, startOf(rp), func() bool { return !rp.Done() })
	if err != nil {
		return nil, err
	}
	if rp.MustBeDir() && !d.inode.isDir() {
		d.DecRef(ctx)
		return nil, linuxerr.ENOTDIR
	}
	return d, nil
}

// resolveParent resolves all of rp but the last component to a directory, from
// start on, with a reference. That the directory may be searched is for the
// caller to check.
//
// Preconditions: !rp.Done().
func resolveParent(ctx context.Context, rp *vfs.ResolvingPath, start *dentry) (*dentry, error) {
	d, err := walk(ctx, rp, start, func() bool { return !rp.Final() })
	if err != nil {
		return nil, err
	}
	if !d.inode.isDir() {
		d.DecRef(ctx)
		return nil, linuxerr.ENOTDIR
	}
	return d, nil
}

// resolveSearchable is resolveParent that also checks search permission.
func resolveSearchable(ctx context.Context, rp *vfs.ResolvingPath, start *dentry) (*dentry, error) {
	d, err := resolveParent(ctx, rp, start)
	if err != nil {
		return nil, err
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		d.DecRef(ctx)
		return nil, err
	}
	return d, nil
}

// PrependPath implements vfs.FilesystemImpl.
func (fs *filesystem) PrependPath(ctx context.Context, vfsroot, vd vfs.VirtualDentry, b *fspath.Builder) error {
	fs.treeMu.RLock()
	defer fs.treeMu.RUnlock()
	mnt := vd.Mount()
	for d := vd.Dentry().Impl().(*dentry); ; d = d.parent {
		switch {
		case mnt == vfsroot.Mount() && &d.vfsd == vfsroot.Dentry():
			return vfs.PrependPathAtVFSRootError{}
		case mnt != nil && &d.vfsd == mnt.Root():
			return nil
		case d.parent == nil:
			return vfs.PrependPathAtNonMountRootError{}
		}
		b.PrependComponent(d.name)
	}
}

// IsDescendant implements vfs.FilesystemImpl.
func (fs *filesystem) IsDescendant(vfsroot, vd vfs.VirtualDentry) bool {
	fs.treeMu.RLock()
	defer fs.treeMu.RUnlock()
	for d := vd.Dentry().Impl().(*dentry); d != nil; d = d.parent {
		if &d.vfsd == vfsroot.Dentry() {
			return true
		}
	}
	return false
}
