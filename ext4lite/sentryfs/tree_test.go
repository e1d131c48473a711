// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// pattern is data in which every 8 bytes differ.
func pattern(n int) string {
	var sb strings.Builder
	for i := 0; sb.Len() < n; i += 8 {
		fmt.Fprintf(&sb, "%07x\n", i)
	}
	return sb.String()[:n]
}

func sampleFiles() []file {
	return []file{
		{path: "etc", mode: linux.S_IFDIR | 0o755},
		{path: "etc/passwd", mode: 0o644, data: "root:x:0:0\n"},
		{path: "etc/shadow", mode: 0o600, data: "secret"},
		{path: "etc/hard", link: "etc/passwd"},
		{path: "bin", mode: linux.S_IFLNK | 0o777, target: "usr/bin"},
		{path: "usr/bin/tool", mode: 0o755, data: pattern(3*4096 + 17)},
		{path: "usr/bin/up", mode: linux.S_IFLNK | 0o777, target: "../../etc/passwd"},
		{path: "loop", mode: linux.S_IFLNK | 0o777, target: "loop"},
		{path: "private", mode: linux.S_IFDIR | 0o700, uid: 7},
		{path: "private/in", mode: 0o644, data: "x"},
		{path: "dev/null", mode: linux.S_IFCHR | 0o666, major: 1, minor: 3},
		{path: "dev/sda", mode: linux.S_IFBLK | 0o660, major: 8, minor: 0},
		{path: "dev/big", mode: linux.S_IFCHR | 0o660, major: 300, minor: 70000},
		{path: "fifo", mode: linux.S_IFIFO | 0o666},
		{path: "sock", mode: linux.S_IFSOCK | 0o666},
		{path: "whiteout", mode: linux.S_IFCHR},
		{path: "sparse", mode: 0o644, data: pattern(64 << 10), size: 20 << 20},
		{path: "empty", mode: 0o644},
	}
}

func TestStatAndWalk(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	for path, mode := range map[string]uint16{
		"/":                   linux.S_IFDIR | 0o755,
		"etc":                 linux.S_IFDIR | 0o755,
		"etc/../etc/./passwd": linux.S_IFREG | 0o644,
		"bin/tool":            linux.S_IFREG | 0o755,
		"bin/up":              linux.S_IFREG | 0o644,
		"bin/":                linux.S_IFDIR | 0o755,
		"../../etc":           linux.S_IFDIR | 0o755,
		"fifo":                linux.S_IFIFO | 0o666,
		"sock":                linux.S_IFSOCK | 0o666,
	} {
		if st := w.mustStat(path); st.Mode != mode {
			t.Errorf("stat %s: mode %#o, want %#o", path, st.Mode, mode)
		}
	}
	st := w.mustStat("bin/tool")
	if st.Size != 3*4096+17 || st.Mtime.Sec != 1_700_000_000 || st.Mtime.Nsec != 5 || st.Nlink != 1 {
		t.Errorf("stat of bin/tool: %+v", st)
	}
	if st := w.mustStat("dev/big"); st.RdevMajor != 300 || st.RdevMinor != 70000 {
		t.Errorf("device number %d:%d, want 300:70000", st.RdevMajor, st.RdevMinor)
	}
	if st, err := w.lstat("whiteout"); err != nil || st.RdevMajor != 0 || st.RdevMinor != 0 || st.Mode != linux.S_IFCHR {
		t.Errorf("whiteout: %+v, %v", st, err)
	}
	if target, err := w.vfs.ReadlinkAt(w.ctx, w.creds, w.pop("bin", false)); err != nil || target != "usr/bin" {
		t.Errorf("readlink: %q, %v", target, err)
	}

	for path, want := range map[string]error{
		"nothing":                         linuxerr.ENOENT,
		"nothing/at/all":                  linuxerr.ENOENT,
		"etc/passwd/x":                    linuxerr.ENOTDIR,
		"etc/passwd/":                     linuxerr.ENOTDIR,
		"loop":                            linuxerr.ELOOP,
		strings.Repeat("n", 256):          linuxerr.ENAMETOOLONG,
		"etc/" + strings.Repeat("n", 255): linuxerr.ENOENT,
	} {
		for range 2 { // the second time from the cache
			_, err := w.vfs.StatAt(w.ctx, w.creds, w.pop(path, true), &vfs.StatOptions{})
			if err != want {
				t.Errorf("stat %.20s: got %v, want %v", path, err, want)
			}
		}
	}
}

func TestPermissions(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	user := w.as(1000, 1000)
	_, err := user.lstat("private/in")
	w.wantErr("walk through a directory of mode 0700", err, linuxerr.EACCES)
	_, err = user.readFile("etc/shadow")
	w.wantErr("read a file of mode 0600", err, linuxerr.EACCES)
	if _, err := w.as(7, 7).lstat("private/in"); err != nil {
		t.Errorf("the owner cannot walk: %v", err)
	}
	w.wantErr("access(W_OK) of a file", w.vfs.AccessAt(w.ctx, w.creds, vfs.MayWrite, w.pop("etc/passwd", true)), linuxerr.EROFS)
	if err := w.vfs.AccessAt(w.ctx, w.creds, vfs.MayWrite, w.pop("dev/null", true)); err != nil {
		t.Errorf("access(W_OK) of a device: %v", err)
	}
	w.wantErr("access(X_OK) of a file without", user.vfs.AccessAt(user.ctx, user.creds, vfs.MayExec, user.pop("etc/passwd", true)), linuxerr.EACCES)
}

func TestChangesAreRefused(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	v, ctx, creds := w.vfs, w.ctx, w.creds
	etc, err := v.GetDentryAt(ctx, creds, w.pop("etc/passwd", true), &vfs.GetDentryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer etc.DecRef(ctx)
	open := func(path string, flags uint32) error {
		fd, err := w.open(path, flags)
		if err == nil {
			fd.DecRef(ctx)
		}
		return err
	}
	for what, c := range map[string]struct{ got, want error }{
		"mkdir":                 {v.MkdirAt(ctx, creds, w.pop("new", false), &vfs.MkdirOptions{}), linuxerr.EROFS},
		"mkdir over a file":     {v.MkdirAt(ctx, creds, w.pop("etc", false), &vfs.MkdirOptions{}), linuxerr.EEXIST},
		"mkdir in nothing":      {v.MkdirAt(ctx, creds, w.pop("no/new", false), &vfs.MkdirOptions{}), linuxerr.ENOENT},
		"mknod":                 {v.MknodAt(ctx, creds, w.pop("new", false), &vfs.MknodOptions{Mode: linux.S_IFREG}), linuxerr.EROFS},
		"symlink":               {v.SymlinkAt(ctx, creds, w.pop("new", false), "x"), linuxerr.EROFS},
		"unlink":                {v.UnlinkAt(ctx, creds, w.pop("etc/passwd", false)), linuxerr.EROFS},
		"rmdir":                 {v.RmdirAt(ctx, creds, w.pop("etc", false)), linuxerr.EROFS},
		"rename":                {v.RenameAt(ctx, creds, w.pop("etc", false), w.pop("etc2", false), &vfs.RenameOptions{}), linuxerr.EROFS},
		"chmod":                 {v.SetStatAt(ctx, creds, w.pop("etc", true), &vfs.SetStatOptions{}), linuxerr.EROFS},
		"setxattr":              {v.SetXattrAt(ctx, creds, w.pop("etc", true), &vfs.SetXattrOptions{Name: "user.a"}), linuxerr.EROFS},
		"removexattr":           {v.RemoveXattrAt(ctx, creds, w.pop("etc", true), "user.a"), linuxerr.EROFS},
		"open for writing":      {open("etc/passwd", linux.O_RDWR), linuxerr.EROFS},
		"open with O_TRUNC":     {open("etc/passwd", linux.O_TRUNC), linuxerr.EROFS},
		"open a dir to write":   {open("etc", linux.O_WRONLY), linuxerr.EISDIR},
		"create":                {open("etc/new", linux.O_CREAT|linux.O_RDWR), linuxerr.EROFS},
		"create exclusively":    {open("etc/passwd", linux.O_CREAT|linux.O_EXCL), linuxerr.EEXIST},
		"create through a link": {open("bin/up", linux.O_CREAT), nil},
		"create existing":       {open("etc/passwd", linux.O_CREAT), nil},
		"create a directory":    {open("etc", linux.O_CREAT), linuxerr.EISDIR},
		"create behind a slash": {open("etc/new/", linux.O_CREAT), linuxerr.EISDIR},
		"create the root":       {open("/", linux.O_CREAT), linuxerr.EISDIR},
		"O_TMPFILE":             {open("etc", linux.O_TMPFILE|linux.O_RDWR|linux.O_DIRECTORY), linuxerr.EROFS},
		"open a socket":         {open("sock", linux.O_RDONLY), linuxerr.ENXIO},
		"open a whiteout":       {open("whiteout", linux.O_RDONLY), linuxerr.ENXIO},
		"open no device":        {open("dev/sda", linux.O_RDONLY), linuxerr.ENXIO},
		"open a fifo to write":  {open("fifo", linux.O_WRONLY|linux.O_NONBLOCK), linuxerr.ENXIO},
		"open a fifo to read":   {open("fifo", linux.O_RDONLY|linux.O_NONBLOCK), nil},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
	_, err = v.BoundEndpointAt(ctx, creds, w.pop("sock", true), &vfs.BoundEndpointOptions{})
	w.wantErr("connect to a socket", err, linuxerr.ECONNREFUSED)
}

func TestHardLinksAreOneInode(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	a, b := w.mustOpen("etc/passwd", linux.O_RDONLY), w.mustOpen("etc/hard", linux.O_RDONLY)
	defer a.DecRef(w.ctx)
	defer b.DecRef(w.ctx)
	da, db := a.Dentry().Impl().(*dentry), b.Dentry().Impl().(*dentry)
	if da == db || da.inode != db.inode {
		t.Errorf("dentries %p and %p have inodes %p and %p, want two dentries of one inode", da, db, da.inode, db.inode)
	}
	if a.Dentry().Watches() != b.Dentry().Watches() || da.inode.opened() != db.inode.opened() {
		t.Error("hard links do not share watches, locks and mappings")
	}
	if st := w.mustStat("etc/hard"); st.Nlink != 2 || st.Ino != w.mustStat("etc/passwd").Ino {
		t.Errorf("stat of a hard link: %+v", st)
	}
}

func TestPaths(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	fd := w.mustOpen("bin/tool", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	got, err := w.vfs.PathnameWithDeleted(w.ctx, w.root, fd.VirtualDentry())
	if err != nil || got != "/usr/bin/tool" {
		t.Errorf("path of an open file: %q, %v", got, err)
	}
	usr, err := w.vfs.GetDentryAt(w.ctx, w.creds, w.pop("usr", true), &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer usr.DecRef(w.ctx)
	if fs := w.fs(); !fs.IsDescendant(usr, fd.VirtualDentry()) || fs.IsDescendant(fd.VirtualDentry(), usr) {
		t.Error("IsDescendant is wrong about /usr and /usr/bin/tool")
	}
	var b fspath.Builder
	if err := w.fs().PrependPath(w.ctx, usr, fd.VirtualDentry(), &b); err != (vfs.PrependPathAtVFSRootError{}) || b.String() != "bin/tool" {
		t.Errorf("path below a chroot: %q, %v", b.String(), err)
	}
}

func TestReadFiles(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	for path, want := range map[string]string{
		"etc/passwd": "root:x:0:0\n",
		"bin/tool":   pattern(3*4096 + 17),
		"sparse":     pattern(64<<10) + strings.Repeat("\x00", 20<<20-64<<10),
		"empty":      "",
	} {
		got, err := w.readFile(path)
		if err != nil || got != want {
			t.Errorf("read %s: %d bytes, %v; want %d bytes", path, len(got), err, len(want))
		}
	}
	fd := w.mustOpen("sparse", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)
	for _, c := range []struct {
		off    int64
		whence int32
		want   int64
	}{
		{100, linux.SEEK_DATA, 100}, {100, linux.SEEK_HOLE, 64 << 10}, {1 << 20, linux.SEEK_HOLE, 1 << 20}, {-1, linux.SEEK_END, 20<<20 - 1},
	} {
		if got, err := fd.Seek(w.ctx, c.off, c.whence); err != nil || got != c.want {
			t.Errorf("seek to %d by %d: %d, %v; want %d", c.off, c.whence, got, err, c.want)
		}
	}
	_, err := fd.Seek(w.ctx, 1<<20, linux.SEEK_DATA)
	w.wantErr("seek for data behind the last", err, linuxerr.ENXIO)
	st, err := w.vfs.StatFSAt(w.ctx, w.creds, w.pop("etc", true))
	if err != nil || st.Type != erofsMagic || st.NameLength != 255 || st.Blocks == 0 {
		t.Errorf("statfs: %+v, %v", st, err)
	}
}

func TestReadDirOf100kEntries(t *testing.T) {
	const n = 100_000
	files := []file{{path: "first", mode: 0o644}}
	for i := range n {
		files = append(files, file{path: fmt.Sprintf("dir/entry-%06d", i), link: "first"})
	}
	w := mountImage(t, files...)
	defer w.unmount()
	fd := w.mustOpen("dir", linux.O_RDONLY)
	defer fd.DecRef(w.ctx)

	// As getdents does: some entries a call, going on where the last stopped.
	full := fmt.Errorf("buffer full")
	seen := map[string]int64{}
	var names []string
	for last := -1; len(seen) != last; {
		last = len(seen)
		room := 512
		err := fd.IterDirents(w.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
			if room == 0 {
				return full
			}
			room--
			if _, dup := seen[d.Name]; dup {
				t.Fatalf("entry %q comes twice", d.Name)
			}
			seen[d.Name] = d.NextOff
			names = append(names, d.Name)
			return nil
		}))
		if err != nil && err != full {
			t.Fatal(err)
		}
	}
	if len(seen) != n+2 {
		t.Fatalf("%d entries, want %d and two dots", len(seen), n)
	}
	// telldir and seekdir.
	for range 100 {
		i := rand.IntN(len(names) - 1)
		if _, err := fd.Seek(w.ctx, seen[names[i]], linux.SEEK_SET); err != nil {
			t.Fatal(err)
		}
		fd.IterDirents(w.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
			if d.Name != names[i+1] {
				t.Errorf("behind %q comes %q, want %q", names[i], d.Name, names[i+1])
			}
			return full
		}))
	}
	for _, i := range []int{0, 1, 50_000, n - 1} {
		w.mustStat(fmt.Sprintf("dir/entry-%06d", i))
	}
}

func TestDirentsAgreeWithStat(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	for _, dir := range []string{"/", "usr", "dev"} {
		ds, err := w.list(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			st, err := w.lstat(dir + "/" + d.Name)
			if err != nil || st.Ino != d.Ino || uint8(st.Mode>>12) != d.Type {
				t.Errorf("%s/%s: entry %+v, stat %+v, %v", dir, d.Name, d, st, err)
			}
		}
	}
}

func TestDentryCacheIsBounded(t *testing.T) {
	var files []file
	const n = 3 * maxCachedDentries
	for i := range n {
		files = append(files, file{path: fmt.Sprintf("d%02d/f%05d", i%100, i), mode: 0o644})
	}
	w := mountImage(t, files...)
	defer w.unmount()
	held := w.mustOpen("d00/f00000", linux.O_RDONLY)
	defer held.DecRef(w.ctx)
	for i := range n {
		w.mustStat(fmt.Sprintf("d%02d/f%05d", i%100, i))
		w.lstat(fmt.Sprintf("d%02d/no%05d", i%100, i))
	}
	cached := len(w.fs().dentries.all())
	// 101 names are held by the file and by their children.
	if most := maxCachedDentries + maxCachedDentries/8 + 101; cached > most {
		t.Errorf("%d names are cached, want at most %d", cached, most)
	}
	if again := w.mustOpen("d00/f00000", linux.O_RDONLY); again.Dentry() != held.Dentry() {
		t.Error("a name that is held was evicted")
	} else {
		again.DecRef(w.ctx)
	}
}

func TestWatchKeepsDentry(t *testing.T) {
	w := mountImage(t, sampleFiles()...)
	defer w.unmount()
	ino, err := vfs.NewInotifyFD(w.ctx, w.vfs, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := w.mustOpen("etc/passwd", linux.O_RDONLY)
	d := fd.Dentry().Impl().(*dentry)
	ino.Impl().(*vfs.Inotify).AddWatch(fd.Dentry(), linux.IN_OPEN)
	fd.DecRef(w.ctx)
	w.fs().dentries.evictUnused()
	fd = w.mustOpen("etc/hard", linux.O_RDONLY)
	fd.DecRef(w.ctx)
	if d.refs.Load() == dead {
		t.Error("a watched name was evicted")
	}
	if got := ino.Readiness(1); got == 0 {
		t.Error("opening another name of a watched file gives no event")
	}
	ino.DecRef(w.ctx)
}

func TestConcurrentWalkers(t *testing.T) {
	files := sampleFiles()
	for i := range 2 * maxCachedDentries {
		files = append(files, file{path: fmt.Sprintf("many/d%d/f%d", i%37, i), link: "empty"})
	}
	w := mountImage(t, files...)
	defer w.unmount()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v := w.as(0, 0)
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 2000 {
				i := r.IntN(2 * maxCachedDentries)
				if _, err := v.lstat(fmt.Sprintf("many/d%d/f%d", i%37, i)); err != nil {
					t.Error(err)
				}
				v.lstat(fmt.Sprintf("many/d%d/f%d", i%36, i))
				if got, err := v.readFile("bin/up"); err != nil || got != "root:x:0:0\n" {
					t.Errorf("read: %q, %v", got, err)
				}
			}
		}()
	}
	wg.Wait()
}

func BenchmarkStatCached(b *testing.B) {
	w := mountImage(b, file{path: "usr/lib/python3/dist-packages/foo.py", mode: 0o644})
	b.RunParallel(func(pb *testing.PB) {
		v := w.as(0, 0)
		pop := v.pop("usr/lib/python3/dist-packages/foo.py", true)
		for pb.Next() {
			if _, err := v.vfs.StatAt(v.ctx, v.creds, pop, &vfs.StatOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
