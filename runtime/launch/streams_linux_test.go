// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutputsThatAreOneFile: one opening, by however many descriptors, or one pipe that
// both write to; never two openings of a file, whose positions differ, nor two devices
// behind one file.
func TestOutputsThatAreOneFile(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	again := func(f *os.File) *os.File {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		copied := os.NewFile(uintptr(fd), f.Name())
		t.Cleanup(func() { copied.Close() })
		return copied
	}
	pipes := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	pipe := func() *os.File { _, w := pipes(); return w }
	reopened := func(f *os.File) *os.File { return open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) }
	terminal := func() *os.File {
		primary, replica, err := OpenTerminal()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { primary.Close(); replica.Close() })
		return primary
	}
	primary := terminal()
	readEnd, writeEnd := pipes()
	a, file, null := pipe(), open(filepath.Join(dir, "f")), open(os.DevNull)
	closed := pipe()
	closed.Close()
	for name, c := range map[string]struct {
		out, errs io.Writer
		want      bool
	}{
		"one pipe":                      {a, a, true},
		"two descriptors of a pipe":     {a, again(a), true},
		"two pipes":                     {a, pipe(), false},
		"two descriptors of a file":     {file, again(file), true},
		"a file that is opened twice":   {file, open(filepath.Join(dir, "f")), false},
		"two files":                     {file, open(filepath.Join(dir, "g")), false},
		"two openings of a pipe":        {a, reopened(a), true},
		"the two ends of a pipe":        {readEnd, writeEnd, false},
		"a device that is opened twice": {null, open(os.DevNull), false},
		"two descriptors of a terminal": {primary, again(primary), true},
		"two terminals":                 {primary, terminal(), false},
		"a pipe and a file":             {a, file, false},
		"a closed pipe":                 {a, closed, false},
		"no files":                      {&bytes.Buffer{}, &bytes.Buffer{}, false},
		"nothing":                       {nil, nil, false},
		"no file where one could be":    {(*os.File)(nil), (*os.File)(nil), false},
	} {
		if got := isOneFile(c.out, c.errs); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
