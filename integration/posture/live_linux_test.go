// SPDX-License-Identifier: Apache-2.0

package posture

import (
	"bufio"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/lockdown"
)

// noCapabilities is an empty set as status files write it.
const noCapabilities = "0000000000000000"

// each runs a test for a sandbox of an ordinary user and for one of root.
func each(t *testing.T, f func(t *testing.T, s *sandbox)) {
	t.Helper()
	for _, l := range launchers(t) {
		t.Run(l.name, func(t *testing.T) { f(t, l.start(t)) })
	}
}

// TestStatus reads the credentials of every thread of the sandbox process and
// of every stub that runs guest code.
func TestStatus(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		stubs := childrenOf(s.pid)
		if len(stubs) == 0 {
			t.Error("no stubs: this does not look like systrap")
		}
		for _, pid := range append([]int{s.pid}, stubs...) {
			for _, task := range list(t, proc(pid, "task")) {
				checkStatus(t, s, pid, task)
			}
		}
	})
}

func checkStatus(t *testing.T, s *sandbox, pid int, task string) {
	t.Helper()
	b, err := os.ReadFile(proc(pid, "task", task, "status"))
	if err != nil {
		return // the thread ended
	}
	st := status(t, string(b))
	want := map[string]string{"CapInh": noCapabilities, "CapPrm": noCapabilities, "CapEff": noCapabilities, "CapAmb": noCapabilities, "NoNewPrivs": "1", "Seccomp": "2"}
	if s.by.uid == 0 {
		want["CapBnd"] = noCapabilities
	}
	for name, value := range want {
		if st[name] != value {
			t.Errorf("process %d, thread %s: %s is %s, want %s", pid, task, name, st[name], value)
		}
	}
	for _, kind := range []string{"Uid", "Gid"} {
		ids := strings.Fields(st[kind])
		uid, err := strconv.ParseUint(ids[0], 10, 32)
		if err != nil || len(ids) != 4 || slices.ContainsFunc(ids, func(id string) bool { return id != ids[0] }) {
			t.Fatalf("process %d: %s is %q, want four times the same", pid, kind, st[kind])
		}
		switch {
		case s.by.uid != 0 && kind == "Uid" && int(uid) != s.by.uid:
			t.Errorf("process %d: uid %d, want the launcher's, %d", pid, uid, s.by.uid)
		case s.by.uid == 0 && (uid < lockdown.DefaultUIDBase || uid >= lockdown.DefaultUIDBase+lockdown.UIDCount):
			t.Errorf("process %d: %s %d, want one from the sandboxes' range", pid, kind, uid)
		}
	}
	if s.by.uid == 0 && st["Groups"] != "" {
		t.Errorf("process %d: supplementary groups %q", pid, st["Groups"])
	}
}

// TestUIDs: two sandboxes of root share no uid.
func TestUIDs(t *testing.T) {
	l := launchers(t)[1]
	a, b := l.start(t), l.start(t)
	ua, ub := status(t, readProc(t, a.pid, "status"))["Uid"], status(t, readProc(t, b.pid, "status"))["Uid"]
	if ua == ub {
		t.Errorf("both sandboxes have uid %s", ua)
	}
}

// donated are the kinds of descriptor that a sandbox may hold, as the targets
// of its links in /proc/PID/fd.
var donated = []*regexp.Regexp{
	regexp.MustCompile(`^/dev/null$`),
	regexp.MustCompile(`^pipe:\[\d+\]$`),
	regexp.MustCompile(`^socket:\[\d+\]$`),
	regexp.MustCompile(`^/dev/pts/\d+$`),
	regexp.MustCompile(`^anon_inode:\[(eventpoll|eventfd)\]$`),    // Go's poller, the Sentry's
	regexp.MustCompile(`^anon_inode:seccomp notify$`),             // the platform's line to a stub
	regexp.MustCompile(`^/memfd:[\w-]+ \(deleted\)$`),             // guest memory
	regexp.MustCompile(`^/.*/images/.*$`),                         // layers, read-only
	regexp.MustCompile(`^/.* \(deleted\)$`),                       // the rootfs' upper: a file without a name
	regexp.MustCompile(`^/.*/volumes/empty/\d+\.ext4$`),           // what it is a clone of, read-only
	regexp.MustCompile(`^/.*/(erofs|layers|blobs|converted)/.*$`), // layers, by another name
}

// TestDescriptors: every open descriptor is of a kind that is donated or made
// by the Sentry, regular files of the host among them are layers, and those are
// read-only.
func TestDescriptors(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		for _, fd := range list(t, proc(s.pid, "fd")) {
			target, err := os.Readlink(proc(s.pid, "fd", fd))
			if err != nil {
				continue // closed meanwhile
			}
			if !slices.ContainsFunc(donated, func(r *regexp.Regexp) bool { return r.MatchString(target) }) {
				t.Errorf("descriptor %s is %s, which nobody should have donated", fd, target)
			}
			var st unix.Stat_t
			if err := unix.Stat(proc(s.pid, "fd", fd), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || strings.HasSuffix(target, " (deleted)") {
				continue
			}
			flags := status(t, readProc(t, s.pid, "fdinfo", fd))["flags"]
			if mode, err := strconv.ParseUint(flags, 8, 32); err != nil || mode&unix.O_ACCMODE != unix.O_RDONLY {
				t.Errorf("descriptor %s, %s, is open with flags %s: layers must be read-only", fd, target, flags)
			}
		}
	})
}

// TestMemory: the only code in the process is its own binary and the kernel's,
// and what can be executed cannot be written.
func TestMemory(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		binary, err := os.Readlink(proc(s.pid, "exe"))
		if err != nil {
			t.Fatal(err)
		}
		scanner := bufio.NewScanner(strings.NewReader(readProc(t, s.pid, "maps")))
		for scanner.Scan() {
			fields := strings.Fields(scanner.Text())
			if len(fields) < 5 || !strings.Contains(fields[1], "x") {
				continue
			}
			name := strings.Join(fields[5:], " ")
			if strings.Contains(fields[1], "w") {
				t.Errorf("writable and executable: %s", scanner.Text())
			}
			// The platform's stub code is anonymous and read-only.
			if name != binary && name != "[vdso]" && name != "[vsyscall]" && name != "" {
				t.Errorf("foreign code: %s", scanner.Text())
			}
		}
	})
}

// TestNamespaces: as `rungv inspect` and doctor say, as far as this host goes.
func TestNamespaces(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own == "" {
			t.Fatal(err)
		}
		for _, ns := range []string{"pid", "net", "ipc", "mnt", "uts"} {
			ours, err := os.Readlink(proc(s.launcher, "ns", ns))
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := os.Readlink(proc(s.pid, "ns", ns))
			if err != nil {
				t.Fatal(err)
			}
			if ours == theirs {
				if s.by.uid == 0 {
					t.Errorf("%s namespace: the launcher's own, %s", ns, ours)
				} else {
					t.Logf("%s namespace: the launcher's own; this host refuses user namespaces", ns)
				}
			}
		}
		mnt, err := os.Readlink(proc(s.pid, "ns", "mnt"))
		if err != nil {
			t.Fatal(err)
		}
		if ours, _ := os.Readlink(proc(s.launcher, "ns", "mnt")); ours == mnt {
			return
		}
		// An empty root holds an empty file, for the platform.
		root := proc(s.pid, "root")
		names := slices.Concat(list(t, root), list(t, root+"/proc"), list(t, root+"/proc/self"))
		if !slices.Equal(names, []string{"proc", "self", "maps"}) {
			t.Errorf("its root holds %q", names)
		}
		if st, err := os.Lstat(root + "/proc/self/maps"); err != nil || !st.Mode().IsRegular() || st.Size() != 0 {
			t.Errorf("its root's one file is %v (%v), want a file of no bytes", st, err)
		}
		if mounts := strings.Count(readProc(t, s.pid, "mountinfo"), "\n"); mounts != 1 {
			t.Errorf("%d mounts, want the empty root alone", mounts)
		}
		if host, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(host), "gvx") && strings.Contains(string(host), "tmpfs gvx") {
			t.Errorf("something of the sandbox is in the host's mount table (%v)", err)
		}
	})
}

// TestSurroundings: environment, limits, session, dumpability, working folder.
func TestSurroundings(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		if env := readProc(t, s.pid, "environ"); env != "" {
			t.Errorf("environment %q", env)
		}
		if l := readProc(t, s.pid, "limits"); !regexp.MustCompile(`(?m)^Max core file size\s+0\s+0\s`).MatchString(l) {
			t.Errorf("core dumps are not forbidden:\n%s", l)
		}
		// The fields behind the name in parentheses: state, ppid, pgrp, session.
		stat := readProc(t, s.pid, "stat")
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		if fields[3] != strconv.Itoa(s.pid) {
			t.Errorf("session %s, want its own, %d", fields[3], s.pid)
		}
		if fields[4] != "0" {
			t.Errorf("it has terminal %s", fields[4])
		}
		// A process that is not dumpable is root's in /proc, whoever runs it.
		var st unix.Stat_t
		if err := unix.Stat(proc(s.pid, "environ"), &st); err != nil || st.Uid != 0 {
			t.Errorf("its environ belongs to %d (%v): the process is dumpable", st.Uid, err)
		}
		if cwd, err := os.Readlink(proc(s.pid, "cwd")); err != nil || cwd != "/" {
			t.Errorf("working folder %q (%v)", cwd, err)
		}
	})
}

// TestEndsWithLauncher: when the launcher is killed, the sandbox and its stubs
// end.
func TestEndsWithLauncher(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		all := append(childrenOf(s.pid), s.pid)
		if err := unix.Kill(s.launcher, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(30 * time.Second)
		for _, pid := range all {
			for !gone(pid) {
				if time.Now().After(deadline) {
					t.Fatalf("process %d of the sandbox outlived its launcher", pid)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	})
}

// TestStubKilled: a stub that is killed from outside (by the host's memory
// killer, say) takes the whole sandbox with it, and the launcher says so.
func TestStubKilled(t *testing.T) {
	each(t, func(t *testing.T, s *sandbox) {
		stubs := childrenOf(s.pid)
		if len(stubs) == 0 {
			t.Fatal("no stubs")
		}
		for _, pid := range stubs {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(30 * time.Second); !gone(s.pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the sandbox lives on without its stubs")
			}
		}
	})
}
