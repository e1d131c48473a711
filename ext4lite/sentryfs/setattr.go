// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"math"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Changing attributes, with Linux's rules of who may and of what goes with it.

// settable are the attributes that setattr can change.
const settable = linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID | linux.STATX_SIZE |
	linux.STATX_ATIME | linux.STATX_MTIME | linux.STATX_CTIME

// setStat changes attributes for creds.
func (i *inode) setStat(ctx context.Context, creds *auth.Credentials, mnt *vfs.Mount, opts *vfs.SetStatOptions) error {
	if opts.Stat.Mask&^settable != 0 {
		return linuxerr.EPERM
	}
	if i.w == nil {
		return linuxerr.EROFS
	}
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	if opts.Stat.Mask == 0 && !opts.ClearPrivs {
		return nil
	}
	a := i.access.Load()
	if a.err != nil {
		return a.err
	}
	if err := vfs.CheckSetStat(ctx, creds, opts, a.mode, a.acl, a.kuid(), a.kgid()); err != nil {
		return err
	}
	if opts.Stat.Mask&linux.STATX_SIZE != 0 {
		if opts.Stat.Size > math.MaxInt64 {
			return linuxerr.EINVAL
		}
		if err := i.truncate(ctx, int64(opts.Stat.Size)); err != nil {
			return err
		}
		if opts.Stat.Mask &^= linux.STATX_SIZE; opts.Stat.Mask == 0 {
			return nil // which has dropped what is to be dropped
		}
	}
	return i.setAttr(&opts.Stat, opts.ClearPrivs)
}

// setAttr changes all attributes of st but the size.
func (i *inode) setAttr(st *linux.Statx, clearPrivileges bool) error {
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	a := *i.access.Load()
	var set SetAttr
	if st.Mask&linux.STATX_UID != 0 {
		a.uid, set.UID = st.UID, &st.UID
	}
	if st.Mask&linux.STATX_GID != 0 {
		a.gid, set.GID = st.GID, &st.GID
	}
	mode := a.mode
	var acl *vfs.PosixACL
	if st.Mask&linux.STATX_MODE != 0 {
		mode = a.mode.FileType() | linux.FileMode(st.Mode)&^linux.S_IFMT
		if a.acl != nil {
			changed := a.acl.Chmod(uint16(mode.Permissions()))
			acl = &changed
		}
	}
	if clearPrivileges {
		mode = withoutPrivileges(mode)
	}
	if st.Mask&linux.STATX_MODE != 0 || mode != a.mode {
		perm := uint16(mode &^ linux.S_IFMT)
		set.Perm = &perm
	}
	if st.Mask&linux.STATX_ATIME != 0 {
		set.Atime = i.fs.stamp(st.Atime)
	}
	if st.Mask&linux.STATX_MTIME != 0 {
		set.Mtime = i.fs.stamp(st.Mtime)
	}
	if st.Mask&linux.STATX_CTIME != 0 {
		set.Ctime = i.fs.stamp(st.Ctime)
	}
	if set != (SetAttr{}) {
		if err := i.w.SetAttr(&set); err != nil {
			return i.fs.answer("change attributes of inode", i.id, err)
		}
		a.mode = mode
		i.access.Store(&a)
	}
	if clearPrivileges {
		i.dropCapabilities()
	}
	if acl != nil {
		return i.storeACL(vfs.AccessACL, acl)
	}
	return nil
}

// withoutPrivileges takes set-user-ID, and set-group-ID where the group may execute,
// from the mode of anything but a directory. gVisor takes block devices and sockets
// for directories: all else is a regular file for it here.
func withoutPrivileges(mode linux.FileMode) linux.FileMode {
	if mode.FileType() == linux.S_IFDIR {
		return mode
	}
	bits := mode &^ linux.S_IFMT
	return mode.FileType() | linux.FileMode(vfs.ClearSUIDAndSGID(uint32(linux.S_IFREG|bits)))&^linux.S_IFMT
}

// stamp resolves UTIME_NOW.
func (fs *filesystem) stamp(t linux.StatxTimestamp) *linux.StatxTimestamp {
	if t.Nsec == linux.UTIME_NOW {
		t = fs.w.Now()
	}
	return &linux.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

// dropPrivileges takes from a file that was written what it gives those who run
// it. Who may give set-user-ID may also keep it.
func (i *inode) dropPrivileges(ctx context.Context) {
	a := i.access.Load()
	capable := i.mayHaveXattr(linux.XATTR_SECURITY_CAPABILITY)
	mode := withoutPrivileges(a.mode)
	if mode != a.mode && auth.CredentialsFromContext(ctx).HasCapabilityOnFile(linux.CAP_FSETID, a.kuid(), a.kgid()) {
		mode = a.mode
	}
	var err error
	switch {
	case mode != a.mode:
		err = i.setAttr(&linux.Statx{}, true)
	case capable:
		i.attrMu.Lock()
		i.dropCapabilities()
		i.attrMu.Unlock()
	}
	if err != nil {
		i.fs.answer("take set-user-ID from inode", i.id, err)
	}
}

// dropCapabilities removes the file's capabilities.
//
// Preconditions: i.attrMu is locked.
func (i *inode) dropCapabilities() {
	if !i.mayHaveXattr(linux.XATTR_SECURITY_CAPABILITY) {
		return
	}
	err := i.w.RemoveXattr(linux.XATTR_SECURITY_CAPABILITY)
	if err != nil && !linuxerr.Equals(linuxerr.ENODATA, err) {
		i.fs.answer("take capabilities from inode", i.id, err)
	}
	i.readXattrNames()
}

// SetStatAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetStatAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.SetStatOptions) error {
	d, err := resolve(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	if err := d.inode.setStat(ctx, rp.Credentials(), rp.Mount(), &opts); err != nil {
		return err
	}
	if ev := vfs.InotifyEventFromStatMask(opts.Stat.Mask); ev != 0 {
		d.InotifyWithParent(ctx, ev, 0, vfs.InodeEvent)
	}
	return nil
}

// SetStat implements vfs.FileDescriptionImpl.
func (fd *fileFD) SetStat(ctx context.Context, opts vfs.SetStatOptions) error {
	return fd.dentry().inode.setStat(ctx, auth.CredentialsFromContext(ctx), fd.vfsfd.Mount(), &opts)
}
