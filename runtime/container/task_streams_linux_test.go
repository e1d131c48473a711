// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/launch"
)

// TestDrainWithOthers: what a container wrote to files is there at its end, which another
// container that holds its output does not put off.
func TestDrainWithOthers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "output")
	output, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	s, err := newTaskStreams(false, nil, output, output)
	if err != nil {
		t.Fatal(err)
	}
	var other *os.File
	if err := withFD(s.guest[1], func(fd uintptr) error {
		held, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		other = os.NewFile(uintptr(held), "the other's")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	text := strings.Repeat("written\n", 4<<10)
	if _, err := other.WriteString(text); err != nil {
		t.Fatal(err)
	}
	s.donated()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.drain(true, t.Errorf)
	}()
	select {
	case <-drained:
	case <-time.After(time.Minute):
		t.Fatal("the end waits for who holds the output")
	}
	if got, err := os.ReadFile(name); string(got) != text {
		t.Errorf("%d bytes of %d have arrived, %v", len(got), len(text), err)
	}
}

// TestStreamsThatAGuestMayHold are pipes, terminals and the null device, open for what
// they are used for; what opened anew would be another one, or more than it was, is
// copied from and to.
func TestStreamsThatAGuestMayHold(t *testing.T) {
	primary, replica, err := launch.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	open := func(name string, flags int) *os.File {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), name)
	}
	for name, stream := range map[string]struct {
		file    *os.File
		in, out bool
	}{
		"a pipe to read from":            {read, true, false},
		"a pipe to write to":             {write, false, true},
		"a terminal":                     {replica, true, true},
		"the null device":                {open(os.DevNull, unix.O_RDWR), true, true},
		"the null device, to read":       {open(os.DevNull, unix.O_RDONLY), true, false},
		"the name of the null device":    {open(os.DevNull, unix.O_PATH), false, false},
		"a terminal's primary side":      {open("/dev/ptmx", unix.O_RDWR), false, false},
		"another device":                 {open("/dev/zero", unix.O_RDWR), false, false},
		"a file":                         {open("/proc/self/exe", unix.O_RDONLY), false, false},
		"none, which is the null device": {nil, true, true},
	} {
		for _, input := range []bool{true, false} {
			want := input && stream.in || !input && stream.out
			own, err := donatable(stream.file, input)
			if err != nil || (own != nil) != want {
				t.Errorf("%s, input %v: %v, %v; want one: %v", name, input, own, err, want)
			}
			if own != nil {
				own.Close()
			}
		}
		if stream.file != nil {
			stream.file.Close()
		}
	}
}
