// SPDX-License-Identifier: Apache-2.0

// What the router itself sends to the guest: packets of flows, and the news
// that a destination cannot be reached.

package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// routeTTL is the hop limit of packets to the guest, Linux' default.
const routeTTL = 64

// routeToGuest returns the route from a flow's peer to its guest.
func (n *nat) routeToGuest(key packetKey) (*stack.Route, error) {
	r, err := n.router.FindRoute(n.nic, tcpipAddress(key.peer.Addr()), tcpipAddress(key.guest.Addr()), ipv4.ProtocolNumber, false)
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
	sum := route.PseudoHeaderChecksum(udp.ProtocolNumber, length)
	h.SetChecksum(^h.CalculateChecksum(checksum.Combine(sum, pkt.Data().Checksum())))
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: routeTTL}, pkt)
}

// deliverEcho sends the guest an echo reply. The host's kernel has put an
// identifier of its own in it.
func (n *nat) deliverEcho(route *stack.Route, key packetKey, message []byte) {
	h := header.ICMPv4(message)
	if len(h) < header.ICMPv4MinimumSize || h.Type() != header.ICMPv4EchoReply {
		return
	}
	h.SetIdent(key.guest.Port())
	sendICMP(route, message)
}

// unreachable tells the guest why its packet did not arrive, where the result
// means that.
func (n *nat) unreachable(key packetKey, result netwire.Result) {
	var code header.ICMPv4Code
	switch result {
	case netwire.Refused:
		if key.protocol == netwire.TCP {
			return // A reset says it.
		}
		code = header.ICMPv4PortUnreachable
	case netwire.HostUnreachable:
		code = header.ICMPv4HostUnreachable
	case netwire.NetUnreachable:
		code = header.ICMPv4NetUnreachable
	case netwire.Denied:
		code = header.ICMPv4AdminProhibited
		if key.protocol == netwire.UDP {
			// The guest's kernel tells a UDP socket of no other; a packet
			// filter's reject is the same.
			code = header.ICMPv4PortUnreachable
		}
	default:
		return // No answer is the answer: guests try again.
	}
	route, err := n.router.FindRoute(n.nic, tcpipAddress(natGateway), tcpipAddress(key.guest.Addr()), ipv4.ProtocolNumber, false)
	if err != nil {
		return
	}
	defer route.Release()
	// The header and first eight bytes of the guest's packet, by which its
	// kernel finds the socket.
	message := make([]byte, header.ICMPv4MinimumSize+header.IPv4MinimumSize+8)
	h := header.ICMPv4(message)
	h.SetType(header.ICMPv4DstUnreachable)
	h.SetCode(code)
	ip := header.IPv4(message[header.ICMPv4MinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: routeTTL, Protocol: uint8(key.protocol),
		SrcAddr: tcpipAddress(key.guest.Addr()), DstAddr: tcpipAddress(key.peer.Addr()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	transport := ip[header.IPv4MinimumSize:]
	if key.protocol == netwire.Echo {
		echo := header.ICMPv4(transport)
		echo.SetType(header.ICMPv4Echo)
		echo.SetIdent(key.guest.Port())
	} else {
		// Both transports begin with their ports.
		ports := header.UDP(transport)
		ports.SetSourcePort(key.guest.Port())
		ports.SetDestinationPort(key.peer.Port())
	}
	sendICMP(route, message)
}

// sendICMP sends a whole ICMP message after computing its checksum.
func sendICMP(route *stack.Route, message []byte) {
	h := header.ICMPv4(message)
	h.SetChecksum(0)
	h.SetChecksum(header.ICMPv4Checksum(h[:header.ICMPv4MinimumSize], checksum.Checksum(message[header.ICMPv4MinimumSize:], 0)))
	pkt := newPacket(route, header.ICMPv4MinimumSize, message[header.ICMPv4MinimumSize:])
	defer pkt.DecRef()
	copy(pkt.TransportHeader().Push(header.ICMPv4MinimumSize), message)
	pkt.TransportProtocolNumber = icmp.ProtocolNumber4
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: icmp.ProtocolNumber4, TTL: routeTTL}, pkt)
}

// newPacket returns a packet with a copy of payload and room for headers.
func newPacket(route *stack.Route, transportBytes int, payload []byte) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + transportBytes,
		Payload:            buffer.MakeWithData(payload),
	})
}
