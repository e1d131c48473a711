// SPDX-License-Identifier: Apache-2.0

package posture

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/runtime/lockdown/policy"
)

// exercise is the guest's program: see there.
//
//go:embed testdata/exercise.py
var exercise string

// unexercised are the entries that this workload may be able to do without,
// each with why it stays in the table. By the beginning of the entry as
// [policy.Entry] writes itself.
var unexercised = map[string]string{
	"pwrite64(":                              "used for writes of one piece; the Sentry prefers pwritev2 where it has several",
	"exit_group(":                            "missing it shows only after the launcher has fetched the exit status",
	"exit(":                                  "a thread ends when the Go runtime sees fit",
	"sched_yield(":                           "only under contention",
	"getrandom(":                             "only where or when the vDSO does not serve it",
	"restart_syscall(":                       "the kernel's choice, after a stop",
	"rt_sigaction(":                          "on the way to a crash, whose report would be lost",
	"rt_tgsigqueueinfo(":                     "when a stub is killed: see TestStubKilled",
	"ptrace(0=0x4201)":                       "when a stub is killed: see TestStubKilled",
	"prctl(0=0x53564d41":                     "only with CONFIG_ANON_VMA_NAME",
	"mmap(2=0x3, 3=0x28)":                    "Linux 6.11, and more threads than the runtime began with",
	"mmap(2&0xfffffffffffffffc=0x0, 3=0x32)": "when the Sentry's heap outgrows an arena of 64 MiB",
	"mmap(2&0xfffffffffffffffc=0x0, 3=0x11)": "when a file that is mapped grows into a window",
	"madvise(2=0x4)":                         "when the Go runtime returns memory",
	"madvise(2∈[0xe 0xf 0x19])":              "only where the host gives huge pages on request",
	"mlock(":                                 "kernels before 5.14",
	"munlock(":                               "kernels before 5.14",
}

// numbers the sandboxes of this test.
var exercises atomic.Int64

// TestEveryEntryIsNeeded leaves out one entry of the allow-list after the
// other, and expects the sandbox to be killed for want of it: an entry that
// nothing needs must go. With the whole table the workload must succeed.
//
// It starts two sandboxes for each entry. Nightly.
func TestEveryEntryIsNeeded(t *testing.T) {
	l := launchers(t)[0]
	if failure := l.exercise(t, -1, false); failure != "" {
		t.Fatalf("with the whole table, on pipes: %s", failure)
	}
	if failure := l.exercise(t, -1, true); failure != "" {
		t.Fatalf("with the whole table, on a terminal: %s", failure)
	}
	if !testbed.Nightly() {
		t.Skip("the rest takes minutes: set GVX_NIGHTLY")
	}
	table := policy.Table(policy.Arch(runtime.GOARCH))
	for i := range table {
		t.Run(fmt.Sprintf("%d %s", i, table[i].Syscall), func(t *testing.T) {
			t.Parallel()
			l.checkNeeded(t, &table[i], i)
		})
	}
}

// checkNeeded runs the workload without entry number i.
func (l *launcher) checkNeeded(t *testing.T, e *policy.Entry, i int) {
	t.Helper()
	var reason string
	for prefix, why := range unexercised {
		if strings.HasPrefix(e.String(), prefix) {
			reason = why
		}
	}
	for _, terminal := range []bool{false, true} {
		switch failure := l.exercise(t, i, terminal); {
		case strings.Contains(failure, "SIGSYS"):
			return
		case failure != "" && reason == "":
			// Killed, but not by the filter: a call that the Go runtime or the
			// platform cannot take no for an answer. It was needed all the same.
			t.Logf("without %s, terminal %t: %s", e, terminal, failure)
			return
		}
	}
	if reason == "" {
		t.Errorf("nothing needs %s (%s)", e, e.Reason)
		return
	}
	t.Logf("not exercised: %s: %s", e, reason)
}

// exercise runs the workload without an entry of the table, and returns what
// went wrong.
func (l *launcher) exercise(t *testing.T, without int, terminal bool) string {
	t.Helper()
	binary := l.stage(t, mode{Action: "kill", Without: without})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	name := fmt.Sprintf("posture-%d", exercises.Add(1))
	args := []string{"run", "--rm", "-i", "--name", name, "--network", "nat"}
	if terminal {
		args = append(args, "-t")
	}
	cmd := l.command(ctx, binary, append(args, image, "python3", "-c", exercise)...)
	if terminal {
		term := testbed.StartTerminal(t, cmd, 24, 80)
		term.Type(t, "go\n")
		code := term.Wait(t)
		return verdict(code, term.Output())
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err.Error()
	}
	var output lockedBuilder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the exit code says it
	}()
	for waiting := true; waiting && !strings.Contains(output.String(), "ready"); {
		select {
		case <-ended:
			waiting = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	// Another client of the control channel, while the sandbox lives, and a
	// stop in the middle of its calls.
	_ = l.command(ctx, binary, "stats", "--no-stream", name).Run()
	_ = l.command(ctx, binary, "exec", name, "true").Run()
	for _, pid := range sandboxesOf(cmd.Process.Pid) {
		_ = unix.Kill(pid, unix.SIGSTOP)
		time.Sleep(50 * time.Millisecond)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	_, _ = io.WriteString(stdin, "go\n")
	stdin.Close()
	<-ended
	return verdict(cmd.ProcessState.ExitCode(), output.String())
}

// verdict is empty if the workload ran to its end.
func verdict(code int, output string) string {
	if code == 0 && strings.Contains(output, "finished") {
		return ""
	}
	return fmt.Sprintf("exit code %d: %s", code, output)
}

// lockedBuilder is a string that grows while it is read.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
