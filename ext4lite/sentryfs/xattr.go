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
	x := i.xattrs.Load()
	names := x.list
	if !x.known {
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
	a := i.access.Load()
	if err := vfs.CheckXattrPermissions(creds, vfs.MayRead, a.mode, a.kuid(), name); err != nil {
		return "", err
	}
	if strings.HasPrefix(name, linux.XATTR_USER_PREFIX) {
		if err := i.checkPermissions(creds, vfs.MayRead); err != nil {
			return "", err
		}
	}
	value, err := i.xattr(name)
	if err == nil && name == linux.XATTR_SECURITY_CAPABILITY {
		// As the caller's user namespace sees it; nonsense stays as it is.
		if seen, err := auth.FixupVfsCapDataOnGet(creds, string(value)); !linuxerr.Equals(linuxerr.EINVAL, err) {
			return seen, err
		}
	}
	return string(value), err
}

// mayHaveXattr reports whether the inode has an attribute, or so many that only
// the volume knows.
func (i *inode) mayHaveXattr(name string) bool {
	x := i.xattrs.Load()
	return !x.known || slices.Contains(x.list, name)
}

// xattr reads an attribute from the volume, whoever asks: ENODATA if there is
// none.
func (i *inode) xattr(name string) ([]byte, error) {
	if !i.mayHaveXattr(name) {
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
	return vfs.ACLGetXattr(creds, opts, i.access.Load().mode, acl, def)
}

// posixACL returns one of the inode's ACLs: nil if there is none.
func (i *inode) posixACL(t vfs.ACLType) (*vfs.PosixACL, error) {
	switch {
	case t == vfs.AccessACL:
		a := i.access.Load()
		return a.acl, a.err
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

// GetPosixACLAt implements vfs.FilesystemImpl.
func (fs *filesystem) GetPosixACLAt(ctx context.Context, rp *vfs.ResolvingPath, t vfs.ACLType) (*vfs.PosixACL, error) {
	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	return d.inode.posixACL(t)
}

// ListXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) ListXattr(ctx context.Context, _ uint64) ([]string, error) {
	return fd.dentry().inode.listXattr(auth.CredentialsFromContext(ctx))
}

// GetXattr implements vfs.FileDescriptionImpl.
func (fd *fileFD) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return fd.dentry().inode.getXattr(auth.CredentialsFromContext(ctx), &opts)
}

// GetPosixACL implements vfs.FileDescriptionImpl.
func (fd *fileFD) GetPosixACL(_ context.Context, t vfs.ACLType) (*vfs.PosixACL, error) {
	return fd.dentry().inode.posixACL(t)
}
