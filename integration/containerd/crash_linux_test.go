// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// find returns the process whose command line begins so.
func find(t *testing.T, c *testbed.Containerd, prefix string) int {
	t.Helper()
	if found := named(t, c, prefix); len(found) > 0 {
		return found[0]
	}
	t.Fatalf("no process %s among %v", prefix, c.Processes(t))
	return 0
}

// named are all processes whose command line begins so.
func named(t *testing.T, c *testbed.Containerd, prefix string) (found []int) {
	t.Helper()
	for pid, command := range c.Processes(t) {
		name, _, _ := strings.Cut(command, " ")
		if name[strings.LastIndexByte(name, '/')+1:] == prefix {
			found = append(found, pid)
		}
	}
	return found
}

// TestKilled kills each of the processes in turn.
func TestKilled(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	for _, test := range []struct{ victim, snapshotter string }{
		{"gvx-sandbox", "erofs"}, {testbed.ShimName, "erofs"}, {testbed.ShimName, "overlayfs"}, {"gvx-gofer", "overlayfs"},
	} {
		t.Run(test.victim+" "+test.snapshotter, func(t *testing.T) {
			events := watchEvents(t, c)
			image := c.Image(t, test.snapshotter, "demo")
			c.MustCtr(t, gvx(test.snapshotter, "--detach", image, "a", "sleep", "1000")...)
			if err := syscall.Kill(find(t, c, test.victim), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// A guest without its files ends too: see container.Task.
			await(t, "the exit", func() bool {
				list := strings.Join(events.of(t, "a"), ",")
				return strings.Contains(list, "exit a 137")
			})
			if test.victim != testbed.ShimName {
				deleteTask(t, c, "a", 137)
			}
			c.MustCtr(t, "containers", "delete", "a")
			nothingLeft(t, c)
			// The same again works.
			if out := c.MustCtr(t, gvx(test.snapshotter, "--rm", image, "a", "echo", "again")...); out != "again\n" {
				t.Errorf("printed %q", out)
			}
		})
	}
}

// TestContainerdThatIsStartedAgain finds its tasks, and has them under control.
func TestContainerdThatIsStartedAgain(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	image := c.Image(t, "erofs", "demo")
	c.MustCtr(t, gvx("erofs", "--detach", image, "lives", "sleep", "1000")...)
	c.MustCtr(t, gvx("erofs", "--detach", image, "ends", "sh", "-c", "sleep 2; exit 9")...)
	c.Kill(t)
	// One ends while nobody listens.
	await(t, "the end of a container", func() bool {
		n := 0
		for _, command := range c.Processes(t) {
			if strings.HasPrefix(command, "gvx-sandbox") {
				n++
			}
		}
		return n == 1
	})
	c.Start(t)
	if s := status(t, c, "lives"); s != "RUNNING" {
		t.Errorf("status %q of what lives", s)
	}
	if s := status(t, c, "ends"); s != "STOPPED" {
		t.Errorf("status %q of what has ended", s)
	}
	if r := execIn(t, c, "lives", "x", "echo", "still"); r.Code != 0 || r.Stdout != "still\n" {
		t.Errorf("exec: %v", r)
	}
	deleteTask(t, c, "ends", 9)
	c.MustCtr(t, "tasks", "kill", "--signal", "SIGKILL", "lives")
	await(t, "the end of the container", func() bool { return status(t, c, "lives") == "STOPPED" })
	c.Ctr(t, "tasks", "delete", "lives")
	c.MustCtr(t, "containers", "delete", "lives", "ends")
	nothingLeft(t, c)
}

// TestInputOutlivesItsWriters: what writes a container's input is a client, or
// containerd itself for a pod's. Both may go and come back.
func TestInputOutlivesItsWriters(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	image := c.Image(t, "erofs", "demo")
	fifos := filepath.Join(c.Dir, "fifos")
	if err := os.Mkdir(fifos, 0o700); err != nil {
		t.Fatal(err)
	}
	// ctr's own input goes on until it has left the container alone.
	stdin, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer end.Close()
	run := gvx("erofs", "--detach", "--fifo-dir", fifos, image, "a", "sh", "-c", "while read -r word && [ $word != leave ]; do echo got $word; done; exit 7")
	if r := testbed.Run(t, c.CtrCommand(t.Context(), run...), stdin); r.Code != 0 {
		t.Fatalf("%v", r)
	}
	for _, word := range []string{"one", "two", "leave"} {
		if s := status(t, c, "a"); s != "RUNNING" {
			t.Errorf("before %q: status %q", word, s)
		}
		attached := c.CtrCommand(t.Context(), "tasks", "attach", "a")
		input, err := attached.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := attached.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := attached.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(input, word+"\n"); err != nil {
			t.Error(err)
		}
		if word != "leave" {
			got, err := bufio.NewReader(output).ReadString('\n')
			if err != nil || got != "got "+word+"\n" {
				t.Errorf("read %q, %v", got, err)
			}
			_ = attached.Process.Kill()
		}
		if err := attached.Wait(); word == "leave" && attached.ProcessState.ExitCode() != 7 {
			t.Errorf("the exit of ctr: %v", err)
		}
		if word == "one" {
			c.Kill(t)
			c.Start(t)
		}
	}
	c.MustCtr(t, "containers", "delete", "a")
	nothingLeft(t, c)
}
