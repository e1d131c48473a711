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

// renaming is one rename: of the name oldName in oldDir to newName in newDir.
type renaming struct {
	fs               *filesystem
	creds            *auth.Credentials
	upper            bool // an overlay asks
	flags            uint32
	oldDir, newDir   *dentry
	oldName, newName string

	// src is what is renamed; dst, or nil, what it replaces or is exchanged
	// with. Each carries a reference.
	src, dst *dentry
}

func (r *renaming) exchanges() bool { return r.flags&linux.RENAME_EXCHANGE != 0 }

// renameFlags are those of renameat2(2).
const renameFlags = linux.RENAME_NOREPLACE | linux.RENAME_EXCHANGE | linux.RENAME_WHITEOUT

// RenameAt implements vfs.FilesystemImpl.
func (fs *filesystem) RenameAt(ctx context.Context, rp *vfs.ResolvingPath, oldParent vfs.VirtualDentry, oldName string, opts vfs.RenameOptions) error {
	newDir, err := resolveSearchable(ctx, rp, startOf(rp))
	if err != nil {
		return err
	}
	defer newDir.DecRef(ctx)
	newName := rp.Component()
	noReplace := opts.Flags&linux.RENAME_NOREPLACE != 0
	switch {
	case opts.Flags&^renameFlags != 0,
		opts.Flags&linux.RENAME_EXCHANGE != 0 && opts.Flags != linux.RENAME_EXCHANGE:
		return linuxerr.EINVAL
	case (newName == "." || newName == "..") && noReplace:
		return linuxerr.EEXIST
	case newName == "." || newName == "..":
		return linuxerr.EBUSY
	case rp.Mount() != oldParent.Mount():
		return linuxerr.EXDEV
	case fs.w == nil:
		return linuxerr.EROFS
	}
	if err := rp.Mount().CheckBeginWrite(); err != nil {
		return err
	}
	defer rp.Mount().EndWrite()
	oldDir, below := oldParent.Dentry().Impl().(*dentry), fs.below(rp.Mount())
	if below != nil && opts.Flags&linux.RENAME_EXCHANGE == 0 {
		if below.have(ctx, rp.Mount(), oldDir, oldName) {
			opts.Flags |= linux.RENAME_WHITEOUT
		} else {
			below.spare(oldDir, oldName)
		}
	}
	r := &renaming{
		fs: fs, upper: below != nil, creds: rp.Credentials(), flags: opts.Flags,
		oldDir: oldDir, newDir: newDir, oldName: oldName, newName: newName,
	}
	forget, err := r.run(ctx, rp.VirtualFilesystem(), opts.MustBeDir, rp.MustBeDir())
	// Not before all locks are gone: see remove.
	for _, ref := range forget {
		ref.DecRef(ctx)
	}
	for _, d := range []*dentry{r.src, r.dst} {
		if d != nil {
			d.DecRef(ctx)
		}
	}
	return err
}

// run does the rename under its locks.
func (r *renaming) run(ctx context.Context, v *vfs.VirtualFilesystem, oldIsDir, newIsDir bool) ([]refs.RefCounter, error) {
	r.fs.renameMu.Lock()
	defer r.fs.renameMu.Unlock()
	r.oldDir.inode.dirMu.Lock()
	defer r.oldDir.inode.dirMu.Unlock()
	if r.newDir.inode != r.oldDir.inode {
		r.newDir.inode.dirMu.Lock()
		defer r.newDir.inode.dirMu.Unlock()
	}
	if err := r.find(); err != nil {
		return nil, err
	}
	if err := r.check(oldIsDir, newIsDir); err != nil {
		return nil, err
	}
	if r.dst != nil && r.src.inode == r.dst.inode {
		return nil, nil // two names of one file: POSIX leaves both
	}
	m := mountPoints{ctx: ctx, vfs: v}
	defer m.done()
	if err := m.prepareRename(r.src, r.dst); err != nil {
		return nil, err
	}
	err := r.fs.w.Rename(r.oldDir.inode.w, r.oldName, r.newDir.inode.w, r.newName, r.flags)
	if err != nil {
		m.abortRename(r.src, r.dst)
		return nil, r.fs.answer("rename a name of directory", r.oldDir.inode.id, err)
	}
	r.moveDentries(ctx)
	r.notify(ctx)
	if r.exchanges() {
		m.commitExchange(r.src, r.dst)
		return nil, nil
	}
	return m.commitRename(r.src, r.dst), nil
}

// find looks both names up. That oldDir may be searched nobody has checked yet.
func (r *renaming) find() (err error) {
	if err := r.oldDir.inode.checkPermissions(r.creds, vfs.MayExec); err != nil {
		return err
	}
	if r.src, err = r.oldDir.lookupLocked(r.oldName); err != nil {
		r.src = nil
		return err
	}
	r.dst, err = r.newDir.lookupLocked(r.newName)
	switch {
	case err == nil && r.flags&linux.RENAME_NOREPLACE != 0:
		return linuxerr.EEXIST
	case err == nil:
		return nil
	case linuxerr.Equals(linuxerr.ENOENT, err) && !r.exchanges():
		r.dst = nil
		return nil
	}
	r.dst = nil
	return err
}

// check applies Linux's rules, but for those on what a directory contains: they
// are the volume's.
func (r *renaming) check(oldIsDir, newIsDir bool) error {
	srcDir := r.src.inode.isDir()
	if !srcDir && (oldIsDir || newIsDir && !r.exchanges()) {
		return linuxerr.ENOTDIR
	}
	if srcDir && r.newDir.below(r.src.inode) {
		return linuxerr.EINVAL
	}
	if r.dst != nil && r.dst.inode.isDir() && r.oldDir.below(r.dst.inode) {
		if r.exchanges() {
			return linuxerr.EINVAL
		}
		return linuxerr.ENOTEMPTY
	}
	if r.dst != nil && r.src.inode == r.dst.inode {
		return nil
	}
	if err := r.oldDir.mayRemove(r.creds, r.src); err != nil {
		return err
	}
	if r.newDir.unhashed.Load() {
		return linuxerr.ENOENT
	}
	if r.dst == nil {
		if err := r.newDir.inode.checkPermissions(r.creds, vfs.MayWrite); err != nil {
			return err
		}
	} else if err := r.checkReplaced(srcDir, newIsDir); err != nil {
		return err
	}
	if r.oldDir == r.newDir {
		return nil
	}
	// The ".." of what moves is changed.
	moved := []*dentry{r.src}
	if r.exchanges() {
		moved = append(moved, r.dst)
	}
	for _, d := range moved {
		if d.inode.isDir() {
			if err := d.inode.checkPermissions(r.creds, vfs.MayWrite); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkReplaced applies the rules on what the new name stands for.
func (r *renaming) checkReplaced(srcDir, newIsDir bool) error {
	if err := r.newDir.mayRemove(r.creds, r.dst); err != nil {
		if !r.upper || !r.dst.inode.isWhiteout() {
			return err
		}
		if err := r.newDir.inode.checkPermissions(r.creds, vfs.MayWrite); err != nil {
			return err
		}
	}
	dstDir := r.dst.inode.isDir()
	switch {
	case r.exchanges() && newIsDir && !dstDir:
		return linuxerr.ENOTDIR
	case r.exchanges():
		return nil
	case srcDir && !dstDir, newIsDir && !dstDir:
		return linuxerr.ENOTDIR
	case !srcDir && dstDir:
		return linuxerr.EISDIR
	}
	return nil
}

// moveDentries makes the cache say what the volume says now.
func (r *renaming) moveDentries(ctx context.Context) {
	c := &r.fs.dentries
	c.unhash(r.src)
	if r.dst != nil {
		c.unhash(r.dst)
	}
	var left [2]*dentry
	r.fs.treeMu.Lock()
	left[0] = r.src.place(c, r.newDir, r.newName)
	if r.exchanges() {
		left[1] = r.dst.place(c, r.oldDir, r.oldName)
	}
	r.fs.treeMu.Unlock()
	c.enter(r.src)
	switch {
	case r.exchanges():
		c.enter(r.dst)
	case r.dst != nil:
		r.dst.unhashed.Store(true)
	}
	if r.upper && r.flags&(linux.RENAME_WHITEOUT|linux.RENAME_EXCHANGE) != 0 {
		r.src.moved.Store(true)
		if r.exchanges() {
			r.dst.moved.Store(true)
		}
	}
	for _, up := range left {
		if up != nil {
			up.DecRef(ctx)
		}
	}
}

// place gives d, which is in no shard, another name. It returns its former
// parent, of which the caller owns the reference that d held.
//
// Preconditions: fs.treeMu is locked.
func (d *dentry) place(c *dentryCache, dir *dentry, name string) *dentry {
	left := d.parent
	dir.IncRef()
	d.parent, d.name = dir, name
	d.parentKey, d.hash = dir.key, c.hash(dir, name)
	return left
}

// notify tells watches.
func (r *renaming) notify(ctx context.Context) {
	from, to := &r.oldDir.inode.watches, &r.newDir.inode.watches
	vfs.InotifyRename(ctx, &r.src.inode.watches, from, to, r.oldName, r.newName, r.src.inode.isDir())
	if r.exchanges() {
		vfs.InotifyRename(ctx, &r.dst.inode.watches, to, from, r.newName, r.oldName, r.dst.inode.isDir())
	}
}

func vfsDentry(d *dentry) *vfs.Dentry {
	if d == nil {
		return nil
	}
	return &d.vfsd
}

func (m *mountPoints) prepareRename(src, dst *dentry) (err error) {
	if m.ns = vfs.MountNamespaceFromContext(m.ctx); m.ns == nil {
		return nil
	}
	if m.rename, err = m.vfs.PrepareRenameDentry(m.ns, &src.vfsd, vfsDentry(dst)); err != nil {
		return err
	}
	m.vfs.RenameBegin(&m.rename)
	return nil
}

func (m *mountPoints) abortRename(src, dst *dentry) {
	if m.ns != nil {
		m.vfs.AbortRenameDentry(&m.rename, &src.vfsd, vfsDentry(dst))
	}
}

func (m *mountPoints) commitRename(src, dst *dentry) []refs.RefCounter {
	switch {
	case m.ns != nil:
		return m.vfs.CommitRenameReplaceDentry(m.ctx, &m.rename, &src.vfsd, vfsDentry(dst))
	case dst != nil:
		return m.vfs.InvalidateDentry(m.ctx, &dst.vfsd)
	}
	return nil
}

func (m *mountPoints) commitExchange(src, dst *dentry) {
	if m.ns != nil {
		m.vfs.CommitRenameExchangeDentry(&m.rename, &src.vfsd, &dst.vfsd)
	}
}
