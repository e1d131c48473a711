// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/pkg/gvx"
)

// sleeper is a sandbox that stays up.
func sleeper(t *testing.T) *gvx.Sandbox {
	t.Helper()
	return startSandbox(t, setup(t).config("echo ready; sleep 1000"))
}

// TestExecGivesCodeAndOutput with environment, directory, user and input given.
func TestExecGivesCodeAndOutput(t *testing.T) {
	sb := sleeper(t)
	var out, errs bytes.Buffer
	exit, err := sb.Exec(t.Context(), gvx.Command{
		Args: []string{"sh", "-c", `echo "$A|$(pwd)|$(id -u)"; cat; echo oops >&2; exit 5`},
		Env:  []string{"A=x\ny"}, Dir: "/etc", User: "1000", Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs,
	})
	if err != nil || exit.Code != 5 || out.String() != "x\ny|/etc|1000\nin" || errs.String() != "oops\n" {
		t.Errorf("%+v, %v: %q, %q", exit, err, &out, &errs)
	}
	text, err := sb.Output(t.Context(), "echo", "-n", "--rm", "a b")
	if err != nil || string(text) != "--rm a b" {
		t.Errorf("output %q, %v", text, err)
	}
}

// TestExecErrorsAreTyped.
func TestExecErrorsAreTyped(t *testing.T) {
	sb := sleeper(t)
	_, err := sb.Output(t.Context(), "sh", "-c", "echo why >&2; exit 9")
	var typed *gvx.Error
	if !errors.As(err, &typed) || !errors.Is(err, gvx.ErrExit) || typed.Exit == nil || typed.Exit.Code != 9 || !strings.Contains(err.Error(), "why") {
		t.Errorf("a command that fails: %v", err)
	}
	for name, test := range map[string]struct {
		command gvx.Command
		want    error
	}{
		"missing":        {gvx.Command{Args: []string{"nosuch"}}, gvx.ErrStart},
		"not executable": {gvx.Command{Args: []string{"/etc/passwd"}}, gvx.ErrStart},
		"empty":          {gvx.Command{}, gvx.ErrInvalid},
		"relative":       {gvx.Command{Args: []string{"true"}, Dir: "x"}, gvx.ErrInvalid},
		"environment":    {gvx.Command{Args: []string{"true"}, Env: []string{"x"}}, gvx.ErrInvalid},
	} {
		if _, err := sb.Exec(t.Context(), test.command); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Output(t.Context(), "true"); !errors.Is(err, gvx.ErrState) {
		t.Errorf("after close: %v", err)
	}
}

// TestExecEndsWithItsContext, and its processes with it.
func TestExecEndsWithItsContext(t *testing.T) {
	sb := sleeper(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := sb.Exec(ctx, gvx.Command{Args: []string{"sh", "-c", "sleep 777; :"}}); !errors.Is(err, gvx.ErrTimeout) {
		t.Errorf("%v", err)
	}
	p, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"sh", "-c", "sleep 778; :"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	var list []gvx.GuestProcess
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if list, err = sb.Processes(t.Context()); err != nil || len(list) == 2 {
			break
		}
	}
	if err != nil || len(list) != 2 {
		t.Errorf("left in the guest: %+v, %v", list, err)
	}
}

// TestExecStreamsAndSignals while the command runs: its input blocks between two
// lines, as a pipe does.
func TestExecStreamsAndSignals(t *testing.T) {
	sb := sleeper(t)
	in, w := io.Pipe()
	out := &watched{}
	p, err := sb.StartExec(t.Context(), gvx.Command{
		Args:  []string{"sh", "-c", "trap 'echo got; exit 6' USR1; while read x; do echo \"<$x>\"; done; while :; do sleep 0.05; done"},
		Stdin: in, Stdout: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		fmt.Fprintf(w, "line %d\n", i)
		out.await(t, fmt.Sprintf("<line %d>", i))
	}
	w.Close()
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 6 || !strings.Contains(out.String(), "got") {
		t.Errorf("%+v, %v: %q", exit, err, out)
	}
}

// TestExecTerminal has a size that changes.
func TestExecTerminal(t *testing.T) {
	sb := sleeper(t)
	in, w := io.Pipe()
	out := &watched{}
	p, err := sb.StartExec(t.Context(), gvx.Command{Args: []string{"sh"}, TTY: true, Stdin: in, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "echo rea''dy\n")
	out.await(t, "ready")
	if err := p.Resize(20, 77); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !strings.Contains(out.String(), "20 77") && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		fmt.Fprint(w, "stty size\n")
	}
	fmt.Fprint(w, "exit 4\n")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 4 || !strings.Contains(out.String(), "20 77") {
		t.Errorf("%+v, %v: %q", exit, err, out)
	}
}

// TestManyCommandsAtOnce do not mix.
func TestManyCommandsAtOnce(t *testing.T) {
	sb := sleeper(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			want := strings.Repeat(fmt.Sprintf("%d,", i), 1000)
			have, err := sb.Output(t.Context(), "python3", "-c", fmt.Sprintf("print('%d,' * 1000, end='')", i))
			if err != nil || string(have) != want {
				t.Errorf("command %d: %v, %d bytes", i, err, len(have))
			}
		})
	}
	wg.Wait()
}
