// SPDX-License-Identifier: Apache-2.0

// The guest's terminal: a pseudo-terminal of the host, and the user's own
// terminal in raw mode beside it.

package launch

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is a pseudo-terminal and what it does to the user's.
type terminal struct {
	primary *os.File

	mu sync.Mutex
	// user is the user's terminal mode before it became raw; nil when it is
	// not raw.
	user *term.State
}

// OpenTerminal makes a pseudo-terminal. Its primary side waits in the runtime's
// poller, its replica is nobody's controlling terminal.
func OpenTerminal() (primary, replica *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	primary = os.NewFile(uintptr(fd), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		primary.Close()
		return nil, nil, os.NewSyscallError("TIOCSPTLCK", err)
	}
	// By descriptor, not by path: /dev/pts may be another mount's.
	rfd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		primary.Close()
		return nil, nil, os.NewSyscallError("TIOCGPTPEER", errno)
	}
	return primary, os.NewFile(rfd, "terminal"), nil
}

// openTerminal makes the pseudo-terminal, in the user's terminal's size.
func (s *Streams) openTerminal() error {
	primary, replica, err := OpenTerminal()
	if err != nil {
		return err
	}
	s.guest[0] = replica
	s.guest[1], s.guest[2] = s.guest[0], s.guest[0]
	s.host[0] = primary
	s.terminal = &terminal{primary: primary}
	if rows, columns, ok := s.UserSize(); ok {
		_ = withFD(primary, func(fd int) error {
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		})
	}
	return nil
}

// withFD calls do with a file's descriptor, and leaves its mode alone.
func withFD(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// UserSize returns the size of the user's terminal, if there is one.
func (s *Streams) UserSize() (rows, columns uint16, ok bool) {
	for _, f := range []any{s.opt.Out, s.opt.In} {
		if f, isFile := f.(*os.File); isFile && f != nil {
			if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
				return w.Row, w.Col, true
			}
		}
	}
	return 0, 0, false
}

// MakeRaw puts the user's terminal into raw mode, if input comes from one.
func (s *Streams) MakeRaw() error {
	if s.terminal == nil || !s.opt.Interactive || s.opt.In == nil || !term.IsTerminal(int(s.opt.In.Fd())) {
		return nil
	}
	state, err := term.MakeRaw(int(s.opt.In.Fd()))
	if err != nil {
		return os.NewSyscallError("set the terminal to raw mode", err)
	}
	t := s.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.user == nil {
		// The first one: a later call, after the shell took the terminal
		// back, must not take raw for what the user had.
		t.user = state
	}
	return nil
}

// Restore gives the user's terminal its mode back. Call it before anything is
// printed; it may be called at any time, and more than once.
func (s *Streams) Restore() {
	if s.terminal == nil {
		return
	}
	t := s.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.user != nil {
		_ = term.Restore(int(s.opt.In.Fd()), t.user)
		t.user = nil
	}
}

// HangUp closes the terminal: the guest reads end of file from it, as when a
// modem loses its line.
func (s *Streams) HangUp() {
	if s.terminal != nil {
		s.terminal.primary.Close()
	}
}

// startTerminal begins to copy to and from the pseudo-terminal.
func (s *Streams) startTerminal() {
	if s.opt.Interactive {
		go func() {
			defer s.restoreOnPanic()
			s.copyKeys()
		}()
	}
	s.outputs.Go(func() {
		defer s.restoreOnPanic()
		s.copyOut(s.opt.Out, s.terminal.primary, "terminal")
	})
}

// restoreOnPanic keeps a bug of ours from leaving the user a raw terminal.
func (s *Streams) restoreOnPanic() {
	if r := recover(); r != nil {
		s.Restore()
		panic(r)
	}
}

// copyKeys copies what the user types.
func (s *Streams) copyKeys() {
	keys := keyMatcher{keys: s.opt.DetachKeys}
	board := &Keyboard{Primary: s.terminal.primary, Signal: s.opt.Signal}
	buf := make([]byte, copyBufferBytes)
	for {
		n, err := s.opt.In.Read(buf)
		out, found := keys.feed(buf[:n])
		if err != nil {
			out = append(out, keys.rest()...)
		}
		if _, werr := board.Write(out); werr != nil {
			return
		}
		if found {
			close(s.detached)
			keys.keys = nil
		}
		if err != nil {
			return
		}
	}
}

// Keyboard writes what is typed to a guest's terminal, and tells of the characters
// that the line discipline turns into signals: the host's kernel has no process of
// the guest's to send them to. It is for one goroutine.
type Keyboard struct {
	// Primary is the terminal's primary side.
	Primary *os.File
	// Signal, if not nil, is told of SIGINT, SIGQUIT and SIGTSTP.
	Signal func(syscall.Signal)

	// literal says that the next character was quoted by the user.
	literal bool
}

// Write implements io.Writer.
func (k *Keyboard) Write(in []byte) (int, error) {
	written := 0
	for written < len(in) {
		n, sig := k.nextSignal(in[written:])
		w, err := k.Primary.Write(in[written : written+n])
		written += w
		if err != nil {
			return written, err
		}
		if sig != 0 && k.Signal != nil {
			k.Signal(sig)
		}
	}
	return written, nil
}

// nextSignal returns how much of in comes before, and includes, the first
// character that means a signal in the terminal's present mode, and which
// signal. Without one it is all of in.
func (k *Keyboard) nextSignal(in []byte) (int, syscall.Signal) {
	var mode *unix.Termios
	conn, err := k.Primary.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(fd uintptr) { mode, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return len(in), 0
	}
	for i, b := range in {
		if k.literal {
			k.literal = false
			continue
		}
		if mode.Lflag&unix.ISIG != 0 && b != disabledChar {
			switch b {
			case mode.Cc[unix.VINTR]:
				return i + 1, syscall.SIGINT
			case mode.Cc[unix.VQUIT]:
				return i + 1, syscall.SIGQUIT
			case mode.Cc[unix.VSUSP]:
				return i + 1, syscall.SIGTSTP
			}
		}
		const quoting = unix.ICANON | unix.IEXTEN
		if mode.Lflag&quoting == quoting && b != disabledChar && b == mode.Cc[unix.VLNEXT] {
			k.literal = true
		}
	}
	return len(in), 0
}

// disabledChar is _POSIX_VDISABLE: a special character that is none.
const disabledChar = 0
