// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSandboxKilled kills the sandbox process: the launcher says so, state says
// so, nothing is left but the record.
func TestSandboxKilled(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	s := start(t, `sleep 1000 & echo ready; wait`)
	pid := inspect(t, h, s.name).State.Pid
	if pid <= 0 {
		t.Fatal("inspect names no process")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(t); code == 0 || code == -1 {
		t.Errorf("the launcher ended with %d when its sandbox was killed; stderr %q", code, s.stderr.String())
	}
	if s.stderr.String() == "" {
		t.Error("the launcher did not say why it ended")
	}
	state := inspect(t, h, s.name)
	if state.State.Status != "exited" || state.State.ExitCode != 137 || state.State.Running {
		t.Errorf("inspect after the sandbox was killed: %+v", state.State)
	}
	h.MustRungv(t, "rm", s.name)
	left()
}

// TestLauncherKilled kills the launcher: the sandbox ends too, and what it was
// is cleaned by whoever looks next.
func TestLauncherKilled(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	s := start(t, `sleep 1000 & echo ready; wait`)
	pid := inspect(t, h, s.name).State.Pid
	if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait(t)
	for deadline := time.Now().Add(30 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("sandbox process %d outlives its launcher", pid)
		}
	}
	if state := inspect(t, h, s.name); state.State.Running || state.State.Status != "exited" {
		t.Errorf("inspect after the launcher was killed: %+v", state.State)
	}
	h.MustRungv(t, "rm", s.name)
	left()
}

// TestLauncherKilledRemove is TestLauncherKilled with --rm: the next verb cleans.
func TestLauncherKilledRemove(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	s := start(t, `sleep 1000 & echo ready; wait`, "--rm")
	if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait(t)
	if list := h.MustRungv(t, "ps", "--format", "{{.Names}}"); strings.Contains(list, s.name) {
		t.Errorf("ps lists a sandbox without launcher as running: %q", list)
	}
	if list := h.MustRungv(t, "ps", "-a", "--format", "{{.Names}}"); strings.Contains(list, s.name) {
		t.Errorf("ps -a lists a sandbox that was to go with its launcher: %q", list)
	}
	left()
}

// TestStubKilled kills one of the sandbox's helper processes, which host guest
// code: the sandbox may end, and must not hang or report success.
func TestStubKilled(t *testing.T) {
	h := getHome(t)
	// Where the stub is that of the shell's child, the shell goes on.
	s := start(t, `sleep 1000 & echo ready; wait; exit 5`)
	state := inspect(t, h, s.name)
	var stub int
	for _, process := range h.Processes(t) {
		pid, parent := ids(process)
		if parent == state.State.Pid && pid != state.State.Pid {
			stub = pid
		}
	}
	if stub == 0 {
		t.Skip("the platform has no helper process here")
	}
	if err := syscall.Kill(stub, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A killed stub is a dead guest process or a dead sandbox; either way rm -f
	// has to end it.
	h.MustRungv(t, "rm", "-f", s.name)
	if code := s.wait(t); code == 0 {
		t.Error("the launcher reports success")
	}
}

// ids returns the process id of a line of Home.Processes, and its parent's.
func ids(line string) (pid, parent int) {
	first, _, _ := strings.Cut(line, " ")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return pid, 0
	}
	// The command's name, in parentheses, may hold anything.
	_, rest, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return pid, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	return pid, parent
}
