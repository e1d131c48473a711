// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// TestPreservedIsWhatIsHeld: what a guest gets for a descriptor is the same pipe, terminal
// or device; what opened anew would be another one, or more than it was, is refused.
func TestPreservedIsWhatIsHeld(t *testing.T) {
	primary, replica, err := launch.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Close()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string, flags int) *os.File {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), name)
	}
	type kind struct {
		name string
		file *os.File
		held bool
	}
	for _, k := range []kind{
		{"a terminal", replica, true},
		{"a pipe that has a name", open(fifo, unix.O_RDWR), true},
		{"the null device", open(os.DevNull, unix.O_WRONLY), true},
		{"a terminal's primary side", open("/dev/ptmx", unix.O_RDWR), false},
		{"the name of a pipe", open(fifo, unix.O_PATH), false},
		{"the name of the null device", open(os.DevNull, unix.O_PATH), false},
		{"the name of a file", open("/proc/self/exe", unix.O_PATH), false},
		{"another device", open("/dev/zero", unix.O_RDONLY), false},
	} {
		defer k.file.Close()
		var was, is unix.Stat_t
		if err := fstat(k.file, &was); err != nil {
			t.Fatal(err)
		}
		x, err := newTaskExtras([]*os.File{k.file})
		switch {
		case !k.held:
			if api.KindOf(err) != api.KindUnsupported {
				t.Errorf("%s: %v", k.name, err)
			}
			if err == nil {
				x.close()
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		defer x.close()
		if err := fstat(x.files()[0], &is); err != nil {
			t.Fatal(err)
		}
		if is.Dev != was.Dev || is.Ino != was.Ino || is.Rdev != was.Rdev {
			t.Errorf("%s: %+v became %+v", k.name, was, is)
		}
	}
}
