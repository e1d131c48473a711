// SPDX-License-Identifier: Apache-2.0

// Checksums and segments that one side leaves to the other.
//
// Each frame has a struct virtio_net_hdr before it (Linux' if_packet.h,
// PACKET_VNET_HDR; the format is virtio 1.2, 5.1.6), of 10 bytes in the machine's
// order:
//
//	offset  size  field
//	0       1     flags: 1 the checksum is to be made, 2 it has been verified
//	1       1     kind of segments; the highest bit is for ECN
//	2       2     length of all headers
//	4       2     payload of a segment
//	6       2     where the checksum begins
//	8       2     where it is stored, from there
//
// Outwards the stack leaves TCP's segments and checksums to the host. Inwards a
// frame may be several segments in one, and one whose checksum nobody has made
// since it never left the host. The stack itself takes them so. But a guest that
// forwards would send them on so, into links whose MTU they exceed, with checksums
// that are none: there they are settled first.

package boot

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// The fields of the header, and their values.
const (
	virtioHeaderBytes = 10

	virtioNeedsChecksum = 1
	virtioVerified      = 2

	virtioNoSegments = 0
	virtioTCPv4      = 1
	virtioTCPv6      = 4
	virtioUDP        = 5
	virtioECN        = 0x80

	// maxSegments is the longest frame in the shortest segments that Linux makes,
	// of 48 bytes. One who asks for more wants to keep us busy.
	maxSegments = 65536 / 48
)

// offloadOf is what the host is told about an outgoing packet, whose link header
// has link bytes.
func offloadOf(pkt *stack.PacketBuffer, link int) (h [virtioHeaderBytes]byte) {
	gso := &pkt.GSOOptions
	if gso.Type == stack.GSONone {
		return h
	}
	if gso.NeedsCsum {
		h[0] = virtioNeedsChecksum
		binary.NativeEndian.PutUint16(h[6:], uint16(link)+gso.L3HdrLen)
		binary.NativeEndian.PutUint16(h[8:], gso.CsumOffset)
	}
	binary.NativeEndian.PutUint16(h[2:], uint16(pkt.HeaderSize()))
	if gso.MSS > 0 && pkt.Data().Size() > int(gso.MSS) {
		h[1] = virtioTCPv4
		if gso.Type == stack.GSOTCPv6 {
			h[1] = virtioTCPv6
		}
		binary.NativeEndian.PutUint16(h[4:], gso.MSS)
	}
	return h
}

// offload is what the host says about an incoming frame.
type offload struct {
	needsChecksum, verified bool
	kind                    byte
	segmentBytes            int
}

// offload reads the header of the frame that was read last.
func (r *frameReader) offload() offload {
	return offload{
		needsChecksum: r.vnet[0]&virtioNeedsChecksum != 0,
		verified:      r.vnet[0]&virtioVerified != 0,
		kind:          r.vnet[1] &^ virtioECN,
		segmentBytes:  int(binary.NativeEndian.Uint16(r.vnet[4:])),
	}
}

// asItIs says whether the stack can take the frame unchanged and unverified.
func (o *offload) asItIs(forwards bool) bool {
	switch {
	case o.kind == virtioUDP: // Several datagrams are never one.
		return false
	case o.needsChecksum:
		return !forwards
	case o.kind != virtioNoSegments:
		return !forwards
	}
	return o.verified
}

// settle returns the frames that this one stands for, with all checksums made; or
// none if one that nobody has verified is wrong. What it does not understand it
// leaves to the stack.
func (o *offload) settle(frame []byte, link int, protocol tcpip.NetworkProtocolNumber) [][]byte {
	p, ok := parsePacket(frame[link:], protocol)
	if !ok {
		return [][]byte{frame}
	}
	whole := [][]byte{frame}
	if !o.needsChecksum && !o.verified && o.kind == virtioNoSegments {
		if !p.valid() {
			return nil
		}
		return whole
	}
	transportBytes := p.transportHeaderBytes()
	if o.kind == virtioNoSegments || o.segmentBytes == 0 || transportBytes == 0 {
		if o.needsChecksum {
			p.makeChecksum()
		}
		return whole
	}
	headers := link + p.transport + transportBytes
	payload := frame[headers : link+p.length]
	if len(payload) <= o.segmentBytes {
		p.makeChecksum()
		return whole
	}
	count := (len(payload) + o.segmentBytes - 1) / o.segmentBytes
	if count > maxSegments {
		return nil
	}
	segments := make([][]byte, 0, count)
	for at := 0; at < len(payload); at += o.segmentBytes {
		end := min(at+o.segmentBytes, len(payload))
		s := make([]byte, 0, headers+end-at)
		s = append(append(s, frame[:headers]...), payload[at:end]...)
		p.cut(s[link:], len(segments), at, end == len(payload))
		segments = append(segments, s)
	}
	return segments
}

// packet is an IP packet with TCP or UDP in it.
type packet struct {
	bytes     []byte
	version6  bool
	transport int // where the transport's header begins
	length    int // of the packet, which may be shorter than its frame
	kind      tcpip.TransportProtocolNumber
}

// parsePacket finds TCP or UDP in an IP packet that is no fragment.
func parsePacket(b []byte, protocol tcpip.NetworkProtocolNumber) (packet, bool) {
	p := packet{bytes: b}
	switch protocol {
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(b)
		if len(b) < header.IPv4MinimumSize {
			return p, false
		}
		p.transport, p.length, p.kind = int(ip.HeaderLength()), int(ip.TotalLength()), ip.TransportProtocol()
		if p.transport < header.IPv4MinimumSize || ip.More() || ip.FragmentOffset() != 0 {
			return p, false
		}
	case header.IPv6ProtocolNumber:
		ip := header.IPv6(b)
		if len(b) < header.IPv6MinimumSize {
			return p, false
		}
		p.version6, p.transport = true, header.IPv6MinimumSize
		p.length, p.kind = header.IPv6MinimumSize+int(ip.PayloadLength()), tcpip.TransportProtocolNumber(ip.NextHeader())
	default:
		return p, false
	}
	if p.length > len(b) {
		return p, false
	}
	switch {
	case p.kind == header.TCPProtocolNumber && p.length >= p.transport+header.TCPMinimumSize,
		p.kind == header.UDPProtocolNumber && p.length >= p.transport+header.UDPMinimumSize:
		return p, true
	}
	return p, false
}

// transportHeaderBytes is the length of TCP's or UDP's header, 0 for a broken one.
func (p *packet) transportHeaderBytes() int {
	if p.kind == header.UDPProtocolNumber {
		return header.UDPMinimumSize
	}
	n := int(header.TCP(p.bytes[p.transport:]).DataOffset())
	if n < header.TCPMinimumSize || p.transport+n > p.length {
		return 0
	}
	return n
}

// pseudo is the sum of what a transport's checksum covers besides itself.
func (p *packet) pseudo() uint16 {
	var src, dst tcpip.Address
	if p.version6 {
		ip := header.IPv6(p.bytes)
		src, dst = ip.SourceAddress(), ip.DestinationAddress()
	} else {
		ip := header.IPv4(p.bytes)
		src, dst = ip.SourceAddress(), ip.DestinationAddress()
	}
	return header.PseudoHeaderChecksum(p.kind, src, dst, uint16(p.length-p.transport))
}

// valid verifies the checksums of IPv4 and of the transport.
func (p *packet) valid() bool {
	if !p.version6 && !header.IPv4(p.bytes).IsChecksumValid() {
		return false
	}
	if p.kind == header.UDPProtocolNumber && !p.version6 && header.UDP(p.bytes[p.transport:]).Checksum() == 0 {
		return true // Its sender made none.
	}
	return checksum.Checksum(p.bytes[p.transport:p.length], p.pseudo()) == 0xffff
}

// makeChecksum makes the transport's checksum.
func (p *packet) makeChecksum() {
	b := p.bytes[p.transport:p.length]
	if p.kind == header.TCPProtocolNumber {
		header.TCP(b).SetChecksum(0)
		header.TCP(b).SetChecksum(^checksum.Checksum(b, p.pseudo()))
		return
	}
	header.UDP(b).SetChecksum(0)
	sum := ^checksum.Checksum(b, p.pseudo())
	if sum == 0 {
		sum = 0xffff // 0 says that there is none.
	}
	header.UDP(b).SetChecksum(sum)
}

// cut makes b, which has p's headers and a part of its payload from at on, the
// packet with that number.
func (p *packet) cut(b []byte, number, at int, last bool) {
	s := packet{bytes: b, version6: p.version6, transport: p.transport, length: len(b), kind: p.kind}
	if s.version6 {
		header.IPv6(b).SetPayloadLength(uint16(len(b) - header.IPv6MinimumSize))
	} else {
		ip := header.IPv4(b)
		ip.SetTotalLength(uint16(len(b)))
		ip.SetID(ip.ID() + uint16(number))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	if s.kind == header.UDPProtocolNumber {
		header.UDP(b[s.transport:]).SetLength(uint16(len(b) - s.transport))
	} else {
		tcp := header.TCP(b[s.transport:])
		tcp.SetSequenceNumber(tcp.SequenceNumber() + uint32(at))
		flags := tcp.Flags()
		if !last {
			flags &^= header.TCPFlagFin | header.TCPFlagPsh
		}
		if number > 0 {
			flags &^= header.TCPFlagCwr
		}
		tcp.SetFlags(uint8(flags))
	}
	s.makeChecksum()
}
