// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Changing extended attributes and ACLs.

// mayChangeXattr reports whether creds may set or remove an attribute that is
// no ACL.
func (i *inode) mayChangeXattr(creds *auth.Credentials, name string) error {
	switch {
	case strings.HasPrefix(name, linux.XATTR_USER_PREFIX),
		strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX):
	case name == linux.XATTR_SECURITY_CAPABILITY:
	case strings.HasPrefix(name, linux.XATTR_SECURITY_PREFIX):
		// There is no security module that could have a say.
		if !creds.HasRootCapability(linux.CAP_SYS_ADMIN) {
			return linuxerr.EPERM
		}
		return nil
	default:
		return linuxerr.EOPNOTSUPP
	}
	a := i.access.Load()
	if err := vfs.CheckXattrPermissions(creds, vfs.MayWrite, a.mode, a.kuid(), name); err != nil {
		return err
	}
	if strings.HasPrefix(name, linux.XATTR_USER_PREFIX) {
		return i.checkPermissions(creds, vfs.MayWrite)
	}
	return nil
}

func isACL(name string) bool {
	return name == linux.XATTR_NAME_POSIX_ACL_ACCESS || name == linux.XATTR_NAME_POSIX_ACL_DEFAULT
}

// changeXattrs runs a change of extended attributes for a mount.
func (i *inode) changeXattrs(mnt *vfs.Mount, change func() error) error {
	if i.w == nil {
		return linuxerr.EROFS
	}
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	return change()
}

// setXattr sets an attribute for creds.
//
// Preconditions: i.attrMu is locked.
func (i *inode) setXattr(creds *auth.Credentials, opts *vfs.SetXattrOptions) error {
	a := i.access.Load()
	if isACL(opts.Name) {
		acl, t, err := vfs.ACLSetXattr(creds, opts, a.mode, a.kuid())
		if err != nil {
			return err
		}
		_, _, err = i.setACL(creds, t, acl, true)
		return err
	}
	if err := i.mayChangeXattr(creds, opts.Name); err != nil {
		return err
	}
	value := opts.Value
	if opts.Name == linux.XATTR_SECURITY_CAPABILITY {
		var err error
		if value, err = auth.FixupVfsCapDataOnSet(creds, value, a.kuid(), a.kgid()); err != nil {
			return err
		}
	}
	err := i.w.SetXattr(opts.Name, []byte(value), opts.Flags)
	i.readXattrNames()
	return i.fs.answer("set an extended attribute of inode", i.id, err)
}

// removeXattr removes an attribute for creds.
//
// Preconditions: i.attrMu is locked.
func (i *inode) removeXattr(creds *auth.Credentials, name string) error {
	a := i.access.Load()
	if isACL(name) {
		t, err := vfs.ACLRemoveXattr(creds, name, a.mode, a.kuid())
		if err != nil {
			return err
		}
		_, _, err = i.setACL(creds, t, nil, true)
		return err
	}
	if err := i.mayChangeXattr(creds, name); err != nil {
		return err
	}
	err := i.w.RemoveXattr(name)
	i.readXattrNames()
	return i.fs.answer("remove an extended attribute of inode", i.id, err)
}

// setACL sets or, if acl is nil, removes an ACL. An access ACL goes with the
// mode, and is only kept if it says more than that.
//
// Preconditions: i.attrMu is locked.
func (i *inode) setACL(creds *auth.Credentials, t vfs.ACLType, acl *vfs.PosixACL, clearSGID bool) (*vfs.PosixACL, linux.FileMode, error) {
	a := *i.access.Load()
	if t == vfs.DefaultACL {
		if !i.isDir() {
			return nil, a.mode, nil
		}
		return acl, a.mode, i.storeACL(t, acl)
	}
	mode := a.mode
	if acl != nil {
		perm, equivalent := acl.Mode()
		mode = mode&^linux.PermissionsMask | linux.FileMode(perm)
		if equivalent {
			acl = nil
		}
	}
	if clearSGID && vfs.ShouldClearSGID(creds, mode, a.kuid(), a.kgid()) {
		mode &^= linux.S_ISGID
	}
	perm := uint16(mode &^ linux.S_IFMT)
	if err := i.w.SetAttr(&SetAttr{Perm: &perm}); err != nil {
		return nil, 0, i.fs.answer("change the mode of inode", i.id, err)
	}
	a.mode = mode
	i.access.Store(&a)
	return acl, mode, i.storeACL(t, acl)
}

// storeACL stores or removes an ACL.
//
// Preconditions: i.attrMu is locked.
func (i *inode) storeACL(t vfs.ACLType, acl *vfs.PosixACL) error {
	name := linux.XATTR_NAME_POSIX_ACL_ACCESS
	if t == vfs.DefaultACL {
		name = linux.XATTR_NAME_POSIX_ACL_DEFAULT
	}
	var err error
	if acl != nil {
		err = i.w.SetXattr(name, acl.Serialize(i.fs.rootNS), 0)
	} else if i.mayHaveXattr(name) {
		if err = i.w.RemoveXattr(name); linuxerr.Equals(linuxerr.ENODATA, err) {
			err = nil
		}
	}
	if err != nil {
		return i.fs.answer("store an ACL of inode", i.id, err)
	}
	i.readXattrNames()
	if t == vfs.AccessACL {
		a := *i.access.Load()
		a.acl, a.err = acl, nil
		i.access.Store(&a)
	}
	return nil
}

// changeXattrsAt runs a change on the file at rp.
func changeXattrsAt(ctx context.Context, rp *vfs.ResolvingPath, change func(i *inode) error) error {
	d, err := resolve(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	if err := d.inode.changeXattrs(rp.Mount(), func() error { return change(d.inode) }); err != nil {
		return err
	}
	d.InotifyWithParent(ctx, linux.IN_ATTRIB, 0, vfs.InodeEvent)
	return nil
}

// SetXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetXattrAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.SetXattrOptions) error {
	marks := strings.HasSuffix(opts.Name, overlayOpaque)
	if marks && rp.Final() {
		below := fs.below(rp.Mount())
		if below != nil && !below.have(ctx, rp.Mount(), startOf(rp), rp.Component()) {
			return nil
		}
	}
	err := changeXattrsAt(ctx, rp, func(i *inode) error { return i.setXattr(rp.Credentials(), &opts) })
	if marks {
		return fs.forgive(rp.Mount(), err)
	}
	return err
}

// overlayOpaque ends the name of an overlay's mark of an opaque directory.
const overlayOpaque = ".overlay.opaque"

// RemoveXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) RemoveXattrAt(ctx context.Context, rp *vfs.ResolvingPath, name string) error {
	return changeXattrsAt(ctx, rp, func(i *inode) error { return i.removeXattr(rp.Credentials(), name) })
}

// SetPosixACLAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetPosixACLAt(ctx context.Context, rp *vfs.ResolvingPath, t vfs.ACLType, acl *vfs.PosixACL, clearSGID bool) (*vfs.PosixACL, linux.FileMode, error) {
	var mode linux.FileMode
	err := changeXattrsAt(ctx, rp, func(i *inode) (err error) {
		acl, mode, err = i.setACL(rp.Credentials(), t, acl, clearSGID)
		return err
	})
	return acl, mode, err
}

// SetXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) SetXattr(ctx context.Context, opts vfs.SetXattrOptions) error {
	i := fd.dentry().inode
	return i.changeXattrs(fd.vfsfd.Mount(), func() error {
		return i.setXattr(auth.CredentialsFromContext(ctx), &opts)
	})
}

// RemoveXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) RemoveXattr(ctx context.Context, name string) error {
	i := fd.dentry().inode
	return i.changeXattrs(fd.vfsfd.Mount(), func() error {
		return i.removeXattr(auth.CredentialsFromContext(ctx), name)
	})
}

// SetPosixACL implements vfs.FileDescriptionImpl.
func (fd *fileFD) SetPosixACL(ctx context.Context, t vfs.ACLType, acl *vfs.PosixACL, clearSGID bool) (*vfs.PosixACL, linux.FileMode, error) {
	i := fd.dentry().inode
	var mode linux.FileMode
	err := i.changeXattrs(fd.vfsfd.Mount(), func() (err error) {
		acl, mode, err = i.setACL(auth.CredentialsFromContext(ctx), t, acl, clearSGID)
		return err
	})
	return acl, mode, err
}
