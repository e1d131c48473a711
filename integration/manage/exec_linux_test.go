// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestExec: streams, exit codes, user, directory, environment.
func TestExec(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000", "-e", "KEEP=1", "-e", "DROP=1", "-w", "/usr", "--ulimit", "nofile=99:99")
		r := b.run(t, strings.NewReader("in"), "exec", "-i", name, "sh", "-c", "cat; echo err >&2; exit 9")
		if r.Code != 9 || r.Stdout != "in" || r.Stderr != "err\n" {
			t.Errorf("streams: %v", r)
		}
		if r := b.run(t, strings.NewReader("in"), "exec", name, "cat"); r.Code != 0 || r.Stdout != "" {
			t.Errorf("without -i: %v", r)
		}
		got := b.must(t, "exec", "-e", "NEW=2", "-e", "KEEP=3", name, "sh", "-c", "pwd; id -u; echo $KEEP $NEW $HOME; ulimit -n")
		if got != "/usr\n0\n3 2 /root\n99" {
			t.Errorf("from the container and from flags: %q", got)
		}
		got = b.must(t, "exec", "-w", "/tmp", "-u", "nobody", name, "sh", "-c", "pwd; id -un; grep CapEff /proc/self/status")
		if got != "/tmp\nnobody\nCapEff:\t0000000000000000" {
			t.Errorf("another user: %q", got)
		}
		narrow := b.box(t, "sleep 1000", "--cap-drop", "ALL", "-u", "65534")
		if got := b.must(t, "exec", narrow, "sh", "-c", "id -u; grep CapBnd /proc/self/status"); got != "65534\nCapBnd:\t0000000000000000" {
			t.Errorf("the container's own limits: %q", got)
		}
		if got := b.must(t, "exec", "--privileged", "-u", "0", narrow, "grep", "CapEff", "/proc/self/status"); strings.HasSuffix(got, "0000000000000000") {
			t.Errorf("privileged: %q", got)
		}
		b.fails(t, 127, "executable file not found in $PATH", "exec", name, "no-such-command")
		b.fails(t, 126, "permission denied", "exec", name, "/etc/passwd")
		b.fails(t, 127, "no such file or directory", "exec", "-w", "/none", name, "true")
		b.fails(t, 1, "unable to find user", "exec", "-u", "nobody-of-that-name", name, "true")
		b.fails(t, 1, "not a TTY", "exec", "-it", name, "true")
		b.fails(t, 1, "No such container", "exec", "nothing", "true")
		b.fails(t, 137, "", "exec", name, "sh", "-c", "kill -9 $$")
	})
}

// TestExecBeside: foreground runs take additional processes, too.
func TestExecBesideForegroundRun(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := fmt.Sprintf("box-%d", names.Add(1))
		cmd, out := b.background(t, "run", "--rm", "--name", name, "--network", "none", image, "sh", "-c", "echo ready; sleep 1000")
		eventually(t, "it runs", func() bool { return strings.Contains(out.String(), "ready") })
		if got := b.must(t, "exec", name, "cat", "/proc/1/comm"); got != "sh" {
			t.Errorf("process 1 is %q", got)
		}
		// A container that ends ends what was started in it.
		client, _ := b.background(t, "exec", name, "sleep", "1000")
		eventually(t, "the process runs", func() bool { return b.runs(t, name, "sleep 1000") == 2 })
		b.must(t, "kill", name)
		client.Wait()
		if code := client.ProcessState.ExitCode(); code != 137 {
			t.Errorf("the client's exit code is %d", code)
		}
		cmd.Wait()
	})
}

// TestExecBulk: what is big arrives whole, also what is written just before the
// end.
func TestExecBulk(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		r := b.run(t, nil, "exec", name, "python3", "-c", `
import sys, hashlib
sum = hashlib.sha256()
for i in range(32):
	chunk = bytes([i]) * (1 << 20)
	sum.update(chunk)
	sys.stdout.buffer.write(chunk)
sys.stderr.write(sum.hexdigest())`)
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(r.Stdout))); got != r.Stderr || len(r.Stdout) != 32<<20 {
			t.Errorf("%d bytes out", len(r.Stdout))
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
		if r := b.run(t, bytes.NewReader(data), "exec", "-i", name, "sha256sum"); !strings.HasPrefix(r.Stdout, fmt.Sprintf("%x ", sha256.Sum256(data))) {
			t.Errorf("%d bytes in: %v", len(data), r)
		}
	})
}

// TestExecDoesNotWaitForTheBackground: a process that leaves children with its
// streams ends its client, and they live on.
func TestExecDoesNotWaitForTheBackground(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		done := make(chan testbed.Result, 1)
		go func() { done <- b.run(t, nil, "exec", name, "sh", "-c", "sleep 777 & echo said") }()
		select {
		case r := <-done:
			if r.Code != 0 || r.Stdout != "said\n" {
				t.Error(r)
			}
		case <-time.After(time.Minute):
			t.Fatal("the client waits for what its process left in the background")
		}
		eventually(t, "it lives on", func() bool { return b.runs(t, name, "sleep 777") == 1 })
	})
}

// TestKilledExecClient: when a client ends, so does its process, with what that
// began; what has parted from it, and all others, live on.
func TestKilledExecClient(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		other, _ := b.background(t, "exec", name, "sleep", "555")
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT} {
			// bash -lc, as agents call it; a job of its own; a daemon.
			const script = "sleep 771 & setsid -f sleep 888; sleep 772; true"
			client, _ := b.background(t, "exec", name, "bash", "-lc", script)
			eventually(t, "all of it runs", func() bool {
				return b.runs(t, name, "sleep 771")+b.runs(t, name, "sleep 772")+b.runs(t, name, "sleep 888") == 3
			})
			if err := client.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			eventually(t, fmt.Sprintf("nothing of it runs after %v", sig), func() bool {
				return b.runs(t, name, "bash -lc "+script)+b.runs(t, name, "sleep 771")+b.runs(t, name, "sleep 772") == 0
			})
			if b.runs(t, name, "sleep 888") != 1 || b.runs(t, name, "sleep 555") != 1 {
				t.Errorf("%v: what was others' has ended too: %s", sig, b.must(t, "top", name))
			}
			b.must(t, "exec", name, "sh", "-c", "for p in /proc/[0-9]*; do grep -aq '^sleep.\\(888\\|77[12]\\)' $p/cmdline && kill -9 ${p#/proc/}; done; true")
		}
		if other.ProcessState != nil {
			t.Error("another client has ended")
		}
	})
}

// TestExecDetached: it goes on without its client, and its streams are empty.
func TestExecDetached(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		if r := b.run(t, nil, "exec", "-d", name, "sh", "-c", "cat; echo lost; readlink /proc/$$/fd/2 > /tmp/out; sleep 666"); r.Code != 0 || r.Stdout != "" {
			t.Error(r)
		}
		eventually(t, "it has written where to", func() bool {
			return b.run(t, nil, "exec", name, "cat", "/tmp/out").Stdout == "/dev/null\n"
		})
		b.fails(t, 127, "not found", "exec", "-d", name, "no-such-command")
		// Its terminal goes on without anybody at it.
		b.must(t, "exec", "-dt", name, "sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo a line for nobody; i=$((i+1)); done; tty -s && echo done > /tmp/tty")
		eventually(t, "it has written all", func() bool { return b.run(t, nil, "exec", name, "cat", "/tmp/tty").Stdout == "done\n" })
	})
}

// TestExecTerminal: size, its change, ^C, and the detach keys.
func TestExecTerminal(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		terminal := testbed.StartTerminal(t, b.command(t.Context(), "exec", "-it", name, "sh"), 33, 101)
		before := terminal.Modes(t)
		terminal.Type(t, "stty size; echo $TERM\r")
		terminal.Expect(t, "33 101")
		terminal.Expect(t, "xterm")
		terminal.Resize(t, 44, 111)
		eventually(t, "the size has changed", func() bool {
			terminal.Type(t, "stty size\r")
			time.Sleep(50 * time.Millisecond)
			return strings.Contains(terminal.Output(), "44 111")
		})
		terminal.Type(t, "sleep 543\r")
		eventually(t, "the shell waits", func() bool { return b.runs(t, name, "sleep 543") == 1 })
		terminal.Type(t, "\x03")
		terminal.Type(t, "echo code $?\r")
		terminal.Expect(t, "code 130")
		terminal.Type(t, "exit 6\r")
		if code := terminal.Wait(t); code != 6 {
			t.Errorf("exit code %d", code)
		}
		if terminal.Modes(t) != before {
			t.Error("the terminal's modes were not given back")
		}
		terminal = testbed.StartTerminal(t, b.command(t.Context(), "exec", "-it", "--detach-keys", "a,b", name, "sh"), 24, 80)
		terminal.Type(t, "sleep 321\r")
		eventually(t, "the shell waits", func() bool { return b.runs(t, name, "sleep 321") == 1 })
		terminal.Type(t, "ab")
		terminal.Expect(t, "read escape sequence")
		if code := terminal.Wait(t); code != 0 {
			t.Errorf("detached with exit code %d", code)
		}
		if b.runs(t, name, "sleep 321") != 1 {
			t.Error("it did not go on")
		}
	})
}

// TestConcurrentExecs: many callers at once, each with its own streams; neither
// sandbox nor supervisor keeps a descriptor of any.
func TestConcurrentExecs(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, "sleep 1000")
		b.must(t, "exec", name, "true") // What is made once is made.
		supervisor, sandbox := b.pids(t, name)
		before := descriptors(supervisor) + descriptors(sandbox)
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				text := fmt.Sprintf("caller %d", i)
				r := b.run(t, strings.NewReader(text), "exec", "-i", name, "sh", "-c", fmt.Sprintf("cat; exit %d", i))
				if r.Code != i || r.Stdout != text {
					t.Errorf("%s: %v", text, r)
				}
			})
		}
		wg.Wait()
		b.run(t, nil, "exec", name, "no-such-command")
		b.must(t, "exec", "-d", name, "true")
		b.must(t, "exec", "-dt", name, "true")
		if os.Geteuid() == 0 {
			// A sandbox is not dumpable: only root sees what it holds.
			eventually(t, "all descriptors are closed", func() bool { return descriptors(supervisor)+descriptors(sandbox) <= before })
		}
	})
}

// descriptors counts those of a process, but for the listeners of systrap's
// stubs, which it keeps for guest processes to come.
func descriptors(pid int) int {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, _ := os.ReadDir(dir)
	n := 0
	for _, e := range list {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to != "anon_inode:seccomp" && to != "anon_inode:seccomp notify" {
			n++
		}
	}
	return n
}

// TestAgentCommands are the very commands of mini-swe-agent, with its timeouts.
func TestAgentCommands(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		for _, end := range [][]string{{"stop"}, {"rm", "-f"}} {
			name := fmt.Sprintf("minisweagent-%d", names.Add(1))
			id := b.must(t, "run", "-d", "--name", name, "-w", "/tmp", "--rm", image, "sleep", "2h")
			if len(id) != 64 {
				t.Fatalf("the id is %q", id)
			}
			r := b.run(t, nil, "exec", "-w", "/tmp", "-e", "PAGER=cat", "-e", "LINES=1 2", id, "bash", "-lc", "echo $PAGER $LINES; pwd; false")
			if r.Code != 1 || r.Stdout != "cat 1 2\n/tmp\n" {
				t.Error(r)
			}
			// A command that takes too long is killed, and must not go on.
			client, _ := b.background(t, "exec", "-w", "/tmp", id, "bash", "-lc", "sleep 432; touch /tmp/went-on")
			eventually(t, "it runs", func() bool { return b.runs(t, id, "sleep 432") == 1 })
			client.Process.Kill()
			eventually(t, "it has ended", func() bool { return b.runs(t, id, "sleep 432") == 0 })
			if r := b.run(t, nil, "exec", "-w", "/tmp", id, "bash", "-lc", "ls"); r.Code != 0 || r.Stdout != "" {
				t.Error(r)
			}
			b.must(t, append(end, id)...)
			b.fails(t, 1, "No such container", "exec", id, "true")
		}
		left()
	})
}
