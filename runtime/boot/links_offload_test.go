// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// testFrame makes an Ethernet frame with TCP or UDP over either IP, whose
// transport checksum is that of the pseudo header alone, as a host leaves it.
func testFrame(version6 bool, kind tcpip.TransportProtocolNumber, payload []byte) []byte {
	src, dst := tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), tcpip.AddrFrom4([4]byte{10, 0, 0, 2})
	ip, transportBytes := header.IPv4MinimumSize, header.TCPMinimumSize+12
	protocol := header.IPv4ProtocolNumber
	if kind == header.UDPProtocolNumber {
		transportBytes = header.UDPMinimumSize
	}
	if version6 {
		src, dst = tcpip.AddrFrom16([16]byte{0: 0xfd, 15: 1}), tcpip.AddrFrom16([16]byte{0: 0xfd, 15: 2})
		ip, protocol = header.IPv6MinimumSize, header.IPv6ProtocolNumber
	}
	f := make([]byte, header.EthernetMinimumSize+ip+transportBytes, header.EthernetMinimumSize+ip+transportBytes+len(payload))
	header.Ethernet(f).Encode(&header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x01", DstAddr: "\x02\x00\x00\x00\x00\x02", Type: protocol})
	b := f[header.EthernetMinimumSize:]
	transport := transportBytes + len(payload)
	if version6 {
		header.IPv6(b).Encode(&header.IPv6Fields{PayloadLength: uint16(transport), TransportProtocol: kind, HopLimit: 64, SrcAddr: src, DstAddr: dst})
	} else {
		h := header.IPv4(b)
		h.Encode(&header.IPv4Fields{TotalLength: uint16(ip + transport), ID: 77, TTL: 64, Protocol: uint8(kind), SrcAddr: src, DstAddr: dst})
		h.SetChecksum(^h.CalculateChecksum())
	}
	sum := header.PseudoHeaderChecksum(kind, src, dst, uint16(transport))
	if kind == header.UDPProtocolNumber {
		header.UDP(b[ip:]).Encode(&header.UDPFields{SrcPort: 1, DstPort: 2, Length: uint16(transport), Checksum: sum})
	} else {
		header.TCP(b[ip:]).Encode(&header.TCPFields{
			SrcPort: 1, DstPort: 2, SeqNum: 1000, AckNum: 5, DataOffset: uint8(transportBytes),
			Flags: header.TCPFlagAck | header.TCPFlagPsh | header.TCPFlagFin | header.TCPFlagCwr, Checksum: sum,
		})
	}
	return append(f, payload...)
}

func protocolOfVersion(version6 bool) tcpip.NetworkProtocolNumber {
	if version6 {
		return header.IPv6ProtocolNumber
	}
	return header.IPv4ProtocolNumber
}

// TestSettleSegments cuts frames of every kind and puts the pieces together again.
func TestSettleSegments(t *testing.T) {
	payload := make([]byte, 10_001)
	for i := range payload {
		payload[i] = byte(rand.Uint32())
	}
	const segment = 1448
	for _, version6 := range []bool{false, true} {
		for kind, virtio := range map[tcpip.TransportProtocolNumber]byte{header.TCPProtocolNumber: virtioTCPv4, header.UDPProtocolNumber: virtioUDP} {
			o := offload{needsChecksum: true, kind: virtio, segmentBytes: segment}
			if o.asItIs(true) {
				t.Error("a router takes it as it is")
			}
			if o.asItIs(false) != (kind == header.TCPProtocolNumber) {
				t.Error("several datagrams are one, or a long segment is cut for nothing")
			}
			pieces := o.settle(testFrame(version6, kind, payload), header.EthernetMinimumSize, protocolOfVersion(version6))
			if len(pieces) != (len(payload)+segment-1)/segment {
				t.Fatalf("%d pieces", len(pieces))
			}
			var together []byte
			for i, f := range pieces {
				p, ok := parsePacket(f[header.EthernetMinimumSize:], protocolOfVersion(version6))
				if !ok || !p.valid() || p.length != len(p.bytes) {
					t.Fatalf("piece %d is no valid packet: %+v", i, p)
				}
				if !version6 && header.IPv4(p.bytes).ID() != 77+uint16(i) {
					t.Errorf("piece %d has id %d", i, header.IPv4(p.bytes).ID())
				}
				if kind == header.TCPProtocolNumber {
					h := header.TCP(p.bytes[p.transport:])
					want := header.TCPFlags(header.TCPFlagAck)
					if i == 0 {
						want |= header.TCPFlagCwr
					}
					if i == len(pieces)-1 {
						want |= header.TCPFlagPsh | header.TCPFlagFin
					}
					if h.Flags() != want || h.SequenceNumber() != 1000+uint32(i*segment) {
						t.Errorf("piece %d: flags %v, sequence %d", i, h.Flags(), h.SequenceNumber())
					}
				}
				together = append(together, p.bytes[p.transport+p.transportHeaderBytes():]...)
			}
			if !bytes.Equal(together, payload) {
				t.Error("the pieces are not the whole")
			}
		}
	}
}

// TestSettleChecksums: one is made where it is missing, and verified where nobody
// has.
func TestSettleChecksums(t *testing.T) {
	for _, version6 := range []bool{false, true} {
		for _, kind := range []tcpip.TransportProtocolNumber{header.TCPProtocolNumber, header.UDPProtocolNumber} {
			protocol := protocolOfVersion(version6)
			settle := func(o offload, frame []byte) [][]byte {
				return o.settle(frame, header.EthernetMinimumSize, protocol)
			}
			frame := testFrame(version6, kind, []byte("odd"))
			if len(settle(offload{}, frame)) != 0 {
				t.Error("a wrong checksum was taken")
			}
			made := settle(offload{needsChecksum: true}, frame)
			if len(made) != 1 || len(settle(offload{}, made[0])) != 1 {
				t.Error("the checksum that was made is wrong")
			}
			if o := (offload{verified: true}); !o.asItIs(true) {
				t.Error("one that was verified is verified again")
			}
			if o := (offload{}); o.asItIs(false) {
				t.Error("one that nobody verified is taken")
			}
			if !version6 {
				broken := bytes.Clone(made[0])
				broken[header.EthernetMinimumSize+8]++ // The time to live.
				if len(settle(offload{}, broken)) != 0 {
					t.Error("a wrong checksum of the header was taken")
				}
			}
		}
	}
	// A datagram without a checksum has none to be wrong.
	frame := testFrame(false, header.UDPProtocolNumber, []byte("x"))
	header.UDP(frame[header.EthernetMinimumSize+header.IPv4MinimumSize:]).SetChecksum(0)
	if len((&offload{}).settle(frame, header.EthernetMinimumSize, header.IPv4ProtocolNumber)) != 1 {
		t.Error("a datagram without a checksum was dropped")
	}
}

// FuzzSettle: frames come from a network. Whatever they hold, no more comes out
// than went in, but for headers.
func FuzzSettle(f *testing.F) {
	f.Add(testFrame(false, header.TCPProtocolNumber, make([]byte, 100)), byte(1), byte(virtioTCPv4), uint16(40), true)
	f.Add(testFrame(true, header.UDPProtocolNumber, make([]byte, 100)), byte(1), byte(virtioUDP), uint16(40), true)
	f.Add(testFrame(false, header.TCPProtocolNumber, nil), byte(0), byte(0), uint16(0), true)
	f.Add([]byte{0x45}, byte(0), byte(0), uint16(0), false)
	f.Fuzz(func(t *testing.T, frame []byte, flags, kind byte, segment uint16, ethernet bool) {
		link := 0
		if ethernet {
			link = header.EthernetMinimumSize
		}
		if len(frame) <= link {
			return
		}
		o := offload{needsChecksum: flags&1 != 0, verified: flags&2 != 0, kind: kind &^ virtioECN, segmentBytes: int(segment)}
		length := len(frame)
		total := 0
		for _, piece := range o.settle(frame, link, protocolOf(frame, link)) {
			if len(piece) > length {
				t.Fatalf("a piece of %d bytes of a frame of %d", len(piece), length)
			}
			total += len(piece)
		}
		if total > length*length {
			t.Fatalf("%d bytes of a frame of %d", total, length)
		}
	})
}
