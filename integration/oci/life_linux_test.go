// SPDX-License-Identifier: Apache-2.0

// The life of a container, as engines drive it, beside runc's where the two should
// not differ; and what is left when something is killed.

package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// loop is a program that prints a line and ends when it is asked.
const loop = "echo up; trap 'exit 7' TERM; while :; do sleep 0.05; done"

// verb runs a call of the runtime and returns its exit code and what it said.
func verb(t *testing.T, b *testbed.Bundle, args ...string) testbed.Result {
	t.Helper()
	return testbed.Run(t, command(b, args...), nil)
}

// status is a container's state, "" where it does not exist.
func status(t *testing.T, b *testbed.Bundle, id string) string {
	t.Helper()
	r := verb(t, b, "state", id)
	if r.Code != 0 {
		return ""
	}
	var s specs.State
	if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
		t.Fatalf("state: %v: %v", err, r)
	}
	if (s.Pid == 0) != (s.Status == specs.StateStopped) || s.ID != id || s.Bundle == "" || s.Version == "" {
		t.Errorf("state: %v", r)
	}
	return string(s.Status)
}

// TestLife: states and exit codes are runc's, and errors are where its are.
func TestLife(t *testing.T) {
	reapOrphans(t)
	seen := map[string]string{}
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		b.Spec.Process.Args = []string{"sh", "-c", loop}
		var trail []string
		note := func(what string, r testbed.Result) {
			trail = append(trail, fmt.Sprintf("%s: %t", what, r.Code == 0))
		}
		c, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		step := func(what string) { trail = append(trail, what+": "+status(t, b, c.id)) }
		step("created")
		note("created again", verb(t, b, "create", "--bundle", b.Dir, c.id))
		note("updated before it started", verb(t, b, "update", "--memory", "100000000", "--pids-limit", "100", c.id))
		note("asked for its processes before it started", verb(t, b, "ps", "--format", "json", c.id))
		note("asked for a table of its processes before it started", verb(t, b, "ps", c.id))
		note("measured before it started", verb(t, b, "events", "--stats", c.id))
		c.start()
		step("started")
		note("started again", verb(t, b, "start", c.id))
		note("deleted while it runs", verb(t, b, "delete", c.id))
		note("paused", verb(t, b, "pause", c.id))
		step("paused")
		note("resumed", verb(t, b, "resume", c.id))
		step("resumed")
		note("updated", verb(t, b, "update", "--pids-limit", "200", c.id))
		note("asked for its processes", verb(t, b, "ps", "--format", "json", c.id))
		note("measured", verb(t, b, "events", "--stats", c.id))
		note("killed by no signal", verb(t, b, "kill", c.id, "NOSUCH"))
		note("killed", verb(t, b, "kill", c.id, "TERM"))
		output, code := c.wait()
		trail = append(trail, fmt.Sprintf("ended with %q and %d", output, code))
		step("ended")
		note("killed when it has ended", verb(t, b, "kill", c.id, "KILL"))
		note("started when it has ended", verb(t, b, "start", c.id))
		note("an exec when it has ended", verb(t, b, "exec", c.id, "true"))
		note("deleted", verb(t, b, "delete", c.id))
		step("deleted")
		note("deleted again", verb(t, b, "delete", c.id))
		note("deleted again by force", verb(t, b, "delete", "--force", c.id))

		never, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		note("killed before it started", verb(t, b, "kill", never.id, "KILL"))
		trail = append(trail, fmt.Sprintf("code %d", never.exitCode()))
		note("deleted", verb(t, b, "delete", never.id))
		unstarted, err := create(t, b)
		if err != nil {
			t.Fatal(err)
		}
		note("deleted before it started", verb(t, b, "delete", unstarted.id))
		if list := verb(t, b, "list", "--quiet"); list.Stdout != "" {
			t.Errorf("%s: %q is left", runtime, list.Stdout)
		}
		seen[runtime] = strings.Join(trail, "\n")
	}
	if seen["runc"] != seen["rungv"] {
		t.Errorf("rungv:\n%s\n\nrunc:\n%s", seen["rungv"], seen["runc"])
	}
}

// TestFailedCreate leaves nothing, and says what is wrong.
func TestFailedCreate(t *testing.T) {
	b := newBundle(t, "rungv")
	for say, edit := range map[string]func(*specs.Spec){
		"executable file not found in $PATH": func(s *specs.Spec) { s.Process.Args = []string{"nosuch"} },
		"/nonexistent": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/nonexistent", Options: []string{"bind"}})
		},
		"error running createRuntime hook": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false"}}}
		},
	} {
		saved := *b.Spec
		saved.Mounts, saved.Hooks = append([]specs.Mount(nil), b.Spec.Mounts...), nil
		process := *b.Spec.Process
		b.Spec.Process.Args = []string{"true"}
		edit(b.Spec)
		if _, err := create(t, b); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("want %q: %v", say, err)
		}
		*b.Spec = saved
		b.Spec.Process = &process
	}
	if list := must(t, b, "list", "--quiet"); list != "" {
		t.Errorf("%q is left", list)
	}
}

// TestKilled: whichever process of a container is killed, the others end, the
// engine hears an exit code, and delete leaves nothing.
func TestKilled(t *testing.T) {
	reapOrphans(t)
	for _, victim := range []string{"the container's process", "gvx-sandbox", "gvx-gofer"} {
		t.Run(victim, func(t *testing.T) {
			b := newBundle(t, "rungv")
			b.Spec.Process.Args = []string{"sh", "-c", loop}
			c, err := create(t, b)
			if err != nil {
				t.Fatal(err)
			}
			c.start()
			family := descendants(c.pid)
			target := c.pid
			for pid, name := range family {
				if name == victim {
					target = pid
				}
			}
			if victim != "the container's process" && target == c.pid {
				t.Fatalf("no %s among %v", victim, family)
			}
			if err := syscall.Kill(target, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if code := c.exitCode(); code == 0 {
				t.Error("exit code 0")
			}
			for deadline := time.Now().Add(patience); len(alive(family)) > 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("they live on: %v", alive(family))
				}
			}
			if s := status(t, b, c.id); s != "stopped" {
				t.Errorf("it is %q", s)
			}
			must(t, b, "delete", "--force", c.id)
			if list := must(t, b, "list", "--quiet"); list != "" {
				t.Errorf("%q is left", list)
			}
		})
	}
}

// descendants are a process' children and theirs, with their first arguments.
func descendants(pid int) map[int]string {
	found := map[int]string{}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		text, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
			found[child], _, _ = strings.Cut(string(line), "\x00")
			for p, name := range descendants(child) {
				found[p] = name
			}
		}
	}
	return found
}

func alive(family map[int]string) []int {
	var left []int
	for pid := range family {
		if unix.Kill(pid, 0) == nil {
			if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); !strings.Contains(string(text), ") Z ") {
				left = append(left, pid)
			}
		}
	}
	return left
}

// TestManyCallers: of those who start or delete one container at once, one does,
// and nobody hangs.
func TestManyCallers(t *testing.T) {
	reapOrphans(t)
	b := newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"sh", "-c", loop}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	const callers = 8
	together := func(args ...string) (worked int) {
		codes := make([]int, callers)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				if command(b, args...).Run() == nil {
					codes[i] = 1
				}
			})
		}
		all.Wait()
		for _, n := range codes {
			worked += n
		}
		return worked
	}
	if n := together("start", c.id); n != 1 {
		t.Errorf("%d have started it", n)
	}
	if n := together("exec", c.id, "true"); n != callers {
		t.Errorf("%d of %d execs worked", n, callers)
	}
	if n := together("delete", "--force", c.id); n != callers {
		t.Errorf("%d of %d deletes by force worked", n, callers)
	}
	c.exitCode()
	if s := status(t, b, c.id); s != "" {
		t.Errorf("it is %q", s)
	}
}

// TestRunBundle: the whole life in one command, with streams, a terminal, signals.
func TestRunBundle(t *testing.T) {
	b := newBundle(t, "rungv")
	b.Spec.Process.Args = []string{"sh", "-c", "cat; echo err >&2; exit 5"}
	writeSpec(t, b)
	r := testbed.Run(t, command(b, "run", "--bundle", b.Dir, "streams"), strings.NewReader("in\n"))
	if r.Code != 5 || r.Stdout != "in\n" || r.Stderr != "err\n" {
		t.Errorf("%v", r)
	}

	b.Spec.Process.Args = []string{"sh", "-c", loop}
	writeSpec(t, b)
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := command(b, "run", "--keep", "--bundle", b.Dir, "signals")
	cmd.Stdout = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if text, _ := os.ReadFile(file.Name()); string(text) == "up\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not print")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if s := status(t, b, "signals"); s != "stopped" {
		t.Errorf("kept, it is %q", s)
	}
	must(t, b, "delete", "signals")

	b.Spec.Process.Args, b.Spec.Process.Terminal = []string{"sh"}, true
	writeSpec(t, b)
	shell := command(b, "run", "--bundle", b.Dir, "terminal")
	shell.SysProcAttr = &syscall.SysProcAttr{}
	term := testbed.StartTerminal(t, shell, 22, 88)
	term.Type(t, "stty size\n")
	term.Expect(t, "22 88")
	term.Resize(t, 33, 99)
	term.Type(t, "sleep 0.3; stty size\n")
	term.Expect(t, "33 99")
	term.Type(t, "echo one; echo two; exit 6\n")
	term.Expect(t, "one\r\ntwo\r\n")
	if code := term.Wait(t); code != 6 {
		t.Errorf("exit code %d", code)
	}
	// What is no terminal gets lines that end as in a file.
	b.Spec.Process.Args = []string{"sh", "-c", "echo one; echo two"}
	writeSpec(t, b)
	if out := must(t, b, "run", "--bundle", b.Dir, "terminal"); out != "one\ntwo\n" {
		t.Errorf("printed %q", out)
	}
	if list := must(t, b, "list", "--quiet"); list != "" {
		t.Errorf("%q is left", list)
	}
}
