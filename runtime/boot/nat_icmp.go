// SPDX-License-Identifier: Apache-2.0

// What the router itself sends to the guest: packets of flows, and the news
// that a destination cannot be reached.

package boot

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// routeTTL is the hop limit of packets to the guest, Linux' default.
const routeTTL = 64

// routeToGuest returns the route from a flow's peer to its guest.
func (n *nat) routeToGuest(key packetKey) (*stack.Route, error) {
	r, err := n.router.FindRoute(n.nic, tcpipAddress(key.peer.Addr()), tcpipAddress(key.guest.Addr()), networkProtocol(key.guest.Addr()), false)
	if err != nil {
		return nil, fmt.Errorf("route to guest %s: %s", key.guest.Addr(), err)
	}
	return r, nil
}

// deliver sends the guest a packet of a flow. It does not keep payload.
func (n *nat) deliver(route *stack.Route, key packetKey, payload []byte) {
	if key.protocol == netwire.Echo {
		n.deliverEcho(route, key, payload)
		return
	}
	pkt := newPacket(route, header.UDPMinimumSize, payload)
	defer pkt.DecRef()
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	length := uint16(header.UDPMinimumSize + len(payload))
	h.Encode(&header.UDPFields{SrcPort: key.peer.Port(), DstPort: key.guest.Port(), Length: length})
	sum := ^h.CalculateChecksum(checksum.Combine(route.PseudoHeaderChecksum(udp.ProtocolNumber, length), pkt.Data().Checksum()))
	if sum == 0 {
		sum = 0xffff // Zero says that there is none.
	}
	h.SetChecksum(sum)
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: routeTTL}, pkt)
}

// deliverEcho sends the guest an echo reply. The host's kernel has put an
// identifier of its own in it.
func (n *nat) deliverEcho(route *stack.Route, key packetKey, message []byte) {
	if key.guest.Addr().Is6() {
		h := header.ICMPv6(message)
		if len(h) < header.ICMPv6EchoMinimumSize || h.Type() != header.ICMPv6EchoReply {
			return
		}
		h.SetIdent(key.guest.Port())
	} else {
		h := header.ICMPv4(message)
		if len(h) < header.ICMPv4MinimumSize || h.Type() != header.ICMPv4EchoReply {
			return
		}
		h.SetIdent(key.guest.Port())
	}
	sendICMP(route, message)
}

// unreachable tells the guest why its packet did not arrive, where the result
// means that.
func (n *nat) unreachable(key packetKey, result netwire.Result) {
	from := natGateway
	if key.guest.Addr().Is6() {
		from = natGateway6
	}
	// The beginning of the guest's packet, by which its kernel finds the socket.
	var message []byte
	if key.guest.Addr().Is6() {
		code, known := unreachableCode6(key.protocol, result)
		if !known {
			return
		}
		message = make([]byte, header.ICMPv6MinimumSize+header.IPv6MinimumSize+quotedBytes)
		h := header.ICMPv6(message)
		h.SetType(header.ICMPv6DstUnreachable)
		h.SetCode(code)
		quote6(message[header.ICMPv6MinimumSize:], key)
	} else {
		code, known := unreachableCode(key.protocol, result)
		if !known {
			return
		}
		message = make([]byte, header.ICMPv4MinimumSize+header.IPv4MinimumSize+quotedBytes)
		h := header.ICMPv4(message)
		h.SetType(header.ICMPv4DstUnreachable)
		h.SetCode(code)
		quote4(message[header.ICMPv4MinimumSize:], key)
	}
	route, err := n.routeToGuest(packetKey{guest: key.guest, peer: netip.AddrPortFrom(from, 0)})
	if err != nil {
		return
	}
	defer route.Release()
	sendICMP(route, message)
}

// quotedBytes is how much of a packet's transport header comes back in an ICMP
// error.
const quotedBytes = 8

// unreachableCode is the code of an ICMP error, if the result is one.
func unreachableCode(protocol netwire.Protocol, result netwire.Result) (header.ICMPv4Code, bool) {
	switch result {
	case netwire.Refused:
		return header.ICMPv4PortUnreachable, protocol != netwire.TCP // A reset says it.
	case netwire.HostUnreachable:
		return header.ICMPv4HostUnreachable, true
	case netwire.NetUnreachable:
		return header.ICMPv4NetUnreachable, true
	case netwire.Denied:
		if protocol == netwire.UDP {
			// The guest's kernel tells a UDP socket of no other; a packet
			// filter's reject is the same.
			return header.ICMPv4PortUnreachable, true
		}
		return header.ICMPv4AdminProhibited, true
	}
	return 0, false // No answer is the answer: guests try again.
}

// unreachableCode6 is the same for IPv6. The guest's kernel tells its sockets of
// two codes only; another would be silence.
func unreachableCode6(protocol netwire.Protocol, result netwire.Result) (header.ICMPv6Code, bool) {
	switch result {
	case netwire.Refused:
		return header.ICMPv6PortUnreachable, protocol != netwire.TCP
	case netwire.HostUnreachable:
		if protocol == netwire.Echo { // A raw socket reads the code itself.
			return header.ICMPv6AddressUnreachable, true
		}
		return header.ICMPv6NetworkUnreachable, true
	case netwire.NetUnreachable:
		return header.ICMPv6NetworkUnreachable, true
	case netwire.Denied:
		switch protocol {
		case netwire.Echo:
			return header.ICMPv6Prohibited, true
		case netwire.UDP:
			return header.ICMPv6PortUnreachable, true
		}
		return header.ICMPv6NetworkUnreachable, true
	}
	return 0, false
}

// quote4 writes the beginning of the guest's packet.
func quote4(b []byte, key packetKey) {
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: routeTTL, Protocol: uint8(key.protocol),
		SrcAddr: tcpipAddress(key.guest.Addr()), DstAddr: tcpipAddress(key.peer.Addr()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	transport := b[header.IPv4MinimumSize:]
	if key.protocol == netwire.Echo {
		echo := header.ICMPv4(transport)
		echo.SetType(header.ICMPv4Echo)
		echo.SetIdent(key.guest.Port())
		return
	}
	quotePorts(transport, key)
}

// quote6 is the same for IPv6.
func quote6(b []byte, key packetKey) {
	protocol := tcpip.TransportProtocolNumber(key.protocol)
	if key.protocol == netwire.Echo {
		protocol = header.ICMPv6ProtocolNumber
	}
	header.IPv6(b).Encode(&header.IPv6Fields{
		PayloadLength: quotedBytes, TransportProtocol: protocol, HopLimit: routeTTL,
		SrcAddr: tcpipAddress(key.guest.Addr()), DstAddr: tcpipAddress(key.peer.Addr()),
	})
	transport := b[header.IPv6MinimumSize:]
	if key.protocol == netwire.Echo {
		echo := header.ICMPv6(transport)
		echo.SetType(header.ICMPv6EchoRequest)
		echo.SetIdent(key.guest.Port())
		return
	}
	quotePorts(transport, key)
}

// quotePorts writes the ports, with which both transports begin.
func quotePorts(transport []byte, key packetKey) {
	ports := header.UDP(transport)
	ports.SetSourcePort(key.guest.Port())
	ports.SetDestinationPort(key.peer.Port())
}

// icmpBytes is the length of an ICMP header, the same in both versions.
const icmpBytes = header.ICMPv4MinimumSize

// sendICMP sends a whole ICMP message after computing its checksum.
func sendICMP(route *stack.Route, message []byte) {
	body := message[icmpBytes:]
	protocol := icmp.ProtocolNumber4
	if route.NetProto() == ipv6.ProtocolNumber {
		protocol = icmp.ProtocolNumber6
		h := header.ICMPv6(message[:icmpBytes])
		h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
			Header: h, Src: route.LocalAddress(), Dst: route.RemoteAddress(), PayloadCsum: checksum.Checksum(body, 0), PayloadLen: len(body),
		}))
	} else {
		h := header.ICMPv4(message[:icmpBytes])
		h.SetChecksum(0)
		h.SetChecksum(header.ICMPv4Checksum(h, checksum.Checksum(body, 0)))
	}
	pkt := newPacket(route, icmpBytes, body)
	defer pkt.DecRef()
	copy(pkt.TransportHeader().Push(icmpBytes), message)
	pkt.TransportProtocolNumber = protocol
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: protocol, TTL: routeTTL}, pkt)
}

// newPacket returns a packet with a copy of payload and room for headers.
func newPacket(route *stack.Route, transportBytes int, payload []byte) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + transportBytes,
		Payload:            buffer.MakeWithData(payload),
	})
}
