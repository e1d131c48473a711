// SPDX-License-Identifier: Apache-2.0

package boot

import (
	gocontext "context"
	"fmt"

	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/netfilter"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/sentry/uniqueid"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/nftables"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/raw"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/api"
)

// stackMaker makes the network stack of every network namespace of the
// sandbox, so that those a guest makes are like the first.
type stackMaker struct {
	clock tcpip.Clock
	ids   uniqueid.Provider
	// packetWrite lets packet sockets send.
	packetWrite bool
}

// newRootNetworkNamespace makes the guest's first network namespace: a
// loopback interface and, later, what the network mode adds.
func (sb *sandbox) newRootNetworkNamespace(clock tcpip.Clock, userns *auth.UserNamespace, ids uniqueid.Provider) (*inet.Namespace, error) {
	if sb.hostNetwork != nil {
		return sb.newHostNetworkNamespace(userns), nil
	}
	// nftables must be switched on before the first stack is made.
	nftables.EnableNFTables()
	var n *nat
	if sb.spec.Network.Mode == api.NetworkNAT {
		var err error
		if n, err = newNAT(sb.spec.Network.BrokerFD, sb.spec.Network.IPv6); err != nil {
			return nil, err
		}
	}
	m := &stackMaker{clock: clock, ids: ids, packetWrite: !sb.spec.Network.NoPacketWrite}
	s, err := m.CreateStack()
	if err != nil {
		return nil, err
	}
	if n != nil {
		if err := n.attach(s.(*netstack.Stack)); err != nil {
			return nil, err
		}
	}
	return inet.NewRootNamespace(s, m, userns), nil
}

// CreateStack implements inet.NetworkStackCreator.
func (m *stackMaker) CreateStack() (inet.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{addressedIPv4, addressedIPv6, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		Clock:              m.clock,
		Stats:              netstack.Metrics,
		HandleLocal:        true,
		// Raw and packet sockets are guarded by the guest's own CAP_NET_RAW.
		RawFactory:               raw.EndpointFactory{},
		AllowPacketEndpointWrite: m.packetWrite,
		DefaultIPTables:          netfilter.DefaultLinuxTables,
	})
	s.SetNFTables(nftables.NewNFTables(s, s.Clock(), s.SecureRNG()))
	if err := tuneStack(s); err != nil {
		return nil, err
	}
	if err := addLoopback(s); err != nil {
		return nil, err
	}
	return netstack.NewStack(s, m.ids.UniqueID()), nil
}

// Ports of sockets that ask for none are Linux' default ones: programs rely on
// those above to be free, and on a host's interface they are the host's
// ([api.HostPortFirst]).
const firstLocalPort, lastLocalPort = 32768, 60999

// tuneStack sets what Linux has by default.
func tuneStack(s *stack.Stack) error {
	if err := tuneTCP(s); err != nil {
		return err
	}
	if err := s.SetPortRange(firstLocalPort, lastLocalPort); err != nil {
		return fmt.Errorf("set the range of local ports: %s", err)
	}
	ttl := tcpip.DefaultTTLOption(netstack.DefaultTTL)
	for _, proto := range []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber} {
		if err := s.SetNetworkProtocolOption(proto, &ttl); err != nil {
			return fmt.Errorf("set default hop limit: %s", err)
		}
	}
	return nil
}

// tuneTCP is what all stacks have, the router's too.
func tuneTCP(s *stack.Stack) error {
	sack := tcpip.TCPSACKEnabled(true)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return fmt.Errorf("enable selective acknowledgements: %s", err)
	}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &moderate); err != nil {
		return fmt.Errorf("enable receive buffer moderation: %s", err)
	}
	return nil
}

// addLoopback adds lo with 127.0.0.1/8 and ::1/128. The interface's number
// comes from the stack's own counter: guest-made links use that too, and a
// literal number would collide with the first of them.
func addLoopback(s *stack.Stack) error {
	id := s.NextNICID()
	if err := s.CreateNICWithOptions(id, ethernet.New(loopback.New()), stack.NICOptions{Name: "lo", DeliverLinkPackets: true}); err != nil {
		return fmt.Errorf("create loopback interface: %s", err)
	}
	v4 := tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4([4]byte{127, 0, 0, 1}), PrefixLen: 8}
	v6 := tcpip.AddressWithPrefix{Address: header.IPv6Loopback, PrefixLen: 128}
	for _, a := range []tcpip.ProtocolAddress{
		{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: v4},
		{Protocol: ipv6.ProtocolNumber, AddressWithPrefix: v6},
	} {
		if err := s.AddProtocolAddress(id, a, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("add loopback address %s: %s", a.AddressWithPrefix, err)
		}
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: v4.Subnet(), NIC: id},
		{Destination: v6.Subnet(), NIC: id},
	})
	return nil
}

// The kernel's object graph reaches stackMaker, so checkpoints need it.

func init() { state.Register((*stackMaker)(nil)) }

// StateTypeName implements state.Type.
func (*stackMaker) StateTypeName() string { return "gvx/boot.stackMaker" }

// StateFields implements state.Type.
func (*stackMaker) StateFields() []string { return []string{"clock", "ids", "packetWrite"} }

// StateSave implements state.SaverLoader.
func (m *stackMaker) StateSave(s state.Sink) {
	s.Save(0, &m.clock)
	s.Save(1, &m.ids)
	s.Save(2, &m.packetWrite)
}

// StateLoad implements state.SaverLoader.
func (m *stackMaker) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &m.clock)
	s.Load(1, &m.ids)
	s.Load(2, &m.packetWrite)
}
