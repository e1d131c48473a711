// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

func TestRenameNeedsBothDirectories(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	user := w.as(1000, 1000)
	for _, c := range []struct {
		from, to linux.FileMode
		want     *gverrors.Error
	}{
		{0o755, 0o755, nil},
		{0o644, 0o755, linuxerr.EACCES}, // not searchable
		{0o755, 0o644, linuxerr.EACCES},
		{0o555, 0o755, linuxerr.EACCES}, // not writable
		{0o755, 0o555, linuxerr.EACCES},
	} {
		for _, d := range []string{"/from", "/to"} {
			w.must(w.mkdir(d))
			w.chown(d, 1000)
		}
		w.writeFile("/from/f", "x")
		w.chmod("/from", c.from)
		w.chmod("/to", c.to)
		err := user.rename("/from/f", "/to/f", 0)
		if c.want == nil {
			w.must(err)
			w.must(w.unlink("/to/f"))
		} else {
			w.wantErr(fmt.Sprintf("rename from %o to %o", c.from, c.to), err, c.want)
			w.must(w.unlink("/from/f"))
		}
		w.must(w.rmdir("/from"))
		w.must(w.rmdir("/to"))
	}
	w.finish(path)
}

func (w *world) setStat(path string, st linux.Statx) {
	w.t.Helper()
	w.must(w.vfs.SetStatAt(w.ctx, w.creds, w.pop(path, true), &vfs.SetStatOptions{Stat: st}))
}

func (w *world) chmod(path string, mode linux.FileMode) {
	w.t.Helper()
	w.setStat(path, linux.Statx{Mask: linux.STATX_MODE, Mode: uint16(mode)})
}

func (w *world) chown(path string, id uint32) {
	w.t.Helper()
	w.setStat(path, linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: id, GID: id})
}

// TestAttributesFollowLinux checks what goes along with changes.
func TestAttributesFollowLinux(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	user := w.as(1000, 1000)
	w.writeFile("/f", "x")
	w.chown("/f", 1000)

	w.chmod("/f", 0o6777)
	fd, err := user.open("/f", linux.O_WRONLY)
	w.must(err)
	user.pwrite(fd, "y", 0)
	fd.DecRef(w.ctx)
	if st := w.mustStat("/f"); st.Mode&0o7777 != 0o777 {
		t.Errorf("mode %#o after its owner wrote a set-ID file", st.Mode)
	}
	w.chmod("/f", 0o4755)
	fd = w.mustOpen("/f", linux.O_WRONLY)
	w.pwrite(fd, "z", 0)
	fd.DecRef(w.ctx)
	if st := w.mustStat("/f"); st.Mode&0o7777 != 0o4755 {
		t.Errorf("mode %#o after root wrote a set-ID file", st.Mode)
	}

	for _, kind := range []linux.FileMode{linux.S_IFREG, linux.S_IFBLK, linux.S_IFCHR, linux.S_IFIFO, linux.S_IFSOCK, linux.S_IFDIR} {
		want := uint16(0o555)
		if kind == linux.S_IFDIR {
			want = 0o6555
			w.must(w.mkdir("/n"))
		} else {
			w.must(w.vfs.MknodAt(w.ctx, w.creds, w.pop("/n", false), &vfs.MknodOptions{Mode: kind | 0o644, DevMajor: 1, DevMinor: 3}))
		}
		w.chmod("/n", 0o6555)
		w.must(w.vfs.SetStatAt(w.ctx, w.creds, w.pop("/n", true), &vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_GID, GID: 7}, ClearPrivs: true}))
		if st := w.mustStat("/n"); st.Mode&0o7777 != want || st.Mode&linux.S_IFMT != uint16(kind) {
			t.Errorf("mode %#o of kind %#o after its owner gave it to another group, want %#o", st.Mode, kind, want)
		}
		if kind == linux.S_IFDIR {
			w.must(w.rmdir("/n"))
		} else {
			w.must(w.unlink("/n"))
		}
	}

	// New files in a directory with set-group-ID have its group.
	w.must(w.mkdir("/g"))
	w.chown("/g", 1000)
	w.chmod("/g", 0o2777)
	w.writeFile("/g/f", "")
	w.must(w.mkdir("/g/d"))
	if st := w.mustStat("/g/f"); st.GID != 1000 || st.UID != 0 {
		t.Errorf("a file in it belongs to %d:%d", st.UID, st.GID)
	}
	if st := w.mustStat("/g/d"); st.GID != 1000 || st.Mode&linux.S_ISGID == 0 {
		t.Errorf("a directory in it has mode %#o and group %d", st.Mode, st.GID)
	}

	// In a sticky directory names belong to their owners.
	w.must(w.mkdir("/t"))
	w.chmod("/t", 0o1777)
	w.writeFile("/t/roots", "x")
	w.wantErr("unlink of another's file", user.unlink("/t/roots"), linuxerr.EPERM)
	w.wantErr("rename of another's file", user.rename("/t/roots", "/t/mine", 0), linuxerr.EPERM)
	user.writeFile("/t/mine", "x")
	w.wantErr("rename over another's file", user.rename("/t/mine", "/t/roots", 0), linuxerr.EPERM)
	w.must(user.unlink("/t/mine"))
	w.wantErr("unlink of what is not there", user.unlink("/t/none"), linuxerr.ENOENT)

	// Attributes that are not there say so, as ext4's do.
	for name, want := range map[string]*gverrors.Error{
		"user.none": linuxerr.ENODATA, "trusted.overlay.opaque": linuxerr.ENODATA, "security.selinux": linuxerr.ENODATA,
		"system.posix_acl_access": linuxerr.ENODATA, "other.none": linuxerr.EOPNOTSUPP,
	} {
		_, err := w.vfs.GetXattrAt(w.ctx, w.creds, w.pop("/f", true), &vfs.GetXattrOptions{Name: name})
		w.wantErr("getxattr "+name, err, want)
	}
	set := func(v *world, name string) error {
		return v.vfs.SetXattrAt(v.ctx, v.creds, v.pop("/f", true), &vfs.SetXattrOptions{Name: name, Value: "v"})
	}
	w.must(set(w, "trusted.a"))
	w.must(set(w, "user.a"))
	w.wantErr("a user sets a trusted attribute", set(user, "trusted.b"), linuxerr.EPERM)
	_, err = user.vfs.GetXattrAt(user.ctx, user.creds, user.pop("/f", true), &vfs.GetXattrOptions{Name: "trusted.a"})
	w.wantErr("a user reads a trusted attribute", err, linuxerr.ENODATA)
	names, err := user.vfs.ListXattrAt(user.ctx, user.creds, user.pop("/f", true), 0)
	if err != nil || len(names) != 1 {
		t.Errorf("a user sees %q, %v", names, err)
	}
	w.finish(path)
}

// TestUnnamedFiles makes files without a name, and gives one a name.
func TestUnnamedFiles(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	before := w.fs().w.StatFS()
	fd, err := w.open("/", linux.O_TMPFILE|linux.O_DIRECTORY|linux.O_RDWR)
	w.must(err)
	w.pwrite(fd, pattern(100_000), 0)
	w.must(w.vfs.LinkAt(w.ctx, w.creds, &vfs.PathOperation{Root: fd.VirtualDentry(), Start: fd.VirtualDentry()}, w.pop("/named", false)))
	fd.DecRef(w.ctx)
	w.wantFile("/named", pattern(100_000))
	w.must(w.unlink("/named"))
	fd, err = w.open("/", linux.O_TMPFILE|linux.O_DIRECTORY|linux.O_RDWR)
	w.must(err)
	w.pwrite(fd, pattern(100_000), 0)
	fd.DecRef(w.ctx)
	fd, err = w.open("/", linux.O_TMPFILE|linux.O_DIRECTORY|linux.O_RDWR|linux.O_EXCL)
	w.must(err)
	err = w.vfs.LinkAt(w.ctx, w.creds, &vfs.PathOperation{Root: fd.VirtualDentry(), Start: fd.VirtualDentry()}, w.pop("/no", false))
	w.wantErr("name a file that shall have none", err, linuxerr.ENOENT)
	fd.DecRef(w.ctx)
	w.must(w.fs().Sync(w.ctx))
	if after := w.fs().w.StatFS(); after.FilesFree != before.FilesFree || after.BlocksFree != before.BlocksFree {
		t.Errorf("%d inodes, %d blocks free, before %d and %d", after.FilesFree, after.BlocksFree, before.FilesFree, before.BlocksFree)
	}
	w.finish(path)
}

func TestACLsDecideAndAreHandedOn(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	user, other := w.as(1000, 1000), w.as(1001, 1001)
	mask := vfs.AccessTypes(7)
	acl := (&vfs.PosixACL{UGOPerms: 0o750, Mask: &mask, Users: []vfs.ACLUser{{UID: 1000, Perms: 7}}}).Serialize(w.creds.UserNamespace)
	set := func(path, name string) {
		t.Helper()
		w.must(w.vfs.SetXattrAt(w.ctx, w.creds, w.pop(path, true), &vfs.SetXattrOptions{Name: name, Value: string(acl)}))
	}
	w.must(w.mkdir("/d"))
	set("/d", linux.XATTR_NAME_POSIX_ACL_ACCESS)
	set("/d", linux.XATTR_NAME_POSIX_ACL_DEFAULT)
	if st := w.mustStat("/d"); st.Mode&0o777 != 0o770 {
		t.Errorf("mode %#o of a directory with a list, want that of the list", st.Mode)
	}
	fd, err := w.create("/d/f", linux.O_RDWR, 0o666)
	w.must(err)
	fd.DecRef(w.ctx)
	if st := w.mustStat("/d/f"); st.Mode&0o777 != 0o660 {
		t.Errorf("mode %#o of a file in it, want 0660", st.Mode)
	}
	fd, err = user.open("/d/f", linux.O_RDWR)
	w.must(err)
	fd.DecRef(w.ctx)
	_, err = other.open("/d/f", linux.O_RDONLY)
	w.wantErr("open by one who is not in the list", err, linuxerr.EACCES)
	w.chmod("/d/f", 0o600) // takes the mask away
	_, err = user.open("/d/f", linux.O_RDONLY)
	w.wantErr("open after chmod", err, linuxerr.EACCES)
	w.must(w.mkdir("/d/e"))
	got, err := w.vfs.GetXattrAt(w.ctx, w.creds, w.pop("/d/e", true), &vfs.GetXattrOptions{Name: linux.XATTR_NAME_POSIX_ACL_DEFAULT})
	if err != nil || got != string(acl) {
		t.Errorf("the default list of a directory below: %d bytes, %v", len(got), err)
	}
	w.must(w.vfs.RemoveXattrAt(w.ctx, w.creds, w.pop("/d/f", true), linux.XATTR_NAME_POSIX_ACL_ACCESS))
	_, err = w.vfs.GetXattrAt(w.ctx, w.creds, w.pop("/d/f", true), &vfs.GetXattrOptions{Name: linux.XATTR_NAME_POSIX_ACL_ACCESS})
	w.wantErr("a removed list", err, linuxerr.ENODATA)
	w.finish(path)
}

// TestAVolumeThatFailsLeavesTheSandboxAlive has the upper layer of an overlay
// fail between the halves of what the overlay takes for one.
func TestAVolumeThatFailsLeavesTheSandboxAlive(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	w.must(w.mkdir("/u"))
	w.must(w.mkdir("/l"))
	w.writeFile("/u/f", "x")
	for _, name := range []string{"f", "g", "h"} {
		w.writeFile("/l/"+name, "below")
	}
	u, _, release := upperOf(w, "/u", "/l")
	whiteout := func(name string) error { return u.whiteout("/", name) }
	// A rename leaves a whiteout over what is below, and making it once more is no
	// error.
	w.must(u.rename("/f", "/g", 0))
	if st, err := w.lstat("/u/f"); err != nil || st.Mode != linux.S_IFCHR || st.RdevMajor != 0 || st.RdevMinor != 0 {
		t.Errorf("where a file was renamed away: mode %#o, %v", st.Mode, err)
	}
	w.must(whiteout("/f"))
	w.wantErr("a whiteout by others", w.vfs.MknodAt(w.ctx, w.creds, w.pop("/u/f", false), &vfs.MknodOptions{Mode: linux.S_IFCHR}), linuxerr.EEXIST)
	w.fs().w.(*ext4Volume).fs.Abandon() // as a failing host does
	w.wantErr("unlink on a failed volume", u.unlink("/g"), linuxerr.EROFS)
	w.must(whiteout("/h"))
	w.must(u.vfs.SetXattrAt(u.ctx, u.creds, u.pop("/", true), &vfs.SetXattrOptions{Name: "trusted.overlay.opaque", Value: "y"}))
	w.wantErr("a whiteout by others", w.vfs.MknodAt(w.ctx, w.creds, w.pop("/u/i", false), &vfs.MknodOptions{Mode: linux.S_IFCHR}), linuxerr.EROFS)
	release()
}
