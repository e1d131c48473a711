// SPDX-License-Identifier: Apache-2.0

// The guest's standard streams without a terminal: three pipes.

package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// copyBufferBytes is a pipe's default capacity: one read empties it.
const copyBufferBytes = 64 << 10

// StreamOptions say what the guest's streams are joined to.
type StreamOptions struct {
	// In is copied to the guest when Interactive is set; otherwise the guest's
	// standard input is empty.
	In          *os.File
	Interactive bool
	// Out and Err take what the guest writes.
	Out, Err io.Writer
	// TTY gives the guest a terminal; Err is not used then.
	TTY bool
	// DetachKeys end the copying of input, see Detached. Only with TTY.
	DetachKeys []byte
	// Signal is called for the terminal's interrupt, quit and suspend
	// characters. Only with TTY.
	Signal func(syscall.Signal)
}

// Streams joins the guest's standard streams to the user's.
type Streams struct {
	opt StreamOptions
	// guest are the ends to donate: stdin, stdout, stderr, which may be one.
	guest [3]*os.File
	// host are our ends of them; for a terminal only the first, its primary.
	host [3]*os.File

	terminal *terminal
	detached chan struct{}
	outputs  sync.WaitGroup

	mu     sync.Mutex
	failed []error
}

// NewStreams makes pipes or a pseudo-terminal. Nothing is copied yet.
func NewStreams(opt StreamOptions) (*Streams, error) {
	s := &Streams{opt: opt, detached: make(chan struct{})}
	if opt.TTY {
		if err := s.openTerminal(); err != nil {
			return nil, fmt.Errorf("make a terminal for the guest: %w", err)
		}
		return s, nil
	}
	one := isOneFile(opt.Out, opt.Err)
	for i := range s.guest {
		ours := readEnd
		if i == 0 {
			ours = writeEnd
		}
		var err error
		if i == 2 && one {
			// What comes first shall arrive first, as where both are inherited.
			s.guest[2] = s.guest[1]
			break
		}
		if s.guest[i], s.host[i], err = pipe(ours); err != nil {
			s.Close()
			return nil, fmt.Errorf("make a pipe for the guest: %w", err)
		}
	}
	return s, nil
}

// isOneFile says whether two outputs are the same file of the host's, so that whoever
// reads it could tell in which order was written to them: one opening of it, as by 2>&1,
// or one pipe that both may write to. Two openings of another file have positions of
// their own, and one device file may stand for many devices.
func isOneFile(out, errs io.Writer) bool {
	a, isFile := out.(*os.File)
	b, areFiles := errs.(*os.File)
	if !isFile || !areFiles || a == nil || b == nil {
		return false
	}
	if a == b {
		return true
	}
	same := false
	err := withDescriptors(a, b, func(x, y int) {
		const kcmpFile = 0 // kcmp(2), which a host may forbid
		pid := uintptr(os.Getpid())
		if order, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, uintptr(x), uintptr(y), 0); errno == 0 && order == 0 {
			same = true
			return
		}
		var s, t unix.Stat_t
		same = unix.Fstat(x, &s) == nil && unix.Fstat(y, &t) == nil && s.Dev == t.Dev && s.Ino == t.Ino &&
			s.Mode&unix.S_IFMT == unix.S_IFIFO && isWritable(x) && isWritable(y)
	})
	return err == nil && same
}

func isWritable(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0
}

// withDescriptors calls do with the descriptors of two files, whose modes stay as they
// are.
func withDescriptors(a, b *os.File, do func(x, y int)) error {
	x, err := a.SyscallConn()
	if err != nil {
		return err
	}
	y, err := b.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = x.Control(func(fx uintptr) {
		inner = y.Control(func(fy uintptr) { do(int(fx), int(fy)) })
	})
	return errors.Join(err, inner)
}

// NewCopy makes a pipe that stands for a file which a guest cannot have itself: what is
// read from the file goes into it, or what a guest writes goes to the file. Its guest's
// end is Stdin or Stdout.
func NewCopy(f *os.File, input bool) (*Streams, error) {
	s := &Streams{detached: make(chan struct{})}
	i, ours := 1, readEnd
	s.opt.Out = f
	if input {
		i, ours = 0, writeEnd
		s.opt = StreamOptions{In: f, Interactive: true}
	}
	var err error
	if s.guest[i], s.host[i], err = pipe(ours); err != nil {
		return nil, fmt.Errorf("make a pipe for the guest: %w", err)
	}
	return s, nil
}

// pipe returns a pipe with one end to donate and one of ours. Ours waits in the
// runtime's poller instead of occupying a thread; the donated one blocks, since
// its mode is the other process' business.
func pipe(ours pipeEnd) (donated, our *os.File, err error) {
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

// pipeEnd is an end of a pipe, as pipe2 numbers them.
type pipeEnd int

const (
	readEnd  pipeEnd = 0
	writeEnd pipeEnd = 1
)

// Stdin, Stdout and Stderr are the guest's ends.
func (s *Streams) Stdin() *os.File  { return s.guest[0] }
func (s *Streams) Stdout() *os.File { return s.guest[1] }
func (s *Streams) Stderr() *os.File { return s.guest[2] }

// Start closes our copies of the guest's ends, which have been donated, and
// begins to copy.
func (s *Streams) Start() {
	s.closeGuest()
	if s.terminal != nil {
		s.startTerminal()
		return
	}
	switch {
	case s.host[0] == nil:
	case s.opt.Interactive:
		go s.copyIn()
	default:
		s.host[0].Close()
	}
	if s.host[1] != nil {
		s.outputs.Go(func() { s.copyOut(s.opt.Out, s.host[1], "standard output") })
	}
	if s.host[2] != nil {
		s.outputs.Go(func() { s.copyOut(s.opt.Err, s.host[2], "standard error") })
	}
}

// copyIn copies input until either side closes; the user's end of file becomes
// the guest's.
func (s *Streams) copyIn() {
	defer s.host[0].Close()
	_, _ = io.CopyBuffer(plainWriter{s.host[0]}, plainReader{s.opt.In}, make([]byte, copyBufferBytes))
}

// copyOut copies one output to its end. When the user's side fails, the
// guest's is closed, so that the guest learns about it as from any pipe.
func (s *Streams) copyOut(to io.Writer, from *os.File, name string) {
	defer from.Close()
	buf := make([]byte, copyBufferBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				if !errors.Is(werr, syscall.EPIPE) {
					s.fail(fmt.Errorf("write %s: %w", name, werr))
				}
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.copyRest(to, from, name)
			return
		}
		if err != nil {
			// A terminal whose last replica has closed reads as EIO; one that
			// was hung up is closed on our side.
			if err != io.EOF && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
				s.fail(fmt.Errorf("read the guest's %s: %w", name, err))
			}
			return
		}
	}
}

// copyRest copies what is there now and waits for nothing: at most as much as
// a pipe holds, or somebody who goes on writing would hold us up for ever.
func (s *Streams) copyRest(to io.Writer, from *os.File, name string) {
	raw, err := from.SyscallConn()
	buf := make([]byte, copyBufferBytes)
	for left := copyBufferBytes; err == nil && left > 0; {
		n := 0
		cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf[:left]) })
		if err = errors.Join(err, cerr); err != nil || n <= 0 {
			return
		}
		left -= n
		if _, werr := to.Write(buf[:n]); werr != nil {
			if !errors.Is(werr, syscall.EPIPE) {
				s.fail(fmt.Errorf("write %s: %w", name, werr))
			}
			return
		}
	}
}

func (s *Streams) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, err)
}

// Drain returns once everything the guest wrote has been delivered: after the
// sandbox process has ended. It reports what could not be delivered.
func (s *Streams) Drain() error {
	s.outputs.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failed...)
}

// Finish returns once everything has been delivered that was written before
// the call. Unlike [Streams.Drain] it does not wait for the ends to close,
// which others may hold: a process' children in the background.
func (s *Streams) Finish() error {
	past := time.Unix(0, 1)
	for _, f := range s.host {
		if f != nil {
			_ = f.SetReadDeadline(past)
		}
	}
	return s.Drain()
}

// Donation returns the guest's ends, in the mode that a running sandbox takes
// them in, which does not block: three pipes, or both sides of a terminal.
func (s *Streams) Donation() ([]*os.File, error) {
	files := s.guest[:]
	if s.terminal != nil {
		files = []*os.File{s.guest[0], s.terminal.primary}
	}
	for _, f := range files {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err == nil {
			cerr := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), true) })
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return nil, fmt.Errorf("prepare the streams: %w", err)
		}
	}
	return files, nil
}

// Detached is closed when the user has typed the detach keys.
func (s *Streams) Detached() <-chan struct{} { return s.detached }

// Close gives the user's terminal back and closes all ends. It may be called
// more than once, at any time.
func (s *Streams) Close() {
	s.Restore()
	s.closeGuest()
	for _, f := range s.host {
		if f != nil {
			f.Close()
		}
	}
}

func (s *Streams) closeGuest() {
	for _, f := range s.guest {
		if f != nil {
			f.Close()
		}
	}
}

// plainReader and plainWriter hide what else a file can do: a copy between
// files would try copy_file_range and splice first, which pipes and terminals
// refuse one system call at a time.
type plainReader struct{ io.Reader }

type plainWriter struct{ io.Writer }
