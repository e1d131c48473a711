// SPDX-License-Identifier: Apache-2.0

// A gofer that was taken over: what is left to it, when its own code no longer
// decides what it does.

package gofer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/gomaxprocs"

	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// report is what the process found.
type report struct {
	Detached, EmptyRoot, Landlock bool
	// Tried is what was tried, with the error, "" if it worked.
	Tried map[string]string
}

// outsideName is a file beside the tree that is served.
const outsideName = "outside"

// takenOver is the process: ready to answer, it does something else.
func takenOver() {
	gomaxprocs.SetBase(2)
	time.Local = time.UTC
	cfg, err := readConfig(3)
	if err != nil {
		panic(err)
	}
	r := report{EmptyRoot: cfg.Lockdown.EmptyRoot, Landlock: lockdown.LandlockABI() >= 2, Tried: map[string]string{}}
	trees, err := begin(cfg, lockdown.Refuse)
	if err != nil {
		panic(err)
	}
	r.Detached = cfg.Trees[0].Detached
	root := trees[0].root
	try := func(what string, err error) {
		r.Tried[what] = ""
		if err != nil {
			r.Tried[what] = err.Error()
		}
	}
	open := func(at int, path string, flags int) error {
		fd, err := unix.Openat(at, path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	call := func(nr uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
	try("open a file of the tree", open(root, "inside", unix.O_RDONLY|unix.O_NOFOLLOW))
	try("open beside the tree", open(root, "../"+outsideName, unix.O_RDONLY|unix.O_NOFOLLOW))
	try("open beside the tree by a link", open(root, "link", unix.O_RDONLY))
	try("open by an absolute path", open(root, "/etc/passwd", unix.O_RDONLY|unix.O_NOFOLLOW))
	try("open by an absolute path, following", open(unix.AT_FDCWD, "/etc/passwd", unix.O_RDONLY))
	try("open from the working directory", open(unix.AT_FDCWD, "../../../etc/passwd", unix.O_RDONLY))
	try("list the root", open(root, "/", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY))
	link := strconv.Itoa(must(unix.Openat(root, "link", unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)))
	try("open a link by its descriptor", open(unix.AT_FDCWD, link, unix.O_RDONLY))
	try("open what a link's descriptor leads to", open(unix.AT_FDCWD, link+"/.", unix.O_RDONLY))
	var st unix.Statx_t
	try("stat beside the tree", unix.Statx(root, "../"+outsideName, 0, unix.STATX_BASIC_STATS, &st))
	try("remove beside the tree", unix.Unlinkat(root, "../"+outsideName, 0))
	try("make beside the tree", unix.Mkdirat(root, "../made", 0o755))
	try("move out of the tree", unix.Renameat2(root, "inside", root, "../moved", 0))
	try("chmod beside the tree", unix.Fchmodat(unix.AT_FDCWD, strconv.Itoa(root)+"/../"+outsideName, 0o777, 0))
	node := unix.Mknodat(root, "node", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	try("make a device", node)
	try("open a device", open(root, "device", unix.O_RDONLY|unix.O_NOFOLLOW))
	for what, nr := range map[string]uintptr{
		"socket": unix.SYS_SOCKET, "connect": unix.SYS_CONNECT, "bind": unix.SYS_BIND, "execve": unix.SYS_EXECVE, "ptrace": unix.SYS_PTRACE, "kill": unix.SYS_KILL,
		"chroot": unix.SYS_CHROOT, "mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2, "setuid": unix.SYS_SETUID, "unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS,
		"bpf": unix.SYS_BPF, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "openat2": unix.SYS_OPENAT2, "open_tree": unix.SYS_OPEN_TREE, "io_uring_setup": unix.SYS_IO_URING_SETUP,
		"ioctl": unix.SYS_IOCTL, "chdir": unix.SYS_CHDIR, "memfd_create": unix.SYS_MEMFD_CREATE, "prlimit64": unix.SYS_PRLIMIT64, "mprotect": unix.SYS_MPROTECT, "capset": unix.SYS_CAPSET,
	} {
		try(what, call(nr))
	}
	pair := [2]int32{}
	try("make a stream", call(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&pair))))
	try("map memory to run", call(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0)))
	out, _ := json.Marshal(r)
	os.Stderr.Write(out)
	os.Exit(0)
}

func must(fd int, err error) int {
	if err != nil {
		panic(err)
	}
	return fd
}

// TestTakenOver starts such a process as a launcher does.
func TestTakenOver(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(base, outsideName), filepath.Join(dir, "inside")} {
		if err := os.WriteFile(f, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../"+outsideName, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	// Only root can make one; without, there is nothing to be opened.
	_ = unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	tree, err := os.OpenFile(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	log, err := os.CreateTemp(base, "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	g, err := launch.StartGofer(&launch.GoferConfig{Trees: []launch.Tree{{File: tree, Name: dir, Submounts: true}}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if e := g.End(time.Minute); e.Code != 0 || e.Signal != 0 {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v: %s", e, text)
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text[strings.IndexByte(string(text), '{'):], &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	t.Logf("mount of its own %t, empty root %t, Landlock %t", r.Detached, r.EmptyRoot, r.Landlock)
	if r.Tried["open a file of the tree"] != "" {
		t.Errorf("open a file of the tree: %s", r.Tried["open a file of the tree"])
	}
	delete(r.Tried, "open a file of the tree")
	if len(r.Tried) < 35 {
		t.Errorf("only %d tried", len(r.Tried))
	}
	for what, err := range r.Tried {
		switch {
		case err != "":
		case r.Detached && (what == "make beside the tree" || what == "move out of the tree"):
			// Above the mount's root there is the root again: it was done in the tree.
		case !r.Detached && what == "open a device", !r.Detached && (what == "stat beside the tree" || what == "chmod beside the tree"):
			// Landlock does not know these, and whose files they are decides.
			t.Logf("%s: possible, without a mount of its own", what)
		case !r.Landlock && !r.Detached:
			t.Logf("%s: possible, with neither", what)
		default:
			t.Errorf("%s: done", what)
		}
	}
	entries, err := os.ReadDir(base)
	if err != nil || len(entries) != 3 {
		t.Errorf("beside the tree: %v, %v", entries, err)
	}
	st, err := os.Stat(filepath.Join(base, outsideName))
	if err != nil || r.Detached && st.Mode() != 0o644 {
		t.Errorf("beside the tree: %v, %v", st, err)
	}
}
