// SPDX-License-Identifier: Apache-2.0

// The cable between eth0 and the router.

package boot

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// natLink is one end of a cable: what is written to it is delivered at the
// other, by the writer. It has no queue: a queue would only move the place
// where packets are lost, and TCP's windows bound what is under way.
type natLink struct {
	peer         *natLink
	capabilities stack.LinkEndpointCapabilities
	dispatcher   atomic.Pointer[stack.NetworkDispatcher]
	address      atomic.Pointer[tcpip.LinkAddress]
	mtu          atomic.Uint32
}

// newNATLink returns both ends. Nothing can be damaged in between, so neither
// end verifies what it receives, and eth0 does not even compute checksums. The
// router does: its packets may go on from the guest to a network of the guest.
func newNATLink() (guest, router *natLink) {
	guest = &natLink{capabilities: stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload}
	router = &natLink{capabilities: stack.CapabilityRXChecksumOffload}
	guest.peer, router.peer = router, guest
	for end, mac := range map[*natLink]tcpip.LinkAddress{guest: natGuestMAC, router: natRouterMAC} {
		end.SetLinkAddress(mac)
		end.SetMTU(natMTU + header.EthernetMinimumSize)
	}
	return guest, router
}

// WritePackets implements stack.LinkWriter.
func (l *natLink) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	d := l.peer.dispatcher.Load()
	for _, p := range packets.AsSlice() {
		if d == nil {
			continue // A cable into nothing.
		}
		// A packet of its own: the other stack parses it anew.
		in := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: p.ToBuffer()})
		in.Owner = p.Owner
		(*d).DeliverNetworkPacket(p.NetworkProtocolNumber, in)
		in.DecRef()
	}
	return packets.Len(), nil
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *natLink) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (l *natLink) IsAttached() bool { return l.dispatcher.Load() != nil }

// MTU implements stack.NetworkLinkEndpoint.
func (l *natLink) MTU() uint32 { return l.mtu.Load() }

// SetMTU implements stack.NetworkLinkEndpoint.
func (l *natLink) SetMTU(mtu uint32) { l.mtu.Store(mtu) }

// LinkAddress implements stack.NetworkLinkEndpoint.
func (l *natLink) LinkAddress() tcpip.LinkAddress { return *l.address.Load() }

// SetLinkAddress implements stack.NetworkLinkEndpoint.
func (l *natLink) SetLinkAddress(a tcpip.LinkAddress) { l.address.Store(&a) }

// Capabilities implements stack.NetworkLinkEndpoint.
func (l *natLink) Capabilities() stack.LinkEndpointCapabilities { return l.capabilities }

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (*natLink) MaxHeaderLength() uint16 { return 0 }

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (*natLink) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader implements stack.NetworkLinkEndpoint.
func (*natLink) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.NetworkLinkEndpoint.
func (*natLink) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait implements stack.NetworkLinkEndpoint.
func (*natLink) Wait() {}

// Close implements stack.NetworkLinkEndpoint.
func (*natLink) Close() {}

// SetOnCloseAction implements stack.NetworkLinkEndpoint.
func (*natLink) SetOnCloseAction(func()) {}
