// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/pkg/gvx"
)

// hog is a Python program that needs more than the limit of the tests here.
const hog = "b = bytearray(512 << 20); print(len(b))"

// processesOf returns the launcher of a sandbox, and the sandbox' own processes.
func (w world) processesOf(t *testing.T, before []string) (launcher int, others []int) {
	t.Helper()
	for _, trace := range w.traces(t) {
		pid, err := strconv.Atoi(strings.TrimPrefix(trace, "process "))
		if err != nil || contains(before, trace) {
			continue
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			launcher = pid
		} else {
			others = append(others, pid)
		}
	}
	if launcher == 0 || len(others) == 0 {
		t.Fatalf("the sandbox has launcher %d, others %v", launcher, others)
	}
	return launcher, others
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// TestKilledSandboxIsTold, whichever of its processes somebody killed, and Close
// removes what the launcher could not.
func TestKilledSandboxIsTold(t *testing.T) {
	w := setup(t)
	for _, victim := range []string{"launcher", "sandbox"} {
		left := w.leavesNothing(t)
		before := w.traces(t)
		c := w.config("echo ready; sleep 1000")
		c.Docker, c.NetworkMode = true, gvx.NetModeNAT
		sb := startSandbox(t, c)
		launcher, others := w.processesOf(t, before)
		pids := []int{launcher}
		if victim == "sandbox" {
			pids = others
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if exit, err := sb.Wait(t.Context()); !errors.Is(err, gvx.ErrKilled) {
			t.Errorf("%s: %+v, %v", victim, exit, err)
		}
		if _, err := sb.Output(t.Context(), "true"); !errors.Is(err, gvx.ErrState) {
			t.Errorf("%s: a command afterwards: %v", victim, err)
		}
		if err := sb.Close(); err != nil {
			t.Errorf("%s: close: %v", victim, err)
		}
		left()
	}
}

// TestCloseIsToldFromAFault to who waits, for the guest and for a command.
func TestCloseIsToldFromAFault(t *testing.T) {
	sb := sleeper(t)
	p, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := sb.Wait(context.Background())
		waited <- err
	}()
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waited; !errors.Is(err, gvx.ErrState) || !strings.Contains(err.Error(), "closed") {
		t.Errorf("wait: %v", err)
	}
	if exit, err := p.Wait(t.Context()); !errors.Is(err, gvx.ErrState) {
		t.Errorf("the command: %+v, %v", exit, err)
	}
}

// TestMemoryLimitInACommand is told from another end of it; a guest that copes with
// the end of a process has not failed.
func TestMemoryLimitInACommand(t *testing.T) {
	w := setup(t)
	c := w.config("echo ready; sleep 1000")
	c.Resources.MemoryBytes = 128 << 20
	sb := startSandbox(t, c)
	if exit, err := sb.Exec(t.Context(), gvx.Command{Args: []string{"python3", "-c", hog}}); !errors.Is(err, gvx.ErrOOM) || exit.Code != 137 || !exit.OOMKilled {
		t.Errorf("%+v, %v", exit, err)
	}
	if exit, err := sb.Exec(t.Context(), gvx.Command{Args: []string{"sh", "-c", "kill -9 $$"}}); err != nil || exit.Signal != syscall.SIGKILL || exit.OOMKilled {
		t.Errorf("killed by itself: %+v, %v", exit, err)
	}
	if exit, err := sb.Exec(t.Context(), gvx.Command{Args: []string{"sh", "-c", "exit 137"}}); err != nil || exit.Code != 137 || exit.Signal != 0 {
		t.Errorf("a code like a signal's: %+v, %v", exit, err)
	}
	c = w.config("python3 -c '" + hog + "' 2>/dev/null || exit 0")
	c.Resources.MemoryBytes = 128 << 20
	sb = newSandbox(t, c)
	if code, err := sb.Run(t.Context()); code != 0 || err != nil {
		t.Errorf("a guest that copes: code %d, %v", code, err)
	}
	if exit, err := sb.Wait(t.Context()); err != nil || !exit.OOMKilled {
		t.Errorf("what it coped with: %+v, %v", exit, err)
	}
}

// TestCommandsAreThereWhenStarted: a missing one is told at once, and a signal is
// not lost or worse.
func TestCommandsAreThereWhenStarted(t *testing.T) {
	sb := sleeper(t)
	if _, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"nosuch"}}); !errors.Is(err, gvx.ErrStart) {
		t.Errorf("a missing command: %v", err)
	}
	for range 10 {
		p, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if exit, err := p.Wait(ctx); err != nil || exit.Signal != syscall.SIGUSR1 {
			t.Errorf("a signal right after its start: %+v, %v", exit, err)
		}
		cancel()
	}
	p, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != syscall.SIGKILL || exit.Code != 137 {
		t.Errorf("killed: %+v, %v", exit, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if p, err = sb.StartExec(ctx, gvx.Command{Args: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Wait(t.Context()); !errors.Is(err, gvx.ErrCanceled) {
		t.Errorf("its context cancelled: %v", err)
	}
}

// silentRegistry accepts connections and never answers.
func silentRegistry(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l.Addr().String()
}

// TestDeadlineOfTheCreation is not that of the run, and bounds what is slow.
func TestDeadlineOfTheCreation(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	c := w.config("true")
	c.OCIImage, c.Pull = silentRegistry(t)+"/slow:1", gvx.PullMissing
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := gvx.New(short, c); !errors.Is(err, gvx.ErrTimeout) {
		t.Errorf("a registry that does not answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sb, err := gvx.New(ctx, w.config("exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	cancel()
	if code, err := sb.Run(t.Context()); code != 3 || err != nil {
		t.Errorf("after the end of the creation's context: %d, %v", code, err)
	}
	left()
}

// TestOtherErrorsAreTyped: those of hosts, registries, limits and names.
func TestOtherErrorsAreTyped(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	c := w.config("true")
	c.OCIImage, c.Pull = "127.0.0.1:1/refused:1", gvx.PullMissing
	if _, err := gvx.New(ctx, c); !errors.Is(err, gvx.ErrUnavailable) {
		t.Errorf("a registry that is not there: %v", err)
	}
	c = w.config("echo ready; truncate -s 2G /sparse; sleep 1000")
	c.Name = "taken"
	sb := startSandbox(t, c)
	if _, err := gvx.New(ctx, c); !errors.Is(err, gvx.ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if info, err := sb.Stat(ctx, "/sparse"); err == nil && info.SizeBytes == 2<<30 {
			break
		}
	}
	if _, err := sb.ReadFile(ctx, "/sparse"); !errors.Is(err, gvx.ErrLimit) {
		t.Errorf("a file that is too large: %v", err)
	}
	if err := (gvx.Volumes{RuntimePath: w.binary, Root: w.root}).Create(ctx, "/sys/volume.ext4", 64<<20); !errors.Is(err, gvx.ErrPermission) {
		t.Errorf("a volume where nobody may write: %v", err)
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c = w.config("true")
	c.Mounts = []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: junk, GuestPath: "/v"}}
	if _, err := gvx.New(ctx, c); !errors.Is(err, gvx.ErrVolume) {
		t.Errorf("junk for a volume: %v", err)
	}
	if err := (gvx.Volumes{RuntimePath: w.binary, Root: w.root}).Check(ctx, junk); !errors.Is(err, gvx.ErrVolume) {
		t.Errorf("junk checked: %v", err)
	}
	if _, err := gvx.OpenVolume(junk); !errors.Is(err, gvx.ErrVolume) {
		t.Errorf("junk opened: %v", err)
	}
}

// TestNothingIsKept of sandboxes that are closed: no descriptor, no goroutine.
func TestNothingIsKept(t *testing.T) {
	w := setup(t)
	life := func() {
		c := w.config("echo ready; sleep 1000")
		c.Docker, c.NetworkMode = true, gvx.NetModeNAT
		sb := startSandbox(t, c)
		_, _ = sb.Output(t.Context(), "true")
		_, _ = sb.ReadFile(t.Context(), "/etc/passwd")
		_, _ = sb.Exec(t.Context(), gvx.Command{Args: []string{"nosuch"}})
		_, _ = sb.Exec(t.Context(), gvx.Command{Args: []string{"true"}, TTY: true, Stdin: strings.NewReader("x")})
		_, _ = sb.Stats(t.Context())
		sb.Close()
		bad := w.config("true")
		bad.OCIImage = "nosuch:1"
		_, _ = gvx.New(t.Context(), bad)
	}
	life() // What is made once.
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		life()
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if runtime.NumGoroutine() <= goroutines && descriptors(t) <= files {
			return
		}
		if time.Now().After(end) {
			stacks := make([]byte, 64<<10)
			t.Fatalf("%d goroutines and %d descriptors, %d and %d before:\n%s", runtime.NumGoroutine(), descriptors(t), goroutines, files,
				stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
