// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// input is the reading end of the fifo of a process' standard input.
//
// It ends as containerd's clients expect it: with its last writer, but not before
// they have called CloseIO. Neither alone would do. Some call while they still
// write, and none of that may be lost; and a containerd that is started again is
// a writer that goes, and comes back. So between hold and end, the shim itself
// has the fifo open for writing, and never writes.
//
// Until hold, the last writer is the end. ctr cannot call before its task is
// made: input that was written by then, end included, has ended.
type input struct {
	file *os.File
	raw  syscall.RawConn
	// isFIFO is false for what has an end of its own.
	isFIFO bool

	mu sync.Mutex
	// holder is the shim's writing end, nil without one.
	holder *os.File
	ended  bool
}

// openSource opens where input comes from, whether or not somebody writes there yet.
func openSource(path string) (*input, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open standard input: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	in := &input{file: os.NewFile(uintptr(fd), path)}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		in.file.Close()
		return nil, fmt.Errorf("open standard input: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	in.isFIFO = st.Mode&unix.S_IFMT == unix.S_IFIFO
	if in.raw, err = in.file.SyscallConn(); err != nil {
		in.file.Close()
		return nil, fmt.Errorf("open standard input %s: %w", path, err)
	}
	return in, nil
}

// Read waits for a fifo's first writer: without one, there is no end yet.
func (in *input) Read(p []byte) (n int, err error) {
	waited := in.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), p)
			if err != unix.EINTR {
				break
			}
		}
		return err != unix.EAGAIN && (n > 0 || err != nil || !in.isFIFO || hasHungUp(int(fd)))
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// hasHungUp says whether a fifo had writers, and has none any more.
func hasHungUp(fd int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(fds, 0); err != unix.EINTR {
			return err == nil && fds[0].Revents&unix.POLLHUP != 0
		}
	}
}

// hold keeps the end from coming before it is called for. What has ended stays so.
func (in *input) hold() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || in.holder != nil || !in.isFIFO {
		return nil
	}
	hungUp := false
	if err := in.raw.Control(func(fd uintptr) { hungUp = hasHungUp(int(fd)) }); err != nil || hungUp {
		return nil // Read to its end and closed, or about to be.
	}
	return in.openHolder()
}

// openHolder opens the fifo for writing, by its reading end: its name may have
// gone. Call it with mu held.
func (in *input) openHolder() error {
	var holder int
	var err error
	closed := in.raw.Control(func(fd uintptr) {
		holder, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	switch {
	case closed != nil:
		return nil
	case err != nil:
		return fmt.Errorf("hold standard input open: %w", &os.PathError{Op: "open", Path: in.file.Name(), Err: err})
	}
	in.holder = os.NewFile(uintptr(holder), in.file.Name())
	return nil
}

// end lets the last writer be the end. One that has never had any ends now.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || !in.isFIFO {
		return
	}
	in.ended = true
	if in.holder == nil {
		// A writer that goes is what a reader takes for the end.
		_ = in.openHolder()
	}
	if in.holder != nil {
		in.holder.Close()
	}
}

// Close ends a Read that waits.
func (in *input) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	var err error
	if in.holder != nil {
		err = in.holder.Close()
	}
	return errors.Join(err, in.file.Close())
}
