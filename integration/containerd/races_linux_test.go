// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// lateIO are streams whose client reads when it likes.
type lateIO struct{ config cio.Config }

func (l lateIO) Config() cio.Config { return l.config }
func (l lateIO) Cancel()            {}
func (l lateIO) Wait()              {}
func (l lateIO) Close() error       { return nil }

// TestAReaderThatComesAfterTheEnd: a client opens the output of an exec when that has
// ended long since, as CRI's ExecSync does now and then on a busy machine: it reads
// all, and the end.
func TestAReaderThatComesAfterTheEnd(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{})
	image := c.Image(t, "overlayfs", "demo")
	c.MustCtr(t, gvx("overlayfs", "--detach", image, "late", "sleep", "1000")...)
	connection, ctx := connect(t, c)
	container, err := connection.LoadContainer(ctx, "late")
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := container.Spec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, terminal := range []bool{false, true} {
		for _, test := range []struct{ script, want string }{{"printf word", "word"}, {"exit 0", ""}} {
			path := filepath.Join(t.TempDir(), "out")
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			command := *spec.Process
			command.Terminal, command.Args = terminal, []string{"sh", "-c", test.script}
			process, err := task.Exec(ctx, filepath.Base(filepath.Dir(path)), &command, func(string) (cio.IO, error) {
				return lateIO{cio.Config{Terminal: terminal, Stdout: path}}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			ended, err := process.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := process.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if status := <-ended; status.ExitCode() != 0 {
				t.Errorf("%q: %v", test.script, status)
			}
			time.Sleep(100 * time.Millisecond)
			if got := readInTime(t, path); got != test.want {
				t.Errorf("terminal %v, %q: read %q, want %q", terminal, test.script, got, test.want)
			}
			if _, err := process.Delete(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	c.MustCtr(t, "tasks", "kill", "--signal", "SIGKILL", "late")
	await(t, "the end of the container", func() bool { return status(t, c, "late") == "STOPPED" })
	c.Ctr(t, "tasks", "delete", "late")
	c.MustCtr(t, "containers", "delete", "late")
}

// connect makes a client of containerd, and a context for its calls.
func connect(t *testing.T, c *testbed.Containerd) (*client.Client, context.Context) {
	t.Helper()
	connection, err := client.New(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection, namespaces.WithNamespace(t.Context(), c.Namespace)
}

// TestAKillBesideAStart: what kills a container that is just being started ends it, and
// does not leave its client waiting for an end that never comes.
func TestAKillBesideAStart(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{})
	image := c.Image(t, "overlayfs", "demo")
	connection, ctx := connect(t, c)
	for i := range 12 {
		id := fmt.Sprint("killed-", i)
		c.MustCtr(t, "containers", "create", "--runtime", testbed.Runtime, "--snapshotter", "overlayfs", image, id, "sleep", "1000")
		container, err := connection.LoadContainer(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		task, err := container.NewTask(ctx, cio.NullIO)
		if err != nil {
			t.Fatal(err)
		}
		ended, err := task.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- task.Start(ctx) }()
		time.Sleep(time.Duration(i) * time.Millisecond / 2)
		err = task.Kill(ctx, unix.SIGKILL)
		if errdefs.IsNotFound(err) {
			t.Errorf("round %d: kill: %v", i, err)
		}
		t.Logf("round %d: kill: %v; start: %v", i, err, <-started)
		select {
		case status := <-ended:
			if status.ExitCode() != 137 {
				t.Errorf("round %d: %+v", i, status)
			}
		case <-time.After(patience):
			t.Fatalf("round %d: it runs on", i)
		}
		if _, err := task.Delete(ctx); err != nil {
			t.Error(err)
		}
		c.MustCtr(t, "containers", "delete", id)
	}
}

// readInTime reads a fifo to its end.
func readInTime(t *testing.T, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	read := make(chan string, 1)
	go func() {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		data, _ := io.ReadAll(f)
		read <- string(data)
	}()
	select {
	case data := <-read:
		return data
	case <-ctx.Done():
		t.Fatalf("%s: no end", path)
		return ""
	}
}
