// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

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
	if opts.Flags&linux.O_TMPFILE != 0 {
		return d.openUnnamed(ctx, rp, &opts)
	}
	return d.openFile(ctx, rp, &opts, false)
}

// openUnnamed makes and opens a file without a name in the volume of directory
// d.
func (d *dentry) openUnnamed(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*vfs.FileDescription, error) {
	switch {
	case !d.inode.isDir():
		return nil, linuxerr.ENOTDIR
	case !vfs.MayWriteFileWithOpenFlags(opts.Flags):
		return nil, linuxerr.EINVAL
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return nil, err
	}
	mnt := rp.Mount()
	if err := d.beginChange(mnt, rp.Credentials()); err != nil {
		return nil, err
	}
	defer mnt.EndWrite()
	n, err := d.fs.newNode(rp.Credentials(), d.inode, linux.S_IFREG|opts.Mode&^linux.S_IFMT)
	if err != nil {
		return nil, err
	}
	id, node, err := d.inode.w.MakeUnnamed(n)
	if err != nil {
		return nil, d.fs.answer("make an unnamed file in directory", d.inode.id, err)
	}
	i, err := d.fs.adopt(id, node)
	if err != nil {
		return nil, err
	}
	child := d.fs.newDentry(d, "#unnamed", i)
	child.unhashed.Store(true)
	defer child.DecRef(ctx)
	i.unlinkable.Store(opts.Flags&linux.O_EXCL != 0)
	opts.Flags &^= linux.O_TMPFILE | linux.O_EXCL
	return child.openFile(ctx, rp, opts, true)
}

// openCreating opens the file at rp with O_CREAT, and makes it if it does not
// exist.
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
		case !followed && linuxerr.Equals(linuxerr.ENOENT, err):
			fd, raced, err := d.createAndOpen(ctx, rp, &opts)
			if raced {
				continue
			}
			return fd, err
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
	return d.openFile(ctx, rp, &opts, false)
}

// createAndOpen makes and opens the file that rp names in d. It reports a race
// if somebody else has just made it.
func (d *dentry) createAndOpen(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (fd *vfs.FileDescription, raced bool, err error) {
	name := rp.Component() // child's own may be another one by now
	child, raced, err := d.createFile(ctx, rp, name, opts.Mode)
	if raced || err != nil {
		return nil, raced, err
	}
	defer child.DecRef(ctx)
	if fd, err = child.openFile(ctx, rp, opts, true); err != nil {
		return nil, false, err
	}
	fd.SetCreated()
	d.inode.watches.Notify(ctx, name, linux.IN_CREATE, 0, vfs.InodeEvent, false)
	return fd, false, nil
}

// createFile makes a regular file called name in d, for rp. The dentry it
// returns carries a reference.
func (d *dentry) createFile(ctx context.Context, rp *vfs.ResolvingPath, name string, mode linux.FileMode) (*dentry, bool, error) {
	d.inode.dirMu.Lock()
	defer d.inode.dirMu.Unlock()
	child, err := d.lookupLocked(name)
	if err == nil {
		child.DecRef(ctx)
		return nil, true, nil
	}
	if !linuxerr.Equals(linuxerr.ENOENT, err) {
		return nil, false, err
	}
	if err := d.beginChange(rp.Mount(), rp.Credentials()); err != nil {
		return nil, false, err
	}
	defer rp.Mount().EndWrite()
	i, err := d.fs.makeNode(rp.Credentials(), d, name, linux.S_IFREG|mode&^linux.S_IFMT, nil)
	if err != nil {
		return nil, false, err
	}
	child = d.fs.newDentry(d, name, i)
	d.fs.dentries.enter(child)
	return child, false, nil
}
