// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
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
	connection, err := client.New(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx := namespaces.WithNamespace(t.Context(), c.Namespace)
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
