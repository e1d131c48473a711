// SPDX-License-Identifier: Apache-2.0

// Opening one connection for the sandbox.

package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// dialTimeout is how long a connection may take to open: about what a
	// kernel's first six attempts take. The guest's kernel goes on trying.
	dialTimeout = 60 * time.Second
	// maxResolverFlows bounds sockets that the guest's name server serves.
	maxResolverFlows = 1024
)

// connect answers one request.
func (b *Broker) connect(r netwire.Request) {
	to := r.To
	switch addr := to.Addr(); {
	case addr == natDNS, addr == natDNS6:
		b.connectResolver(r)
		return
	case addr == natGateway:
		to = netip.AddrPortFrom(loopback, to.Port())
	case addr == natGateway6:
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	case natSubnet.Contains(addr), natSubnet6.Contains(addr):
		// Nobody else is on the guest's network.
		b.answer(r, netwire.HostUnreachable)
		return
	}
	if allowed, why := b.check(to); !allowed {
		b.report(Denial{Protocol: r.Protocol, From: r.From, To: r.To, By: r.By, Reason: why})
		b.answer(r, netwire.Denied)
		return
	}
	if r.Protocol == netwire.Echo {
		b.connectEcho(r, to)
		return
	}
	// The host's own keepalive is off: whether a connection lives is for its
	// two ends to find out.
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
	conn, err := d.DialContext(b.ctx, r.Protocol.String(), to.String())
	if err != nil {
		b.answer(r, resultOf(err))
		return
	}
	defer conn.Close()
	b.withDescriptor(r, conn.(syscall.Conn), func(fd int) { b.handOverHeld(r, to, fd) })
}

// withDescriptor calls f with the descriptor of a connection of package net.
func (b *Broker) withDescriptor(r netwire.Request, conn syscall.Conn, f func(fd int)) {
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		b.answer(r, netwire.Failed)
	}
}

// connectEcho opens a socket for ICMP echo, where the host lets this user
// have one (net.ipv4.ping_group_range).
func (b *Broker) connectEcho(r netwire.Request, to netip.AddrPort) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4])}
	if to.Addr().Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		sa = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		b.answer(r, netwire.Failed)
		return
	}
	defer unix.Close(fd)
	// It does not wait: the socket has no handshake.
	if err := unix.Connect(fd, sa); err != nil {
		b.answer(r, resultOf(err))
		return
	}
	b.handOverHeld(r, to, fd)
}

// connectResolver connects the guest with its name server.
func (b *Broker) connectResolver(r netwire.Request) {
	if r.Protocol == netwire.Echo || r.To.Port() != dnsPort {
		b.answer(r, netwire.Refused)
		return
	}
	select {
	case b.streams <- struct{}{}:
	default:
		b.answer(r, netwire.Busy)
		return
	}
	kind, flags := unix.SOCK_STREAM, uint8(0)
	serve := b.resolver.serveStream
	if r.Protocol == netwire.UDP {
		// Packets like datagrams, but it shows when the guest's end is closed.
		kind, flags = unix.SOCK_SEQPACKET, netwire.EndsEmpty
		serve = b.resolver.serveDatagrams
	}
	near, far, err := socketpair(kind)
	if err != nil {
		<-b.streams
		b.answer(r, netwire.Failed)
		return
	}
	defer far.Close()
	b.tasks.Go(func() {
		defer func() { <-b.streams }()
		serve(b.ctx, fileConn{near}, func(name string) {
			b.report(Denial{Protocol: r.Protocol, From: r.From, To: r.To, Name: name, By: r.By, Reason: "no rule allows the name"})
		})
	})
	b.withDescriptor(r, far, func(fd int) { b.handOver(r, fd, flags) })
}

// fileConn is one end of a socket pair as a net.Conn.
type fileConn struct{ *os.File }

// LocalAddr implements net.Conn.
func (fileConn) LocalAddr() net.Addr { return &net.UnixAddr{} }

// RemoteAddr implements net.Conn.
func (fileConn) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// resultOf says in the channel's words why a connection could not be opened.
func resultOf(err error) netwire.Result {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return netwire.Refused
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN):
		return netwire.HostUnreachable
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		return netwire.NetUnreachable
	case errors.Is(err, unix.ECONNRESET):
		return netwire.Refused // A reset while connecting is a refusal.
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return netwire.Denied // By the host's own packet filter.
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return netwire.TimedOut
	}
	return netwire.Failed
}
