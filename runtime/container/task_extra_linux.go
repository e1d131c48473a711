// SPDX-License-Identifier: Apache-2.0

// Descriptors that a process of a bundle's container has besides its streams, of who
// started rungv: `--preserve-fds`.

package container

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/launch"
)

// firstExtraFD is the first descriptor after the standard streams.
const firstExtraFD = 3

// preservedFDs are the descriptors from 3 on that this process has inherited. Its own
// are all close-on-exec, and whoever asks for more than there are must not get them.
func preservedFDs(count int) ([]*os.File, error) {
	return inheritedFDs(firstExtraFD, count)
}

// inheritedFDs are those from first on.
func inheritedFDs(first, count int) ([]*os.File, error) {
	if count < 0 || count > api.MaxExtraFDs {
		return nil, api.Errorf(api.KindLimit, "--preserve-fds %d: want 0 to %d", count, api.MaxExtraFDs)
	}
	files := make([]*os.File, count)
	for i := range files {
		fd := first + i
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC != 0 {
			err = unix.EBADF // One of this process' own.
		}
		if err != nil {
			return nil, api.Errorf(api.KindInvalid, "--preserve-fds: unable to stat preserved-fd %d (of %d): %w", i, count, err)
		}
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("descriptor %d", firstExtraFD+i))
	}
	for _, f := range files {
		// Of the processes that this one starts, those that are to have it get it.
		_ = withFD(f, func(fd uintptr) error {
			unix.CloseOnExec(int(fd))
			return nil
		})
	}
	return files, nil
}

// taskExtras are such descriptors on their way into a guest: ends of pipes, terminals
// and /dev/null as they are, opened anew so that their mode is nobody else's; what is
// read from or written to a regular file goes through a pipe of ours. A nil *taskExtras
// has none.
type taskExtras struct {
	guest  []*os.File
	copies []*launch.Streams
	// lent are the files that the guest has anew, and nobody needs here any more.
	lent []*os.File
}

// newTaskExtras takes files over.
func newTaskExtras(files []*os.File) (*taskExtras, error) {
	x := &taskExtras{}
	for _, f := range files {
		guest, err := x.open(f)
		if err != nil {
			x.close()
			return nil, err
		}
		x.guest = append(x.guest, guest)
	}
	return x, nil
}

// open returns what a guest gets for a file.
func (x *taskExtras) open(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	mode := 0
	err := withFD(f, func(fd uintptr) (err error) {
		if mode, err = unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil {
			return err
		}
		return unix.Fstat(int(fd), &st)
	})
	if err != nil {
		return nil, fmt.Errorf("preserve %s: %w", f.Name(), err)
	}
	if mode&unix.O_PATH != 0 {
		return nil, api.Errorf(api.KindUnsupported, "preserve %s: it only names a file (O_PATH), and a guest would get one that is open: open it for reading or writing", f.Name())
	}
	mode &= unix.O_ACCMODE
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFIFO || kind == unix.S_IFCHR && harmlessDevice(f, &st) {
		if own, err := reopen(f, mode); err == nil {
			x.lent = append(x.lent, f)
			return own, nil
		}
		// Another user's, or a pipe that nobody reads any more.
	}
	switch {
	case kind != unix.S_IFIFO && kind != unix.S_IFREG:
		return nil, api.Errorf(api.KindUnsupported, "preserve %s: a guest can be given pipes, terminals, /dev/null and regular files of the host, and this is none", f.Name())
	case mode == unix.O_RDWR:
		return nil, api.Errorf(api.KindUnsupported, "preserve %s: it is open for reading and writing, and a guest has it through a pipe: open it for one of them", f.Name())
	}
	c, err := launch.NewCopy(f, mode == unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	x.copies = append(x.copies, c)
	files, err := c.Donation()
	if err != nil {
		return nil, err
	}
	if mode == unix.O_RDONLY {
		return files[0], nil
	}
	return files[1], nil
}

// harmlessDevice says whether a character device is one that a guest may hold: /dev/null,
// or a terminal by its own name. What /dev/tty and /dev/ptmx name is another terminal for
// each who opens them, so that a terminal's primary side is none either.
func harmlessDevice(f *os.File, st *unix.Stat_t) bool {
	const memoryDevices, null = 1, 3
	if unix.Major(st.Rdev) == memoryDevices && unix.Minor(st.Rdev) == null {
		return true
	}
	var terminal uint32
	err := withFD(f, func(fd uintptr) (err error) {
		terminal, err = unix.IoctlGetUint32(int(fd), unix.TIOCGDEV)
		return err
	})
	return err == nil && uint64(terminal) == uint64(st.Rdev)
}

// files are the guest's.
func (x *taskExtras) files() []*os.File {
	if x == nil {
		return nil
	}
	return x.guest
}

// names are what a process' description has for them before they are numbered.
func (x *taskExtras) names() []api.FD {
	fds := make([]api.FD, len(x.files()))
	for i := range fds {
		fds[i] = api.NoFD
	}
	return fds
}

// donated closes what the guest has by now, and begins to copy.
func (x *taskExtras) donated() {
	if x == nil {
		return
	}
	for _, c := range x.copies {
		c.Start()
	}
	for _, f := range append(x.guest, x.lent...) {
		f.Close() // Twice is an error, and no more.
	}
	x.guest, x.lent = nil, nil
}

// drain waits until all is written that the guest wrote, which has ended; with others
// that may go on to write, what was written by now.
func (x *taskExtras) drain(others bool, warn func(string, ...any)) {
	if x == nil {
		return
	}
	for _, c := range x.copies {
		end := c.Drain
		if others {
			end = c.Finish
		}
		if err := end(); err != nil {
			warn("a preserved descriptor: %v", err)
		}
		c.Close()
	}
	x.copies = nil
}

// close gives up what was not donated.
func (x *taskExtras) close() {
	if x == nil {
		return
	}
	for _, f := range x.guest {
		f.Close()
	}
	for _, c := range x.copies {
		c.Close()
	}
}
