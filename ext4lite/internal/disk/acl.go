// SPDX-License-Identifier: Apache-2.0

// POSIX ACLs: ext4 stores them shorter than system calls pass them.

package disk

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
)

const (
	aclUserVersion = 2
	aclDiskVersion = 1
	aclUserObj     = 0x01
	aclUser        = 0x02
	aclGroupObj    = 0x04
	aclGroup       = 0x08
	aclMask        = 0x10
	aclOther       = 0x20
	aclNoID        = 0xffffffff
	aclUserEntry   = 8
)

// ACLToDisk turns the value of a system.posix_acl attribute, as setxattr(2)
// takes it, into what the volume stores.
func ACLToDisk(v []byte) ([]byte, error) {
	bad := fmt.Errorf("access control list of %d bytes: %w", len(v), errno.EINVAL)
	if len(v) < 4 || le.Uint32(v) != aclUserVersion || (len(v)-4)%aclUserEntry != 0 {
		return nil, bad
	}
	out := le.AppendUint32(nil, aclDiskVersion)
	for p := v[4:]; len(p) > 0; p = p[aclUserEntry:] {
		tag := le.Uint16(p)
		out = append(out, p[:4]...)
		switch tag {
		case aclUser, aclGroup:
			out = append(out, p[4:8]...)
		case aclUserObj, aclGroupObj, aclMask, aclOther:
		default:
			return nil, bad
		}
	}
	return out, nil
}

// ACLToUser is the way back.
func ACLToUser(v []byte) ([]byte, error) {
	bad := Corrupt("access control list", "%d bytes", len(v))
	if len(v) < 4 || le.Uint32(v) != aclDiskVersion {
		return nil, bad
	}
	out := le.AppendUint32(nil, aclUserVersion)
	for p := v[4:]; len(p) > 0; {
		if len(p) < 4 {
			return nil, bad
		}
		tag := le.Uint16(p)
		out = append(out, p[:4]...)
		switch tag {
		case aclUser, aclGroup:
			if len(p) < 8 {
				return nil, bad
			}
			out = append(out, p[4:8]...)
			p = p[8:]
		case aclUserObj, aclGroupObj, aclMask, aclOther:
			out = le.AppendUint32(out, aclNoID)
			p = p[4:]
		default:
			return nil, bad
		}
	}
	return out, nil
}

// An ACL as stored is a version and entries of a tag, a permission and, for
// named users and groups, an ID.

// aclEntry is one entry; at is where its permission is stored.
type aclEntry struct {
	tag  uint16
	perm uint16
	at   int
}

// aclEntries lists the entries of a stored ACL.
func aclEntries(v []byte) ([]aclEntry, error) {
	if len(v) < 4 || le.Uint32(v) != aclDiskVersion {
		return nil, Corrupt("access control list", "%d bytes", len(v))
	}
	var list []aclEntry
	for off := 4; off < len(v); {
		size := 4
		if off+4 > len(v) {
			return nil, Corrupt("access control list", "cut off at %d", off)
		}
		e := aclEntry{tag: le.Uint16(v[off:]), perm: le.Uint16(v[off+2:]), at: off + 2}
		if e.tag == aclUser || e.tag == aclGroup {
			size = 8
		}
		if off += size; off > len(v) {
			return nil, Corrupt("access control list", "cut off at %d", off)
		}
		list = append(list, e)
	}
	return list, nil
}

// aclMode finds the entries that mode bits stand for: owner, group (the mask
// where there is one) and others. minimal tells that there are no more.
func aclMode(list []aclEntry) (owner, group, other *aclEntry, minimal bool) {
	minimal = true
	var mask *aclEntry
	for k := range list {
		switch e := &list[k]; e.tag {
		case aclUserObj:
			owner = e
		case aclGroupObj:
			group = e
		case aclOther:
			other = e
		case aclMask:
			mask, minimal = e, false
		default:
			minimal = false
		}
	}
	if mask != nil {
		group = mask
	}
	return owner, group, other, minimal
}

// ModeOfACL is the mode that a stored ACL gives a file that had another.
// minimal tells that the mode says all that the list does. A list without the
// entries every list has, or with named ones and no mask, is EINVAL.
func ModeOfACL(v []byte, mode uint16) (_ uint16, minimal bool, err error) {
	list, err := aclEntries(v)
	if err != nil {
		return mode, false, err
	}
	owner, group, other, minimal := aclMode(list)
	seen := map[uint16]int{}
	for k, e := range list {
		if seen[e.tag]++; e.perm > 7 || k > 0 && e.tag < list[k-1].tag {
			return mode, false, errno.EINVAL
		}
	}
	if owner == nil || other == nil || seen[aclGroupObj] != 1 || seen[aclUserObj] != 1 || seen[aclOther] != 1 || seen[aclMask] > 1 ||
		seen[aclUser]+seen[aclGroup] > 0 && seen[aclMask] == 0 {
		return mode, false, errno.EINVAL
	}
	return mode&^0o777 | owner.perm<<6 | group.perm<<3 | other.perm, minimal, nil
}

// ChmodACL makes a stored ACL agree with a new mode.
func ChmodACL(v []byte, mode uint16) ([]byte, error) {
	list, err := aclEntries(v)
	if err != nil {
		return nil, err
	}
	out := append([]byte(nil), v...)
	owner, group, other, _ := aclMode(list)
	for k, e := range []*aclEntry{owner, group, other} {
		if e != nil {
			le.PutUint16(out[e.at:], mode>>(6-3*k)&7)
		}
	}
	return out, nil
}

// InheritACL is what a new file gets from its directory's default ACL: the mode
// that was asked for, less what the list does not give, and a list of its own,
// nil if the mode says it all.
func InheritACL(v []byte, mode uint16) (uint16, []byte, error) {
	list, err := aclEntries(v)
	if err != nil {
		return mode, nil, err
	}
	out := append([]byte(nil), v...)
	owner, group, other, minimal := aclMode(list)
	for k, e := range []*aclEntry{owner, group, other} {
		shift := 6 - 3*k
		if e != nil {
			mode &= e.perm<<shift | ^uint16(7<<shift)
			le.PutUint16(out[e.at:], mode>>shift&7)
		}
	}
	if minimal {
		out = nil
	}
	return mode, out, nil
}
