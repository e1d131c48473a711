// SPDX-License-Identifier: Apache-2.0

// Streams that somebody else has made: a container's of a bundle, or an exec's of
// its engine.

package container

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// taskStreams are the ends that a guest gets: pipes and terminals as they are,
// opened anew so that their mode is nobody else's; all else through pipes of ours.
// A nil *taskStreams has none.
type taskStreams struct {
	guest [3]*os.File
	// relay copies, where one of the three cannot be donated.
	relay *launch.Streams
	// null is what the relay has for streams that nobody has given, or nil.
	null *os.File
}

// newTaskStreams takes the streams of a process; they stay the caller's. A nil file
// is /dev/null. With terminal, in is its replica side.
func newTaskStreams(terminal bool, in, out, errs *os.File) (*taskStreams, error) {
	s := &taskStreams{}
	if terminal {
		if in == nil {
			return nil, api.Errorf(api.KindInvalid, "a terminal is wanted and there is none: give --console-socket")
		}
		replica, err := reopen(in, unix.O_RDWR)
		if err != nil {
			return nil, err
		}
		s.guest = [3]*os.File{replica, replica, replica}
		return s, nil
	}
	for i, f := range []*os.File{in, out, errs} {
		donated, err := donatable(f, i == 0)
		if err != nil {
			s.close()
			return nil, err
		}
		if donated == nil {
			s.close()
			return relayed(in, out, errs)
		}
		s.guest[i] = donated
	}
	return s, nil
}

// relayed copies through pipes.
func relayed(in, out, errs *os.File) (*taskStreams, error) {
	s := &taskStreams{}
	for _, f := range []**os.File{&in, &out, &errs} {
		if *f != nil {
			continue
		}
		if s.null == nil {
			var err error
			if s.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
				return nil, err
			}
		}
		*f = s.null
	}
	relay, err := launch.NewStreams(launch.StreamOptions{In: in, Interactive: true, Out: out, Err: errs})
	if err != nil {
		s.null.Close()
		return nil, err
	}
	s.relay, s.guest = relay, [3]*os.File{relay.Stdin(), relay.Stdout(), relay.Stderr()}
	return s, nil
}

// donatable returns a description of its own of a stream that a guest may hold, or
// nil where it may not: a regular file, whose offset the Sentry would take for its
// own, a socket, or a device that is neither a terminal nor /dev/null.
func donatable(f *os.File, input bool) (*os.File, error) {
	mode := unix.O_WRONLY
	if input {
		mode = unix.O_RDONLY
	}
	if f == nil {
		fd, err := unix.Open(os.DevNull, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
		}
		return os.NewFile(uintptr(fd), os.DevNull), nil
	}
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil {
		return nil, fmt.Errorf("standard stream %s: %w", f.Name(), err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFIFO && !(kind == unix.S_IFCHR && harmlessDevice(f, &st)) {
		return nil, nil
	}
	var flags int
	if err := withFD(f, func(fd uintptr) (err error) {
		flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0)
		return err
	}); err != nil {
		return nil, fmt.Errorf("standard stream %s: %w", f.Name(), err)
	}
	if has := flags & unix.O_ACCMODE; flags&unix.O_PATH != 0 || has != mode && has != unix.O_RDWR {
		return nil, nil // Opened anew it would allow more than the caller's does.
	}
	own, err := reopen(f, mode)
	if err != nil {
		return nil, nil // Another user's, or a pipe that nobody reads any more.
	}
	return own, nil
}

// reopen opens what f is once more, without blocking.
func reopen(f *os.File, mode int) (*os.File, error) {
	var opened int
	err := withFD(f, func(fd uintptr) (err error) {
		path := "/proc/self/fd/" + strconv.Itoa(int(fd))
		opened, err = unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s once more: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(opened), f.Name()), nil
}

func fstat(f *os.File, st *unix.Stat_t) error {
	return withFD(f, func(fd uintptr) error { return unix.Fstat(int(fd), st) })
}

// withFD calls do with a file's descriptor, whose mode stays as it is.
func withFD(f *os.File, do func(fd uintptr) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = do(fd) }); cerr != nil {
		return cerr
	}
	return err
}

// donation are the files in the form in which a running sandbox takes them, which
// is not to block.
func (s *taskStreams) donation(terminal bool) ([]*os.File, error) {
	if s.relay != nil {
		return s.relay.Donation()
	}
	if terminal {
		return s.guest[:1], nil
	}
	return s.guest[:], nil
}

// donated closes what the guest has by now, and begins to copy what has to be.
func (s *taskStreams) donated() {
	if s == nil {
		return
	}
	if s.relay == nil {
		s.closeGuest()
		return
	}
	s.relay.Start()
}

func (s *taskStreams) closeGuest() {
	for i, f := range s.guest {
		if f != nil && (i == 0 || f != s.guest[0]) {
			f.Close()
		}
	}
	s.guest = [3]*os.File{}
}

// drain waits for the last output of a guest that has ended; with others that may have
// its ends and go on, for what was written by now.
func (s *taskStreams) drain(others bool, warn func(string, ...any)) {
	if s == nil || s.relay == nil {
		return
	}
	end := s.relay.Drain
	if others {
		end = s.relay.Finish
	}
	if err := end(); err != nil {
		warn("%v", err)
	}
	s.close()
}

// close gives up what was not donated.
func (s *taskStreams) close() {
	switch {
	case s == nil:
	case s.relay != nil:
		s.relay.Close()
		s.null.Close() // Of none it is an error, and no more.
	default:
		s.closeGuest()
	}
}
