// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Extended attributes, with Linux's rules of who sees what. The sizes that
// callers pass are for the system call layer, which knows when an answer that
// does not fit is ERANGE and when E2BIG.

// listXattr returns the names that creds may know of.
func (i *inode) listXattr(creds *auth.Credentials) ([]string, error) {
	names := i.xattrs
	if !i.xattrsKnown {
		var err error
		if names, err = i.node.ListXattr(); err != nil {
			return nil, i.fs.errno("list extended attributes of inode", i.id, err)
		}
	}
	if creds.HasRootCapability(linux.CAP_SYS_ADMIN) {
		return slices.Clone(names), nil
	}
	visible := make([]string, 0, len(names))
	for _, name := range names {
		if !strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX) {
			visible = append(visible, name)
		}
	}
	return visible, nil
}

// getXattr returns the value of one attribute.
func (i *inode) getXattr(creds *auth.Credentials, opts *vfs.GetXattrOptions) (string, error) {
	name := opts.Name
	switch {
	case name == linux.XATTR_NAME_POSIX_ACL_ACCESS, name == linux.XATTR_NAME_POSIX_ACL_DEFAULT:
		return i.getACLXattr(creds, opts)
	case strings.HasPrefix(name, linux.XATTR_USER_PREFIX),
		strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX),
		strings.HasPrefix(name, linux.XATTR_SECURITY_PREFIX):
	default:
		return "", linuxerr.EOPNOTSUPP
	}
	if err := vfs.CheckXattrPermissions(creds, vfs.MayRead, i.attr.Mode, auth.KUID(i.attr.UID), name); err != nil {
		return "", err
	}
	if strings.HasPrefix(name, linux.XATTR_USER_PREFIX) {
		if err := i.checkPermissions(creds, vfs.MayRead); err != nil {
			return "", err
		}
	}
	value, err := i.xattr(name)
	return string(value), err
}

// xattr reads an attribute from the volume, whoever asks: ENODATA if there is
// none.
func (i *inode) xattr(name string) ([]byte, error) {
	if i.xattrsKnown && !slices.Contains(i.xattrs, name) {
		return nil, linuxerr.ENODATA
	}
	value, err := i.node.Xattr(name)
	if err != nil && !linuxerr.Equals(linuxerr.ENODATA, err) {
		err = i.fs.errno("read an extended attribute of inode", i.id, err)
	}
	return value, err
}

// getACLXattr shows an ACL as the caller's user namespace sees it.
func (i *inode) getACLXattr(creds *auth.Credentials, opts *vfs.GetXattrOptions) (string, error) {
	acl, err := i.posixACL(vfs.AccessACL)
	if err != nil {
		return "", err
	}
	def, err := i.posixACL(vfs.DefaultACL)
	if err != nil {
		return "", err
	}
	return vfs.ACLGetXattr(creds, opts, i.attr.Mode, acl, def)
}

// posixACL returns one of the inode's ACLs: nil if there is none.
func (i *inode) posixACL(t vfs.ACLType) (*vfs.PosixACL, error) {
	switch {
	case t == vfs.AccessACL:
		return i.acl, i.aclErr
	case i.isDir():
		return i.readACL(linux.XATTR_NAME_POSIX_ACL_DEFAULT)
	}
	return nil, nil
}

// ListXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) ListXattrAt(ctx context.Context, rp *vfs.ResolvingPath, _ uint64) ([]string, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	return d.inode.listXattr(rp.Credentials())
}

// GetXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) GetXattrAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.GetXattrOptions) (string, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return "", err
	}
	defer d.DecRef(ctx)
	return d.inode.getXattr(rp.Credentials(), &opts)
}

// SetXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetXattrAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.SetXattrOptions) error {
	return refuseChange(ctx, rp)
}

// RemoveXattrAt implements vfs.FilesystemImpl.
func (fs *filesystem) RemoveXattrAt(ctx context.Context, rp *vfs.ResolvingPath, _ string) error {
	return refuseChange(ctx, rp)
}

// GetPosixACLAt implements vfs.FilesystemImpl.
func (fs *filesystem) GetPosixACLAt(ctx context.Context, rp *vfs.ResolvingPath, t vfs.ACLType) (*vfs.PosixACL, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	return d.inode.posixACL(t)
}

// SetPosixACLAt implements vfs.FilesystemImpl.
func (fs *filesystem) SetPosixACLAt(ctx context.Context, rp *vfs.ResolvingPath, _ vfs.ACLType, _ *vfs.PosixACL, _ bool) (*vfs.PosixACL, linux.FileMode, error) {
	return nil, 0, refuseChange(ctx, rp)
}

// ListXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) ListXattr(ctx context.Context, _ uint64) ([]string, error) {
	return fd.dentry().inode.listXattr(auth.CredentialsFromContext(ctx))
}

// GetXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return fd.dentry().inode.getXattr(auth.CredentialsFromContext(ctx), &opts)
}

// SetXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) SetXattr(context.Context, vfs.SetXattrOptions) error { return linuxerr.EROFS }

// RemoveXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) RemoveXattr(context.Context, string) error { return linuxerr.EROFS }

// GetPosixACL implements vfs.FileDescriptionImpl.
func (fd *fileFD) GetPosixACL(_ context.Context, t vfs.ACLType) (*vfs.PosixACL, error) {
	return fd.dentry().inode.posixACL(t)
}

// SetPosixACL implements vfs.FileDescriptionImpl.
func (fd *fileFD) SetPosixACL(context.Context, vfs.ACLType, *vfs.PosixACL, bool) (*vfs.PosixACL, linux.FileMode, error) {
	return nil, 0, linuxerr.EROFS
}
