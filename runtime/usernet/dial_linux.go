// SPDX-License-Identifier: Apache-2.0

// Opening one connection for the sandbox.

package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
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

// connect answers one request; what may take its time is left to wait, which then
// answers.
func (b *Broker) connect(r netwire.Request) (wait func()) {
	to := r.To
	switch addr := to.Addr(); {
	case addr == natDNS, addr == natDNS6:
		b.connectResolver(r)
		return nil
	case addr == natGateway:
		to = netip.AddrPortFrom(loopback, to.Port())
	case addr == natGateway6:
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	case natSubnet.Contains(addr), natSubnet6.Contains(addr):
		// Nobody else is on the guest's network.
		b.answer(r, netwire.HostUnreachable)
		return nil
	}
	names := b.learned.names(to.Addr())
	if allowed, why := b.policy.Load().Check(to, names); !allowed {
		// The log may keep it waiting.
		return func() { b.deny(r, why) }
	}
	f := &flow{protocol: r.Protocol, to: to, from: r.From, by: r.By, names: names}
	switch {
	case r.Protocol == netwire.TCP:
		return b.open(r, f, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	case r.Protocol == netwire.UDP:
		return b.open(r, f, unix.SOCK_DGRAM, unix.IPPROTO_UDP)
	case to.Addr().Is6():
		return b.open(r, f, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
	default:
		return b.open(r, f, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	}
}

// deny answers with the policy's no.
func (b *Broker) deny(r netwire.Request, why string) {
	b.report(Denial{Protocol: r.Protocol, From: r.From, To: r.To, By: r.By, Reason: why})
	b.answer(r, netwire.Denied)
}

// open makes a socket, connects it and hands it over. It is made by hand:
// package net would enter it into the launcher's poller, to be woken for bytes
// that are the sandbox's, and costs more than all the rest.
func (b *Broker) open(r netwire.Request, f *flow, kind, proto int) (wait func()) {
	to, family := f.to, unix.AF_INET
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4]), Port: int(to.Port())}
	if to.Addr().Is6() {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		b.answer(r, netwire.NetUnreachable)
		return nil
	}
	if err != nil { // For ICMP: not with this user's groups (net.ipv4.ping_group_range).
		b.answer(r, netwire.Failed)
		return nil
	}
	if kind == unix.SOCK_STREAM {
		// What is small has waited in the guest already, if it had to.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	err = unix.Connect(fd, sa)
	if errors.Is(err, unix.EINPROGRESS) {
		// This host has answered already.
		var over bool
		if over, err = connected(fd); !over {
			return func() {
				fd, err := b.finish(fd)
				if wait := b.opened(r, f, fd, err); wait != nil {
					wait()
				}
			}
		}
	}
	return b.opened(r, f, fd, err)
}

// connected says whether an attempt to connect is over, without waiting for it,
// and what came of it.
func connected(fd int) (over bool, err error) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 0); n == 0 || err != nil {
		return false, nil // An interrupted question is asked again by who waits.
	}
	if poll[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0 {
		return true, nil
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return true, err
}

// opened answers with what came of an attempt. fd is negative if there is none
// any more. What may take its time is left to wait.
func (b *Broker) opened(r netwire.Request, f *flow, fd int, err error) (wait func()) {
	if err == nil {
		f.fd = fd
		return b.handOverHeld(r, f)
	}
	if fd >= 0 {
		unix.Close(fd)
	}
	b.answer(r, resultOf(err))
	return nil
}

// finish waits for a connection under way. It returns another descriptor of it,
// and has closed the first.
func (b *Broker) finish(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fd, err
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	defer context.AfterFunc(b.ctx, func() { f.Close() })()
	raw, err := f.SyscallConn()
	if err != nil {
		return own, err
	}
	_ = f.SetDeadline(time.Now().Add(dialTimeout))
	var problem error
	err = raw.Write(func(fd uintptr) bool {
		var code int
		code, problem = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if problem == nil && code != 0 {
			problem = unix.Errno(code)
		}
		if problem != nil {
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil
	})
	return own, errors.Join(err, problem)
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
	b.tasks.Go(func() {
		defer func() { <-b.streams }()
		serve(b.ctx, fileConn{near}, func(name string) {
			b.report(Denial{Protocol: r.Protocol, From: r.From, To: r.To, Name: name, By: r.By, Reason: "no rule allows the name"})
		})
	})
	defer far.Close()
	raw, err := far.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { b.handOver(r, int(fd), flags) })
	}
	if err != nil {
		b.answer(r, netwire.Failed)
	}
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
