// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// patience is for what takes a moment.
const patience = 30 * time.Second

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// eventLog collects containerd's events.
type eventLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *eventLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// watchEvents listens to containerd's events of tasks until the test ends.
func watchEvents(t *testing.T, c *testbed.Containerd) *eventLog {
	t.Helper()
	l := &eventLog{}
	cmd := c.CtrCommand(t.Context(), "events", `topic~="/tasks/"`)
	cmd.Stdout = l
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return l
}

// of returns the events of a container: topics, with an exec's id, exit codes.
func (l *eventLog) of(t *testing.T, container string) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for line := range strings.Lines(l.text.String()) {
		topic := line[strings.Index(line, "/tasks/")+len("/tasks/"):]
		topic, doc, _ := strings.Cut(topic, " ")
		var e struct {
			ContainerID string `json:"container_id"`
			ID          string `json:"id"`
			ExecID      string `json:"exec_id"`
			ExitStatus  int    `json:"exit_status"`
		}
		if err := json.Unmarshal([]byte(doc), &e); err != nil {
			continue // written in part
		}
		if e.ContainerID != container {
			continue
		}
		switch topic {
		case "exit":
			topic += fmt.Sprintf(" %s %d", e.ID, e.ExitStatus)
		case "exec-added", "exec-started":
			topic += " " + e.ExecID
		}
		list = append(list, topic)
	}
	return list
}

// want waits for the events of a container.
func (l *eventLog) want(t *testing.T, container string, events ...string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if got = l.of(t, container); len(got) >= len(events) || time.Now().After(deadline) {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(events) {
		t.Errorf("events of %s:\n%q, want\n%q", container, got, events)
	}
}

// status is a task's for containerd.
func status(t *testing.T, c *testbed.Containerd, name string) string {
	t.Helper()
	for line := range strings.Lines(c.MustCtr(t, "tasks", "list")) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name {
			return fields[2]
		}
	}
	return ""
}

// execIn runs a command in a container, and returns how it ended.
func execIn(t *testing.T, c *testbed.Containerd, name, id string, args ...string) testbed.Result {
	t.Helper()
	return c.Ctr(t, append([]string{"tasks", "exec", "--exec-id", id, name}, args...)...)
}

// deleteTask deletes a task that has ended with an exit code other than 0.
func deleteTask(t *testing.T, c *testbed.Containerd, name string, code int) {
	t.Helper()
	r := c.Ctr(t, "tasks", "delete", name)
	if want := fmt.Sprintf("exit with non-zero exit code %d", code); r.Code != 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("delete: %v, want %q", r, want)
	}
}

// TestLife takes a container through every call.
func TestLife(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	events := watchEvents(t, c)
	image := c.Image(t, "erofs", "demo")
	c.MustCtr(t, gvx("erofs", "--detach", "--memory-limit", "268435456", image, "a", "sleep", "1000")...)
	if s := status(t, c, "a"); s != "RUNNING" {
		t.Errorf("status %s", s)
	}
	for i, code := range []int{0, 3} {
		r := execIn(t, c, "a", fmt.Sprintf("x%d", i), "sh", "-c", fmt.Sprintf("echo out; echo err >&2; exit %d", code))
		if r.Code != code || r.Stdout != "out\n" || !strings.HasSuffix(r.Stderr, "err\n") {
			t.Errorf("exec: %v", r)
		}
	}
	if r := execIn(t, c, "a", "none", "/no/such/program"); r.Code == 0 {
		t.Errorf("exec of a program that does not exist: %v", r)
	}
	if ps := c.MustCtr(t, "tasks", "ps", "a"); len(strings.Split(strings.TrimSpace(ps), "\n")) != 2 {
		t.Errorf("tasks ps: %s", ps)
	}
	metrics := c.MustCtr(t, "tasks", "metrics", "--format", "json", "a")
	if !strings.Contains(metrics, "268435456") {
		t.Errorf("metrics do not show the memory limit: %s", metrics)
	}
	c.MustCtr(t, "tasks", "pause", "a")
	if s := status(t, c, "a"); s != "PAUSED" {
		t.Errorf("status %s", s)
	}
	c.MustCtr(t, "tasks", "resume", "a")
	if r := c.Ctr(t, "tasks", "delete", "a"); r.Code == 0 {
		t.Errorf("a running task was deleted: %v", r)
	}
	c.MustCtr(t, "tasks", "kill", "--signal", "SIGTERM", "a")
	await(t, "the end of the container", func() bool { return status(t, c, "a") == "STOPPED" })
	deleteTask(t, c, "a", 143)
	c.MustCtr(t, "containers", "delete", "a")
	events.want(t, "a", "create", "start", "exec-added x0", "exec-started x0", "exit x0 0", "exec-added x1", "exec-started x1", "exit x1 3",
		"exec-added none", "paused", "resumed", "exit a 143", "delete")
	nothingLeft(t, c)
}

// TestExecsEndWithTheirContainer: the container's own exit is told last.
func TestExecsEndWithTheirContainer(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	events := watchEvents(t, c)
	image := c.Image(t, "erofs", "demo")
	c.MustCtr(t, gvx("erofs", "--detach", image, "a", "sleep", "1000")...)
	c.MustCtr(t, "tasks", "exec", "--detach", "--exec-id", "x", "a", "sleep", "1000")
	c.MustCtr(t, "tasks", "kill", "--signal", "SIGKILL", "a")
	events.want(t, "a", "create", "start", "exec-added x", "exec-started x", "exit x 137", "exit a 137")
	c.Ctr(t, "tasks", "delete", "a")
	c.MustCtr(t, "containers", "delete", "a")
	nothingLeft(t, c)
}

// TestStreams: input to its end, output to a file, a terminal.
func TestStreams(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	image := c.Image(t, "erofs", "demo")
	t.Run("input", func(t *testing.T) {
		for _, data := range []string{"a word", strings.Repeat("a line of input\n", 10000)} {
			r := testbed.Run(t, c.CtrCommand(t.Context(), gvx("erofs", "--rm", image, "in", "sh", "-c", "wc -c; echo done >&2")...), strings.NewReader(data))
			if strings.TrimSpace(r.Stdout) != fmt.Sprint(len(data)) || !strings.HasSuffix(r.Stderr, "done\n") {
				t.Errorf("%v", r)
			}
		}
	})
	t.Run("input of an exec", func(t *testing.T) {
		c.MustCtr(t, gvx("erofs", "--detach", image, "execs", "sleep", "1000")...)
		// ctr calls CloseIO when it has written all, of which the last waits in the
		// fifo: the guest's pipe is full, and so is the shim.
		for _, data := range []string{"x", strings.Repeat("a line of input", 12000)} {
			args := []string{"tasks", "exec", "--exec-id", "x", "execs", "sh", "-c", "sleep 1; wc -c"}
			r := testbed.Run(t, c.CtrCommand(t.Context(), args...), strings.NewReader(data))
			if strings.TrimSpace(r.Stdout) != fmt.Sprint(len(data)) {
				t.Errorf("%d bytes: %v", len(data), r)
			}
		}
		c.MustCtr(t, "tasks", "kill", "--signal", "SIGKILL", "execs")
		await(t, "the end of the container", func() bool { return status(t, c, "execs") == "STOPPED" })
		c.Ctr(t, "tasks", "delete", "execs")
		c.MustCtr(t, "containers", "delete", "execs")
	})
	t.Run("output", func(t *testing.T) {
		r := c.Ctr(t, gvx("erofs", "--rm", image, "out", "head", "-c", "3000000", "/dev/zero")...)
		if len(r.Stdout) != 3000000 {
			t.Errorf("%d bytes came: %s", len(r.Stdout), r.Stderr)
		}
	})
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(c.Dir, "out.log")
		c.MustCtr(t, gvx("erofs", "--detach", "--log-uri", "file://"+path, image, "file", "sh", "-c", "echo out; echo err >&2; sleep 1000")...)
		await(t, "the log", func() bool {
			data, _ := os.ReadFile(path)
			return strings.Contains(string(data), "out\n") && strings.Contains(string(data), "err\n")
		})
		c.MustCtr(t, "tasks", "kill", "--signal", "SIGKILL", "file")
		await(t, "the end of the container", func() bool { return status(t, c, "file") == "STOPPED" })
		c.Ctr(t, "tasks", "delete", "file")
		c.MustCtr(t, "containers", "delete", "file")
	})
	t.Run("terminal", func(t *testing.T) {
		term := testbed.StartTerminal(t, c.CtrCommand(t.Context(), gvx("erofs", "--rm", "--tty", image, "tty", "sh")...), 30, 90)
		term.Type(t, "stty size; tty\n")
		term.Expect(t, "30 90")
		term.Expect(t, "/dev/console")
		term.Resize(t, 40, 100)
		term.Type(t, "sleep 1; stty size; exit 5\n")
		term.Expect(t, "40 100")
		if code := term.Wait(t); code != 5 {
			t.Errorf("exit code %d: %s", code, term.Output())
		}
	})
	nothingLeft(t, c)
}

// TestWhatIsWrittenIsTheSnapshots: containerd's own tools see what a container has
// written, and what it has removed.
func TestWhatIsWrittenIsTheSnapshots(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		t.Run(snapshotter, func(t *testing.T) {
			image := c.Image(t, snapshotter, "demo")
			r := c.Ctr(t, gvx(snapshotter, image, "w", "sh", "-c", "echo written > /new && rm /etc/debian_version && mkdir /dir && sync")...)
			if r.Code != 0 {
				t.Fatalf("%v", r)
			}
			c.Ctr(t, "tasks", "delete", "w")
			// A second container of the same snapshot finds it, too.
			c.MustCtr(t, "tasks", "start", "--detach", "w")
			await(t, "the end of the container", func() bool { return status(t, c, "w") == "STOPPED" })
			c.Ctr(t, "tasks", "delete", "w")
			mounts := c.MustCtr(t, "snapshots", "--snapshotter", snapshotter, "mounts", "/unused", "w")
			if snapshotter == "erofs" {
				volumes, err := filepath.Glob(filepath.Join(c.Root, "io.containerd.snapshotter.v1.erofs", "snapshots", "*", "rwlayer.img"))
				if err != nil || len(volumes) != 1 {
					t.Fatalf("volumes %q, %v: %s", volumes, err, mounts)
				}
				checkVolume(t, volumes[0])
			} else {
				diff := c.MustCtr(t, "snapshots", "--snapshotter", snapshotter, "diff", "--keep", "w")
				for _, name := range []string{"new", "etc/.wh.debian_version", "dir/"} {
					if !strings.Contains(diff, name) && !strings.Contains(gunzip(t, diff), name) {
						t.Errorf("the diff lacks %s", name)
					}
				}
			}
			c.MustCtr(t, "containers", "delete", "w")
			nothingLeft(t, c)
		})
	}
}
