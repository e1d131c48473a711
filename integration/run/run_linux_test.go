// SPDX-License-Identifier: Apache-2.0

// Package run tests `rungv run` and its companions end to end, as an ordinary
// user at a shell would use them: exit codes, signals, terminals, pipes, the
// image's config, limits, crashes, and every kind of bad input. Flags and their
// parsing have unit tests beside the code; here only what the real binary does
// to real guests counts.
package run

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest of nearly all tests: Debian with Python.
const image = "demo"

// home is shared by the tests of this package.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// getHome returns the package's home with the image imported.
func getHome(t *testing.T) *testbed.Home {
	t.Helper()
	h := home.Get(t)
	h.Image(t, image)
	return h
}

// names numbers the sandboxes of this process.
var names atomic.Int64

// newName returns a name for a sandbox, and removes it when the test ends.
func newName(t *testing.T, h *testbed.Home) string {
	name := fmt.Sprintf("test-%d", names.Add(1))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// It may be gone, which is what most tests want.
		_ = h.Command(ctx, "rm", "-f", name).Run()
	})
	return name
}

// sh runs a shell script in a new sandbox; flags go before the image.
func sh(t *testing.T, script string, flags ...string) testbed.Result {
	t.Helper()
	h := getHome(t)
	args := append([]string{"run", "--rm", "--network", "none"}, flags...)
	return h.Rungv(t, nil, append(args, image, "sh", "-c", script)...)
}

// mustSh is sh for a script that has to succeed; it returns the output without
// its last newline.
func mustSh(t *testing.T, script string, flags ...string) string {
	t.Helper()
	result := sh(t, script, flags...)
	if result.Code != 0 {
		t.Fatalf("script %q with flags %q: %v", script, flags, result)
	}
	return strings.TrimSuffix(result.Stdout, "\n")
}

// started is a sandbox that runs while the test does something to it.
type started struct {
	name   string
	cmd    *exec.Cmd
	stdout *lineBuffer
	stderr *lineBuffer
	done   chan error
}

// start runs the script in a named sandbox in the background, and waits until it
// has printed "ready".
func start(t *testing.T, script string, flags ...string) *started {
	t.Helper()
	h := getHome(t)
	s := &started{name: newName(t, h), stdout: newLineBuffer(), stderr: newLineBuffer(), done: make(chan error, 1)}
	args := append([]string{"run", "--name", s.name, "--network", "none"}, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	s.cmd = h.Command(ctx, append(args, image, "sh", "-c", script)...)
	s.cmd.Stdout, s.cmd.Stderr = s.stdout, s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	s.stdout.expect(t, "ready", s)
	return s
}

// wait waits for the launcher's end and returns its exit code, -1 for a signal.
func (s *started) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(90 * time.Second):
		t.Fatalf("sandbox %s did not end; stdout %q, stderr %q", s.name, s.stdout.String(), s.stderr.String())
		return 0
	}
}

// lineBuffer collects output that a test waits for.
type lineBuffer struct {
	mu   sync.Mutex
	data strings.Builder
}

func newLineBuffer() *lineBuffer { return &lineBuffer{} }

func (b *lineBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(data)
}

func (b *lineBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// expect waits until the output holds the text or the command ends.
func (b *lineBuffer) expect(t *testing.T, text string, s *started) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(b.String(), text) {
			return
		}
		select {
		case err := <-s.done:
			s.done <- err
			if strings.Contains(b.String(), text) {
				return
			}
			t.Fatalf("sandbox %s ended (%v) before it printed %q; stdout %q, stderr %q", s.name, err, text, s.stdout.String(), s.stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("sandbox %s never printed %q; stdout %q, stderr %q", s.name, text, s.stdout.String(), s.stderr.String())
		}
	}
}

// containerState is the part of `rungv inspect` that tests look at: docker's
// words.
type containerState struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status    string
		Running   bool
		Pid       int
		ExitCode  int
		OOMKilled bool
		Error     string
	}
}

// inspect returns what `rungv inspect` says of a sandbox.
func inspect(t *testing.T, h *testbed.Home, name string) containerState {
	t.Helper()
	output := h.MustRungv(t, "inspect", name)
	var list []containerState
	if err := json.Unmarshal([]byte(output), &list); err != nil || len(list) != 1 {
		t.Fatalf("inspect %s: %v in %s", name, err, output)
	}
	return list[0]
}
