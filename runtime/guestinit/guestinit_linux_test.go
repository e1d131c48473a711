// SPDX-License-Identifier: Apache-2.0

package guestinit

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/hooks"
)

// TestMain lets the test binary play the init.
func TestMain(m *testing.M) {
	if os.Args[0] == api.InitName {
		Main(os.Args)
	}
	os.Exit(m.Run())
}

func initCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{api.InitName}, args...)
	return cmd
}

func TestEndsAsTheCommandEnds(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--", "/bin/sh", "sh", "-c", "exit 7"}, 7},
		{[]string{"--", "/bin/sh", "sh", "-c", "kill -TERM $$"}, 143},
		{[]string{"--", "/nosuch", "nosuch"}, 127},
		{[]string{"--", "/etc", "etc"}, 126},
		{[]string{"--"}, 125},
	} {
		cmd := initCommand(c.args...)
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.want {
			t.Errorf("%q: exit code %d, want %d", c.args, got, c.want)
		}
	}
}

func TestPassesArgumentsOn(t *testing.T) {
	out, err := initCommand("--", "/bin/sh", "my-name", "-c", `echo "$0 $1"`, "zero", "a b").Output()
	if err != nil || string(out) != "zero a b\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestForwardsSignals(t *testing.T) {
	cmd := initCommand("--", "/bin/sh", "sh", "-c", `trap "exit 9" USR1; echo ready; while :; do sleep 0.05; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("exit code %d, want 9", got)
	}
}

// TestReapsOrphans leaves the init an orphan that ends at once: no zombie may
// remain while the command runs.
func TestReapsOrphans(t *testing.T) {
	if _, err := exec.LookPath("ps"); err != nil {
		t.Skip("ps is not installed")
	}
	cmd := initCommand("--", "/bin/sh", "sh", "-c", `(sh -c 'echo orphan' &) ; sleep 0.3; ps -o stat= --ppid $PPID | grep -c Z; true`)
	done := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer done.Stop()
	out, err := cmd.Output()
	if err != nil || string(out) != "orphan\n0\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestStartContainerHooks: they run first, with the command's standing, and the
// command takes over the very process.
func TestStartContainerHooks(t *testing.T) {
	dir := t.TempDir()
	hook := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", `cat > "$0/state"; test ! -e "$0/fail"`, dir}, Env: []string{"PATH=" + os.Getenv("PATH")}}
	arg, err := hooks.Argument(specs.State{ID: "c"}, []specs.Hook{hook})
	if err != nil {
		t.Fatal(err)
	}
	cmd := initCommand(arg, "--", "/bin/sh", "my-name", "-c", `cat "$1/state"; echo " $0 $$"; exit 7`, "zero", dir)
	out, _ := cmd.Output()
	want := fmt.Sprintf(`{"ociVersion":"","id":"c","status":"created","pid":%d,"bundle":""} zero %[1]d`+"\n", cmd.Process.Pid)
	if string(out) != want || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("got %q and %d, want %q", out, cmd.ProcessState.ExitCode(), want)
	}
	// One that says nothing of its environment has the command's.
	heir := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", `echo "$ONE" > "$0/one"`, dir}}
	inherits, err := hooks.Argument(specs.State{ID: "c"}, []specs.Hook{heir})
	if err != nil {
		t.Fatal(err)
	}
	cmd = initCommand(inherits, "--", "/bin/cat", "cat", dir+"/one")
	cmd.Env = append(os.Environ(), "ONE=two")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "two\n" {
		t.Errorf("its environment: %q, %v", out, err)
	}
	if err := os.WriteFile(dir+"/fail", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd = initCommand(arg, "--", "/bin/echo", "echo", "ran")
	out, _ = cmd.Output()
	if len(out) != 0 || cmd.ProcessState.ExitCode() != exitUsage {
		t.Errorf("after a hook that failed: %q and %d", out, cmd.ProcessState.ExitCode())
	}
	if err := os.Remove(dir + "/fail"); err != nil {
		t.Fatal(err)
	}
	cmd = initCommand(arg, "--", "/nosuch", "nosuch")
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != exitNotFound {
		t.Errorf("a command that does not exist: %d", got)
	}
}
