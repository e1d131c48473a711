// SPDX-License-Identifier: Apache-2.0

// Requests that no honest sandbox makes, and trees that somebody changes meanwhile.

package gofer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"

	"z.gfire.dev/gvx/runtime/api"
)

// TestNoWayOut: no name leads above or beside a tree.
func TestNoWayOut(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(outside, "tree")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"up": "..", "abs": outside, "file": secret, "proc": "/proc/self/root", "fd": "/proc/self/fd"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := serveTree(t, dir, nil)
	for _, name := range []string{"..", ".", "", "../secret", "sub/..", "/", "sub/../../secret", "\x00"} {
		if i, err := s.root.Walk(s.ctx, name); err == nil {
			t.Errorf("walk %q: %+v", name, i)
		}
		if st, err := s.root.WalkStat(s.ctx, []string{"sub", name}); err == nil && len(st) > 1 {
			t.Errorf("stat %q: %+v", name, st)
		}
		if _, err := s.root.MkdirAt(s.ctx, name, 0o755, anyUID, anyGID); err == nil {
			t.Errorf("mkdir %q", name)
		}
		if err := s.root.UnlinkAt(s.ctx, name, unix.AT_REMOVEDIR); err == nil {
			t.Errorf("unlink %q", name)
		}
		if err := s.root.RenameAt(s.ctx, "sub", s.root.ID(), name, 0); err == nil {
			t.Errorf("rename to %q", name)
		}
	}
	// Links are found, and are nothing but text.
	for _, link := range []string{"up", "abs", "file", "proc", "fd"} {
		fd, st, err := s.walk(link)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("%s: mode %#o, %v", link, st.Mode, err)
			continue
		}
		if _, err := s.open(fd, unix.O_RDONLY); err == nil {
			t.Errorf("%s was opened", link)
		}
		for _, below := range []string{link + "/secret", link + "/1", link + "/sub"} {
			if _, st, err := s.walk(below); err == nil {
				t.Errorf("%s leads to %+v", below, st)
			}
		}
		if _, _, _, err := s.root.OpenCreateAt(s.ctx, link, unix.O_WRONLY|unix.O_TRUNC, 0o644, anyUID, anyGID); !is(err, unix.EEXIST) {
			t.Errorf("create over the link %s: %v", link, err)
		}
		if _, failure, err := fd.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_MODE, Mode: 0o777}); err == nil && failure == nil {
			t.Errorf("chmod of the link %s", link)
		}
		if _, failure, err := fd.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_SIZE}); err == nil && failure == nil {
			t.Errorf("truncate of the link %s", link)
		}
	}
	if data, err := os.ReadFile(secret); string(data) != "secret" {
		t.Errorf("outside: %q, %v", data, err)
	}
	if st, err := os.Stat(secret); err != nil || st.Mode() != 0o644 {
		t.Errorf("outside: %v, %v", st, err)
	}
}

// TestExchangedDirectory: while a path is walked and made, somebody exchanges one of
// its directories for a link to the outside, again and again.
func TestExchangedDirectory(t *testing.T) {
	base := t.TempDir()
	outside, dir := filepath.Join(base, "outside"), filepath.Join(base, "tree")
	for _, d := range []string{outside, filepath.Join(dir, "real"), filepath.Join(dir, "a")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"real/f", "a/f"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("inside!"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	s := serveTree(t, dir, nil)
	var stop atomic.Bool
	done := make(chan struct{})
	swaps := 0
	go func() {
		defer close(done)
		for ; !stop.Load(); swaps++ {
			// "a" is a directory, then the link, then the directory.
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "a"), unix.AT_FDCWD, filepath.Join(dir, "link"), unix.RENAME_EXCHANGE)
		}
	}()
	buf := make([]byte, 16)
	found := 0
	for range 3000 {
		if st, err := s.root.WalkStat(s.ctx, []string{"a", "f"}); err == nil && len(st) > 1 {
			found++
		}
		fd, _, err := s.walk("a/f")
		if err != nil {
			continue
		}
		if o, err := s.open(fd, unix.O_RDWR); err == nil {
			if n, _ := o.Read(s.ctx, buf, 0); string(buf[:n]) != "inside!" {
				t.Fatalf("read %q", buf[:n])
			}
			o.Close(s.ctx, true)
		}
		fd.Close(s.ctx, true)
		if a, _, err := s.walk("a"); err == nil {
			_, _, _, _ = a.OpenCreateAt(s.ctx, "new", unix.O_RDWR, 0o644, anyUID, anyGID)
			_ = a.UnlinkAt(s.ctx, "new", 0)
			a.Close(s.ctx, true)
		}
	}
	stop.Store(true)
	<-done
	if found == 0 || swaps < 100 {
		t.Errorf("the race did not take place: %d found, %d exchanges", found, swaps)
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	if data, _ := os.ReadFile(filepath.Join(outside, "f")); string(data) != "outside" {
		t.Errorf("outside: %q", data)
	}
}

// TestExchangedForWhatIsMade: somebody puts a file of the host's in the place of what
// the guest makes, between its making and its finishing: it keeps its owner, and is not
// removed.
func TestExchangedForWhatIsMade(t *testing.T) {
	dir := t.TempDir()
	made, other := filepath.Join(dir, "made"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := serveTree(t, dir, nil)
	var stop atomic.Bool
	// Nobody exchanges anything while the test itself tidies up.
	var swapping sync.Mutex
	done := make(chan struct{})
	swaps := 0
	go func() {
		defer close(done)
		for !stop.Load() {
			swapping.Lock()
			if unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
			swapping.Unlock()
		}
	}()
	uid, gid := anyUID, anyGID
	if os.Geteuid() == 0 {
		uid, gid = 1234, 1234
	}
	var st unix.Stat_t
	for i := range 600 {
		var fd lisafs.Inode
		if i%2 == 0 {
			fd, err = s.root.SymlinkAt(s.ctx, "made", "nowhere", anyUID, anyGID)
		} else {
			fd, err = s.root.MknodAt(s.ctx, "made", unix.S_IFREG|0o644, uid, gid, 0, 0)
		}
		if err == nil {
			file := s.client.NewFD(fd.ControlFD)
			file.Close(s.ctx, false)
		}
		swapping.Lock()
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink != 1 || st.Uid != uint32(os.Geteuid()) {
			t.Fatalf("after %d: %d names, owner %d, %v", i, st.Nlink, st.Uid, err)
		}
		// What is not the host's file is removed, by whichever name it goes.
		var name unix.Stat_t
		for _, path := range []string{made, other} {
			if unix.Lstat(path, &name) == nil && name.Ino != st.Ino {
				_ = unix.Unlink(path)
			}
		}
		if unix.Lstat(made, &name) == nil && name.Ino == st.Ino {
			_ = os.Rename(made, other)
		}
		swapping.Unlock()
	}
	stop.Store(true)
	<-done
	if swaps < 100 {
		t.Errorf("the race did not take place: %d exchanges", swaps)
	}
}

// TestNothingToTalkTo: pipes, sockets and devices are seen, not opened, and only
// pipes of the Sentry's own are made.
func TestNothingToTalkTo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	names := []string{"pipe"}
	if err := unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o666, 0); err == nil {
		names = append(names, "sock")
	}
	if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err == nil {
		names = append(names, "null")
	}
	s := serveTree(t, dir, nil)
	for _, name := range names {
		fd := s.must(name)
		for _, flags := range []uint32{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR} {
			if _, err := s.open(fd, flags); !is(err, unix.ENXIO) {
				t.Errorf("open %s: %v", name, err)
			}
		}
		if _, failure, err := fd.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_SIZE}); err == nil && failure == nil {
			t.Errorf("truncate %s", name)
		}
	}
	for kind, dev := range map[uint32]uint32{unix.S_IFCHR: 3, unix.S_IFBLK: 3, unix.S_IFIFO: 0, unix.S_IFSOCK: 0, unix.S_IFDIR: 0, unix.S_IFLNK: 0} {
		if _, err := s.root.MknodAt(s.ctx, "n", linux.FileMode(kind|0o666), anyUID, anyGID, dev, 1); !is(err, unix.EPERM) {
			t.Errorf("mknod %#o: %v", kind, err)
		}
	}
	if _, _, err := s.root.BindAt(s.ctx, unix.SOCK_STREAM, "b", 0o666, anyUID, anyGID); !is(err, unix.EPERM) {
		t.Errorf("bind: %v", err)
	}
	if _, err := s.root.Connect(s.ctx, unix.SOCK_STREAM, lisafs.UID(lisafs.NoUID), lisafs.GID(lisafs.NoGID)); !is(err, unix.EOPNOTSUPP) {
		t.Errorf("connect: %v", err)
	}
}

// TestReadOnlyTree: no request changes anything.
func TestReadOnlyTree(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := serveTree(t, dir, func(g *api.Gofer) { g.Trees[0].ReadOnly = true })
	f := s.must("f")
	_, errTrunc := s.open(f, unix.O_RDONLY|unix.O_TRUNC)
	_, errWrite := s.open(f, unix.O_WRONLY)
	_, errMkdir := s.root.MkdirAt(s.ctx, "d", 0o755, anyUID, anyGID)
	_, _, _, errCreate := s.root.OpenCreateAt(s.ctx, "n", unix.O_RDONLY, 0o644, anyUID, anyGID)
	_, errLink := s.root.LinkAt(s.ctx, f.ID(), "l")
	_, errSymlink := s.root.SymlinkAt(s.ctx, "l", "x", anyUID, anyGID)
	_, errMknod := s.root.MknodAt(s.ctx, "n", unix.S_IFREG|0o644, anyUID, anyGID, 0, 0)
	_, failure, errSet := f.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_MODE, Mode: 0o777})
	for what, err := range map[string]error{
		"truncate": errTrunc, "write": errWrite, "mkdir": errMkdir, "create": errCreate, "link": errLink, "symlink": errSymlink, "mknod": errMknod,
		"chmod": errors.Join(errSet, failure), "unlink": s.root.UnlinkAt(s.ctx, "f", 0), "rename": s.root.RenameAt(s.ctx, "f", s.root.ID(), "g", 0),
		"setxattr": f.SetXattr(s.ctx, "user.a", "x", 0), "removexattr": f.RemoveXattr(s.ctx, "user.a"),
	} {
		if !is(err, unix.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNoSetID: a tree without set-id programs keeps no such bit, made or set.
func TestNoSetID(t *testing.T) {
	dir := t.TempDir()
	s := serveTree(t, dir, func(g *api.Gofer) { g.Trees[0].NoSUID = true })
	_, _, host, err := s.root.OpenCreateAt(s.ctx, "f", unix.O_RDWR, 0o6755, anyUID, anyGID)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(host)
	f := s.must("f")
	if _, failure, err := f.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_MODE, Mode: 0o6755}); err != nil || failure != nil {
		t.Error(failure, err)
	}
	if err := f.SetXattr(s.ctx, fileCapability, "x", 0); !is(err, unix.EOPNOTSUPP) {
		t.Errorf("capability: %v", err)
	}
	// A directory's bit says whose its files are.
	if _, err := s.root.MkdirAt(s.ctx, "d", 0o755, anyUID, anyGID); err != nil {
		t.Error(err)
	}
	d := s.must("d")
	if _, failure, err := d.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_MODE, Mode: 0o2755}); err != nil || failure != nil {
		t.Error(failure, err)
	}
	for name, want := range map[string]os.FileMode{"f": 0o755, "d": os.ModeDir | os.ModeSetgid | 0o755} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// TestOneUser: where the process has one user's rights, files are the container's
// user's, and nobody is given any.
func TestOneUser(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := serveTree(t, dir, func(g *api.Gofer) { g.Owner = &api.HostUser{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())} })
	f, st, err := s.walk("mine")
	if err != nil || st.UID != 7 || st.GID != 8 {
		t.Fatalf("%+v, %v", st, err)
	}
	// A file of another guest user's is the host user's all the same.
	if i, err := s.root.MkdirAt(s.ctx, "d", 0o755, 1000, 1000); err != nil || i.Stat.UID != 7 || i.Stat.GID != 8 {
		t.Errorf("%+v, %v", i, err)
	}
	chown := func(uid, gid uint32) error {
		_, failure, err := f.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: uid, GID: gid})
		return errors.Join(err, failure)
	}
	if err := chown(7, 8); err != nil {
		t.Errorf("give it to its owner: %v", err)
	}
	for _, to := range [][2]uint32{{0, 8}, {7, 0}, {1000, 1000}, {nobody, nobody}} {
		if err := chown(to[0], to[1]); !is(err, unix.EPERM) {
			t.Errorf("give it to %v: %v", to, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "mine")); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestGarbage: what is no request ends the connection, and nothing else.
func TestGarbage(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"no hello":        []byte("GET / HTTP/1.1\r\n\r\n"),
		"half a hello":    []byte("gvx"),
		"unknown message": append((&api.GoferHello{}).Marshal(), 0, 0, 0, 0, 0xff, 0xff, 0, 0),
		"short body":      append((&api.GoferHello{}).Marshal(), 8, 0, 0, 0, 5, 0, 0, 0, 1, 2, 3),
	} {
		root, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		trees, err := openTrees(&api.Gofer{Trees: []api.GoferTree{{RootFD: api.FD(root), SocketFD: api.FD(ends[0])}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(ends[1], bytes); err != nil {
			t.Fatal(err)
		}
		unix.Close(ends[1])
		err = trees[0].serve()
		if (err != nil) != (name == "no hello") {
			t.Errorf("%s: %v", name, err)
		}
		unix.Close(root)
	}
}

// FuzzRequests: whatever comes over the socket, the connection ends, and what lies
// beside the tree stays as it is.
func FuzzRequests(f *testing.F) {
	message := func(id uint16, body ...byte) []byte {
		head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
		return append(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(head, id), 0), body...)
	}
	f.Add(slices.Concat(message(1), message(2), message(3, 1, 0, 0, 0, 0, 0, 0, 0)))
	f.Add(slices.Concat(message(1), message(5, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, '.', '.')))
	f.Add(slices.Concat(message(1), message(12, bytes.Repeat([]byte{0xff}, 64)...)))
	f.Fuzz(func(t *testing.T, requests []byte) {
		// lisafs makes room for what is announced: there the limit on memory ends a
		// gofer, which a fuzzer's process does not have.
		for rest := requests; len(rest) >= 8; {
			length := binary.LittleEndian.Uint32(rest)
			if length > 2<<20 {
				t.Skip()
			}
			rest = rest[min(uint64(len(rest)), 8+uint64(length)):]
		}
		base := t.TempDir()
		dir := filepath.Join(base, "tree")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		trees, err := openTrees(&api.Gofer{Trees: []api.GoferTree{{RootFD: api.FD(root), SocketFD: api.FD(ends[0])}}})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer unix.Close(ends[1])
			rest := append((&api.GoferHello{}).Marshal(), requests...)
			for len(rest) > 0 {
				n, err := unix.Write(ends[1], rest)
				if err != nil {
					return
				}
				rest = rest[n:]
			}
		}()
		if err := trees[0].serve(); err != nil {
			t.Error(err)
		}
		unix.Close(root)
		if entries, err := os.ReadDir(base); err != nil || len(entries) != 1 {
			t.Errorf("beside the tree: %v, %v", entries, err)
		}
	})
}
