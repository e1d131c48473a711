// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/fsck"
)

const testVolumeBytes = 64 << 20

// newVolume makes an empty volume in a file.
func newVolume(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume.ext4")
	dev, err := device.CreateFile(path, testVolumeBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := ext4lite.Mkfs(dev, ext4lite.MkfsOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// newClone makes a delta on a volume.
func newClone(t testing.TB, base string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clone.delta")
	if err := delta.Create(path, base, delta.Options{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// donate opens a volume's files as a launcher does, and gives the descriptors.
func donate(t testing.TB, path string, access device.Access) []int {
	t.Helper()
	files, err := delta.OpenChain(path, access)
	if err != nil {
		t.Fatal(err)
	}
	fds := make([]int, len(files))
	for n, f := range files {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		fds[len(files)-1-n] = fd
	}
	return fds
}

// mountExt4 mounts a volume in a world of its own, for reading and writing.
func mountExt4(t testing.TB, path string) *world {
	t.Helper()
	w := newWorld(t)
	return w.use(w.mountVolume(path, vfs.MountOptions{}))
}

func (w *world) mountVolume(path string, opts vfs.MountOptions) *vfs.Mount {
	w.t.Helper()
	access := device.ReadWrite
	if opts.ReadOnly {
		access = device.ReadOnly
	}
	opts.GetFilesystemOptions = vfs.GetFilesystemOptions{
		InternalMount: true,
		InternalData: Ext4Options{
			FDs: donate(w.t, path, access), ReadOnly: opts.ReadOnly, ProcessDurability: true, ID: testID,
		},
	}
	mnt, err := w.vfs.MountDisconnected(w.ctx, w.creds, "test", Ext4Name, &opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return mnt
}

// check finds nothing wrong with a volume that nobody has open.
func check(t testing.TB, path string) {
	t.Helper()
	if e2fsck, err := exec.LookPath("e2fsck"); err == nil && !strings.HasSuffix(path, ".delta") {
		if out, err := exec.Command(e2fsck, "-fn", path).CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
	}
	dev, err := delta.OpenAny(path, device.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	report, err := fsck.Check(dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Problems {
		t.Errorf("volume: %v", p)
	}
}

// finish unmounts a volume and checks it.
func (w *world) finish(path string) {
	w.t.Helper()
	fs := w.fs()
	w.mnt.DecRef(w.ctx)
	if n := len(fs.inodes.m); n != 0 {
		w.t.Errorf("%d inodes are left after the file system was released", n)
	}
	check(w.t, path)
}

func (w *world) create(path string, flags uint32, mode linux.FileMode) (*vfs.FileDescription, error) {
	return w.vfs.OpenAt(w.ctx, w.creds, w.pop(path, true), &vfs.OpenOptions{Flags: flags | linux.O_CREAT, Mode: mode})
}

func (w *world) mustCreate(path string) *vfs.FileDescription {
	w.t.Helper()
	fd, err := w.create(path, linux.O_RDWR, 0o644)
	if err != nil {
		w.t.Fatalf("create %s: %v", path, err)
	}
	return fd
}

func (w *world) pwrite(fd *vfs.FileDescription, data string, off int64) {
	w.t.Helper()
	n, err := fd.PWrite(w.ctx, usermem.BytesIOSequence([]byte(data)), off, vfs.WriteOptions{})
	if err != nil || n != int64(len(data)) {
		w.t.Fatalf("write %d bytes at %d: %d, %v", len(data), off, n, err)
	}
}

func (w *world) writeFile(path, data string) {
	w.t.Helper()
	fd, err := w.create(path, linux.O_WRONLY|linux.O_TRUNC, 0o644)
	if err != nil {
		w.t.Fatalf("create %s: %v", path, err)
	}
	defer fd.DecRef(w.ctx)
	if data != "" {
		w.pwrite(fd, data, 0)
	}
}

func (w *world) wantFile(path, want string) {
	w.t.Helper()
	got, err := w.readFile(path)
	if err != nil || got != want {
		w.t.Errorf("%s: %d bytes, %v; want %d bytes", path, len(got), err, len(want))
	}
}

func (w *world) mkdir(path string) error {
	return w.vfs.MkdirAt(w.ctx, w.creds, w.pop(path, false), &vfs.MkdirOptions{Mode: 0o755})
}

func (w *world) unlink(path string) error {
	return w.vfs.UnlinkAt(w.ctx, w.creds, w.pop(path, false))
}

func (w *world) rmdir(path string) error {
	return w.vfs.RmdirAt(w.ctx, w.creds, w.pop(path, false))
}

func (w *world) rename(from, to string, flags uint32) error {
	return w.vfs.RenameAt(w.ctx, w.creds, w.pop(from, false), w.pop(to, false), &vfs.RenameOptions{Flags: flags})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestFilesOfAVolumeAreMadeChangedAndRemoved(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	w.writeFile("/a", "hello")
	w.wantFile("/a", "hello")
	w.must(w.mkdir("/d"))
	w.must(w.mkdir("/d/e"))
	w.writeFile("/d/e/f", pattern(100_000))
	w.wantFile("/d/e/f", pattern(100_000))
	w.wantErr("mkdir of what exists", w.mkdir("/d"), linuxerr.EEXIST)
	w.wantErr("rmdir of a full directory", w.rmdir("/d"), linuxerr.ENOTEMPTY)
	w.must(w.rename("/d/e", "/e", 0))
	w.wantFile("/e/f", pattern(100_000))
	_, err := w.lstat("/d/e")
	w.wantErr("stat of the old name", err, linuxerr.ENOENT)
	w.must(w.rmdir("/d"))
	w.must(w.rename("/a", "/e/f", 0))
	w.wantFile("/e/f", "hello")
	w.must(w.vfs.SymlinkAt(w.ctx, w.creds, w.pop("/link", false), "e/f"))
	w.wantFile("/link", "hello")
	if st := w.mustStat("/link"); st.Nlink != 1 || st.Size != 5 {
		t.Errorf("stat: %d links, %d bytes", st.Nlink, st.Size)
	}
	w.must(w.vfs.LinkAt(w.ctx, w.creds, w.pop("/e/f", false), w.pop("/hard", false)))
	if st := w.mustStat("/hard"); st.Nlink != 2 {
		t.Errorf("%d links, want 2", st.Nlink)
	}
	w.must(w.unlink("/e/f"))
	w.wantFile("/hard", "hello")
	w.finish(path)

	w = mountExt4(t, path)
	w.wantFile("/hard", "hello")
	_, err = w.readFile("/link")
	w.wantErr("read of a dangling link", err, linuxerr.ENOENT)
	w.finish(path)
}

func TestAnUnlinkedFileLivesUntilItIsClosed(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	before := w.fs().w.StatFS()
	fd := w.mustCreate("/f")
	w.pwrite(fd, pattern(1<<20), 0)
	w.must(w.unlink("/f"))
	w.pwrite(fd, "x", 0)
	st, err := fd.Stat(w.ctx, vfs.StatOptions{})
	if err != nil || st.Nlink != 0 || st.Size != 1<<20 {
		t.Errorf("stat: %d links, %d bytes, %v", st.Nlink, st.Size, err)
	}
	fd.DecRef(w.ctx)
	w.must(w.fs().Sync(w.ctx))
	if after := w.fs().w.StatFS(); after.BlocksFree != before.BlocksFree || after.FilesFree != before.FilesFree {
		t.Errorf("%d blocks and %d inodes free, before %d and %d", after.BlocksFree, after.FilesFree, before.BlocksFree, before.FilesFree)
	}
	w.finish(path)
}

func TestARemovedDirectoryIsFreedAlthoughAbsentNamesInItAreCached(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	before := w.fs().w.StatFS()
	w.must(w.mkdir("/d"))
	for _, name := range []string{"/d/a", "/d/b", "/d/c"} {
		_, err := w.lstat(name)
		w.wantErr("stat", err, linuxerr.ENOENT)
	}
	w.must(w.rmdir("/d"))
	if after := w.fs().w.StatFS(); after.FilesFree != before.FilesFree {
		t.Errorf("%d inodes free, before %d", after.FilesFree, before.FilesFree)
	}
	w.finish(path)
}

// TestMemoryDoesNotGrowOverCreatedAndRemovedFiles makes and removes files and
// directories, and looks at what the process keeps.
func TestMemoryDoesNotGrowOverCreatedAndRemovedFiles(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	rounds := 20_000
	if os.Getenv("GVX_NIGHTLY") != "" {
		rounds = 1_000_000
	}
	churn := func(n int) {
		for k := range n {
			name := fmt.Sprintf("/f%d", k)
			if k%10 == 0 {
				w.must(w.mkdir(name))
				_, err := w.lstat(name + "/absent")
				w.wantErr("stat", err, linuxerr.ENOENT)
				w.must(w.rmdir(name))
				continue
			}
			w.writeFile(name, "x")
			w.must(w.unlink(name))
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	churn(rounds / 2)
	before := heap()
	churn(rounds)
	if after := heap(); after > before+before/4+1<<20 {
		t.Errorf("%d bytes after %d files, %d before", after, rounds, before)
	}
	w.finish(path)
}

// TestManyDoAllAtOnce works on few names from many goroutines: what they see
// must be possible, and the volume whole.
func TestManyDoAllAtOnce(t *testing.T) {
	path := newVolume(t)
	w := mountExt4(t, path)
	for _, d := range []string{"/a", "/b", "/a/c"} {
		w.must(w.mkdir(d))
	}
	dirs := []string{"/", "/a/", "/b/", "/a/c/", "/b/c/"}
	possible := []*gverrors.Error{
		linuxerr.ENOENT, linuxerr.EEXIST, linuxerr.ENOTDIR, linuxerr.EISDIR, linuxerr.ENOTEMPTY, linuxerr.EINVAL, linuxerr.EPERM,
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			v := *w
			v.ctx = w.context(w.creds)
			rnd := rand.New(rand.NewPCG(7, uint64(g)))
			name := func() string { return dirs[rnd.IntN(len(dirs))] + string(rune('p'+rnd.IntN(6))) }
			for range 1500 {
				if err := v.anything(rnd, name(), name()); err != nil && !slices.ContainsFunc(possible, func(e *gverrors.Error) bool { return linuxerr.Equals(e, err) }) {
					t.Errorf("unexpected: %v", err)
				}
			}
		})
	}
	group.Wait()
	w.finish(path)
}

// anything does one random operation.
func (w *world) anything(rnd *rand.Rand, a, b string) error {
	switch rnd.IntN(12) {
	case 0, 1:
		fd, err := w.create(a, linux.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		defer fd.DecRef(w.ctx)
		fd.PWrite(w.ctx, usermem.BytesIOSequence([]byte(pattern(rnd.IntN(10_000)+1))), int64(rnd.IntN(20_000)), vfs.WriteOptions{})
		g := w.mapFile(fd, 0, 4, rnd.IntN(2) == 0)
		defer g.unmap()
		for k := range uint64(4) {
			g.touch(k*page, []byte("touched"), g.writable) // or SIGBUS, if somebody cut the file
		}
		return nil
	case 2:
		return w.mkdir(a)
	case 3, 4:
		return w.rename(a, b, 0)
	case 5:
		return w.rename(a, b, linux.RENAME_EXCHANGE)
	case 6:
		return w.rename("/a/c", "/b/c", 0)
	case 7:
		return w.rename("/b/c", "/a/c", 0)
	case 8:
		return w.unlink(a)
	case 9:
		return w.rmdir(a)
	case 10:
		return w.vfs.LinkAt(w.ctx, w.creds, w.pop(a, false), w.pop(b, false))
	}
	_, err := w.list(a[:len(a)-1] + ".")
	return err
}

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
	w.writeFile("/u/f", "x")
	dir, err := w.vfs.GetDentryAt(w.ctx, w.creds, w.pop("/u", true), &vfs.GetDentryOptions{})
	w.must(err)
	mnt := w.vfs.NewDisconnectedMount(w.mnt.Filesystem(), dir.Dentry(), &vfs.MountOptions{})
	dir.DecRef(w.ctx)
	MarkUpper(mnt)
	upper := vfs.MakeVirtualDentry(mnt, mnt.Root())
	u := *w
	u.root = upper
	whiteout := func(name string) error {
		return u.vfs.MknodAt(u.ctx, u.creds, u.pop(name, false), &vfs.MknodOptions{Mode: linux.S_IFCHR})
	}
	// A rename leaves a whiteout, and making it once more is no error.
	w.must(u.rename("/f", "/g", 0))
	if st, err := w.lstat("/u/f"); err != nil || st.Mode != linux.S_IFCHR || st.RdevMajor != 0 || st.RdevMinor != 0 {
		t.Errorf("where a file was renamed away: mode %#o, %v", st.Mode, err)
	}
	w.must(whiteout("/f"))
	w.wantErr("a whiteout over a file", whiteout("/g"), linuxerr.EEXIST)
	w.wantErr("a whiteout by others", w.vfs.MknodAt(w.ctx, w.creds, w.pop("/u/f", false), &vfs.MknodOptions{Mode: linux.S_IFCHR}), linuxerr.EEXIST)
	w.fs().w.(*ext4Volume).fs.Abandon() // as a failing host does
	w.wantErr("unlink on a failed volume", u.unlink("/g"), linuxerr.EROFS)
	w.must(whiteout("/h"))
	w.must(u.vfs.SetXattrAt(u.ctx, u.creds, u.pop("/", true), &vfs.SetXattrOptions{Name: "trusted.overlay.opaque", Value: "y"}))
	w.wantErr("a whiteout by others", w.vfs.MknodAt(w.ctx, w.creds, w.pop("/u/i", false), &vfs.MknodOptions{Mode: linux.S_IFCHR}), linuxerr.EROFS)
	mnt.DecRef(w.ctx)
}

// TestVolumesOfSmallBlocks uses a volume as mkfs.ext4 makes small ones: its
// files are read and written, but cannot be mapped.
func TestVolumesOfSmallBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume.ext4")
	dev, err := device.CreateFile(path, testVolumeBytes)
	if err != nil {
		t.Fatal(err)
	}
	err = ext4lite.Mkfs(dev, ext4lite.MkfsOptions{BlockSize: 1024})
	dev.Close()
	if err != nil {
		t.Fatal(err)
	}
	w := mountExt4(t, path)
	w.writeFile("/f", pattern(50_000))
	w.wantFile("/f", pattern(50_000))
	fd := w.mustOpen("/f", linux.O_RDONLY)
	w.wantErr("mmap", fd.ConfigureMMap(w.ctx, &memmap.MMapOpts{Length: page, Private: true}), linuxerr.ENODEV)
	fd.DecRef(w.ctx)
	w.finish(path)
}
