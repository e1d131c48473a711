// SPDX-License-Identifier: Apache-2.0

// Network mode nat, the sandbox's half: eth0 of the guest and a router behind
// it that ends every flow and hands its bytes to a descriptor from the broker.
//
//	guest stack ── eth0 ══ natLink ══ router stack ── flows ── host descriptors
//	10.0.2.15                         10.0.2.2, 10.0.2.3        (broker's)
//
// The router takes packets for every address (promiscuous) and answers from
// every address (spoofing). TCP is ended by its stack, so that loss, order and
// windows on either side stay there; UDP and ICMP echo need no end and are
// carried packet by packet.

package boot

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// natMTU is eth0's: nearly the longest IP packet, since each packet costs
	// the same whatever its length. Guests behind a bridge of the guest announce
	// their own, smaller segments and get those.
	natMTU = 65520
	// Locally administered addresses; nobody else is on this link.
	natGuestMAC  = tcpip.LinkAddress("\x02\x67\x76\x78\x00\x0f")
	natRouterMAC = tcpip.LinkAddress("\x02\x67\x76\x78\x00\x02")
	// routerTimeWait is how long the router remembers a connection that it has
	// closed. The cable neither loses nor delays, so there is nothing to wait
	// for, and a minute of a busy guest's connections would be a gigabyte.
	routerTimeWait = 100 * time.Millisecond
	// Of the descriptors that the process may have, flows get at most these
	// parts: the control channel must always get one.
	streamShare, packetShare = 2, 4
)

// The addresses of the guest's network.
var (
	natGuest   = netip.MustParseAddr(api.NATGuest)
	natGateway = netip.MustParseAddr(api.NATGateway)
	natDNS     = netip.MustParseAddr(api.NATDNS)
	natSubnet  = netip.MustParsePrefix(api.NATSubnet)
)

// nat is the router and its flows.
type nat struct {
	broker   *brokerClient
	guestEnd *natLink
	router   *stack.Stack
	nic      tcpip.NICID
	streams  streamLimit
	packets  packetFlows
	// made is closed when the router is, or err says why not.
	made chan struct{}
	err  error
}

// newNAT begins to make the router, beside the guest's own stack, with the
// broker's channel on fd.
func newNAT(fd api.FD) (*nat, error) {
	guestEnd, routerEnd := newNATLink()
	n := &nat{guestEnd: guestEnd, made: make(chan struct{})}
	var files unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	if err != nil {
		return nil, fmt.Errorf("limit of open descriptors: %w", err)
	}
	n.streams.most = int(min(maxStreams, files.Cur/streamShare))
	n.packets.init(n, int(min(maxPacketFlows, files.Cur/packetShare)))
	if n.broker, err = newBrokerClient(int(fd), n.inbound); err != nil {
		return nil, err
	}
	go func() {
		defer close(n.made)
		n.err = n.makeRouter(routerEnd)
	}()
	return n, nil
}

// makeRouter makes the router's stack.
func (n *nat) makeRouter(end *natLink) error {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		// Every source looks local to a stack that answers from all addresses:
		// it must not deliver to itself.
		HandleLocal: false,
	})
	n.router, n.nic = s, s.NextNICID()
	if err := tuneTCP(s); err != nil {
		return err
	}
	wait := tcpip.TCPTimeWaitTimeoutOption(routerTimeWait)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &wait); err != nil {
		return fmt.Errorf("shorten the router's time-wait: %s", err)
	}
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, maxHandshakes, n.forwardTCP).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, n.forwardUDP)
	s.SetTransportProtocolHandler(icmp.ProtocolNumber4, n.forwardICMP)
	if err := s.CreateNICWithOptions(n.nic, ethernet.New(end), stack.NICOptions{Name: "router"}); err != nil {
		return fmt.Errorf("create the router's interface: %s", err)
	}
	for _, a := range []netip.Addr{natGateway, natDNS} {
		if err := s.AddProtocolAddress(n.nic, protocolAddress(a), stack.AddressProperties{}); err != nil {
			return fmt.Errorf("add the router's address %s: %s", a, err)
		}
	}
	if err := s.SetPromiscuousMode(n.nic, true); err != nil {
		return fmt.Errorf("let the router hear all addresses: %s", err)
	}
	if err := s.SetSpoofing(n.nic, true); err != nil {
		return fmt.Errorf("let the router speak for all addresses: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: n.nic}})
	return nil
}

// attach gives the guest's stack eth0, its routes, and a router behind it.
func (n *nat) attach(guest *netstack.Stack) error {
	s := guest.Stack
	id := s.NextNICID()
	if err := s.CreateNICWithOptions(id, ethernet.New(n.guestEnd), stack.NICOptions{Name: "eth0", DeliverLinkPackets: true}); err != nil {
		return fmt.Errorf("create eth0: %s", err)
	}
	if err := s.AddProtocolAddress(id, protocolAddress(natGuest), stack.AddressProperties{}); err != nil {
		return fmt.Errorf("add address %s to eth0: %s", natGuest, err)
	}
	s.SetRouteTable(append(s.GetRouteTable(),
		tcpip.Route{Destination: protocolAddress(natGuest).AddressWithPrefix.Subnet(), NIC: id},
		tcpip.Route{Destination: header.IPv4EmptySubnet, Gateway: tcpipAddress(natGateway), NIC: id},
	))
	<-n.made
	if n.err != nil {
		return n.err
	}
	go n.broker.receive()
	return nil
}

// streamLimit counts TCP flows.
type streamLimit struct {
	most  int
	mu    sync.Mutex
	count int
}

// take takes one of the places, or says that there is none.
func (l *streamLimit) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.most {
		return false
	}
	l.count++
	return true
}

func (l *streamLimit) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
}

func protocolAddress(a netip.Addr) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpipAddress(a), PrefixLen: natSubnet.Bits()},
	}
}

func tcpipAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// addrPort is the standard library's form of an address in a packet.
func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(addr, port)
}
