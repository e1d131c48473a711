// SPDX-License-Identifier: Apache-2.0

// What additional processes are given and where they can be: descriptors of who runs
// the runtime, containers that were not started, paused ones.

package oci

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// preserved are a file that is read from its middle, one that is written, and a pipe
// whose other end the test has: descriptors 3 to 5 of a guest's process.
type preserved struct {
	files   []*os.File
	written string
	pipe    *os.File
}

func newPreserved(t *testing.T) *preserved {
	t.Helper()
	dir := t.TempDir()
	read, err := os.Create(filepath.Join(dir, "read"))
	if err == nil {
		_, err = read.WriteString("passed over, this is read\n")
	}
	if err == nil {
		read.Close()
		read, err = os.Open(read.Name())
	}
	if err == nil {
		_, err = read.Seek(int64(len("passed over, ")), io.SeekStart)
	}
	if err != nil {
		t.Fatal(err)
	}
	write, err := os.OpenFile(filepath.Join(dir, "write"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = write.WriteString("before\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{read, write, r, w} {
			f.Close()
		}
	})
	return &preserved{[]*os.File{read, write, w}, write.Name(), r}
}

// preservedScript tells what it has of them, and that it has no more.
const preservedScript = `cat <&3; echo written >&4; echo piped >&5; [ -e /proc/self/fd/6 ] && echo "a fourth"; true`

// check looks at what has arrived.
func (p *preserved) check(t *testing.T, runtime, output string) {
	t.Helper()
	if output != "this is read\n" {
		t.Errorf("%s: the process wrote %q", runtime, output)
	}
	for _, f := range p.files {
		f.Close()
	}
	if err := p.pipe.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// To its end: nobody on the host keeps the guest's end.
	if piped, err := io.ReadAll(p.pipe); string(piped) != "piped\n" || err != nil {
		t.Errorf("%s: the pipe carried %q, %v", runtime, piped, err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(p.written)
		if string(text) == "before\nwritten\n" {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s: the file holds %q, %v", runtime, text, err)
		}
	}
}

// TestPreservedDescriptors: a process has the descriptors that --preserve-fds names,
// as its first one or as an additional one, in the foreground or not, with rungv as with
// runc.
func TestPreservedDescriptors(t *testing.T) {
	reapOrphans(t)
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		b.Spec.Process.Args = []string{"sh", "-c", preservedScript}
		writeSpec(t, b)
		run := command(b, "run", "--bundle", b.Dir, "--preserve-fds", "3", fmt.Sprintf("oci-%d-%d", os.Getpid(), count.Add(1)))
		p := newPreserved(t)
		run.ExtraFiles = p.files
		r := testbed.Run(t, run, nil)
		if r.Code != 0 {
			t.Errorf("%s: run: %v", runtime, r)
		}
		p.check(t, runtime, r.Stdout)

		b.Spec.Process.Args = []string{"sleep", "600"}
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		c.start()
		for _, flags := range [][]string{{"exec"}, {"exec", "--detach"}} {
			p := newPreserved(t)
			output := filepath.Join(t.TempDir(), "output")
			f, err := os.Create(output)
			if err != nil {
				t.Fatal(err)
			}
			cmd := command(b, append(flags, "--preserve-fds", "3", c.id, "sh", "-c", preservedScript)...)
			cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = p.files, f, f
			err = cmd.Run()
			f.Close()
			if err != nil {
				t.Errorf("%s: %v: %v", runtime, flags, err)
			}
			text := ""
			for deadline := time.Now().Add(patience); !strings.HasSuffix(text, "\n") && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				data, err := os.ReadFile(output)
				if err != nil {
					t.Fatal(err)
				}
				text = string(data)
			}
			p.check(t, runtime, text)
		}
		c.end()
	}
}

// end kills a container and deletes it. With runc its first process ends when all have
// been reaped that this one has inherited.
func (c *container) end() {
	c.t.Helper()
	must(c.t, c.bundle, "kill", c.id, "KILL")
	for deadline, pid := time.Now().Add(patience), 0; pid != c.pid; time.Sleep(5 * time.Millisecond) {
		var err error
		if pid, err = unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || time.Now().After(deadline) {
			c.t.Fatalf("container %s does not end: %v", c.id, err)
		}
	}
	must(c.t, c.bundle, "delete", c.id)
}

// TestDescriptorsThatAreNotPreserved: a socket, a device, a directory of the host, or
// a descriptor that there is none of, go to no guest, and nothing is left of it.
func TestDescriptorsThatAreNotPreserved(t *testing.T) {
	reapOrphans(t)
	b := newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"sleep", "600"}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, other := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer socket.Close()
	defer other.Close()
	for name, open := range map[string]func() (*os.File, error){
		"a socket":    func() (*os.File, error) { return socket, nil },
		"a device":    func() (*os.File, error) { return os.Open("/dev/zero") },
		"a directory": func() (*os.File, error) { return os.Open("/") },
		"both ways": func() (*os.File, error) {
			return os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o600)
		},
		"none": func() (*os.File, error) { return nil, nil },
	} {
		f, err := open()
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"exec", "--preserve-fds", "1", c.id, "echo", "it ran"},
			{"exec", "--detach", "--preserve-fds", "1", c.id, "echo", "it ran"},
			{"run", "--bundle", b.Dir, "--preserve-fds", "1", c.id + "-more"},
		} {
			cmd := command(b, args...)
			if f != nil {
				cmd.ExtraFiles = []*os.File{f}
			}
			r := testbed.Run(t, cmd, nil)
			if r.Code == 0 || r.Stdout != "" || !strings.Contains(r.Stderr, "preserve") {
				t.Errorf("%s, %v: %v", name, args, r)
			}
		}
		if s := status(t, b, c.id+"-more"); s != "" {
			t.Errorf("%s: a container is %s", name, s)
		}
	}
}

// execDetached runs an additional process that has no stream of the test's: it would
// hold the other end up.
func execDetached(t *testing.T, b *testbed.Bundle, args ...string) {
	t.Helper()
	if err := command(b, append([]string{"exec", "--detach"}, args...)...).Run(); err != nil {
		t.Fatalf("exec --detach %v: %v", args, err)
	}
}

// TestExecBeforeTheStart: additional processes run in a container that was created, in
// its namespaces and not as process 1, and stay when it starts. One that is deleted
// instead takes them along.
func TestExecBeforeTheStart(t *testing.T) {
	reapOrphans(t)
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		b.Spec.Hostname = "box"
		b.Spec.Process.Args = []string{"sh", "-c", "echo $$; cat /tmp/left; grep -qa '^sleep' /proc/[0-9]*/cmdline && echo 'still there'; sleep 600"}
		b.Spec.Mounts = append(b.Spec.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"})
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		r := verb(t, b, "exec", c.id, "sh", "-c", "hostname; [ $$ -gt 1 ] && echo early > /tmp/left; exit 5")
		if r.Code != 5 || r.Stdout != "box\n" {
			t.Errorf("%s: %v", runtime, r)
		}
		execDetached(t, b, c.id, "sleep", "601")
		if r := verb(t, b, "exec", c.id, "nosuch"); r.Code == 0 {
			t.Errorf("%s: %v", runtime, r)
		}
		if s := status(t, b, c.id); s != "created" {
			t.Errorf("%s: it is %s", runtime, s)
		}
		c.start()
		want := "1\nearly\nstill there\n"
		buf := make([]byte, len(want))
		if err := c.output.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadFull(c.output, buf); string(buf[:n]) != want {
			t.Errorf("%s: it wrote %q, %v", runtime, buf[:n], err)
		}
		c.end()

		never, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		execDetached(t, b, never.id, "sleep", "602")
		never.end()
		if s := status(t, b, never.id); s != "" {
			t.Errorf("%s: deleted, it is %s", runtime, s)
		}
	}
}

// TestExecBeforeTheStartInAPod: in a sandbox that goes on, too; of a container that is
// deleted unstarted nothing is left there, and another can have its name.
func TestExecBeforeTheStartInAPod(t *testing.T) {
	reapOrphans(t)
	first := newBundle(t, "rungv")
	first.Spec.Process.Args = []string{"sleep", "600"}
	sandbox, err := create(t, first)
	if err != nil {
		t.Fatal(err)
	}
	sandbox.start()
	processes := func() string {
		return must(t, first, "exec", sandbox.id, "sh", "-c", "set -- /proc/[0-9]*; echo $#")
	}
	before := processes()
	b := joining(t, first, sandbox)
	b.Spec.Process.Args = []string{"sh", "-c", "echo $$; cat /left; sleep 600"}
	const early = "[ $$ -gt 1 ] && echo early > /left; exit 5"
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if r := verb(t, b, "exec", c.id, "sh", "-c", early); r.Code != 5 {
		t.Errorf("%v", r)
	}
	execDetached(t, b, c.id, "sleep", "601")
	during := processes()
	if during == before {
		t.Errorf("%s processes, with and without it: nothing is told by their number", during)
	}
	must(t, b, "delete", "--force", c.id)
	c.exitCode()
	if after := processes(); after != before {
		t.Errorf("%s processes before it was created, %s during, %s once it was deleted", before, during, after)
	}
	b = joining(t, first, sandbox)
	b.Spec.Process.Args = []string{"sh", "-c", "echo $$; cat /left; sleep 600"}
	again, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if r := verb(t, b, "exec", again.id, "sh", "-c", early); r.Code != 5 {
		t.Errorf("%v", r)
	}
	again.start()
	const want = "1\nearly\n"
	buf := make([]byte, len(want))
	if err := again.output.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(again.output, buf); string(buf[:n]) != want {
		t.Errorf("it wrote %q, %v", buf[:n], err)
	}
	again.end()
	sandbox.end()
}

// TestEndOfAPodWithAnUnstartedContainer: the first container's end, which brings volumes
// to rest, waits for no process that was made for an exec and never started.
func TestEndOfAPodWithAnUnstartedContainer(t *testing.T) {
	reapOrphans(t)
	first := newBundle(t, "rungv")
	volume := filepath.Join(t.TempDir(), "v.ext4")
	must(t, first, "volume", "create", "--size", "64m", volume)
	first.Spec.Process.Args = []string{"sh", "-c", "trap 'exit 7' TERM; echo kept > /data/file; echo ready; while :; do sleep 0.1; done"}
	first.Spec.Mounts = append(first.Spec.Mounts, specs.Mount{Destination: "/data", Type: "ext4", Source: volume})
	sandbox, err := create(t, first)
	if err != nil {
		t.Fatal(err)
	}
	sandbox.start()
	buf := make([]byte, len("ready\n"))
	if err := sandbox.output.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(sandbox.output, buf); string(buf[:n]) != "ready\n" {
		t.Fatalf("the first container wrote %q, %v", buf[:n], err)
	}
	b := joining(t, first, sandbox)
	b.Spec.Process.Args = []string{"sleep", "600"}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	execDetached(t, b, c.id, "sleep", "601")
	must(t, first, "kill", sandbox.id, "TERM")
	if code := sandbox.exitCode(); code != 7 {
		t.Errorf("the first container ended with %d, want 7", code)
	}
	if code := c.exitCode(); code != 137 {
		t.Errorf("the one that was not started ended with %d, want 137", code)
	}
	must(t, b, "delete", c.id)
	must(t, first, "delete", sandbox.id)
}

// TestExecInAPausedContainer: it is refused, with runc's code, or waits for the end of
// the pause.
func TestExecInAPausedContainer(t *testing.T) {
	reapOrphans(t)
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		b.Spec.Process.Args = []string{"sleep", "600"}
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		c.start()
		must(t, b, "pause", c.id)
		if r := verb(t, b, "exec", c.id, "true"); r.Code != 255 || !strings.Contains(r.Stderr, "cannot exec in a paused container") {
			t.Errorf("%s: %v", runtime, r)
		}
		patient := command(b, "exec", "--ignore-paused", c.id, "echo", "resumed")
		var output strings.Builder
		patient.Stdout = &output
		if err := patient.Start(); err != nil {
			t.Fatal(err)
		}
		must(t, b, "resume", c.id)
		if err := patient.Wait(); err != nil || output.String() != "resumed\n" {
			t.Errorf("%s: %v, %q", runtime, err, output.String())
		}
		c.end()
	}
}
