// SPDX-License-Identifier: Apache-2.0

// Published ports: listeners of the host, whose clients the sandbox gets.

package usernet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// acceptPause keeps a listener from spinning while the host has no
	// descriptor left.
	acceptPause = 50 * time.Millisecond
	// unixBacklog is how many clients of a unix socket may wait.
	unixBacklog = 128
	// probeTimeout bounds the question whether somebody listens on a socket.
	probeTimeout = time.Second
)

// port is one published port.
type port struct {
	api.Port
	listener net.Listener
	packets  *net.UDPConn
	// made identifies the file of a unix socket.
	made unix.Stat_t
}

// Publish binds ports and returns them with the numbers that the host chose.
// When one fails, those before it are closed again by Close.
func (b *Broker) Publish(ports []api.Port) ([]api.Port, error) {
	if len(ports) > api.MaxPorts {
		return nil, api.Errorf(api.KindLimit, "publish: %d ports, at most %d", len(ports), api.MaxPorts)
	}
	bound := make([]api.Port, 0, len(ports))
	for _, want := range ports {
		if err := want.Validate(); err != nil {
			return nil, err
		}
		p := &port{Port: want}
		if err := p.bind(); err != nil {
			return nil, api.Errorf(kindOf(err), "publish %s as %s: %w", want.Guest(), want.Host(), err)
		}
		b.ports = append(b.ports, p)
		bound = append(bound, p.Port)
	}
	return bound, nil
}

func (p *port) bind() (err error) {
	at := netip.AddrPortFrom(p.HostIP, p.HostPort)
	switch {
	case p.Path != "":
		return p.bindUnix()
	case p.Transport == api.UDP:
		if p.packets, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err == nil {
			p.HostPort = p.packets.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		}
	default:
		lc := net.ListenConfig{KeepAlive: -1}
		lc.SetMultipathTCP(false)
		if p.listener, err = lc.Listen(context.Background(), "tcp", at.String()); err == nil {
			p.HostPort = p.listener.Addr().(*net.TCPAddr).AddrPort().Port()
		}
	}
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: ports below net.ipv4.ip_unprivileged_port_start need root", err)
	}
	return err
}

// bindUnix binds a socket file that only this user may open. A file left by a
// process that is gone is replaced.
func (p *port) bindUnix() error {
	if err := removeDead(p.Path); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), p.Path)
	defer f.Close() // FileListener duplicates it.
	// The file gets the socket's own mode: it is never open to others.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: p.Path}); err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: its directory must exist", err)
		}
		return err
	}
	if err = unix.Lstat(p.Path, &p.made); err == nil {
		err = unix.Listen(fd, unixBacklog)
	}
	if err == nil {
		p.listener, err = net.FileListener(f)
	}
	if err != nil {
		os.Remove(p.Path)
	}
	return err
}

// removeDead removes a socket file that nobody listens on. Any other file is
// an error.
func removeDead(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%w: a file that is no socket: choose another path, or remove it", unix.EADDRINUSE)
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w: somebody listens on this socket", unix.EADDRINUSE)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("find out whether somebody listens: %w", err)
	}
	return os.Remove(path)
}

// serve hands clients to the sandbox until the port is closed.
func (p *port) serve(b *Broker) {
	if p.packets != nil {
		newRelay(b, p).serve()
		return
	}
	for {
		conn, err := p.listener.Accept()
		switch {
		case err == nil:
			b.inbound(p, conn.(syscall.Conn))
			conn.Close()
		case errors.Is(err, net.ErrClosed):
			return
		default:
			b.warn("accept on %s: %w", p.Host(), err)
			select {
			case <-b.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
		}
	}
}

// inbound hands a client's connection to the sandbox. Where it cannot, the
// client sees its connection closed.
func (b *Broker) inbound(p *port, conn syscall.Conn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	m := netwire.Message{Kind: netwire.Inbound, Protocol: netwire.TCP, Port: p.GuestPort}
	if p.packets != nil {
		m.Protocol, m.Flags = netwire.UDP, netwire.EndsEmpty
	}
	_ = raw.Control(func(fd uintptr) {
		_ = b.send(m, int(fd))
		neverLinger(int(fd)) // The caller closes it.
	})
}

// close closes the port, and removes its socket file if it is still ours.
func (p *port) close() error {
	if p.packets != nil {
		return p.packets.Close()
	}
	err := p.listener.Close()
	if p.Path != "" {
		var now unix.Stat_t
		if unix.Lstat(p.Path, &now) == nil && now.Ino == p.made.Ino && now.Dev == p.made.Dev {
			err = errors.Join(err, os.Remove(p.Path))
		}
	}
	return err
}
