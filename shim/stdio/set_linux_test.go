// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// patience is for what takes no time on an idle machine.
const patience = 10 * time.Second

// TestMain is also the program that logs, in the processes that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "log" {
		logProgram(os.Args[2], slices.Contains(os.Args, "quiet"))
		return
	}
	os.Exit(m.Run())
}

// logProgram writes what it gets to files, beside what it was told of.
func logProgram(dir string, quiet bool) {
	id := os.Getenv("CONTAINER_NAMESPACE") + "/" + os.Getenv("CONTAINER_ID")
	if err := os.WriteFile(filepath.Join(dir, "id"), []byte(id), 0o600); err != nil {
		os.Exit(1)
	}
	ready := os.NewFile(5, "ready")
	if quiet {
		return
	}
	_, _ = ready.Write([]byte{1})
	ready.Close()
	for i, name := range []string{"out", "err"} {
		data, err := io.ReadAll(os.NewFile(uintptr(3+i), name))
		if err != nil || os.WriteFile(filepath.Join(dir, name), data, 0o600) != nil {
			os.Exit(1)
		}
	}
}

func mkfifo(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, c Config) *Set {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(0) })
	return s
}

// guestEnd makes a copy of a guest's end, as donating does.
func guestEnd(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// within fails the test if something takes too long.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: no end", what)
	}
}

func TestNothingIsOpenedForNothing(t *testing.T) {
	s := open(t, Config{})
	if s.Stdin() != nil || s.Stdout() != nil || s.Stderr() != nil {
		t.Error("streams without names")
	}
	s.CloseInput()
	s.Donated()
	s.Close(0)
	s.Close(0)
}

func TestOutputGoesIntoTheFIFOItself(t *testing.T) {
	path := mkfifo(t, "out")
	s := open(t, Config{Stdout: path, Stderr: path})
	guest := guestEnd(t, s.Stdout())
	s.Donated()
	// Nobody reads yet: a guest must not notice.
	if _, err := guest.WriteString("early "); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// A reader that goes and comes back, as a containerd that is started again.
	head := make([]byte, 6)
	if _, err := io.ReadFull(reader, head); err != nil {
		t.Fatal(err)
	}
	reader.Close()
	if _, err := guest.WriteString("late"); err != nil {
		t.Fatalf("write while nobody reads: %v", err)
	}
	if reader, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	guest.Close()
	s.Exited()
	within(t, "the output", func() {
		rest, err := io.ReadAll(reader)
		if err != nil || string(head)+string(rest) != "early late" {
			t.Errorf("read %q, then %q, %v", head, rest, err)
		}
	})
}

// started opens a process' input, which has started, and returns the guest's end.
func started(t *testing.T, path string) (*Set, *os.File) {
	t.Helper()
	s := open(t, Config{Stdin: path})
	guest := guestEnd(t, s.Stdin())
	t.Cleanup(func() { guest.Close() })
	s.Donated()
	if err := s.HoldInput(); err != nil {
		t.Fatal(err)
	}
	return s, guest
}

// write writes to a fifo, as a client that comes, and returns the client's end.
func write(t *testing.T, path, data string) *os.File {
	t.Helper()
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writer.Close() })
	within(t, "writing", func() {
		if _, err := writer.WriteString(data); err != nil {
			t.Error(err)
		}
	})
	return writer
}

// wantAll reads a guest's input to its end.
func wantAll(t *testing.T, guest *os.File, want string) {
	t.Helper()
	within(t, "the end of the input", func() {
		if data, err := io.ReadAll(guest); err != nil || string(data) != want {
			t.Errorf("read %d bytes %.20q, want %d, %v", len(data), data, len(want), err)
		}
	})
}

// wantNoEnd fails if a guest's input has an end already.
func wantNoEnd(t *testing.T, when string, guest *os.File) {
	t.Helper()
	// The end of what is known to have been read would follow at once.
	fds := []unix.PollFd{{Fd: int32(guest.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 100); n != 0 || err != nil {
		t.Errorf("%s: events %#x of an input that goes on, %v", when, fds[0].Revents, err)
	}
}

// TestInputOutlivesItsWriters: a containerd that is started again is one.
func TestInputOutlivesItsWriters(t *testing.T) {
	path := mkfifo(t, "in")
	s, guest := started(t, path)
	wantNoEnd(t, "before the first writer", guest)
	for _, word := range []string{"hello", "again"} {
		write(t, path, word).Close()
		within(t, "the input", func() {
			got := make([]byte, len(word))
			if _, err := io.ReadFull(guest, got); err != nil || string(got) != word {
				t.Errorf("read %q, %v", got, err)
			}
		})
		wantNoEnd(t, "after a writer", guest)
	}
	s.CloseInput()
	wantAll(t, guest, "")
}

// TestInputEndsBehindWhatWasWritten: a client may end it before the guest has read
// any of it, and before it has written the last of it itself.
func TestInputEndsBehindWhatWasWritten(t *testing.T) {
	path := mkfifo(t, "in")
	s, guest := started(t, path)
	// More than the guest's pipe and the copy's buffer take: some waits in the fifo.
	data := strings.Repeat("x", 3*copyBufferBytes-4096)
	writer := write(t, path, data)
	s.CloseInput()
	s.CloseInput()
	if _, err := writer.WriteString("the last"); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	wantAll(t, guest, data+"the last")
}

// TestInputThatHasEndedBeforeTheStart stays ended: such a client can no longer say so.
func TestInputThatHasEndedBeforeTheStart(t *testing.T) {
	for name, data := range map[string]string{"nothing": "", "little": "hello", "much": strings.Repeat("x", 3*copyBufferBytes-4096)} {
		path := mkfifo(t, "in")
		s := open(t, Config{Stdin: path})
		guest := guestEnd(t, s.Stdin())
		s.Donated()
		write(t, path, data).Close()
		if err := s.HoldInput(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantAll(t, guest, data)
		guest.Close()
	}
}

// TestInputThatIsEnded by a call, before and after the start, though there has
// never been a writer.
func TestInputThatIsEnded(t *testing.T) {
	for _, name := range []string{"before the start", "after it"} {
		s := open(t, Config{Stdin: mkfifo(t, "in")})
		guest := guestEnd(t, s.Stdin())
		s.Donated()
		if name == "before the start" {
			s.CloseInput()
		}
		if err := s.HoldInput(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "after it" {
			s.CloseInput()
		}
		wantAll(t, guest, "")
		guest.Close()
		within(t, name, func() { s.Close(0) })
		s.CloseInput()
	}
}

// TestInputThatNobodyReads: neither a guest that does not read, nor one that has
// closed its input, keeps its streams from ending.
func TestInputThatNobodyReads(t *testing.T) {
	path := mkfifo(t, "in")
	s, guest := started(t, path)
	writer := write(t, path, strings.Repeat("x", 2*copyBufferBytes))
	within(t, "close", func() { s.Close(0) })
	guest.Close()
	writer.Close()

	path = mkfifo(t, "in")
	_, guest = started(t, path)
	guest.Close()
	writer = write(t, path, "lost")
	within(t, "writing to what nobody reads", func() {
		for {
			if _, err := writer.WriteString(strings.Repeat("x", 4096)); err != nil {
				if !errors.Is(err, syscall.EPIPE) {
					t.Error(err)
				}
				return
			}
		}
	})
}

// TestInputFromAFile ends where the file does.
func TestInputFromAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, guest := started(t, path)
	wantAll(t, guest, "content")
	if _, err := Open(Config{Stdin: "/nonexistent/fifo"}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("an input that does not exist: %v", err)
	}
}

func TestOutputIsAppendedToAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "log")
	for range 2 {
		s := open(t, Config{Stdout: "file://" + path, Stderr: "file://" + path})
		if _, err := s.Stdout().WriteString("out\n"); err != nil {
			t.Fatal(err)
		}
		s.Donated()
		within(t, "close", func() { s.Close(patience) })
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "out\nout\n" {
		t.Errorf("the file has %q, %v", data, err)
	}
}

// TestOutputIsReadAfterTheEnd: a short process has ended before containerd has opened
// its output, which holds all of it nevertheless, and ends.
func TestOutputIsReadAfterTheEnd(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		for _, text := range []string{"output", ""} {
			path := mkfifo(t, "out")
			s := open(t, Config{Stdout: path, Terminal: terminal})
			guest := guestEnd(t, s.Stdout())
			s.Donated()
			if _, err := guest.WriteString(text); err != nil {
				t.Fatal(err)
			}
			guest.Close()
			s.Exited()
			time.Sleep(100 * time.Millisecond)
			within(t, "reading", func() {
				if data, err := os.ReadFile(path); err != nil || string(data) != text {
					t.Errorf("terminal %v: read %q, %v; want %q", terminal, data, err, text)
				}
			})
			within(t, "close", func() { s.Close(patience) })
		}
	}
}

// TestOutputIsReadAfterItsProcessIsDeleted: it may take as long as the caller says, if
// there is any.
func TestOutputIsReadAfterItsProcessIsDeleted(t *testing.T) {
	path := mkfifo(t, "out")
	s := open(t, Config{Stdout: path})
	if _, err := s.Stdout().WriteString("output"); err != nil {
		t.Fatal(err)
	}
	s.Donated()
	read := make(chan string)
	go func() {
		time.Sleep(50 * time.Millisecond)
		data, _ := os.ReadFile(path)
		read <- string(data)
	}()
	within(t, "close", func() { s.Close(patience) })
	if got := <-read; got != "output" {
		t.Errorf("read %q", got)
	}
	s = open(t, Config{Stdout: mkfifo(t, "silent")})
	s.Donated()
	within(t, "close of what has nothing to read", func() { s.Close(time.Hour) })
	s = open(t, Config{Stdout: mkfifo(t, "unread")})
	_, _ = s.Stdout().WriteString("output")
	s.Donated()
	within(t, "close of what nobody reads", func() { s.Close(time.Millisecond) })
}

// TestOutputThatIsNeverRead: a guest's child holds the output when the process is
// deleted.
func TestOutputThatIsNeverRead(t *testing.T) {
	s := open(t, Config{Stdout: "file://" + filepath.Join(t.TempDir(), "log")})
	guest := guestEnd(t, s.Stdout())
	defer guest.Close()
	s.Donated()
	within(t, "close", func() { s.Close(time.Millisecond) })
}

func TestProgramThatLogs(t *testing.T) {
	for _, scheme := range []string{schemeBinary, schemeBinaryV2} {
		dir := t.TempDir()
		uri := scheme + "://" + os.Args[0] + "?log=" + dir
		s := open(t, Config{ID: "c", Namespace: "n", Stdout: uri, Stderr: uri})
		for i, f := range []*os.File{s.Stdout(), s.Stderr()} {
			if _, err := f.WriteString([]string{"to out", "to err"}[i]); err != nil {
				t.Fatal(err)
			}
		}
		s.Donated()
		within(t, "close", func() { s.Close(patience) })
		for name, want := range map[string]string{"id": "n/c", "out": "to out", "err": "to err"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
				t.Errorf("%s: %s is %q, %v", scheme, name, data, err)
			}
		}
	}
	dir := t.TempDir()
	if _, err := Open(Config{Stdout: schemeBinaryV2 + "://" + os.Args[0] + "?log=" + dir + "&quiet"}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a program that dies: %v", err)
	}
	if _, err := Open(Config{Stdout: schemeBinary + ":///nonexistent"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that does not exist: %v", err)
	}
}

func TestTerminal(t *testing.T) {
	in, out := mkfifo(t, "in"), mkfifo(t, "out")
	s := open(t, Config{Stdin: in, Stdout: out, Terminal: true})
	if s.Stdin() != s.Stdout() || s.Stdout() != s.Stderr() {
		t.Error("a terminal's streams differ")
	}
	guest := guestEnd(t, s.Stdin())
	if err := s.Resize(30, 90); err != nil {
		t.Error(err)
	}
	s.Donated()
	if size, err := unix.IoctlGetWinsize(int(guest.Fd()), unix.TIOCGWINSZ); err != nil || size.Row != 30 || size.Col != 90 {
		t.Errorf("size %+v, %v", size, err)
	}
	reader, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := s.HoldInput(); err != nil {
		t.Fatal(err)
	}
	// Writers come and go, and none ends it.
	for range 2 {
		write(t, in, "line\n").Close()
		within(t, "the terminal", func() {
			line := make([]byte, 5)
			if _, err := io.ReadFull(guest, line); err != nil || string(line) != "line\n" {
				t.Errorf("the guest read %q, %v", line, err)
			}
		})
		s.CloseInput()
	}
	if _, err := guest.WriteString("answer\n"); err != nil {
		t.Fatal(err)
	}
	guest.Close()
	within(t, "the terminal's output", func() {
		data, err := io.ReadAll(reader)
		if err != nil || !bytes.Contains(data, []byte("answer\r\n")) {
			t.Errorf("read %q, %v", data, err)
		}
	})
	within(t, "close", func() { s.Close(patience) })
}

// TestTerminalWithoutReader: a guest writes on, and the end comes.
func TestTerminalWithoutReader(t *testing.T) {
	for _, c := range []Config{{Terminal: true}, {Terminal: true, Stdout: mkfifo(t, "out")}} {
		s := open(t, c)
		guest := guestEnd(t, s.Stdin())
		s.Donated()
		if c.Stdout == "" {
			within(t, "writing", func() {
				if _, err := guest.WriteString(strings.Repeat("0123456\n", 1<<16)); err != nil {
					t.Error(err)
				}
			})
		} else {
			// More than the fifo takes: the guest waits, and must not for ever.
			go func() { _, _ = guest.WriteString(strings.Repeat("0123456\n", 1<<16)) }()
			time.Sleep(50 * time.Millisecond)
		}
		within(t, "close", func() { s.Close(time.Millisecond) })
		guest.Close()
	}
}

func TestTargets(t *testing.T) {
	for uri, want := range map[string]target{
		"/run/fifo":                   {scheme: schemeFIFO, path: "/run/fifo"},
		"fifo:///run/fifo":            {scheme: schemeFIFO, path: "/run/fifo"},
		"file:///var/log/x":           {scheme: schemeFile, path: "/var/log/x"},
		"binary:///bin/l?b=2&a&c=%20": {scheme: schemeBinary, path: "/bin/l", args: []string{"b", "2", "a", "c", " "}},
	} {
		got, err := parseTarget(uri)
		if err != nil || got.scheme != want.scheme || got.path != want.path || !slices.Equal(got.args, want.args) {
			t.Errorf("%s: %+v, %v", uri, got, err)
		}
	}
	for uri, kind := range map[string]api.Kind{
		"npipe:///x": api.KindUnsupported, "relative": api.KindUnsupported, "file:x": api.KindInvalid, ":": api.KindInvalid,
		"binary:///l?%zz": api.KindInvalid,
	} {
		if _, err := parseTarget(uri); api.KindOf(err) != kind {
			t.Errorf("%s: %v, want %s", uri, err, kind)
		}
	}
	if _, err := Open(Config{Stdout: "/nonexistent/fifo"}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("an output that does not exist: %v", err)
	}
}
