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
