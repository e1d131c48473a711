// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// copyBufferBytes is a pipe's default capacity: one read empties it.
	copyBufferBytes = 64 << 10
	// logFileMode is that of a log file, as containerd's own shim makes it.
	logFileMode = 0o644
)

// Set is one process' streams. Its methods are safe for concurrent use.
type Set struct {
	// guest are the ends to donate, nil for /dev/null.
	guest [3]*os.File
	// primary is the shim's side of a terminal, nil without one.
	primary *os.File
	// outputs are the copies that run.
	outputs sync.WaitGroup
	// onKeys is told of what a terminal's keys mean.
	onKeys atomic.Pointer[func(syscall.Signal)]

	mu sync.Mutex
	// held are the shim's own ends of fifos, which keep them whole while nobody
	// reads; they are given up when the process has exited.
	held []*os.File
	// closers end the copying.
	closers []io.Closer
	// input is where standard input comes from, nil for nowhere.
	input  *input
	logger *logger
	closed bool

	// late wait for readers of what has ended. They give up after closing is closed:
	// at giveUp, which is set before, or at once if there is nothing to read.
	late    sync.WaitGroup
	closing chan struct{}
	giveUp  time.Time
}

// Open opens a process' streams. The caller donates the guest's ends, then calls
// Donated, and Close at the end.
func Open(c Config) (_ *Set, err error) {
	s := &Set{closing: make(chan struct{})}
	defer func() {
		if err != nil {
			s.Donated()
			s.Close(0)
		}
	}()
	if c.Terminal {
		return s, s.openTerminal(c)
	}
	if c.Stdin != "" {
		if err := s.openInput(c.Stdin); err != nil {
			return nil, err
		}
	}
	return s, s.openOutputs(c)
}

// Stdin, Stdout and Stderr are the guest's ends.
func (s *Set) Stdin() *os.File  { return s.guest[0] }
func (s *Set) Stdout() *os.File { return s.guest[1] }
func (s *Set) Stderr() *os.File { return s.guest[2] }

// Donated closes the shim's copies of the guest's ends: the guest has its own, or
// will never have them.
func (s *Set) Donated() {
	for i, f := range s.guest {
		if f != nil && (i == 0 || f != s.guest[i-1]) {
			f.Close()
		}
	}
}

// Exited says that the process has ended: what it wrote is in its streams, and
// whoever reads shall see their end.
func (s *Set) Exited() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.held {
		s.letGo(f)
	}
	s.held = nil
}

// HoldInput has the process' standard input go on until CloseInput, whoever goes
// that writes to it. Call it when the process starts.
func (s *Set) HoldInput() error {
	if s == nil || s.input == nil {
		return nil
	}
	return s.input.hold()
}

// CloseInput ends the process' standard input, behind all that its writers have
// written when they close it. A terminal has no such end.
func (s *Set) CloseInput() {
	if s != nil && s.input != nil && s.primary == nil {
		s.input.end()
	}
}

// OnKeys has f told of the signals that a terminal's keys mean (^C, ^\, ^Z): the
// guest's processes are not the host's, whose kernel would send them.
func (s *Set) OnKeys(f func(syscall.Signal)) {
	if s != nil {
		s.onKeys.Store(&f)
	}
}

// keyed tells of one.
func (s *Set) keyed(sig syscall.Signal) {
	if f := s.onKeys.Load(); f != nil {
		(*f)(sig)
	}
}

// Resize sets the size of the terminal, of which the guest learns when it starts.
func (s *Set) Resize(rows, columns uint16) error {
	if s == nil || s.primary == nil {
		return nil
	}
	raw, err := s.primary.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	err = raw.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	return errors.Join(err, ioctlErr)
}

// Close ends the streams. Output may take that long to reach its reader.
func (s *Set) Close(patience time.Duration) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	closers, logger := s.closers, s.logger
	s.giveUp = time.Now().Add(patience)
	close(s.closing)
	s.mu.Unlock()
	s.Exited()

	done := make(chan struct{})
	go func() {
		s.outputs.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
	}
	for _, c := range closers {
		c.Close()
	}
	if logger != nil {
		logger.end(patience)
	}
	<-done
	s.late.Wait()
}

// closeLater has something closed by Close.
func (s *Set) closeLater(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, c)
}

// openInput makes the pipe of standard input, and copies to it what comes through
// a fifo, until its end.
func (s *Set) openInput(path string) error {
	from, err := s.openFrom(path)
	if err != nil {
		return err
	}
	guest, ours, err := pipe(writeEnd)
	if err != nil {
		return err
	}
	s.guest[0] = guest
	s.closeLater(ours)
	s.copyInput(ours, from, func() { ours.Close() })
	return nil
}

// openFrom opens where standard input comes from.
func (s *Set) openFrom(path string) (*input, error) {
	from, err := openSource(path)
	if err != nil {
		return nil, err
	}
	s.input = from
	s.closeLater(from)
	return from, nil
}

// copyInput copies until from ends, or nobody reads any more.
func (s *Set) copyInput(to io.Writer, from *input, then func()) {
	go func() {
		_, _ = io.CopyBuffer(plainWriter{to}, plainReader{from}, make([]byte, copyBufferBytes))
		then()
		from.Close()
	}()
}

// openOutputs opens where standard output and error go. A logging program takes
// both, whichever names it.
func (s *Set) openOutputs(c Config) error {
	for i, uri := range []string{c.Stdout, c.Stderr} {
		if uri == "" {
			continue
		}
		t, err := parseTarget(uri)
		if err != nil {
			return err
		}
		if t.isProgram() {
			if err := s.startLogger(c, t); err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.guest[1], s.guest[2] = s.logger.guest[0], s.logger.guest[1]
			return nil
		}
		if s.guest[1+i], err = s.openOutput(t); err != nil {
			return fmt.Errorf("open output %s: %w", uri, err)
		}
	}
	return nil
}

// openOutput returns the guest's end of an output: the fifo itself, or a pipe that
// is copied to a file, whose offset no guest shall have a say in.
func (s *Set) openOutput(t target) (*os.File, error) {
	if isFIFO, err := isFIFO(t); err != nil {
		return nil, err
	} else if isFIFO {
		hold, err := openFIFO(t.path, unix.O_RDWR)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.held = append(s.held, hold)
		s.mu.Unlock()
		// It does not block: the shim is a reader, too.
		return openFIFO(t.path, unix.O_WRONLY)
	}
	to, err := openLog(t.path)
	if err != nil {
		return nil, err
	}
	guest, ours, err := pipe(readEnd)
	if err != nil {
		to.Close()
		return nil, err
	}
	s.closeLater(ours)
	s.copyOutput(to, ours)
	return guest, nil
}

// copyOutput copies until from ends, and closes both.
func (s *Set) copyOutput(to io.WriteCloser, from io.ReadCloser) {
	s.outputs.Go(func() {
		defer to.Close()
		defer from.Close()
		_, _ = io.CopyBuffer(plainWriter{to}, plainReader{from}, make([]byte, copyBufferBytes))
	})
}

// isFIFO says whether an output is one.
func isFIFO(t target) (bool, error) {
	if t.scheme == schemeFile {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(t.path, &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: t.path, Err: err}
	}
	return st.Mode&unix.S_IFMT == unix.S_IFIFO, nil
}

// openFIFO opens a fifo in blocking mode without blocking here. Whether a guest's
// end blocks is the sandbox's business.
func openFIFO(path string, mode int) (*os.File, error) {
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, logFileMode)
}

// The ends of a pipe, as pipe2 numbers them.
const (
	readEnd  = 0
	writeEnd = 1
)

// pipe returns a pipe with one end to donate and one of ours, which waits in the
// runtime's poller so that closing it ends a copy.
func pipe(ours int) (guest, our *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[1-ours]), "pipe"), os.NewFile(uintptr(fds[ours]), "pipe"), nil
}

// plainReader and plainWriter hide splice, with which closing our end does not
// end a copy that waits for a full pipe of somebody else's.
type plainReader struct{ io.Reader }
type plainWriter struct{ io.Writer }
