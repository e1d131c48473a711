// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/lock"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

const (
	xattrOpaque = "trusted.overlay.opaque"
	xattrCaps   = "security.capability"

	// netRaw is cap_net_raw+ep, as setcap writes it.
	netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)

// enterMountNamespace gives w a mount namespace, with a tmpfs as its root: deleting
// files by an overlay needs one to look for mount points in.
func (w *world) enterMountNamespace() *vfs.MountNamespace {
	w.t.Helper()
	ns, err := w.vfs.NewMountNamespace(w.ctx, w.creds, "upper", "tmpfs", &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true},
	}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ctx = &mountNamespaceContext{w.ctx, ns}
	return ns
}

// mountNamespaceContext gives out references on a mount namespace, as a task does.
type mountNamespaceContext struct {
	context.Context
	ns *vfs.MountNamespace
}

func (c *mountNamespaceContext) Value(key any) any {
	if key == vfs.CtxMountNamespace {
		c.ns.IncRef()
		return c.ns
	}
	return c.Context.Value(key)
}

// mountOverlay stacks images, the topmost first, under a tmpfs.
func mountOverlay(t testing.TB, images ...[]file) (*world, []*filesystem) {
	t.Helper()
	var layers []*filesystem
	w := newWorld(t)
	ns := w.enterMountNamespace()
	upper := ns.Root(w.ctx).Mount()
	opts := overlay.FilesystemOptions{UpperRoot: vfs.MakeVirtualDentry(upper, upper.Root())}
	opts.UpperRoot.Dentry().IncRef()
	for _, files := range images {
		mnt, err := w.mountEROFS(buildImage(t, files...))
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, mnt.Filesystem().Impl().(*filesystem))
		mnt.Root().IncRef()
		opts.LowerRoots = append(opts.LowerRoots, vfs.MakeVirtualDentry(mnt, mnt.Root()))
	}
	mnt, err := w.vfs.MountDisconnected(w.ctx, w.creds, "overlay", "overlay", &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true, InternalData: opts},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The overlay has its own references.
	opts.UpperRoot.DecRef(w.ctx)
	for _, vd := range opts.LowerRoots {
		vd.DecRef(w.ctx)
	}
	return w.use(mnt), layers
}

func (w *world) names(dir string) []string {
	w.t.Helper()
	ds, err := w.list(dir)
	if err != nil {
		w.t.Fatalf("list %s: %v", dir, err)
	}
	var names []string
	for _, d := range ds {
		if d.Name != "." && d.Name != ".." {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestOverlay(t *testing.T) {
	top := []file{
		{path: "bin/new", mode: 0o755, data: "new"},
		{path: "bin/gone", mode: linux.S_IFCHR},
		{path: "opaque", mode: linux.S_IFDIR | 0o755, xattrs: map[string]string{xattrOpaque: "y"}},
		{path: "opaque/only", mode: 0o644},
		{path: "dev/null", mode: linux.S_IFCHR | 0o666, major: 1, minor: 3},
	}
	bottom := []file{
		{path: "bin/gone", mode: 0o755, data: "old"},
		{path: "bin/old", mode: 0o755, data: pattern(9000), xattrs: map[string]string{xattrCaps: netRaw, "user.a": "b"}},
		{path: "bin/same", link: "bin/old"},
		{path: "opaque/hidden", mode: 0o644},
		{path: "dev/zero", mode: linux.S_IFCHR | 0o666, major: 1, minor: 5},
	}
	w, layers := mountOverlay(t, top, bottom)
	for dir, want := range map[string][]string{
		"/": {"bin", "dev", "opaque"}, "bin": {"new", "old", "same"}, "opaque": {"only"}, "dev": {"null", "zero"},
	} {
		if got := w.names(dir); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", dir, got, want)
		}
	}
	_, err := w.lstat("bin/gone")
	w.wantErr("stat of a file under a whiteout", err, linuxerr.ENOENT)
	if st := w.mustStat("dev/zero"); st.RdevMajor != 1 || st.RdevMinor != 5 {
		t.Errorf("device number %d:%d, want 1:5", st.RdevMajor, st.RdevMinor)
	}
	w.checkMapping("bin/old", pattern(9000))

	fd := w.mustOpen("bin/old", linux.O_RDWR) // copied up
	if v, err := w.vfs.GetXattrAt(w.ctx, w.creds, w.pop("bin/old", true), &vfs.GetXattrOptions{Name: xattrCaps}); err != nil || v != netRaw {
		t.Errorf("%s after the copy-up: %q, %v", xattrCaps, v, err)
	}
	if _, err := fd.PWrite(w.ctx, usermem.BytesIOSequence([]byte("UP")), 0, vfs.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	fd.DecRef(w.ctx)
	if got, err := w.readFile("bin/old"); err != nil || got != "UP"+pattern(9000)[2:] {
		t.Errorf("after the copy-up: %d bytes, %v", len(got), err)
	}
	if err := w.vfs.UnlinkAt(w.ctx, w.creds, w.pop("bin/new", false)); err != nil {
		t.Fatal(err)
	}
	if err := w.vfs.MkdirAt(w.ctx, w.creds, w.pop("bin/gone", false), &vfs.MkdirOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if got := w.names("bin"); !slices.Equal(got, []string{"gone", "old", "same"}) {
		t.Errorf("after the changes, bin has %q", got)
	}
	w.mnt.DecRef(w.ctx)
	for n, fs := range layers {
		if fs.vol.Files()[0].fd != -1 {
			t.Errorf("layer %d is still open after the overlay was released", n)
		}
	}
}

// aclBlob makes the value of an ACL attribute with a user and a mask.
func aclBlob(user uint32, perms uint16) string {
	b := binary.LittleEndian.AppendUint32(nil, linux.POSIX_ACL_XATTR_VERSION)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{
		{linux.ACL_USER_OBJ, 6, ^uint32(0)}, {linux.ACL_USER, perms, user}, {linux.ACL_GROUP_OBJ, 0, ^uint32(0)},
		{linux.ACL_MASK, 7, ^uint32(0)}, {linux.ACL_OTHER, 0, ^uint32(0)},
	} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

func TestXattrs(t *testing.T) {
	long := strings.Repeat("v", 3000)
	all := map[string]string{"user.a": "1", "user.long": long, "trusted.b": "2", xattrCaps: "3"}
	w := mountImage(t,
		file{path: "f", mode: 0o644, xattrs: all},
		file{path: "secret", mode: 0o600, xattrs: map[string]string{"user.a": "1", xattrCaps: "3"}},
		file{path: "plain", mode: 0o644},
		file{path: "dev", mode: linux.S_IFCHR | 0o666, major: 1, minor: 3, xattrs: map[string]string{xattrCaps: "3"}},
	)
	defer w.unmount()
	user := w.as(1000, 1000)
	get := func(w *world, path, name string) (string, error) {
		return w.vfs.GetXattrAt(w.ctx, w.creds, w.pop(path, true), &vfs.GetXattrOptions{Name: name})
	}
	for name, want := range all {
		if got, err := get(w, "f", name); err != nil || got != want {
			t.Errorf("getxattr %s: %d bytes, %v", name, len(got), err)
		}
	}
	names, err := w.vfs.ListXattrAt(w.ctx, w.creds, w.pop("f", true), 0)
	if slices.Sort(names); err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(all))) {
		t.Errorf("listxattr by root: %q, %v", names, err)
	}
	fd := user.mustOpen("f", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	names, err = fd.ListXattr(user.ctx, 0)
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{xattrCaps, "user.a", "user.long"}) {
		t.Errorf("listxattr by a user: %q, %v", names, err)
	}
	if v, err := fd.GetXattr(user.ctx, &vfs.GetXattrOptions{Name: "user.a"}); err != nil || v != "1" {
		t.Errorf("fgetxattr: %q, %v", v, err)
	}
	if v, err := get(user, "secret", xattrCaps); err != nil || v != "3" {
		t.Errorf("%s of an unreadable file: %q, %v", xattrCaps, v, err)
	}
	for _, c := range []struct {
		w          *world
		path, name string
		want       error
	}{
		{w, "plain", "user.a", linuxerr.ENODATA},
		{w, "plain", "trusted.b", linuxerr.ENODATA},
		{w, "plain", linux.XATTR_NAME_POSIX_ACL_ACCESS, linuxerr.ENODATA},
		{w, "plain", "system.other", linuxerr.EOPNOTSUPP},
		{w, "plain", "rubbish", linuxerr.EOPNOTSUPP},
		{w, "dev", "user.a", linuxerr.ENODATA},
		{user, "f", "trusted.b", linuxerr.ENODATA},
		{user, "secret", "user.a", linuxerr.EACCES},
		{w, "nothing", "user.a", linuxerr.ENOENT},
	} {
		if _, err := get(c.w, c.path, c.name); err != c.want {
			t.Errorf("getxattr %s %s: got %v, want %v", c.path, c.name, err, c.want)
		}
	}
}

func TestPosixACL(t *testing.T) {
	access, def := linux.XATTR_NAME_POSIX_ACL_ACCESS, linux.XATTR_NAME_POSIX_ACL_DEFAULT
	w := mountImage(t,
		file{path: "f", mode: 0o670, data: "data", xattrs: map[string]string{access: aclBlob(1000, 4)}},
		file{path: "d", mode: linux.S_IFDIR | 0o755, xattrs: map[string]string{def: aclBlob(1000, 7)}},
	)
	defer w.unmount()
	if got, err := w.as(1000, 1000).readFile("f"); err != nil || got != "data" {
		t.Errorf("read by the user in the ACL: %q, %v", got, err)
	}
	_, err := w.as(1001, 1001).readFile("f")
	w.wantErr("read by another user", err, linuxerr.EACCES)
	for path, name := range map[string]string{"f": access, "d": def} {
		v, err := w.vfs.GetXattrAt(w.ctx, w.creds, w.pop(path, true), &vfs.GetXattrOptions{Name: name})
		want := aclBlob(1000, map[string]uint16{"f": 4, "d": 7}[path])
		if err != nil || v != want {
			t.Errorf("getxattr %s %s: %q, %v; want %q", path, name, v, err, want)
		}
	}
	acl, err := w.vfs.GetPosixACLAt(w.ctx, w.creds, w.pop("d", true), vfs.DefaultACL)
	if err != nil || acl == nil {
		t.Errorf("default ACL of a directory: %v, %v", acl, err)
	}
}

// nullDevice stands for /dev/null. It implements vfs.Device.
type nullDevice struct{ opened int }

func (d *nullDevice) Open(context.Context, *vfs.Mount, *vfs.Dentry, vfs.OpenOptions) (*vfs.FileDescription, error) {
	d.opened++
	return nil, linuxerr.ENODEV
}

func TestDevices(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	null := &nullDevice{}
	if err := w.vfs.RegisterDevice(vfs.CharDevice, 1, 3, null, &vfs.RegisterDeviceOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := w.open("dev/null", linux.O_RDWR)
	w.wantErr("open /dev/null", err, linuxerr.ENODEV)
	if null.opened != 1 {
		t.Errorf("the device was opened %d times, want once", null.opened)
	}
}

func TestFifo(t *testing.T) {
	w := mountImage(t, append(sampleFiles(), file{path: "fifo2", link: "fifo"})...)
	defer w.unmount()
	r := w.mustOpen("fifo", linux.O_RDONLY|linux.O_NONBLOCK)
	defer r.DecRef(w.ctx)
	wr := w.mustOpen("fifo2", linux.O_WRONLY)
	if _, err := wr.Write(w.ctx, usermem.BytesIOSequence([]byte("through")), vfs.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	wr.DecRef(w.ctx)
	buf := make([]byte, 100)
	if n, err := r.Read(w.ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{}); err != nil || string(buf[:n]) != "through" {
		t.Errorf("read from a pipe with two names: %q, %v", buf[:n], err)
	}
}

func TestLocks(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	a, b := w.mustOpen("etc/passwd", linux.O_RDONLY), w.mustOpen("etc/hard", linux.O_RDONLY)
	defer b.DecRef(w.ctx)
	if err := a.LockBSD(w.ctx, 1, lock.WriteLock, false); err != nil {
		t.Fatal(err)
	}
	w.wantErr("lock another name of a locked file", b.LockBSD(w.ctx, 2, lock.WriteLock, false), linuxerr.ErrWouldBlock)
	a.DecRef(w.ctx)
	if err := b.LockBSD(w.ctx, 2, lock.WriteLock, false); err != nil {
		t.Errorf("lock after the other was closed: %v", err)
	}
}

func BenchmarkStatUnderOverlay(b *testing.B) {
	path := "usr/lib/python3/dist-packages/foo.py"
	w, _ := mountOverlay(b, []file{{path: "other", mode: 0o644}}, []file{{path: path, mode: 0o644}})
	b.ReportAllocs()
	for b.Loop() {
		w.mustStat(path)
	}
}
