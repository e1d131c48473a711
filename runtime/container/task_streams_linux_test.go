// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
