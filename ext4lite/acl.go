// SPDX-License-Identifier: Apache-2.0

// POSIX ACLs: kept in attributes, and in step with the mode as the kernel keeps
// them. Nothing here checks permissions: that is the callers' affair.

package ext4lite

import (
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

func isACL(index uint8) bool {
	return index == disk.XattrACLAccess || index == disk.XattrACLDefault
}

// aclIndex finds a list among attributes, or -1.
func aclIndex(xs []disk.Xattr, index uint8) int {
	return slices.IndexFunc(xs, func(x disk.Xattr) bool { return x.Index == index && x.Name == "" })
}

// takeACL vets a list before it is stored, and gives the inode the mode it
// stands for. It answers false for one that need not be stored: the mode says
// the same.
func (i *Inode) takeACL(index uint8, value []byte) (store bool, err error) {
	if i.d.Type() == disk.ModeLink {
		return false, EOPNOTSUPP
	}
	if index == disk.XattrACLDefault {
		if i.d.Type() != disk.ModeDir {
			return false, EACCES
		}
		_, _, err = disk.ModeOfACL(value, 0)
		return true, err
	}
	mode, minimal, err := disk.ModeOfACL(value, i.d.Mode)
	if err != nil {
		return false, err
	}
	i.d.Mode = mode
	return !minimal, nil
}

// chmodACL brings the inode's list in step with its mode, which was changed.
func (i *Inode) chmodACL(h *journal.Handle) error {
	list, err := i.loadXattrs()
	if err != nil {
		return err
	}
	at := aclIndex(list, disk.XattrACLAccess)
	if at < 0 {
		return nil
	}
	v, err := disk.ChmodACL(list[at].Value, i.d.Mode)
	if err != nil {
		return err
	}
	list = slices.Clone(list)
	list[at].Value = v
	return i.storeXattrs(h, list)
}

// inheritACL gives a new inode its directory's default list, or takes the
// creator's umask off its mode.
func (i *Inode) inheritACL(h *journal.Handle, dir *Inode, n NewInode) error {
	if !n.InheritACL || i.d.Type() == disk.ModeLink {
		return nil
	}
	list, err := dir.loadXattrs()
	if err != nil {
		return err
	}
	at := aclIndex(list, disk.XattrACLDefault)
	if at < 0 {
		i.d.Mode &^= n.Umask & 0o777
		return nil
	}
	given := list[at]
	mode, own, err := disk.InheritACL(given.Value, i.d.Mode)
	if err != nil {
		return err
	}
	i.d.Mode = mode
	var mine []disk.Xattr
	if own != nil {
		mine = append(mine, disk.Xattr{Index: disk.XattrACLAccess, Value: own})
	}
	if i.d.Type() == disk.ModeDir {
		mine = append(mine, given)
	}
	if len(mine) == 0 {
		return nil
	}
	return i.storeXattrs(h, mine)
}
