// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// terminal starts a guest command behind a terminal of 30 by 101.
func terminal(t *testing.T, args ...string) *testbed.Terminal {
	t.Helper()
	h := getHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return testbed.StartTerminal(t, h.Command(ctx, append([]string{"run", "--rm", "-it", "--network", "none", image}, args...)...), 30, 101)
}

// TestTerminal checks what a program sees of its terminal, that its size is
// right from the start, and that lines end once.
func TestTerminal(t *testing.T) {
	term := terminal(t, "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && echo all terminals; stty size; echo controlling > /dev/tty; echo "TERM=$TERM"; exit 4`)
	before := term.Modes(t)
	if code := term.Wait(t); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	for _, want := range []string{"all terminals\r\n", "30 101\r\n", "controlling\r\n", "TERM=xterm\r\n"} {
		if !strings.Contains(term.Output(), want) {
			t.Errorf("terminal does not show %q: %q", want, term.Output())
		}
	}
	if strings.Contains(term.Output(), "\r\r\n") {
		t.Errorf("line ends are doubled: %q", term.Output())
	}
	if after := term.Modes(t); after != before {
		t.Errorf("the terminal's modes were not restored: %+v, before %+v", after, before)
	}
}

// TestTerminalTakesAWholeWrite: what a program writes at once is shown, however little a
// terminal takes at a time.
func TestTerminalTakesAWholeWrite(t *testing.T) {
	term := terminal(t, "python3", "-c", `import os; n = os.write(1, b"x" * 100000 + b"\n"); print("wrote", n)`)
	term.Expect(t, "wrote 100001")
	if code := term.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(term.Output(), "x"); n != 100000 {
		t.Errorf("%d bytes were shown", n)
	}
}

// TestTerminalResize: the guest is told of a new size.
func TestTerminalResize(t *testing.T) {
	term := terminal(t, "sh", "-c", `trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done`)
	term.Expect(t, "ready")
	term.Resize(t, 41, 203)
	term.Expect(t, "41 203")
	if code := term.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestTerminalKeys: Ctrl-C, Ctrl-\ and Ctrl-D mean inside what they mean outside.
func TestTerminalKeys(t *testing.T) {
	term := terminal(t, "sh", "-c", `trap 'echo interrupted' INT; trap 'echo quit' QUIT; echo ready; while ! read line; do :; done; echo "read $line"; cat; echo bye`)
	term.Expect(t, "ready")
	term.Type(t, "\x03")
	term.Expect(t, "interrupted")
	term.Type(t, "\x1c")
	term.Expect(t, "quit")
	term.Type(t, "some words\r")
	term.Expect(t, "read some words")
	term.Type(t, "to cat\r")
	term.Expect(t, "to cat\r\nto cat\r\n")
	term.Type(t, "\x04")
	term.Expect(t, "bye")
	if code := term.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestJobControl uses an interactive shell as a human would: stop, list,
// continue and interrupt jobs.
func TestJobControl(t *testing.T) {
	term := terminal(t, "bash", "--norc", "-i")
	term.Type(t, "PS1='> '; echo be''gin\r")
	term.Expect(t, "begin")
	term.Type(t, "sleep 1000\r")
	time.Sleep(time.Second) // there is no other sign of a sleep that runs
	term.Type(t, "\x1a")
	term.Expect(t, "Stopped")
	term.Type(t, "jobs; fg\r")
	time.Sleep(time.Second)
	term.Type(t, "\x03")
	term.Type(t, "echo code $?\r")
	term.Expect(t, "code 130")
	term.Type(t, "exit 6\r")
	if code := term.Wait(t); code != 6 {
		t.Errorf("exit code %d, want 6", code)
	}
	if strings.Contains(term.Output(), "no job control") || strings.Contains(term.Output(), "cannot set terminal process group") {
		t.Errorf("the shell has no job control: %q", term.Output())
	}
}

// TestTerminalNeeded: -t without a terminal is refused, as docker does.
func TestTerminalNeeded(t *testing.T) {
	result := getHome(t).Rungv(t, strings.NewReader(""), "run", "--rm", "-it", "--network", "none", image, "true")
	if result.Code != 125 || !strings.Contains(strings.ToLower(result.Stderr), "terminal") && !strings.Contains(strings.ToLower(result.Stderr), "tty") {
		t.Errorf("-it with a pipe as input: %v", result)
	}
}

// TestTerminalBulk moves more than a terminal's buffer through it.
func TestTerminalBulk(t *testing.T) {
	term := terminal(t, "sh", "-c", `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i + 1)); done`)
	if code := term.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	term.Expect(t, "line 19999")
	if lines := strings.Count(term.Output(), "line "); lines != 20000 {
		t.Errorf("%d of 20000 lines arrived", lines)
	}
}
