// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo terminal with a command behind it: the test is the human
// in front of it.
type Terminal struct {
	// Primary is the human's side, Replica the command's; the test keeps it
	// open to look at the terminal's modes.
	Primary, Replica *os.File

	cmd  *exec.Cmd
	done chan error

	mu     sync.Mutex
	output bytes.Buffer
	grown  chan struct{}
}

// patience is how long a test waits for something to appear on a terminal.
const patience = 60 * time.Second

// StartTerminal starts the command with a new terminal of the given size as its
// controlling one.
func StartTerminal(t testing.TB, cmd *exec.Cmd, rows, columns uint16) *Terminal {
	t.Helper()
	primary, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		Missing(t, "a pseudo terminal: %v", err)
	}
	number, err := unix.IoctlGetInt(int(primary.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatalf("terminal number: %v", err)
	}
	if err := unix.IoctlSetPointerInt(int(primary.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatalf("unlock terminal: %v", err)
	}
	replica, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	terminal := &Terminal{Primary: primary, Replica: replica, cmd: cmd, done: make(chan error, 1), grown: make(chan struct{}, 1)}
	terminal.Resize(t, rows, columns)
	if credential := cmd.SysProcAttr.Credential; credential != nil {
		// As login does: the terminal belongs to who sits at it.
		if err := replica.Chown(int(credential.Uid), int(credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = replica, replica, replica
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go terminal.read()
	go func() { terminal.done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		replica.Close()
		primary.Close()
	})
	return terminal
}

// read collects the output until the terminal is closed.
func (term *Terminal) read() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := term.Primary.Read(buffer)
		term.mu.Lock()
		term.output.Write(buffer[:n])
		term.mu.Unlock()
		select {
		case term.grown <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// Output returns all that the terminal has shown.
func (term *Terminal) Output() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.output.String()
}

// Type writes as a human would.
func (term *Terminal) Type(t testing.TB, keys string) {
	t.Helper()
	if _, err := term.Primary.WriteString(keys); err != nil {
		t.Fatalf("type %q: %v", keys, err)
	}
}

// Expect waits until the terminal has shown the text.
func (term *Terminal) Expect(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(patience)
	for !strings.Contains(term.Output(), text) {
		select {
		case <-term.grown:
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("the terminal never showed %q, but %q", text, term.Output())
		}
	}
}

// Resize sets the window's size.
func (term *Terminal) Resize(t testing.TB, rows, columns uint16) {
	t.Helper()
	size := &unix.Winsize{Row: rows, Col: columns}
	if err := unix.IoctlSetWinsize(int(term.Primary.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatalf("resize terminal: %v", err)
	}
}

// Modes returns the terminal's modes, to compare before and after.
func (term *Terminal) Modes(t testing.TB) unix.Termios {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(term.Replica.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatalf("terminal modes: %v", err)
	}
	return *modes
}

// Wait waits for the command's end and returns its exit code.
func (term *Terminal) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-term.done:
		return term.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("the command behind the terminal did not end; it showed %q", term.Output())
		return 0
	}
}
