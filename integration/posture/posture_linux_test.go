// SPDX-License-Identifier: Apache-2.0

// Package posture looks at live sandbox processes from outside and compares
// what they really are with what runtime/lockdown promises: as an ordinary user
// and as root, with an honest Sentry and with one that attacks its host, with
// the whole allow-list and with each of its entries left out in turn.
//
// Root is needed to look at all: a sandbox process is not dumpable, and so
// shows nothing of itself to its own user.
package posture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest: Debian with Python.
const image = "demo"

// processName is argv[0] of a sandbox process.
const processName = "gvx-sandbox"

// launcher is who starts the sandboxes of a test.
type launcher struct {
	name string
	uid  int
	home *testbed.Home
	// global are flags before the verb.
	global []string
}

// world is shared by the tests of this package.
var world struct {
	once        sync.Once
	err         error
	home        *testbed.Home
	user, root  *launcher
	compromised string // a binary whose Sentry attacks
}

func TestMain(m *testing.M) {
	code := m.Run()
	if world.home != nil {
		if err := world.home.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "remove the test's home:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// launchers returns an ordinary user and root, each with the image imported.
func launchers(t *testing.T) []*launcher {
	t.Helper()
	testbed.NeedRoot(t, "reads /proc of processes that are not dumpable")
	world.once.Do(func() {
		if world.home, world.err = testbed.NewHome(); world.err != nil {
			return
		}
		world.user = &launcher{name: "user", uid: world.home.UID, home: world.home}
		if world.root, world.err = asRoot(world.home); world.err == nil {
			world.compromised, world.err = buildCompromised(world.home)
		}
	})
	if world.err != nil {
		t.Fatal(world.err)
	}
	for _, l := range []*launcher{world.user, world.root} {
		layout := l.home.Layout(t, image)
		importing := l.command(t.Context(), l.home.Binary, "image", "import", "--progress", "none", "oci:"+layout+":latest", image)
		if output, err := importing.CombinedOutput(); err != nil {
			t.Fatalf("%s: import image: %v: %s", l.name, err, output)
		}
	}
	return []*launcher{world.user, world.root}
}

// asRoot returns a launcher that is root and keeps its own stores in h.
func asRoot(h *testbed.Home) (*launcher, error) {
	root := h.Path("root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return nil, err
	}
	return &launcher{name: "root", home: h, global: []string{"--root", root}}, nil
}

// buildCompromised builds rungv with the tag of the same name, into h.
func buildCompromised(h *testbed.Home) (string, error) {
	path := h.Path("bin", "rungv-compromised")
	build := exec.Command("go", "build", "-tags", "compromised", "-o", path, "./cmd/rungv")
	build.Dir = testbed.Tree()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rungv with a compromised Sentry: %w\n%s", err, output)
	}
	return path, nil
}

// command makes a command of the launcher's: as its user, with its stores.
func (l *launcher) command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := l.home.CommandAs(ctx, binary, append(slices.Clone(l.global), args...)...)
	if l.uid == 0 {
		cmd.SysProcAttr.Credential = nil
	}
	return cmd
}

// runArgs are the arguments that run a shell script in a sandbox.
func runArgs(script string) []string {
	return []string{"run", "--rm", "-i", "--network", "none", image, "sh", "-c", script}
}

// sandbox is a live sandbox process and its launcher.
type sandbox struct {
	by       *launcher
	launcher int
	pid      int
}

// start starts a sandbox whose guest lives until the test ends, and finds its
// process.
func (l *launcher) start(t *testing.T) *sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := l.command(ctx, l.home.Binary, runArgs("echo ready; cat >/dev/null")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // whatever the test did to it
		cancel()
	})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(stdout, ready); err != nil {
		t.Fatalf("%s: the guest did not start: %v: %s", l.name, err, stderr.String())
	}
	for _, pid := range sandboxesOf(cmd.Process.Pid) {
		return &sandbox{by: l, launcher: cmd.Process.Pid, pid: pid}
	}
	t.Fatalf("%s: launcher %d has no child named %s", l.name, cmd.Process.Pid, processName)
	return nil
}

// sandboxesOf lists a launcher's sandbox processes.
func sandboxesOf(launcher int) []int {
	return slices.DeleteFunc(childrenOf(launcher), func(pid int) bool { return commandLine(pid) != processName+"\x00" })
}

func proc(pid int, elements ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(pid)}, elements...)...)
}

func readProc(t *testing.T, pid int, elements ...string) string {
	t.Helper()
	b, err := os.ReadFile(proc(pid, elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func commandLine(pid int) string {
	b, err := os.ReadFile(proc(pid, "cmdline"))
	if err != nil {
		return ""
	}
	return string(b)
}

// childrenOf lists a process' children, whichever of its threads made them.
func childrenOf(pid int) []int {
	var out []int
	files, err := filepath.Glob(proc(pid, "task", "*", "children"))
	if err != nil {
		panic(err) // only for a bad pattern
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// list returns the names in a folder that is there.
func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// status returns the fields of a status file, with white space made uniform.
func status(t *testing.T, text string) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if ok {
			fields[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return fields
}

// gone says that a process has ended.
func gone(pid int) bool {
	return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}
