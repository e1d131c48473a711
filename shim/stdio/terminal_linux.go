// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/launch"
)

// openTerminal makes a pseudo-terminal, and copies between it and where input
// comes from and output goes.
func (s *Set) openTerminal(c Config) error {
	primary, replica, err := launch.OpenTerminal()
	if err != nil {
		return fmt.Errorf("make a terminal: %w", err)
	}
	s.primary = primary
	s.guest = [3]*os.File{replica, replica, replica}
	s.closeLater(primary)
	// Without a reader, output is still taken: a full terminal would stop the guest.
	var to io.WriteCloser = nowhere{io.Discard}
	if c.Stdout != "" {
		if to, err = s.terminalOutput(c); err != nil {
			return fmt.Errorf("open output %s: %w", c.Stdout, err)
		}
	}
	s.copyOutput(to, primary)
	if c.Stdin == "" {
		return nil
	}
	from, err := s.openFrom(c.Stdin)
	if err != nil {
		return err
	}
	s.copyInput(&launch.Keyboard{Primary: primary, Signal: s.keyed}, from, func() {})
	return nil
}

// terminalOutput opens where a terminal's output goes.
func (s *Set) terminalOutput(c Config) (io.WriteCloser, error) {
	t, err := parseTarget(c.Stdout)
	if err != nil {
		return nil, err
	}
	if t.isProgram() {
		if err := s.startLogger(c, t); err != nil {
			return nil, err
		}
		s.logger.guest[1].Close()
		return s.logger.guest[0], nil
	}
	fifo, err := isFIFO(t)
	if err != nil {
		return nil, err
	}
	if !fifo {
		return openLog(t.path)
	}
	// Read and written: it stays whole while nobody reads. In the poller, so
	// that closing it ends a write for which there is no room.
	fd, err := unix.Open(t.path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: t.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), t.path)
	s.closeLater(f)
	return lateOutput{f, s}, nil
}

// nowhere is the output that nobody wants.
type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }
