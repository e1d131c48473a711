// SPDX-License-Identifier: Apache-2.0

// Package manage tests rungv as the docker of those who have none: detached
// containers and all that is done to them while they run, by root and by an
// ordinary user, as a shell or a framework would do it.
package manage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest of all tests: Debian with Python.
const image = "demo"

// home is shared by the tests of this package.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// bed is one user of rungv with a store of its own.
type bed struct {
	home   *testbed.Home
	root   bool
	global []string
}

var beds struct {
	once sync.Once
	list map[string]*bed
	err  error
}

// each runs a test as an ordinary user and, started by root, as root too.
func each(t *testing.T, test func(t *testing.T, b *bed)) {
	t.Helper()
	h := home.Get(t)
	h.Image(t, image)
	beds.once.Do(func() {
		beds.list = map[string]*bed{"user": {home: h}}
		if os.Geteuid() == 0 {
			root := h.Path("root")
			beds.err = os.Mkdir(root, 0o700)
			beds.list["root"] = &bed{home: h, root: true, global: []string{"--root", root}}
		}
	})
	if beds.err != nil {
		t.Fatal(beds.err)
	}
	for _, name := range []string{"user", "root"} {
		b := beds.list[name]
		if b == nil {
			continue
		}
		if b.root && b.run(t, nil, "image", "ls", "-q", image).Stdout == "" {
			b.must(t, "image", "import", "--progress", "none", "oci:"+h.Layout(t, image)+":latest", image)
		}
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// command makes a command of the bed's user.
func (b *bed) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := b.home.Command(ctx, append(slices.Clone(b.global), args...)...)
	if b.root {
		cmd.SysProcAttr.Credential = nil
	}
	return cmd
}

// run runs rungv to its end.
func (b *bed) run(t testing.TB, stdin io.Reader, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return testbed.Run(t, b.command(ctx, args...), stdin)
}

// must is run for a command that has to succeed; it returns its output without
// the last newline.
func (b *bed) must(t testing.TB, args ...string) string {
	t.Helper()
	r := b.run(t, nil, args...)
	if r.Code != 0 {
		t.Fatalf("rungv %q: %v", args, r)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// fails runs a command that has to fail with the code, and say so.
func (b *bed) fails(t testing.TB, code int, says string, args ...string) {
	t.Helper()
	if r := b.run(t, nil, args...); r.Code != code || !strings.Contains(r.Stderr, says) {
		t.Errorf("rungv %q: want exit code %d and %q: %v", args, code, says, r)
	}
}

var names atomic.Int64

// box starts a detached container that runs a script, and removes it when the
// test ends. Flags go before the image.
func (b *bed) box(t testing.TB, script string, flags ...string) string {
	t.Helper()
	name := fmt.Sprintf("box-%d", names.Add(1))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// It may be gone, which is what most tests want.
		_ = b.command(ctx, "rm", "-f", name).Run()
	})
	args := append([]string{"run", "-d", "--name", name, "--network", "none"}, flags...)
	b.must(t, append(args, image, "sh", "-c", script)...)
	return name
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// status is docker's word for a container's state.
func (b *bed) status(t testing.TB, name string) string {
	t.Helper()
	return b.must(t, "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", name)
}

// runs counts a container's processes whose command line is command.
func (b *bed) runs(t testing.TB, name, command string) int {
	t.Helper()
	n := 0
	for _, line := range strings.Split(b.must(t, "top", name, "-o", "cmd"), "\n") {
		if strings.TrimSpace(line) == command {
			n++
		}
	}
	return n
}

// pids are the supervisor's and the sandbox's process ids.
func (b *bed) pids(t testing.TB, name string) (supervisor, sandbox int) {
	t.Helper()
	text := b.must(t, "inspect", "-f", "{{.Sandbox.LauncherPid}} {{.Sandbox.Pid}}", name)
	if _, err := fmt.Sscan(text, &supervisor, &sandbox); err != nil || supervisor <= 0 || sandbox <= 0 {
		t.Fatalf("processes of %s: %q, %v", name, text, err)
	}
	return supervisor, sandbox
}

// output collects what a command in the background writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// background starts a command and returns what it writes.
func (b *bed) background(t testing.TB, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	cmd, out := b.command(context.Background(), args...), &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, out
}
