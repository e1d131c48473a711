// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestDetachedLife is a container's life as docker's users know it.
func TestDetachedLife(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		cid := b.home.Path("tmp", fmt.Sprintf("cid-%d", names.Add(1)))
		name := b.box(t, `trap 'echo bye; exit 3' TERM; echo out; echo err >&2; while :; do sleep 0.05; done`, "--cidfile", cid)
		id, err := os.ReadFile(cid)
		if err != nil || b.must(t, "inspect", "-f", "{{.Id}}", name) != string(id) {
			t.Errorf("id file: %q, %v", id, err)
		}
		os.Remove(cid)
		if got := b.must(t, "ps", "--format", "{{.Names}} {{.State}}"); !strings.Contains(got, name+" running") {
			t.Errorf("ps: %q", got)
		}
		eventually(t, "the log holds both streams", func() bool {
			r := b.run(t, nil, "logs", name)
			return r.Stdout == "out\n" && r.Stderr == "err\n"
		})
		b.fails(t, 125, "already in use", "run", "-d", "--name", name, image, "true")
		b.fails(t, 1, "container is running", "rm", name)
		b.must(t, "stop", name)
		if got := b.status(t, name); got != "exited 3" {
			t.Errorf("after stop: %s", got)
		}
		if got := b.must(t, "wait", name); got != "3" {
			t.Errorf("wait afterwards: %q", got)
		}
		if got := b.run(t, nil, "logs", name).Stdout; got != "out\nbye\n" {
			t.Errorf("its last words: %q", got)
		}
		b.fails(t, 1, "not running", "exec", name, "true")
		b.fails(t, 1, "not running", "kill", name)
		b.must(t, "rm", name)
		b.fails(t, 1, "No such container", "logs", name)
		left()
	})
}

// TestDetachedFailures: what goes wrong before the guest runs is told to who
// asked, with docker's exit codes.
func TestDetachedFailures(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		run := func(args ...string) []string {
			return append([]string{"run", "-d", "--rm", "--network", "none"}, args...)
		}
		b.fails(t, 127, "no-such-command", run(image, "no-such-command")...)
		b.fails(t, 126, "/etc/passwd", run(image, "/etc/passwd")...)
		b.fails(t, 125, "No such image", run("--pull", "never", "nothing", "true")...)
		b.fails(t, 125, "unable to find user", run("-u", "nobody-of-that-name", image, "true")...)
		b.fails(t, 125, "log driver", run("--log-driver", "syslog", image, "true")...)
		b.fails(t, 125, "max-size", run("--log-opt", "max-size=1", image, "true")...)
		r := b.run(t, nil, "run", "-d", "--network", "none", "--name", "failed", image, "no-such-command")
		if r.Code != 127 || len(strings.TrimSpace(r.Stdout)) != 64 {
			t.Errorf("a command that does not exist, without --rm: %v", r)
		}
		b.must(t, "rm", "failed")
		left()
	})
}

// TestCallerMayGo: the container outlives the shell that started it and its
// terminal's hangup, holds none of its descriptors, and has none of its
// arguments where others could read them.
func TestCallerMayGo(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		// A pipe that stays open would have the shell's reader wait.
		begin := time.Now()
		name := b.box(t, "sleep 1000", "-e", "TOKEN=hush-hush")
		supervisor, _ := b.pids(t, name)
		for _, fd := range []string{"0", "1", "2"} {
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", supervisor, fd)); err != nil || to != os.DevNull {
				t.Errorf("descriptor %s of the supervisor: %s, %v", fd, to, err)
			}
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", supervisor))
		if len(cmdline) == 0 || strings.Contains(string(cmdline), "hush") {
			t.Errorf("everybody may read: %q", cmdline)
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", supervisor))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if session, _ := strconv.Atoi(fields[3]); session != supervisor {
			t.Errorf("the supervisor is in session %d, not its own", session)
		}
		if time.Since(begin) > time.Minute {
			t.Error("the caller waited for the container")
		}
		b.must(t, "rm", "-f", name)
	})
}

// TestCreateStart: a created container waits, is started once, and its start's
// failure leaves it as it was.
func TestCreateStart(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		left := b.home.NothingLeft(t)
		id := b.must(t, "create", "--name", "made", "--network", "none", "-e", "A=b", image, "sh", "-c", "echo $A; sleep 1000")
		if got := b.status(t, "made"); len(id) != 64 || got != "created 0" {
			t.Errorf("created %q: %s", id, got)
		}
		if got := b.must(t, "wait", "made"); got != "0" {
			t.Errorf("wait for what never ran: %q", got)
		}
		b.must(t, "rename", "made", "other")
		b.must(t, "update", "-m", "256m", "other")
		if got := b.must(t, "start", "other"); got != "other" {
			t.Errorf("start printed %q", got)
		}
		b.must(t, "start", "other") // runs already: no error
		if got := b.must(t, "inspect", "-f", "{{.State.Status}} {{.HostConfig.Memory}}", "other"); got != "running 268435456" {
			t.Errorf("started: %s", got)
		}
		eventually(t, "it has its environment", func() bool { return b.must(t, "logs", "other") == "b" })
		b.must(t, "kill", "other")
		eventually(t, "it has ended", func() bool { return b.status(t, "other") == "exited 137" })
		b.fails(t, 1, "a second time", "start", "other")
		b.must(t, "rm", "other")

		b.must(t, "create", "--name", "made", "--network", "none", image, "cat")
		b.must(t, "rm", "made")
		b.must(t, "create", "-i", "--rm", "--name", "made", "--network", "none", image, "cat")
		r := b.run(t, strings.NewReader("through\n"), "start", "-ai", "made")
		if r.Code != 0 || r.Stdout != "through\n" {
			t.Errorf("started in the foreground: %v", r)
		}
		b.fails(t, 1, "No such container", "inspect", "--type", "container", "made")
		b.fails(t, 1, "No such image", "create", "--pull", "never", "nothing")
		left()
	})
}

// TestWait: exit codes, also of what leaves no record.
func TestWait(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		one, two := b.box(t, "sleep 1; exit 5"), b.box(t, "sleep 1; exit 6", "--rm")
		if got := b.must(t, "wait", one, two); got != "5\n6" {
			t.Errorf("wait: %q", got)
		}
		killed := b.box(t, "sleep 1000", "--rm")
		cmd, out := b.background(t, "wait", killed)
		time.Sleep(200 * time.Millisecond)
		b.must(t, "kill", killed)
		if err := cmd.Wait(); err != nil || out.String() != "137\n" {
			t.Errorf("wait for a killed one: %q, %v", out, err)
		}
		if got := b.must(t, "ps", "-aq", "--filter", "name="+killed); got != "" {
			t.Errorf("--rm left %q", got)
		}
	})
}

// TestLogs: tail, time, stamps, following to the end, and the bound.
func TestLogs(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, `for i in 1 2 3 4 5; do echo line $i; done; sleep 1; echo later; sleep 1; printf last`)
		eventually(t, "five lines are there", func() bool { return strings.Count(b.must(t, "logs", name), "\n") == 4 })
		follower, out := b.background(t, "logs", "-f", "--tail", "2", name)
		b.must(t, "wait", name)
		if err := follower.Wait(); err != nil || out.String() != "line 4\nline 5\nlater\nlast" {
			t.Errorf("followed: %q, %v", out, err)
		}
		if got := b.must(t, "logs", "-n", "1", name); got != "last" {
			t.Errorf("tail: %q", got)
		}
		lines := strings.Split(b.must(t, "logs", "-t", name), "\n")
		stamp, text, _ := strings.Cut(lines[5], " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || text != "later" {
			t.Fatalf("time stamps: %q, %v", lines, err)
		}
		if got := b.must(t, "logs", "--since", at.Format(time.RFC3339Nano), name); got != "later\nlast" {
			t.Errorf("since %v: %q", at, got)
		}
		if got := b.must(t, "logs", "--until", at.Add(-500*time.Millisecond).Format(time.RFC3339Nano), name); !strings.HasSuffix(got, "line 5") {
			t.Errorf("until: %q", got)
		}
		b.fails(t, 1, "neither a time nor a duration", "logs", "--since", "yesterday", name)
		silent := b.box(t, "echo x", "--log-driver", "none")
		b.fails(t, 1, "does not support reading", "logs", silent)

		big := b.box(t, `i=0; while [ $i -lt 20000 ]; do echo "a line of some length, number $i"; i=$((i+1)); done`,
			"--log-opt", "max-size=64k", "--log-opt", "max-file=3")
		b.must(t, "wait", big)
		path := b.must(t, "inspect", "-f", "{{.LogPath}}", big)
		var total int64
		for _, suffix := range []string{"", ".1", ".2", ".3"} {
			fi, err := os.Stat(path + suffix)
			if (err != nil) != (suffix == ".3") {
				t.Errorf("%s: %v", suffix, err)
			}
			if err == nil {
				total += fi.Size()
			}
		}
		if total > 3*64<<10 {
			t.Errorf("the log holds %d bytes", total)
		}
		if got := b.must(t, "logs", "--tail", "1", big); got != "a line of some length, number 19999" {
			t.Errorf("the newest is %q", got)
		}
	})
}

// TestAttach: input of one client, output for all, and the exit code.
func TestAttach(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := b.box(t, `while read l; do echo "got $l"; [ "$l" = end ] && exit 4; done`, "-i")
		watcher, seen := b.background(t, "attach", "--no-stdin", name)
		// A pipe is all that says when the watcher is attached: ask until it is.
		eventually(t, "input arrives and all see the output", func() bool {
			return b.typed(t, name, "hello\n") && strings.Contains(seen.String(), "got hello")
		})
		ended := make(chan error, 1)
		go func() { ended <- watcher.Wait() }()
		var err error
		// A client that is given up may not have come as far as typing.
		eventually(t, "the end is typed, and the watcher sees it", func() bool {
			b.typed(t, name, "end\n")
			select {
			case err = <-ended:
				return true
			default:
				return false
			}
		})
		if err == nil || watcher.ProcessState.ExitCode() != 4 {
			t.Errorf("the watcher ended with %v; it saw %q", err, seen)
		}
		b.fails(t, 1, "not running", "attach", name)
	})
}

// typed attaches for a moment and types.
func (b *bed) typed(t *testing.T, name, text string) bool {
	t.Helper()
	cmd := b.command(t.Context(), "attach", name)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(in, text)
	in.Close()
	time.Sleep(300 * time.Millisecond)
	cmd.Process.Kill()
	cmd.Wait()
	return true
}

// TestAttachTerminal: a shell on a terminal, detached from and attached to.
func TestAttachTerminal(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		name := fmt.Sprintf("box-%d", names.Add(1))
		b.must(t, "run", "-dit", "--name", name, "--network", "none", image, "sh")
		defer b.run(t, nil, "rm", "-f", name)
		for range 2 {
			cmd := b.command(t.Context(), "attach", name)
			terminal := testbed.StartTerminal(t, cmd, 31, 97)
			terminal.Type(t, "stty size\r")
			terminal.Expect(t, "31 97")
			terminal.Type(t, "\x10\x11")
			terminal.Expect(t, "read escape sequence")
			if code := terminal.Wait(t); code != 0 {
				t.Errorf("detached with exit code %d", code)
			}
		}
		cmd := b.command(t.Context(), "attach", name)
		terminal := testbed.StartTerminal(t, cmd, 24, 80)
		terminal.Type(t, "sleep 1000\r")
		eventually(t, "the shell waits", func() bool { return b.runs(t, name, "sleep 1000") == 1 })
		terminal.Type(t, "\x03")
		terminal.Type(t, "echo code $?; exit 7\r")
		terminal.Expect(t, "code 130")
		if code := terminal.Wait(t); code != 7 {
			t.Errorf("exit code %d", code)
		}
		if got := b.run(t, nil, "logs", name).Stdout; !strings.Contains(got, "31 97") {
			t.Errorf("the log of a terminal: %q", got)
		}
	})
}
