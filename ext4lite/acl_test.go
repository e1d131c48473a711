// SPDX-License-Identifier: Apache-2.0

// ACLs and modes agree, whichever was changed last, and directories hand
// theirs on.

package ext4lite_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"z.gfire.dev/gvx/ext4lite"
)

// acl is a list as system calls pass it: tag, permission and ID of each entry.
func acl(entries ...[3]uint32) []byte {
	v := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		v = binary.LittleEndian.AppendUint16(v, uint16(e[0]))
		v = binary.LittleEndian.AppendUint16(v, uint16(e[1]))
		v = binary.LittleEndian.AppendUint32(v, e[2])
	}
	return v
}

const (
	userObj, namedUser, groupObj, mask, others = 0x01, 0x02, 0x04, 0x10, 0x20
	noID                                       = 0xffffffff
)

func TestACLsAndModesAgree(t *testing.T) {
	fs := memVolume(t)
	root, err := fs.Root()
	must(t, err)
	defer root.Release()
	f, err := root.Create("f", ext4lite.NewInode{Mode: 0o4640})
	must(t, err)
	defer f.Release()
	const access, byDefault = "system.posix_acl_access", "system.posix_acl_default"
	wantMode := func(i *ext4lite.Inode, mode uint16) {
		t.Helper()
		if got := i.Mode() & 0o7777; got != mode {
			t.Errorf("mode %o, wanted %o", got, mode)
		}
	}
	wantList := func(i *ext4lite.Inode, name string, want []byte) {
		t.Helper()
		got, err := i.GetXattr(name)
		if want == nil {
			if !errors.Is(err, ext4lite.ENODATA) {
				t.Errorf("%s: %x, %v; wanted none", name, got, err)
			}
		} else if string(got) != string(want) || err != nil {
			t.Errorf("%s: %x, %v; wanted %x", name, got, err, want)
		}
	}
	full := acl([3]uint32{userObj, 7, noID}, [3]uint32{namedUser, 6, 1000}, [3]uint32{groupObj, 4, noID}, [3]uint32{mask, 5, noID}, [3]uint32{others, 1, noID})
	must(t, f.SetXattr(access, full, 0))
	wantMode(f, 0o4751)
	wantList(f, access, full)

	mode := uint16(0o620)
	must(t, f.SetAttr(ext4lite.SetAttr{Mode: &mode}))
	wantMode(f, 0o620)
	wantList(f, access, acl([3]uint32{userObj, 6, noID}, [3]uint32{namedUser, 6, 1000}, [3]uint32{groupObj, 4, noID}, [3]uint32{mask, 2, noID}, [3]uint32{others, 0, noID}))

	// A list that says no more than a mode becomes one.
	must(t, f.SetXattr(access, acl([3]uint32{userObj, 5, noID}, [3]uint32{groupObj, 0, noID}, [3]uint32{others, 4, noID}), 0))
	wantMode(f, 0o504)
	wantList(f, access, nil)
	must(t, f.RemoveXattr(access))

	for name, bad := range map[string][]byte{
		"named without mask": acl([3]uint32{userObj, 7, noID}, [3]uint32{namedUser, 6, 1000}, [3]uint32{groupObj, 4, noID}, [3]uint32{others, 1, noID}),
		"no others":          acl([3]uint32{userObj, 7, noID}, [3]uint32{groupObj, 4, noID}),
		"out of order":       acl([3]uint32{others, 1, noID}, [3]uint32{userObj, 7, noID}, [3]uint32{groupObj, 4, noID}),
		"permission":         acl([3]uint32{userObj, 9, noID}, [3]uint32{groupObj, 4, noID}, [3]uint32{others, 1, noID}),
	} {
		if err := f.SetXattr(access, bad, 0); !errors.Is(err, ext4lite.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantMode(f, 0o504)
	if err := f.SetXattr(byDefault, full, 0); !errors.Is(err, ext4lite.EACCES) {
		t.Errorf("a default list on a file: %v", err)
	}

	d, err := root.Mkdir("d", ext4lite.NewInode{Mode: 0o700})
	must(t, err)
	defer d.Release()
	must(t, d.SetXattr(byDefault, full, 0))
	wantMode(d, 0o700)
	asked := ext4lite.NewInode{Mode: 0o666, InheritACL: true, Umask: 0o077}
	g, err := d.Create("g", asked)
	must(t, err)
	defer g.Release()
	wantMode(g, 0o640)
	wantList(g, access, acl([3]uint32{userObj, 6, noID}, [3]uint32{namedUser, 6, 1000}, [3]uint32{groupObj, 4, noID}, [3]uint32{mask, 4, noID}, [3]uint32{others, 0, noID}))
	wantList(g, byDefault, nil)
	sub, err := d.Mkdir("sub", ext4lite.NewInode{Mode: 0o777, InheritACL: true})
	must(t, err)
	defer sub.Release()
	wantMode(sub, 0o751)
	wantList(sub, byDefault, full)
	h, err := root.Create("h", asked) // no default list: the umask counts
	must(t, err)
	defer h.Release()
	wantMode(h, 0o600)
	wantList(h, access, nil)
}
