// SPDX-License-Identifier: Apache-2.0

// Package oci runs OCI bundles by the command line that engines use, create,
// start, exec and delete, and looks at what guests find: with rungv, and with runc
// beside it where the two should not differ.
//
// All of it happens in namespaces of the tests' own (testbed.MainAlone).
package oci

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// home has the binary.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(testbed.MainAlone(m, home.Close)) }

// patience bounds every wait.
const patience = 60 * time.Second

// image is the guest's: Debian with Python.
const image = "demo"

// container is a container of a bundle with one of the runtimes.
type container struct {
	t      *testing.T
	bundle *testbed.Bundle
	id     string
	pid    int
	output *os.File
}

var count atomic.Int64

// newBundle makes a bundle for a runtime: "rungv" or a peer. The peer's bundle is
// the same but for the program that runs it.
func newBundle(t *testing.T, runtime string) *testbed.Bundle {
	t.Helper()
	return newBundleOf(t, runtime, image)
}

// newBundleOf makes one of another image.
func newBundleOf(t *testing.T, runtime, image string) *testbed.Bundle {
	t.Helper()
	testbed.NeedRoot(t, "OCI bundles with overlays")
	b := testbed.NewBundle(t, "runc", image)
	if runtime == "rungv" {
		b.Runtime = home.Get(t).Binary
	}
	b.Spec.Process.Args = nil
	return b
}

// command is a call of the runtime.
func command(b *testbed.Bundle, args ...string) *exec.Cmd {
	return exec.Command(b.Runtime, append(b.Args[:len(b.Args):len(b.Args)], args...)...)
}

// must runs a call of the runtime that has to succeed, and returns its output.
func must(t *testing.T, b *testbed.Bundle, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := command(b, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(b.Runtime), args, err, stderr.String())
	}
	return string(out)
}

// writeSpec writes the bundle's document.
func writeSpec(t *testing.T, b *testbed.Bundle) {
	t.Helper()
	data, err := json.Marshal(b.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// create creates a container whose output is read by wait. flags are those of the
// runtime's create.
func create(t *testing.T, b *testbed.Bundle, flags ...string) (*container, error) {
	t.Helper()
	writeSpec(t, b)
	c := &container{t: t, bundle: b, id: fmt.Sprintf("oci-%d-%d", os.Getpid(), count.Add(1))}
	pidFile := filepath.Join(b.Dir, "pid")
	args := append([]string{"create", "--bundle", b.Dir, "--pid-file", pidFile}, flags...)
	cmd := command(b, append(args, c.id)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	c.output = r
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Run()
	w.Close()
	if err != nil {
		text, _ := io.ReadAll(r)
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	t.Cleanup(func() { _ = command(b, "delete", "--force", c.id).Run() })
	data, err := os.ReadFile(pidFile)
	if err == nil {
		c.pid, err = strconv.Atoi(string(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, nil
}

// start lets the container run.
func (c *container) start() {
	c.t.Helper()
	must(c.t, c.bundle, "start", c.id)
}

// wait returns what the container wrote until it ended, and its exit code, which
// the process gives that stands for it on the host.
func (c *container) wait() (output string, code int) {
	c.t.Helper()
	if err := c.output.SetReadDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	text, err := io.ReadAll(c.output)
	if err != nil {
		c.t.Fatalf("read the container's output: %v, after %q", err, text)
	}
	return string(text), c.exitCode()
}

func (c *container) exitCode() int {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		var status unix.WaitStatus
		pid, err := unix.Wait4(c.pid, &status, unix.WNOHANG, nil)
		switch {
		case err != nil:
			c.t.Fatalf("wait for process %d of container %s: %v", c.pid, c.id, err)
		case pid == c.pid && status.Signaled():
			return 128 + int(status.Signal())
		case pid == c.pid:
			return status.ExitStatus()
		case time.Now().After(deadline):
			c.t.Fatalf("container %s does not end", c.id)
		}
	}
}

// reapOrphans makes this process the parent of the containers' processes.
func reapOrphans(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}

// shell runs a script in a container of the bundle and returns what it wrote.
func shell(t *testing.T, b *testbed.Bundle, script string) (output string, code int) {
	t.Helper()
	reapOrphans(t)
	b.Spec.Process.Args = []string{"/bin/sh", "-c", script}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	output, code = c.wait()
	must(t, b, "delete", c.id)
	return output, code
}

// bothShells runs a script with rungv and with runc in bundles that edit changes,
// and compares what it wrote.
func bothShells(t *testing.T, script string, edit func(*specs.Spec)) string {
	t.Helper()
	written := map[string]string{}
	for _, runtime := range []string{"runc", "rungv"} {
		b := newBundle(t, runtime)
		if edit != nil {
			edit(b.Spec)
		}
		output, code := shell(t, b, script)
		written[runtime] = fmt.Sprintf("%s(%d)", output, code)
	}
	if written["rungv"] != written["runc"] {
		t.Errorf("rungv:\n%s\nrunc:\n%s", written["rungv"], written["runc"])
	}
	return written["rungv"]
}

// number is a pointer to a value, as many members of a document are.
func number[T any](v T) *T { return &v }
