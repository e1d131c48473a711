// SPDX-License-Identifier: Apache-2.0

// The sockets in a container's directory: bound, named and dialled whatever the
// length of the directory's path.

package container

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// socketIn returns a name for a socket of a directory that fits into the 108
// bytes of a socket address, whatever the directory's own length. It holds until
// done is called.
func socketIn(dir, name string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name), func() { d.Close() }, nil
}

// listenUnix binds a socket in the directory of a container that this process
// holds. What an earlier start of it has left under the name goes first: nobody
// listens there any more.
func listenUnix(dir, name string, kind int) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("bind the socket %s in %s: %w", name, dir, err)
	}
	path, done, err := socketIn(dir, name)
	if err != nil {
		return fail(err)
	}
	defer done()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), name)
	// The directory is 0700, and stays so; the mode is a second lock.
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if errors.Is(err, unix.EADDRINUSE) {
		if err = unix.Unlink(path); err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
		}
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, controlBacklog)
	}
	if err != nil {
		f.Close()
		return fail(err)
	}
	return f, nil
}

// listenIn is listenUnix for a socket that this process serves itself. Its file
// goes with the directory.
func listenIn(dir, name string) (net.Listener, error) {
	f, err := listenUnix(dir, name, unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileListener duplicates it.
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on the socket %s in %s: %w", name, dir, err)
	}
	return l, nil
}
