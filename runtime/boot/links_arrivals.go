// SPDX-License-Identifier: Apache-2.0

// Connections that processes of the host in a network namespace make to its
// loopback, or to its own addresses: the guest is meant, whose loopback is another.
// The launcher accepts them there, and hands them over.

package boot

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// maxArrivals bounds such connections, each with a descriptor: they are those of a
// port-forward or a probe, not of a service.
const maxArrivals = 256

// arrive takes in a connection for an address of the guest.
func (sb *sandbox) arrive(to netip.AddrPort, set streamSet) {
	host, err := arrivalOf(set)
	if err != nil {
		set.close()
		log.Warningf("connection to %s: %v", to, err)
		return
	}
	select {
	case <-sb.first.createdCh:
	default: // There is no guest yet.
		host.reset()
		return
	}
	if !sb.arrivals.take() {
		host.reset()
		return
	}
	go func() {
		defer sb.arrivals.release()
		ns, ok := sb.k.RootNetworkNamespace().Stack().(*netstack.Stack)
		if !ok {
			host.reset()
			return
		}
		var queue waiter.Queue
		ep, err := dialOwn(ns.Stack, to, &queue)
		if _, refused := err.(*tcpip.ErrConnectionRefused); refused && to.Addr().IsLoopback() {
			// Who has been let in once does not try the other IP.
			ep, err = dialOwn(ns.Stack, netip.AddrPortFrom(otherLoopback(to.Addr()), to.Port()), &queue)
		}
		if err != nil {
			host.reset() // As the guest's own answer would be.
			return
		}
		newStream(ep, &queue, host).carry(func(f func()) { go f() })
	}()
}

// otherLoopback is the other IP's usual one.
func otherLoopback(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// arrivalOf checks what was handed over: one socket that does not block.
func arrivalOf(set streamSet) (*hostConn, error) {
	if len(set.fds) != 1 {
		return nil, unix.EINVAL
	}
	fd := set.fds[0]
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || flags&unix.O_NONBLOCK == 0 {
		return nil, unix.ENOTSOCK
	}
	f := os.NewFile(uintptr(fd), "arrival")
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &hostConn{file: f, raw: raw}, nil
}

// dialOwn connects to an address of the stack itself.
func dialOwn(s *stack.Stack, to netip.AddrPort, queue *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	ep, err := s.NewEndpoint(tcp.ProtocolNumber, networkProtocol(to.Addr()), queue)
	if err != nil {
		return nil, err
	}
	return connected(ep, queue, tcpip.FullAddress{Addr: tcpipAddress(to.Addr()), Port: to.Port()})
}
