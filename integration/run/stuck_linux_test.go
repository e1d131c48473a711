// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// startStuck starts a sandbox and stops its process: it takes nothing any more.
func startStuck(t *testing.T) *started {
	t.Helper()
	s := start(t, `sleep 1000 & echo ready; wait`)
	if err := syscall.Kill(inspect(t, getHome(t), s.name).State.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return s
}

// mustHaveBeenKilled wants a run to have ended because its sandbox was killed.
func mustHaveBeenKilled(t *testing.T, s *started) {
	t.Helper()
	if code := s.wait(t); code != 137 {
		t.Errorf("the launcher ended with %d, want 137; stderr %q", code, s.stderr.String())
	}
	h := getHome(t)
	if state := inspect(t, h, s.name).State; state.Running || state.ExitCode != 137 {
		t.Errorf("inspect afterwards: %+v", state)
	}
	h.MustRungv(t, "rm", s.name)
}

// TestSecondSignalEndsAStuckSandbox: the first one waits for an answer; who
// repeats it is obeyed.
func TestSecondSignalEndsAStuckSandbox(t *testing.T) {
	left := getHome(t).NothingLeft(t)
	s := startStuck(t)
	for range 2 {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond) // more than the launcher's patience
	}
	mustHaveBeenKilled(t, s)
	if said := s.stderr.String(); !strings.Contains(said, "does not answer") {
		t.Errorf("the launcher did not say why it killed: %q", said)
	}
	left()
}

// TestKillEndsAStuckSandbox: SIGKILL needs nobody's consent.
func TestKillEndsAStuckSandbox(t *testing.T) {
	left := getHome(t).NothingLeft(t)
	s := startStuck(t)
	getHome(t).MustRungv(t, "kill", s.name)
	mustHaveBeenKilled(t, s)
	left()
}

// TestLostOutputIsNoSuccess: a guest that ends with 0 has not succeeded when the
// user did not get what it wrote; one that failed keeps its own code.
func TestLostOutputIsNoSuccess(t *testing.T) {
	h := getHome(t)
	for _, c := range []struct {
		script string
		code   int
	}{{"echo lost", 125}, {"echo lost; exit 3", 3}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := h.CommandAs(ctx, "/bin/sh", "-c", `exec "$0" "$@" >/dev/full`, h.Binary, "run", "--rm", "--network", "none", image, "sh", "-c", c.script)
		result := testbed.Run(t, cmd, nil)
		cancel()
		if result.Code != c.code || !strings.Contains(result.Stderr, "no space left on device") {
			t.Errorf("%s: %v, want code %d and the cause", c.script, result, c.code)
		}
	}
}
