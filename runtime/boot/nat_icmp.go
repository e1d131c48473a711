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
	reply := byte(header.ICMPv4EchoReply)
	if key.guest.Addr().Is6() {
		reply = byte(header.ICMPv6EchoReply)
	}
	if len(message) < icmpBytes || message[0] != reply {
		return
	}
	header.ICMPv4(message).SetIdent(key.guest.Port())
	sendICMP(route, message)
}

// unreachable tells the guest why its packet did not arrive, where the result
// means that.
func (n *nat) unreachable(key packetKey, result netwire.Result) {
	from, kind := natGateway, byte(header.ICMPv4DstUnreachable)
	code4, known := unreachableCode(key.protocol, result)
	code := byte(code4)
	if key.guest.Addr().Is6() {
		from, kind = natGateway6, byte(header.ICMPv6DstUnreachable)
		code6, known6 := unreachableCode6(key.protocol, result)
		code, known = byte(code6), known6
	}
	if !known {
		return
	}
	route, err := n.routeToGuest(packetKey{guest: key.guest, peer: netip.AddrPortFrom(from, 0)})
	if err != nil {
		return
	}
	defer route.Release()
	message := make([]byte, icmpBytes, icmpBytes+header.IPv6MinimumSize+quotedBytes)
	message[0], message[1] = kind, code
	sendICMP(route, appendQuote(message, key))
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

// appendQuote appends the beginning of the guest's packet, by which its kernel
// finds the socket.
func appendQuote(b []byte, key packetKey) []byte {
	from, to := tcpipAddress(key.guest.Addr()), tcpipAddress(key.peer.Addr())
	echo := byte(header.ICMPv4Echo)
	if key.guest.Addr().Is6() {
		protocol := tcpip.TransportProtocolNumber(key.protocol)
		if key.protocol == netwire.Echo {
			protocol = header.ICMPv6ProtocolNumber
		}
		ip := make(header.IPv6, header.IPv6MinimumSize)
		ip.Encode(&header.IPv6Fields{PayloadLength: quotedBytes, TransportProtocol: protocol, HopLimit: routeTTL, SrcAddr: from, DstAddr: to})
		b, echo = append(b, ip...), byte(header.ICMPv6EchoRequest)
	} else {
		ip := make(header.IPv4, header.IPv4MinimumSize)
		ip.Encode(&header.IPv4Fields{
			TotalLength: header.IPv4MinimumSize + quotedBytes, TTL: routeTTL, Protocol: uint8(key.protocol), SrcAddr: from, DstAddr: to,
		})
		ip.SetChecksum(^ip.CalculateChecksum())
		b = append(b, ip...)
	}
	transport := make([]byte, quotedBytes)
	if key.protocol == netwire.Echo {
		transport[0] = echo
		header.ICMPv4(transport).SetIdent(key.guest.Port())
	} else { // Both transports begin with the ports.
		header.UDP(transport).SetSourcePort(key.guest.Port())
		header.UDP(transport).SetDestinationPort(key.peer.Port())
	}
	return append(b, transport...)
}

// icmpBytes is the length of an ICMP header. Type, code, checksum and, in an
// echo, the identifier are in the same places of both versions.
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
