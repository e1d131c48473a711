// SPDX-License-Identifier: Apache-2.0

// What is left of containers that could not be made or started, and of those whose
// process is killed while their sandbox goes on.

package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// cgroupsOf are the directories of the host's cgroup with a path.
func cgroupsOf(t *testing.T, path string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		list, err := filepath.Glob(pattern + path)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, list...)
	}
	return found
}

// TestFailedCreateLeavesNoCgroup: the process that failed was in it.
func TestFailedCreateLeavesNoCgroup(t *testing.T) {
	b := newBundle(t, "rungv")
	b.Spec.Linux.CgroupsPath = fmt.Sprintf("/gvx-oci-failed-%d", os.Getpid())
	b.Spec.Process.Args = []string{"sleep", "600"}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(cgroupsOf(t, b.Spec.Linux.CgroupsPath)) == 0 {
		t.Fatal("a container that was created has no cgroup: nothing is told by one that is gone")
	}
	must(t, b, "delete", c.id)
	b.Spec.Process.Args = []string{"nosuch"}
	if _, err := create(t, b); err == nil {
		t.Fatal("it was created")
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		left := cgroupsOf(t, b.Spec.Linux.CgroupsPath)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v are left", left)
		}
	}
}

// TestFailedPoststart: the start says which hook has failed, and the container has
// ended.
func TestFailedPoststart(t *testing.T) {
	reapOrphans(t)
	b := newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"sh", "-c", loop}
	b.Spec.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/false"}}}
	for range 5 { // Two see its end, in either order.
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		r := verb(t, b, "start", c.id)
		if r.Code == 0 || !strings.Contains(r.Stderr, "error running poststart hook #0: /bin/false") {
			t.Errorf("start: %v", r)
		}
		if code := c.exitCode(); code == 0 || code == 2 { // A Go program that panics ends with 2.
			t.Errorf("exit code %d", code)
		}
		if s := status(t, b, c.id); s != "stopped" {
			t.Errorf("it is %q", s)
		}
		must(t, b, "delete", c.id)
	}
}

// TestShownRoot: what the host writes by way of the container's process arrives where
// the guest has it, and nowhere where the guest could not write.
func TestShownRoot(t *testing.T) {
	b := newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"sleep", "600"}
	b.Spec.Root.Readonly = true
	written, protected := t.TempDir(), t.TempDir()
	relative := filepath.Join(b.Dir, "relative")
	if err := os.Mkdir(relative, 0o755); err != nil {
		t.Fatal(err)
	}
	b.Spec.Mounts = append(b.Spec.Mounts,
		specs.Mount{Destination: "/srv", Source: written, Options: []string{"rbind"}},
		specs.Mount{Destination: "/opt", Type: "bind", Source: protected, Options: []string{"rbind", "ro"}},
		specs.Mount{Destination: "/media", Type: "bind", Source: "relative", Options: []string{"bind"}})
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", c.pid)
	for dir, want := range map[string]string{"srv": written, "opt": "", "media": relative, "": ""} {
		err := os.WriteFile(filepath.Join(root, dir, "made"), []byte("x"), 0o600)
		if want == "" {
			if !errors.Is(err, syscall.EROFS) {
				t.Errorf("/%s: %v", dir, err)
			}
			continue
		}
		if _, serr := os.Stat(filepath.Join(want, "made")); err != nil || serr != nil {
			t.Errorf("/%s: %v, %v", dir, err, serr)
		}
	}
}

// newPod starts a sandbox's first container and returns a bundle of one that joins.
func newPod(t *testing.T) (sandbox *container, second *testbed.Bundle) {
	t.Helper()
	reapOrphans(t)
	first := newBundle(t, "rungv")
	first.Spec.Process.Args = []string{"sleep", "600"}
	sandbox, err := create(t, first)
	if err != nil {
		t.Fatal(err)
	}
	sandbox.start()
	second = newBundle(t, "rungv")
	second.Args = first.Args // The same state: that is how the sandbox is found.
	second.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: namespaceOf(sandbox, "net")}, {Type: specs.IPCNamespace, Path: namespaceOf(sandbox, "ipc")},
		{Type: specs.UTSNamespace, Path: namespaceOf(sandbox, "uts")}}
	second.Spec.Annotations = map[string]string{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": sandbox.id}
	return sandbox, second
}

// processes is how many the whole sandbox has.
func processes(t *testing.T, sandbox *container) string {
	t.Helper()
	return strings.TrimSpace(must(t, sandbox.bundle, "stats", "--no-stream", "--format", "{{.PIDs}}", sandbox.id))
}

// TestJoinedKilled: where the process of a container that has joined a sandbox is
// killed, the container ends in there at once, and delete finds nothing to end.
func TestJoinedKilled(t *testing.T) {
	sandbox, second := newPod(t)
	second.Spec.Process.Args = []string{"sh", "-c", loop}
	c, err := create(t, second)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	before := processes(t, sandbox)
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.exitCode()
	if before == "1" {
		t.Error("the sandbox never had its processes")
	}
	for deadline := time.Now().Add(patience); processes(t, sandbox) != "1"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the sandbox had %s processes and has %s", before, processes(t, sandbox))
		}
	}
	if s := status(t, second, c.id); s != "stopped" {
		t.Errorf("it is %q", s)
	}
	must(t, second, "delete", c.id)
}

// TestJoinedNeverRuns: a program that the kernel does not load is an error of the
// start, and the next container joins.
func TestJoinedNeverRuns(t *testing.T) {
	sandbox, second := newPod(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("\x7fELF and no more"), 0o755); err != nil {
		t.Fatal(err)
	}
	second.Spec.Mounts = append(second.Spec.Mounts, specs.Mount{Destination: "/bad", Type: "bind", Source: bad, Options: []string{"bind", "ro"}})
	second.Spec.Process.Args = []string{"/bad"}
	c, err := create(t, second)
	if err != nil {
		t.Fatal(err)
	}
	if r := verb(t, second, "start", c.id); r.Code == 0 || !strings.Contains(r.Stderr, "exec format error") {
		t.Errorf("start: %v", r)
	}
	if code := c.exitCode(); code == 0 {
		t.Error("exit code 0")
	}
	must(t, second, "delete", c.id)
	if output, code := shell(t, second, "echo up"); output != "up\n" || code != 0 {
		t.Errorf("the next: %q (%d)", output, code)
	}
	if n := processes(t, sandbox); n != "1" {
		t.Errorf("the sandbox has %s processes", n)
	}
}

// TestJoinedCreateFails: what could not join leaves no descriptor in the sandbox, by
// which its engine would wait for more output, and which the next ones would lack.
func TestJoinedCreateFails(t *testing.T) {
	sandbox, second := newPod(t)
	dir := ""
	for pid, name := range descendants(sandbox.pid) {
		if name == "gvx-sandbox" {
			dir = fmt.Sprintf("/proc/%d/fd", pid)
		}
	}
	open := func() int {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	bind := specs.Mount{Destination: "/srv", Type: "bind", Source: t.TempDir(), Options: []string{"rbind"}}
	for name, edit := range map[string]func(){
		"command": func() { second.Spec.Process.Args = []string{"nosuch"} },
		"mount": func() {
			second.Spec.Process.Args = []string{"true"}
			second.Spec.Mounts = append(second.Spec.Mounts, specs.Mount{Destination: "/etc/passwd/x", Type: "tmpfs", Source: "tmpfs"}, bind)
		},
	} {
		mounts := second.Spec.Mounts
		edit()
		before := 0
		for i := range 6 {
			if _, err := create(t, second); err == nil {
				t.Fatalf("%s: it was created", name)
			}
			if i == 0 {
				before = open() // What the sandbox itself opens once.
			}
		}
		if after := open(); after > before+2 { // Calls under way have some for a moment.
			t.Errorf("%s: %d descriptors, then %d", name, before, after)
		}
		second.Spec.Mounts = mounts
	}
}

// TestJoinedUpdate: limits that are changed hold for the container that has joined.
func TestJoinedUpdate(t *testing.T) {
	_, second := newPod(t)
	second.Spec.Process.Args = []string{"sh", "-c", loop}
	c, err := create(t, second)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	must(t, second, "update", "--pids-limit", "77", c.id)
	if got := must(t, second, "exec", c.id, "cat", "/sys/fs/cgroup/pids.max"); got != "77\n" {
		t.Errorf("pids.max is %q", got)
	}
}

// TestUpdateBeforeTheStart: limits that are changed before the program runs hold for
// it, for the first container of a sandbox and for one that has joined.
func TestUpdateBeforeTheStart(t *testing.T) {
	_, second := newPod(t)
	for name, b := range map[string]*testbed.Bundle{"first": newBundle(t, "rungv"), "joined": second} {
		b.Spec.Process.Args = []string{"sh", "-c", loop}
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		must(t, b, "update", "--pids-limit", "77", "--memory", "99999744", c.id)
		c.start()
		if got := must(t, b, "exec", c.id, "cat", "/sys/fs/cgroup/pids.max"); got != "77\n" {
			t.Errorf("%s: pids.max is %q", name, got)
		}
		if got := must(t, b, "events", "--stats", c.id); !strings.Contains(got, `"limit":99999744`) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestJoinedStreams: a container whose output goes to a file, through a pipe of
// ours, joins as any other.
func TestJoinedStreams(t *testing.T) {
	_, second := newPod(t)
	second.Spec.Process.Args = []string{"echo", "hello"}
	writeSpec(t, second)
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	id, pidFile := fmt.Sprintf("oci-%d-file", os.Getpid()), filepath.Join(second.Dir, "pid")
	cmd := command(second, "create", "--bundle", second.Dir, "--pid-file", pidFile, id)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(file.Name())
		t.Fatalf("%v: %s", err, text)
	}
	t.Cleanup(func() { _ = command(second, "delete", "--force", id).Run() })
	c := &container{t: t, bundle: second, id: id}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(data), &c.pid); err != nil {
		t.Fatal(err)
	}
	c.start()
	code := c.exitCode()
	if text, err := os.ReadFile(file.Name()); string(text) != "hello\n" || code != 0 || err != nil {
		t.Errorf("%q (%d), %v", text, code, err)
	}
}
