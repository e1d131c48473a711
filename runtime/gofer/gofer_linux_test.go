// SPDX-License-Identifier: Apache-2.0

// The server asked by lisafs' own client, in this process: what it does, and what
// it does not do whoever asks.

package gofer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/unet"

	"z.gfire.dev/gvx/runtime/api"
)

// TestMain stands where a gofer stands: see [file.self]. As a gofer, this binary is
// one that was taken over.
func TestMain(m *testing.M) {
	if os.Args[0] == api.GoferName {
		takenOver()
	}
	unix.Umask(0)
	has := func(flag string) bool {
		return slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, flag) })
	}
	// Who coordinates fuzzing keeps what is found where it stands; its workers serve.
	if !has("-test.fuzz=") || has("-test.fuzzworker") {
		if err := os.Chdir("/proc/self/fd"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// served is a tree and a client of it.
type served struct {
	*testing.T
	ctx    context.Context
	dir    string
	client *lisafs.Client
	root   lisafs.ClientFD
}

// serveTree serves a directory, or a file, of the test's.
func serveTree(t *testing.T, dir string, change func(*api.Gofer)) *served {
	t.Helper()
	root, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &api.Gofer{Version: api.SpecVersion, Trees: []api.GoferTree{{RootFD: api.FD(root), SocketFD: api.FD(ends[0]), Name: dir}}}
	if change != nil {
		change(cfg)
	}
	trees, err := openTrees(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- trees[0].serve() }()
	hello := api.GoferHello{UID: 7, GID: 8}
	if _, err := unix.Write(ends[1], hello.Marshal()); err != nil {
		t.Fatal(err)
	}
	sock, err := unet.NewSocket(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	client, inode, _, err := lisafs.NewClient(sock)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.StartChannels(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		unix.Close(root)
	})
	return &served{t, context.Background(), dir, client, client.NewFD(inode.ControlFD)}
}

// walk finds a path, one name at a time as far as it goes.
func (s *served) walk(path string) (lisafs.ClientFD, lisafs.Statx, error) {
	_, inodes, err := s.root.WalkMultiple(s.ctx, strings.Split(path, "/"))
	if err == nil && len(inodes) != strings.Count(path, "/")+1 {
		err = unix.ENOENT
	}
	if err != nil {
		return lisafs.ClientFD{}, lisafs.Statx{}, err
	}
	last := inodes[len(inodes)-1]
	return s.client.NewFD(last.ControlFD), last.Stat, nil
}

// must is walk for what has to be there.
func (s *served) must(path string) lisafs.ClientFD {
	s.Helper()
	fd, _, err := s.walk(path)
	if err != nil {
		s.Fatalf("%s: %v", path, err)
	}
	return fd
}

func (s *served) write(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
}

// open opens a file and closes the descriptor that was given away with it.
func (s *served) open(fd lisafs.ClientFD, flags uint32) (lisafs.ClientFD, error) {
	id, host, err := fd.OpenAt(s.ctx, flags)
	if host >= 0 {
		unix.Close(host)
	}
	return s.client.NewFD(id), err
}

const anyUID, anyGID = lisafs.UID(lisafs.NoUID), lisafs.GID(lisafs.NoGID)

// is says whether an error is the host's errno, however gVisor dresses it.
func is(err error, errno unix.Errno) bool {
	return err != nil && (errors.Is(err, errno) || err.Error() == errno.Error() || fmt.Sprint(err) == fmt.Sprint(errno))
}

func TestFilesOfATree(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	s.write("a", "hello")
	a, st, err := s.walk("a")
	if err != nil || st.Size != 5 || st.Mode != unix.S_IFREG|0o644 {
		t.Fatalf("%+v, %v", st, err)
	}
	// Writes of the host's are there at once, and the reverse.
	o, err := s.open(a, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	s.write("a", "HELLO!")
	buf := make([]byte, 10)
	if n, err := o.Read(s.ctx, buf, 0); err != nil || string(buf[:n]) != "HELLO!" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if _, err := o.Write(s.ctx, []byte("J"), 0); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(s.dir, "a")); string(data) != "JELLO!" {
		t.Errorf("the host has %q, %v", data, err)
	}
	// A file without a name is the same file.
	if err := s.root.UnlinkAt(s.ctx, "a", 0); err != nil {
		t.Fatal(err)
	}
	if err := a.StatTo(s.ctx, &st); err != nil || st.Nlink != 0 {
		t.Errorf("after unlink: %+v, %v", st, err)
	}
	set := linux.Statx{
		Mask: linux.STATX_SIZE | linux.STATX_MODE | linux.STATX_MTIME, Size: 2, Mode: 0o600, Mtime: linux.StatxTimestamp{Sec: 77, Nsec: 5},
	}
	if _, failure, err := a.SetStat(s.ctx, &set); err != nil || failure != nil {
		t.Errorf("set attributes of an unlinked file: %v, %v", failure, err)
	}
	if err := a.StatTo(s.ctx, &st); err != nil || st.Size != 2 || st.Mode&0o7777 != 0o600 || st.Mtime.Sec != 77 || st.Mtime.Nsec != 5 {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestNames(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	_, err := s.root.MkdirAt(s.ctx, "d", 0o751, anyUID, anyGID)
	if err != nil {
		t.Fatal(err)
	}
	d := s.must("d")
	if _, err := d.SymlinkAt(s.ctx, "l", "/etc/passwd", anyUID, anyGID); err != nil {
		t.Fatal(err)
	}
	l := s.must("d/l")
	if to, err := l.ReadLinkAt(s.ctx); err != nil || to != "/etc/passwd" {
		t.Errorf("link: %q, %v", to, err)
	}
	// Another name for the link itself, and a time of its own.
	if _, err := s.root.LinkAt(s.ctx, l.ID(), "l2"); err != nil {
		t.Error(err)
	}
	if _, failure, err := l.SetStat(s.ctx, &linux.Statx{Mask: linux.STATX_MTIME, Mtime: linux.StatxTimestamp{Sec: 5}}); err != nil || failure != nil {
		t.Error(failure, err)
	}
	if st, err := os.Lstat(filepath.Join(s.dir, "l2")); err != nil || st.ModTime().Unix() != 5 {
		t.Errorf("%v, %v", st, err)
	}
	_, id, host, err := d.OpenCreateAt(s.ctx, "f", unix.O_RDWR, 0o4711, anyUID, anyGID)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(host)
	if st, err := os.Stat(filepath.Join(s.dir, "d/f")); err != nil || st.Mode() != 0o711|os.ModeSetuid {
		t.Errorf("%v, %v", st, err)
	}
	made := s.client.NewFD(id)
	if _, err := made.Write(s.ctx, []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := d.RenameAt(s.ctx, "f", s.root.ID(), "g", 0); err != nil {
		t.Error(err)
	}
	if err := s.root.RenameAt(s.ctx, "g", d.ID(), "l", unix.RENAME_NOREPLACE); !is(err, unix.EEXIST) {
		t.Errorf("rename onto a name that is taken: %v", err)
	}
	if err := s.root.UnlinkAt(s.ctx, "d", unix.AT_REMOVEDIR); !is(err, unix.ENOTEMPTY) {
		t.Errorf("rmdir of a full directory: %v", err)
	}
	if names := s.list(); !slices.Equal(names, []string{"d", "g", "l2"}) {
		t.Errorf("names %q", names)
	}
}

// list reads the root's names.
func (s *served) list() []string {
	s.Helper()
	o, err := s.open(s.root, unix.O_RDONLY)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for count := int32(-4096); ; count = 4096 {
		list, err := o.Getdents64(s.ctx, count)
		if err != nil {
			s.Fatal(err)
		}
		if len(list) == 0 {
			slices.Sort(names)
			return names
		}
		for _, d := range list {
			if d.Name != "." && d.Name != ".." {
				names = append(names, string(d.Name))
			}
		}
	}
}

func TestBigDirectory(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	const files = 5000
	for i := range files {
		s.write(fmt.Sprintf("%d-%s", i, strings.Repeat("n", i%200)), "")
	}
	if names := s.list(); len(names) != files || len(slices.Compact(names)) != files {
		t.Errorf("%d names of %d", len(names), files)
	}
}

func TestAttributes(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	s.write("f", "")
	f := s.must("f")
	if err := f.SetXattr(s.ctx, "user.a", "value", 0); is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system of the test's directory has no attributes")
	} else if err != nil {
		t.Fatal(err)
	}
	if v, err := f.GetXattr(s.ctx, "user.a", 0); err != nil || v != "value" {
		t.Errorf("%q, %v", v, err)
	}
	for _, name := range []string{"trusted.overlay.opaque", "security.selinux", "system.posix_acl_access", "user."} {
		if err := f.SetXattr(s.ctx, name, "x", 0); !is(err, unix.EOPNOTSUPP) {
			t.Errorf("set %s: %v", name, err)
		}
		if _, err := f.GetXattr(s.ctx, name, 100); !is(err, unix.ENODATA) {
			t.Errorf("get %s: %v", name, err)
		}
	}
	if names, err := f.ListXattr(s.ctx, 1000); err != nil || !slices.Equal(names, []string{"user.a"}) {
		t.Errorf("%q, %v", names, err)
	}
	if err := f.RemoveXattr(s.ctx, "user.a"); err != nil {
		t.Error(err)
	}
}

func TestOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := serveTree(t, path, nil)
	o, err := s.open(s.root, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := o.Read(s.ctx, buf, 0); err != nil || string(buf[:n]) != "one" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if _, _, err := s.walk("x"); err == nil {
		t.Error("a name below a file was found")
	}
}

// TestSeveralNames: a file that has lost the name by which it was found can be used
// as long as it has another.
func TestSeveralNames(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	s.write("f", "text")
	f := s.must("f")
	if _, err := s.root.SymlinkAt(s.ctx, "l", "to", anyUID, anyGID); err != nil {
		t.Fatal(err)
	}
	l := s.must("l")
	for _, c := range []struct {
		fd   lisafs.ClientFD
		name string
	}{{f, "f"}, {l, "l"}} {
		if _, err := s.root.LinkAt(s.ctx, c.fd.ID(), c.name+"2"); err != nil {
			t.Fatal(err)
		}
		if err := s.root.UnlinkAt(s.ctx, c.name, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.root.LinkAt(s.ctx, c.fd.ID(), c.name+"3"); err != nil {
			t.Errorf("link %s: %v", c.name, err)
		}
	}
	if to, err := l.ReadLinkAt(s.ctx); err != nil || to != "to" {
		t.Errorf("%q, %v", to, err)
	}
	if _, err := s.open(f, unix.O_RDWR); err != nil {
		t.Error(err)
	}
	if err := f.SetXattr(s.ctx, "user.a", "x", 0); err != nil && !is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
}

// TestDirents: entries are read up to the end of what the kernel has written, and
// what is no entry ends the list.
func TestDirents(t *testing.T) {
	entry := func(name string) []byte {
		b := make([]byte, (direntNameOffset+len(name)+8)&^7)
		binary.NativeEndian.PutUint64(b, 7)
		binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
		b[18] = unix.DT_DIR
		copy(b[direntNameOffset:], name)
		return b
	}
	names := func(b []byte) (list []string) {
		for d := range dirents(b[:len(b):len(b)]) {
			if d.Ino != 7 || d.Type != unix.DT_DIR {
				t.Errorf("%+v", d)
			}
			list = append(list, string(d.Name))
		}
		return list
	}
	long := strings.Repeat("n", 255)
	all := slices.Concat(entry("a"), entry(long), entry("b"))
	if got := names(all); !slices.Equal(got, []string{"a", long, "b"}) {
		t.Errorf("%q", got)
	}
	for cut := range len(all) {
		if got := names(all[:cut]); len(got) > 2 {
			t.Errorf("%d bytes: %q", cut, got)
		}
	}
	binary.NativeEndian.PutUint16(all[16:], 0)
	if got := names(all); len(got) != 0 {
		t.Errorf("an entry of no length: %q", got)
	}
}

// TestMadeTwice: a file that the client knows, and that the host has removed, is not
// made again before the client has been told.
func TestMadeTwice(t *testing.T) {
	s := serveTree(t, t.TempDir(), nil)
	create := func(name string) error {
		_, _, host, err := s.root.OpenCreateAt(s.ctx, name, unix.O_RDWR, 0o644, anyUID, anyGID)
		if host > 0 {
			unix.Close(host)
		}
		return err
	}
	if err := create("f"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.dir, "f")); err != nil {
		t.Fatal(err)
	}
	if err := create("f"); !is(err, unix.EEXIST) {
		t.Errorf("of a name that it knows: %v", err)
	}
	if _, _, err := s.walk("f"); !is(err, unix.ENOENT) {
		t.Errorf("walk: %v", err)
	}
	if err := create("f"); err != nil {
		t.Errorf("after it was told: %v", err)
	}
	// What the client itself has removed or moved it knows to be gone.
	if err := s.root.UnlinkAt(s.ctx, "f", 0); err != nil {
		t.Fatal(err)
	}
	if err := create("f"); err != nil {
		t.Errorf("after unlink: %v", err)
	}
	if err := s.root.RenameAt(s.ctx, "f", s.root.ID(), "g", 0); err != nil {
		t.Fatal(err)
	}
	if err := create("f"); err != nil {
		t.Errorf("after rename: %v", err)
	}
	if err := os.Remove(filepath.Join(s.dir, "g")); err != nil {
		t.Fatal(err)
	}
	if err := create("g"); !is(err, unix.EEXIST) {
		t.Errorf("of the name that it was given: %v", err)
	}
	var k known
	for i := range maxKnown + 10 {
		k.add(fmt.Sprint(i))
	}
	if len(k.names) != maxKnown || !k.has(fmt.Sprint(maxKnown+9)) {
		t.Errorf("%d names are remembered", len(k.names))
	}
}
