// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestExitCodes checks docker's exit codes.
func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		code int
		say  string // part of standard error
	}{
		{"zero", []string{image, "true"}, 0, ""},
		{"one", []string{image, "false"}, 1, ""},
		{"any", []string{image, "sh", "-c", "exit 42"}, 42, ""},
		{"most", []string{image, "sh", "-c", "exit 255"}, 255, ""},
		{"signal", []string{image, "python3", "-c", "import os; os.abort()"}, 128 + int(syscall.SIGABRT), ""},
		{"not found", []string{image, "no-such-command"}, 127, "no-such-command"},
		{"absolute not found", []string{image, "/no/such/command"}, 127, "/no/such/command"},
		{"not executable", []string{image, "/etc/passwd"}, 126, "/etc/passwd"},
		{"directory", []string{image, "/etc"}, 126, "/etc"},
		{"ours", []string{"--no-such-flag", image, "true"}, 125, "no-such-flag"},
		{"no image", []string{}, 125, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := getHome(t)
			result := h.Rungv(t, nil, append([]string{"run", "--rm", "--network", "none"}, test.args...)...)
			if result.Code != test.code {
				t.Errorf("want exit code %d: %v", test.code, result)
			}
			if !strings.Contains(result.Stderr, test.say) {
				t.Errorf("standard error does not name %q: %v", test.say, result)
			}
			if test.code == 0 && result.Stderr != "" {
				t.Errorf("a run that succeeded wrote to standard error: %v", result)
			}
		})
	}
}

// TestSignalsAreProxied sends signals to the launcher; the guest's first process
// gets them, and its exit code comes back.
func TestSignalsAreProxied(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGQUIT} {
		t.Run(signal.String(), func(t *testing.T) {
			s := start(t, fmt.Sprintf(`trap 'echo got it; exit 7' %d; echo ready; while :; do sleep 0.05; done`, int(signal)), "--rm")
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if code := s.wait(t); code != 7 {
				t.Errorf("exit code %d, want 7; stderr %q", code, s.stderr.String())
			}
			if !strings.Contains(s.stdout.String(), "got it") {
				t.Errorf("the last words are lost: %q", s.stdout.String())
			}
		})
	}
}

// TestDefaultSignals checks signals that the guest does not handle: the exit
// code says which.
func TestDefaultSignals(t *testing.T) {
	s := start(t, `echo ready; exec sleep 1000`, "--rm", "--init")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(t); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d, want 143; stderr %q", code, s.stderr.String())
	}
}

// TestKill checks `rungv kill`, with and without a signal.
func TestKill(t *testing.T) {
	h := getHome(t)
	s := start(t, `trap 'echo hup' HUP; echo ready; while :; do sleep 0.05; done`, "--rm")
	h.MustRungv(t, "kill", "-s", "HUP", s.name)
	s.stdout.expect(t, "hup", s)
	h.MustRungv(t, "kill", s.name)
	if code := s.wait(t); code != 137 {
		t.Errorf("exit code %d after kill, want 137", code)
	}
	if result := h.Rungv(t, nil, "kill", s.name); result.Code == 0 || !strings.Contains(result.Stderr, s.name) {
		t.Errorf("kill of a sandbox that is gone: %v", result)
	}
}

// TestLifecycle follows a sandbox through ps and inspect to its removal.
func TestLifecycle(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	s := start(t, `echo ready; while ! [ -e /stop ]; do sleep 0.05; done; exit 3`, "--label", "role=test")
	if state := inspect(t, h, s.name); state.State.Status != "running" || state.State.Pid == 0 || !state.State.Running {
		t.Errorf("inspect of a running sandbox: %+v", state)
	}
	if list := h.MustRungv(t, "ps", "--format", "{{.Names}}"); !strings.Contains(list, s.name) {
		t.Errorf("ps does not list %s: %q", s.name, list)
	}
	if result := h.Rungv(t, nil, "rm", s.name); result.Code == 0 {
		t.Errorf("rm of a running sandbox without -f succeeded: %v", result)
	}
	if result := h.Rungv(t, nil, "run", "--rm", "--name", s.name, image, "true"); result.Code != 125 || !strings.Contains(result.Stderr, s.name) {
		t.Errorf("a second sandbox of the same name: %v", result)
	}
	h.MustRungv(t, "kill", s.name)
	if code := s.wait(t); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
	if state := inspect(t, h, s.name); state.State.Status != "exited" || state.State.ExitCode != 137 || state.State.Running || state.State.OOMKilled {
		t.Errorf("inspect of a killed sandbox: %+v", state)
	}
	if list := h.MustRungv(t, "ps", "--format", "{{.Names}}"); strings.Contains(list, s.name) {
		t.Errorf("ps without -a lists the ended %s: %q", s.name, list)
	}
	if list := h.MustRungv(t, "ps", "-a", "--format", "{{.Names}}"); !strings.Contains(list, s.name) {
		t.Errorf("ps -a does not list %s: %q", s.name, list)
	}
	h.MustRungv(t, "rm", s.name)
	if result := h.Rungv(t, nil, "inspect", s.name); result.Code == 0 {
		t.Errorf("inspect after rm: %v", result)
	}
	left()
}

// TestRemove checks that --rm leaves nothing, whatever way the run ends.
func TestRemove(t *testing.T) {
	left := getHome(t).NothingLeft(t)
	mustSh(t, "dd if=/dev/urandom of=/big bs=1M count=20 2>/dev/null")
	sh(t, "exit 9")
	sh(t, "kill -9 -1")
	left()
}

// TestStopTimeout: a guest that ignores the stop signal is killed when the time
// given is over.
func TestStopTimeout(t *testing.T) {
	h := getHome(t)
	s := start(t, `trap 'echo no' USR1; echo ready; while :; do sleep 0.05; done`, "--stop-signal", "USR1", "--stop-timeout", "1")
	begin := time.Now()
	result := h.Rungv(t, nil, "stop", s.name)
	if strings.Contains(result.Stderr, "unknown command") {
		h.MustRungv(t, "rm", "-f", s.name)
		s.wait(t)
		t.Skip("rungv has no stop yet: it belongs to detached sandboxes")
	}
	if result.Code != 0 {
		t.Fatalf("stop: %v", result)
	}
	if code := s.wait(t); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("killed after %v, before the second it was given", took)
	}
	if !strings.Contains(s.stdout.String(), "no") {
		t.Errorf("the stop signal did not arrive: %q", s.stdout.String())
	}
}
