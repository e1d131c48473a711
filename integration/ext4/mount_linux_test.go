// SPDX-License-Identifier: Apache-2.0

// Package ext4 runs suites written for kernel file systems over ext4lite, by
// way of a FUSE server that exists for that alone (ext4fuse). The kernel then
// does what it does for ext4: it resolves paths, checks permissions, caches and
// maps pages. After each suite e2fsck must find nothing.
//
// What compares does so with kernel ext4 on a loop device in the same run. All
// of it needs root and /dev/fuse.
package ext4

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// serveTimeout bounds how long a server takes to come up, and to go once its
// folder is unmounted: it writes its volume back then.
const serveTimeout = time.Minute

var server struct {
	once sync.Once
	dir  string
	err  error
}

// ownNamespace is set for the test that runs in a mount namespace of its own.
const ownNamespace = "GVX_EXT4_NAMESPACE"

// TestMain runs the tests in a mount namespace of their own: a mount that
// somebody's new namespace has taken a copy of outlives its umount, and with it
// the server. Nothing is left mounted either, however the tests end.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv(ownNamespace) == "" {
		self := exec.Command("/proc/self/exe", os.Args[1:]...)
		self.Env = append(os.Environ(), ownNamespace+"=1")
		self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
		self.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		runtime.LockOSThread() // what Pdeathsig goes by
		err := self.Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			os.Exit(max(exit.ExitCode(), 1))
		case err != nil:
			fmt.Fprintln(os.Stderr, "a mount namespace for the tests:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if server.dir != "" {
		os.RemoveAll(server.dir)
	}
	os.Exit(code)
}

// serverBinary builds ext4fuse.
func serverBinary(t testing.TB) string {
	t.Helper()
	testbed.NeedRoot(t, "mounting")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		testbed.Missing(t, "FUSE: %v", err)
	}
	server.once.Do(func() {
		if server.dir, server.err = os.MkdirTemp("", "gvx-ext4fuse-"); server.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", server.dir, "./integration/ext4/ext4fuse")
		build.Dir = testbed.Tree()
		if out, err := build.CombinedOutput(); err != nil {
			server.err = fmt.Errorf("build ext4fuse: %w\n%s", err, out)
		}
	})
	if server.err != nil {
		t.Fatal(server.err)
	}
	return filepath.Join(server.dir, "ext4fuse")
}

// scratch is a folder for volumes. It is below /var/tmp unless TMPDIR says
// otherwise: /tmp may be memory.
func scratch(t testing.TB) string {
	t.Helper()
	base := "/var/tmp"
	if os.Getenv("TMPDIR") != "" {
		base = os.TempDir()
	}
	dir, err := os.MkdirTemp(base, "gvx-ext4-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// mounted is a volume served by FUSE.
type mounted struct {
	t       testing.TB
	volume  string
	dir     string
	process *exec.Cmd
	ended   chan error
	stderr  strings.Builder
}

// serve mounts a volume; with size above zero an empty one is made first.
func serve(t testing.TB, volume string, size int64, flags ...string) *mounted {
	t.Helper()
	m := &mounted{t: t, volume: volume, dir: volume + ".mnt", ended: make(chan error, 1)}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if size > 0 {
		flags = append(flags, fmt.Sprintf("-mkfs=%d", size))
	}
	m.process = exec.Command(serverBinary(t), append(flags, volume, m.dir)...)
	m.process.Stderr = &m.stderr
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // however the tests end
	out, err := m.process.StdoutPipe()
	if err == nil {
		err = m.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	go func() { m.ended <- m.process.Wait() }()
	if line != "mounted\n" {
		t.Fatalf("serve %s: said %q: %s", volume, line, m.end())
	}
	t.Cleanup(m.abort)
	return m
}

// end waits for the server and tells how it ended; "" is well.
func (m *mounted) end() string {
	select {
	case err := <-m.ended:
		m.ended <- err
		if err != nil {
			return fmt.Sprintf("%v: %s", err, m.stderr.String())
		}
		return m.stderr.String()
	case <-time.After(serveTimeout):
		return "the server does not end"
	}
}

// unmount ends the server in good order. What it printed is a failure.
func (m *mounted) unmount() {
	m.t.Helper()
	if err := unix.Unmount(m.dir, 0); err != nil {
		m.t.Fatalf("unmount %s: %v", m.dir, err)
	}
	if why := m.end(); why != "" {
		m.t.Errorf("the server of %s: %s", m.volume, why)
	}
}

// kill ends the server as a crash would.
func (m *mounted) kill() {
	m.process.Process.Kill()
	m.end()
	unix.Unmount(m.dir, unix.MNT_DETACH)
}

// abort is for tests that end early.
func (m *mounted) abort() {
	if m.process.ProcessState == nil {
		m.kill()
	}
}

// check has e2fsck look at a volume that is not mounted.
func check(t testing.TB, volume string) {
	t.Helper()
	if out, err := exec.Command(testbed.NeedCommand(t, "e2fsck"), "-fn", volume).CombinedOutput(); err != nil {
		t.Errorf("e2fsck -fn %s: %v\n%s", filepath.Base(volume), err, clip(string(out)))
	}
}

// finish unmounts and checks.
func (m *mounted) finish() {
	m.t.Helper()
	m.unmount()
	check(m.t, m.volume)
}

// clip keeps the end of a long output.
func clip(s string) string {
	const most = 6000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// kernelMount makes a volume with mkfs.ext4 and has the kernel mount it.
func kernelMount(t testing.TB, volume string, size int64) string {
	t.Helper()
	makeVolume(t, volume, size)
	dir := volume + ".mnt"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "loop", volume, dir).CombinedOutput(); err != nil {
		testbed.Missing(t, "a loop mount of kernel ext4: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	return dir
}

// makeVolume makes a volume with mkfs.ext4.
func makeVolume(t testing.TB, volume string, size int64, options ...string) {
	t.Helper()
	if err := os.WriteFile(volume, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(volume, size); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=1"}, append(options, volume)...)
	if out, err := exec.Command(testbed.NeedCommand(t, "mkfs.ext4"), args...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4 %v: %v\n%s", args, err, out)
	}
}
