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
