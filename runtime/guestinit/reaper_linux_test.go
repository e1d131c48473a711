// SPDX-License-Identifier: Apache-2.0

package guestinit

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reaperPatience bounds what takes a moment.
const reaperPatience = 30 * time.Second

// startReaper runs the program as it is run in a guest, but that it is not process
// 1: orphans are brought to it by the shell that becomes it.
func startReaper(t *testing.T, before string) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "reaper")
	if err := os.WriteFile(path, Reaper(), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", before+"exec "+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	awaitReaper(t, "it runs", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "reaper\n"
	})
	return cmd
}

func awaitReaper(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(reaperPatience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// TestReaperEndsWithASignal, and not with others.
func TestReaperEndsWithASignal(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		cmd := startReaper(t, "")
		for _, other := range []unix.Signal{unix.SIGHUP, unix.SIGUSR1, unix.SIGCHLD} {
			if err := cmd.Process.Signal(other); err != nil {
				t.Fatal(err)
			}
		}
		awaitReaper(t, "signals are taken", func() bool { return pendingSignals(t, cmd.Process.Pid) == "0000000000000000" })
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

// pendingSignals are those of a process as a whole.
func pendingSignals(t *testing.T, pid int) string {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if mask, ok := strings.CutPrefix(lines.Text(), "ShdPnd:\t"); ok {
			return mask
		}
	}
	t.Fatal("no ShdPnd")
	return ""
}

// TestReaperReaps what ends before it looks, and after.
func TestReaperReaps(t *testing.T) {
	cmd := startReaper(t, "true & sleep 0.2 & ")
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	awaitReaper(t, "its children are reaped", func() bool {
		data, err := os.ReadFile(children)
		return err == nil && len(data) == 0
	})
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
