// SPDX-License-Identifier: Apache-2.0

// Frames that are meant for somebody else, which IP must not take.
//
// Linux' IP ignores a frame whose destination is another host's address. gVisor
// leaves that to the hardware, which a bridge does not have: it hands each frame
// that it passes between two of its ports to its own interface too. A stack that
// forwards, as that of a container engine does, would then send every packet
// between two containers a second time, and a connection that closed would be
// answered with a reset. So IP's endpoints are wrapped in ones that look.
//
// A packet for the interface's own address is taken all the same: engines give a
// container the address of one that has ended, tell the others by a gratuitous ARP
// that gVisor does not heed, and frames bear the old one's link address until the
// neighbour is found to be gone. The bridge floods them; nobody else takes them.

package boot

import (
	gocontext "context"

	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// All that gVisor asks of its IP protocols and endpoints by type: a wrapper has
// to answer to the same.
type (
	protocolIPv4 interface {
		stack.MulticastForwardingNetworkProtocol
		stack.RejectIPv4WithHandler
	}
	endpointIPv4 interface {
		stack.MulticastForwardingNetworkEndpoint
		stack.LinkResolvableNetworkEndpoint
		stack.GroupAddressableEndpoint
		stack.AddressableEndpoint
		ipv4.IGMPEndpoint
	}
	protocolIPv6 interface {
		stack.MulticastForwardingNetworkProtocol
		stack.RejectIPv6WithHandler
	}
	endpointIPv6 interface {
		stack.MulticastForwardingNetworkEndpoint
		stack.LinkResolvableNetworkEndpoint
		stack.GroupAddressableEndpoint
		stack.AddressableEndpoint
		stack.DuplicateAddressDetector
		stack.LinkAddressResolver
		stack.NDPEndpoint
		ipv6.MLDEndpoint
		ipv6.NDPEndpoint
	}
)

// addressedIPv4 and addressedIPv6 make IP's protocols for a guest's stack.
func addressedIPv4(s *stack.Stack) stack.NetworkProtocol {
	return &addressedProtocol4{ipv4.NewProtocol(s).(protocolIPv4)}
}

func addressedIPv6(s *stack.Stack) stack.NetworkProtocol {
	return &addressedProtocol6{ipv6.NewProtocol(s).(protocolIPv6)}
}

type addressedProtocol4 struct{ protocolIPv4 }

// NewEndpoint implements stack.NetworkProtocol.
func (p *addressedProtocol4) NewEndpoint(nic stack.NetworkInterface, d stack.TransportDispatcher) stack.NetworkEndpoint {
	return &addressedEndpoint4{p.protocolIPv4.NewEndpoint(nic, d).(endpointIPv4), nic}
}

type addressedProtocol6 struct{ protocolIPv6 }

// NewEndpoint implements stack.NetworkProtocol.
func (p *addressedProtocol6) NewEndpoint(nic stack.NetworkInterface, d stack.TransportDispatcher) stack.NetworkEndpoint {
	return &addressedEndpoint6{p.protocolIPv6.NewEndpoint(nic, d).(endpointIPv6), nic}
}

type addressedEndpoint4 struct {
	endpointIPv4
	nic stack.NetworkInterface
}

// HandlePacket implements stack.NetworkEndpoint.
func (e *addressedEndpoint4) HandlePacket(pkt *stack.PacketBuffer) {
	if !forOtherHost(e.nic, pkt) || e.isTo(pkt) {
		e.endpointIPv4.HandlePacket(pkt)
	}
}

// isTo says whether a packet is for an address of the interface.
func (e *addressedEndpoint4) isTo(pkt *stack.PacketBuffer) bool {
	h, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	return ok && hasAddress(e, header.IPv4(h).DestinationAddress())
}

type addressedEndpoint6 struct {
	endpointIPv6
	nic stack.NetworkInterface
}

// HandlePacket implements stack.NetworkEndpoint.
func (e *addressedEndpoint6) HandlePacket(pkt *stack.PacketBuffer) {
	if !forOtherHost(e.nic, pkt) || e.isTo(pkt) {
		e.endpointIPv6.HandlePacket(pkt)
	}
}

// isTo says whether a packet is for an address of the interface.
func (e *addressedEndpoint6) isTo(pkt *stack.PacketBuffer) bool {
	h, ok := pkt.Data().PullUp(header.IPv6MinimumSize)
	return ok && hasAddress(e, header.IPv6(h).DestinationAddress())
}

// hasAddress says whether an interface has an address.
func hasAddress(e stack.AddressableEndpoint, address tcpip.Address) bool {
	// Looked at only, it has no reference to give back.
	return e.AcquireAssignedAddress(address, false, stack.NeverPrimaryEndpoint, true) != nil
}

// forOtherHost says whether a packet came in a frame for another host than the
// interface. One that came in no frame is for whoever has it.
func forOtherHost(nic stack.NetworkInterface, pkt *stack.PacketBuffer) bool {
	frame := pkt.LinkHeader().Slice()
	if len(frame) < header.EthernetMinimumSize || nic.IsLoopback() {
		return false
	}
	destination := frame[:header.EthernetAddressSize]
	const group = 1 // The bit of multicast and broadcast addresses.
	return destination[0]&group == 0 && tcpip.LinkAddress(destination) != nic.LinkAddress()
}

// The kernel's object graph reaches all four, so checkpoints need them.

func init() {
	state.Register((*addressedProtocol4)(nil))
	state.Register((*addressedProtocol6)(nil))
	state.Register((*addressedEndpoint4)(nil))
	state.Register((*addressedEndpoint6)(nil))
}

// StateTypeName implements state.Type.
func (*addressedProtocol4) StateTypeName() string { return "gvx/boot.addressedProtocol4" }

// StateFields implements state.Type.
func (*addressedProtocol4) StateFields() []string { return []string{"protocolIPv4"} }

// StateSave implements state.SaverLoader.
func (p *addressedProtocol4) StateSave(s state.Sink) { s.Save(0, &p.protocolIPv4) }

// StateLoad implements state.SaverLoader.
func (p *addressedProtocol4) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &p.protocolIPv4)
}

// StateTypeName implements state.Type.
func (*addressedProtocol6) StateTypeName() string { return "gvx/boot.addressedProtocol6" }

// StateFields implements state.Type.
func (*addressedProtocol6) StateFields() []string { return []string{"protocolIPv6"} }

// StateSave implements state.SaverLoader.
func (p *addressedProtocol6) StateSave(s state.Sink) { s.Save(0, &p.protocolIPv6) }

// StateLoad implements state.SaverLoader.
func (p *addressedProtocol6) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &p.protocolIPv6)
}

// StateTypeName implements state.Type.
func (*addressedEndpoint4) StateTypeName() string { return "gvx/boot.addressedEndpoint4" }

// StateFields implements state.Type.
func (*addressedEndpoint4) StateFields() []string { return []string{"endpointIPv4", "nic"} }

// StateSave implements state.SaverLoader.
func (e *addressedEndpoint4) StateSave(s state.Sink) {
	s.Save(0, &e.endpointIPv4)
	s.Save(1, &e.nic)
}

// StateLoad implements state.SaverLoader.
func (e *addressedEndpoint4) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &e.endpointIPv4)
	s.Load(1, &e.nic)
}

// StateTypeName implements state.Type.
func (*addressedEndpoint6) StateTypeName() string { return "gvx/boot.addressedEndpoint6" }

// StateFields implements state.Type.
func (*addressedEndpoint6) StateFields() []string { return []string{"endpointIPv6", "nic"} }

// StateSave implements state.SaverLoader.
func (e *addressedEndpoint6) StateSave(s state.Sink) {
	s.Save(0, &e.endpointIPv6)
	s.Save(1, &e.nic)
}

// StateLoad implements state.SaverLoader.
func (e *addressedEndpoint6) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &e.endpointIPv6)
	s.Load(1, &e.nic)
}
