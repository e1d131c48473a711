// SPDX-License-Identifier: Apache-2.0

// Network mode nat, the sandbox's half: eth0 of the guest and a router behind
// it that ends every flow and hands its bytes to a descriptor from the broker.
//
//	guest stack ── eth0 ══ natLink ══ router stack ── flows ── host descriptors
//	10.0.2.15                         10.0.2.2, 10.0.2.3        (broker's)
//	fd67:7678::15                     fd67:7678::2, ::3         where the host has IPv6
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
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
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

	natGuest6   = netip.MustParseAddr(api.NATGuest6)
	natGateway6 = netip.MustParseAddr(api.NATGateway6)
	natDNS6     = netip.MustParseAddr(api.NATDNS6)
)

// nat is the router and its flows.
type nat struct {
	broker   *brokerClient
	guestEnd *natLink
	router   *stack.Stack
	nic      tcpip.NICID
	ipv6     bool
	owners   flowOwners
	streams  streamLimit
	workers  *workers
	packets  packetFlows
	// made is closed when the router is, or err says why not.
	made chan struct{}
	err  error
}

// newNAT begins to make the router, beside the guest's own stack, with the
// broker's channel on fd, for IPv6 too if ipv6 is set.
func newNAT(fd api.FD, ipv6 bool) (*nat, error) {
	guestEnd, routerEnd := newNATLink()
	n := &nat{guestEnd: guestEnd, ipv6: ipv6, workers: newWorkers(), made: make(chan struct{})}
	var files unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	if err != nil {
		return nil, fmt.Errorf("limit of open descriptors: %w", err)
	}
	n.streams.most = int(min(maxStreams, files.Cur/streamShare))
	n.packets.init(n, int(min(maxPacketFlows, files.Cur/packetShare)))
	if n.broker, err = newBrokerClient(int(fd), func(m netwire.Message, host *hostConn) {
		n.workers.run(func() { n.inbound(m, host) })
	}); err != nil {
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
	o := stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		// Every source looks local to a stack that answers from all addresses:
		// it must not deliver to itself.
		HandleLocal: false,
	}
	addresses := []netip.Addr{natGateway, natDNS}
	routes := []tcpip.Route{{Destination: header.IPv4EmptySubnet}}
	if n.ipv6 {
		o.NetworkProtocols = append(o.NetworkProtocols, ipv6.NewProtocol)
		o.TransportProtocols = append(o.TransportProtocols, icmp.NewProtocol6)
		addresses = append(addresses, natGateway6, natDNS6)
		routes = append(routes, tcpip.Route{Destination: header.IPv6EmptySubnet})
	}
	s := stack.New(o)
	n.router, n.nic = s, s.NextNICID()
	if err := tuneTCP(s); err != nil {
		return err
	}
	wait := tcpip.TCPTimeWaitTimeoutOption(routerTimeWait)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &wait); err != nil {
		return fmt.Errorf("shorten the router's time-wait: %s", err)
	}
	n.handleFlows(s)
	if err := s.CreateNICWithOptions(n.nic, ethernet.New(end), stack.NICOptions{Name: "router"}); err != nil {
		return fmt.Errorf("create the router's interface: %s", err)
	}
	for _, a := range addresses {
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
	for i := range routes {
		routes[i].NIC = n.nic
	}
	s.SetRouteTable(routes)
	return nil
}

// handleFlows takes the guest's flows from the router's stack.
func (n *nat) handleFlows(s *stack.Stack) {
	forwarder := tcp.NewForwarder(s, 0, maxHandshakes, func(r *tcp.ForwarderRequest) {
		n.workers.run(func() { n.forwardTCP(r) })
	})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		n.owners.note(id, pkt)
		return forwarder.HandlePacket(id, pkt)
	})
	s.SetTransportProtocolHandler(udp.ProtocolNumber, n.forwardUDP)
	s.SetTransportProtocolHandler(icmp.ProtocolNumber4, n.forwardICMP)
	if n.ipv6 {
		s.SetTransportProtocolHandler(icmp.ProtocolNumber6, n.forwardICMP6)
	}
}

// attach gives the guest's stack eth0, its routes, and a router behind it.
func (n *nat) attach(guest *netstack.Stack) error {
	s := guest.Stack
	id := s.NextNICID()
	if err := s.CreateNICWithOptions(id, ethernet.New(n.guestEnd), stack.NICOptions{Name: "eth0", DeliverLinkPackets: true}); err != nil {
		return fmt.Errorf("create eth0: %s", err)
	}
	own := [][2]netip.Addr{{natGuest, natGateway}}
	if n.ipv6 {
		own = append(own, [2]netip.Addr{natGuest6, natGateway6})
	}
	for _, o := range own {
		a, all := protocolAddress(o[0]), header.IPv4EmptySubnet
		if o[0].Is6() {
			all = header.IPv6EmptySubnet
		}
		if err := s.AddProtocolAddress(id, a, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("add address %s to eth0: %s", o[0], err)
		}
		s.SetRouteTable(append(s.GetRouteTable(),
			tcpip.Route{Destination: a.AddressWithPrefix.Subnet(), NIC: id},
			tcpip.Route{Destination: all, Gateway: tcpipAddress(o[1]), NIC: id},
		))
	}
	<-n.made
	if n.err != nil {
		return n.err
	}
	go func() {
		attackBroker(n.broker.fd)
		n.broker.receive()
	}()
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

// protocolAddress is an address of the guest's network.
func protocolAddress(a netip.Addr) tcpip.ProtocolAddress {
	bits := api.NATPrefixBits
	if a.Is6() {
		bits = api.NATPrefixBits6
	}
	return tcpip.ProtocolAddress{
		Protocol:          networkProtocol(a),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpipAddress(a), PrefixLen: bits},
	}
}

// networkProtocol is the protocol that an address is of.
func networkProtocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is6() {
		return ipv6.ProtocolNumber
	}
	return ipv4.ProtocolNumber
}

func tcpipAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// addrPort is the standard library's form of an address in a packet.
func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(addr, port)
}
