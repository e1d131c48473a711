// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutputsThatAreOneFile: one pipe or device, by however many descriptors, or one
// opening of a file; never two openings of a file, whose positions differ.
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
	pipe := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return w
	}
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
		"a device that is opened twice": {null, open(os.DevNull), true},
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
