// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// receiveTerminal takes the terminal that a runtime sends to a console socket.
func receiveTerminal(t *testing.T, listener *net.UnixListener) *os.File {
	t.Helper()
	if err := listener.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	name, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, rights)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%d descriptors, %v", len(fds), err)
	}
	f := os.NewFile(uintptr(fds[0]), "terminal")
	t.Cleanup(func() { f.Close() })
	return f
}

func consoleSocket(t *testing.T) *net.UnixListener {
	t.Helper()
	dir, err := os.MkdirTemp("", "gvx-tty")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// TestTerminal: the process has the terminal that the console socket gets, of the
// size that the bundle names, as its controlling one.
func TestTerminal(t *testing.T) {
	b := newBundle(t, "rungv")
	reapOrphans(t)
	b.Spec.Process.Terminal = true
	b.Spec.Process.ConsoleSize = &specs.Box{Height: 33, Width: 77}
	b.Spec.Process.Args = []string{"/bin/sh", "-c", "tty; stty size; [ -c /dev/console ] && echo console; echo x > /dev/tty; read line; echo \"got $line\""}
	listener := consoleSocket(t)
	c, err := create(t, b, "--console-socket", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	terminal := receiveTerminal(t, listener)
	c.start()
	if _, err := terminal.WriteString("word\n"); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(all.String(), "got word") {
		n, err := terminal.Read(buf)
		all.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after %q", err, all.String())
		}
	}
	for _, want := range []string{"/dev/console\r\n", "33 77\r\n", "console\r\n", "x\r\n"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the terminal shows %q, want %q in it", all.String(), want)
		}
	}
	if code := c.exitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestExecDocument: an additional process is what its document says, within the
// container's filter.
func TestExecDocument(t *testing.T) {
	b := newBundle(t, "rungv")
	reapOrphans(t)
	b.Spec.Process.Args = []string{"sleep", "600"}
	b.Spec.Hostname = "box"
	b.Spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActErrno, ErrnoRet: number(uint(28))},
	}}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	process := &specs.Process{
		Args: []string{"sh", "-c", "id; hostname; pwd; umask; echo $A; grep CapPrm /proc/self/status; mkdir d; exit 9"}, Cwd: "/tmp",
		Env:          []string{"PATH=/usr/bin:/bin", "A=b"},
		User:         specs.User{UID: 77, GID: 88, AdditionalGids: []uint32{99}, Umask: number(uint32(0o077))},
		Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}, Inheritable: []string{"CAP_KILL"}, Permitted: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL"}},
	}
	data, err := json.Marshal(process)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.Dir, "process.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(b, "exec", "--process", file, c.id)
	output, err := cmd.CombinedOutput()
	want := "uid=77 gid=88 groups=88,99\nbox\n/tmp\n0077\nb\nCapPrm:\t0000000000000020\nmkdir: cannot create directory 'd': No space left on device\n"
	if string(output) != want || cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("%q (%v), want %q", output, err, want)
	}
	must(t, b, "kill", c.id, "KILL")
	if code := c.exitCode(); code != 137 {
		t.Errorf("exit code %d after SIGKILL", code)
	}
	if text, err := io.ReadAll(c.output); err != nil || len(text) > 0 {
		t.Errorf("the container wrote %q, %v", text, err)
	}
}

// TestVolumes: an ext4 volume as a mount of the bundle's, and one by annotation,
// whose clone leaves it as it was.
func TestVolumes(t *testing.T) {
	h := home.Get(t)
	volume := filepath.Join(t.TempDir(), "golden.ext4")
	if out, err := command(newBundle(t, "rungv"), "volume", "create", "--size", "64m", volume).CombinedOutput(); err != nil {
		t.Fatalf("make a volume with %s: %v: %s", h.Binary, err, out)
	}
	b := newBundle(t, "rungv")
	b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/data", Type: "ext4", Source: volume})
	if output, code := shell(t, b, "echo kept > /data/file; stat -f -c %T /data; grep /data /proc/mounts | cut -d' ' -f3"); output != "ext2/ext3\next4\n" || code != 0 {
		t.Errorf("%q (%d)", output, code)
	}
	b = newBundle(t, "rungv")
	b.Spec.Annotations = map[string]string{"dev.gvx.volume.x": "src=" + volume + ",dst=/var/lib/x,clone=ephemeral"}
	if output, code := shell(t, b, "cat /var/lib/x/file; echo changed > /var/lib/x/file; cat /var/lib/x/file"); output != "kept\nchanged\n" || code != 0 {
		t.Errorf("%q (%d)", output, code)
	}
	b = newBundle(t, "rungv")
	b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/data", Type: "ext4", Source: volume, Options: []string{"ro"}})
	if output, _ := shell(t, b, "cat /data/file; echo x 2>/dev/null > /data/y || echo refused"); output != "kept\nrefused\n" {
		t.Errorf("%q", output)
	}
	b = newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"true"}
	b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/data", Type: "ext4", Source: volume + ".not"})
	if _, err := create(t, b); err == nil {
		t.Error("a volume that does not exist was made")
	}
}

// TestPod: two containers in one sandbox have its host name and its shared memory
// in common, and nothing else.
func TestPod(t *testing.T) {
	reapOrphans(t)
	first := newBundle(t, "rungv")
	first.Spec.Process.Args, first.Spec.Hostname = []string{"sleep", "600"}, "pod"
	shm := specs.Mount{Destination: "/dev/shm", Type: "bind", Source: t.TempDir(), Options: []string{"rbind", "rw"}}
	replaceMount(first.Spec, shm)
	sandbox, err := create(t, first)
	if err != nil {
		t.Fatal(err)
	}
	sandbox.start()
	second := joining(t, first, sandbox)
	second.Spec.Process.Args = []string{"sh", "-c", "hostname; echo hello > /dev/shm/word; echo own > /own; ls /proc | grep -c '^[0-9]'; id -u; exit 3"}
	second.Spec.Process.User.UID = 5
	second.Spec.Hostname = "ignored"
	replaceMount(second.Spec, shm)
	c, err := create(t, second)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	output, code := c.wait()
	if !strings.HasPrefix(output, "pod\n") || !strings.HasSuffix(output, "5\n") || code != 3 {
		t.Errorf("%q (%d)", output, code)
	}
	text, err := command(first, "exec", sandbox.id, "sh", "-c", "cat /dev/shm/word; ls /own").CombinedOutput()
	if !strings.HasPrefix(string(text), "hello\n") || !strings.Contains(string(text), "/own") || err == nil {
		t.Errorf("%q, %v: want the word, and no file of the other's", text, err)
	}
	must(t, second, "delete", c.id)
	must(t, first, "kill", sandbox.id, "KILL")
	if code := sandbox.exitCode(); code != 137 {
		t.Errorf("exit code %d of the sandbox", code)
	}
}

// joining makes a bundle of a container that joins the sandbox of another.
func joining(t *testing.T, first *testbed.Bundle, sandbox *container) *testbed.Bundle {
	t.Helper()
	b := newBundle(t, "rungv")
	b.Args = first.Args // The same state: that is how the sandbox is found.
	b.Spec.Annotations = map[string]string{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": sandbox.id}
	b.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: namespaceOf(sandbox, "net")}, {Type: specs.IPCNamespace, Path: namespaceOf(sandbox, "ipc")},
		{Type: specs.UTSNamespace, Path: namespaceOf(sandbox, "uts")}}
	return b
}

func namespaceOf(c *container, name string) string {
	return fmt.Sprintf("/proc/%d/ns/%s", c.pid, name)
}

// replaceMount puts a mount in the place of the one with its destination.
func replaceMount(s *specs.Spec, m specs.Mount) {
	for i := range s.Mounts {
		if s.Mounts[i].Destination == m.Destination {
			s.Mounts[i] = m
		}
	}
}
