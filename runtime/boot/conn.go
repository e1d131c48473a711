// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fdConn is a donated or accepted stream socket as a net.Conn. Package net
// would ask the kernel for names and options, which the allow-list denies;
// plain reads and writes are all that is needed.
type fdConn struct {
	*os.File
}

// newFDConn takes over fd.
func newFDConn(fd int) (net.Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("control socket, descriptor %d: %w", fd, err)
	}
	return fdConn{os.NewFile(uintptr(fd), "control")}, nil
}

// LocalAddr implements net.Conn.
func (fdConn) LocalAddr() net.Addr { return unnamedAddr{} }

// RemoteAddr implements net.Conn.
func (fdConn) RemoteAddr() net.Addr { return unnamedAddr{} }

// unnamedAddr is the address of an unnamed unix socket.
type unnamedAddr struct{}

// Network implements net.Addr.
func (unnamedAddr) Network() string { return "unix" }

// String implements net.Addr.
func (unnamedAddr) String() string { return "@" }

// fdListener is a donated listening unix socket as a net.Listener.
type fdListener struct {
	file *os.File
	raw  syscall.RawConn
}

// newFDListener takes over fd.
func newFDListener(fd int) (net.Listener, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("control listener, descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "control-listener")
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("control listener, descriptor %d: %w", fd, err)
	}
	return &fdListener{f, raw}, nil
}

// Accept implements net.Listener.
func (l *fdListener) Accept() (net.Conn, error) {
	var (
		conn int
		err  error
	)
	if werr := l.raw.Read(func(fd uintptr) bool {
		for {
			conn, _, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != unix.EINTR && err != unix.ECONNABORTED {
				return err != unix.EAGAIN
			}
		}
	}); werr != nil {
		return nil, werr
	}
	if err == unix.EMFILE || err == unix.ENFILE {
		return nil, outOfDescriptors{err}
	}
	if err != nil {
		return nil, fmt.Errorf("accept control connection: %w", err)
	}
	return fdConn{os.NewFile(uintptr(conn), "control")}, nil
}

// outOfDescriptors is no end of a listener: ttrpc's server tries again after one that
// is temporary, a second later at most.
type outOfDescriptors struct{ error }

// Error implements error.
func (e outOfDescriptors) Error() string { return "accept control connection: " + e.error.Error() }

// Unwrap gives the cause.
func (e outOfDescriptors) Unwrap() error { return e.error }

// Temporary is what ttrpc asks for.
func (outOfDescriptors) Temporary() bool { return true }

// Close implements net.Listener.
func (l *fdListener) Close() error { return l.file.Close() }

// Addr implements net.Listener.
func (*fdListener) Addr() net.Addr { return unnamedAddr{} }
