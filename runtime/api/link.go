// SPDX-License-Identifier: Apache-2.0

// Interfaces of a host's network namespace that a sandbox takes over.

package api

import (
	"net/netip"
	"strings"
)

// Limits of what is taken over from a network namespace. Each thing below costs
// the sandbox memory before its guest runs; a namespace with more is refused.
const (
	// MaxLinks bounds interfaces: pods have a few.
	MaxLinks = 64
	// MaxLinkQueues bounds the packet sockets of an interface.
	MaxLinkQueues = 16
	// MaxLinkAddresses, MaxLinkRoutes and MaxLinkNeighbors are for one interface.
	MaxLinkAddresses = 1024
	MaxLinkRoutes    = 8192
	MaxLinkNeighbors = 8192
	// maxLinkNameBytes is Linux' IFNAMSIZ, less its final zero.
	maxLinkNameBytes = 15
	// macBytes is an Ethernet address' length.
	macBytes = 6
	// MinLinkMTU is what IPv4 demands; MaxLinkMTU the longest IP packet.
	MinLinkMTU = 68
	MaxLinkMTU = 65535
	// HostPortFirst to HostPortLast are the ports that stay with the host's own
	// stack on a link, for what its processes in the namespace begin: guests take
	// none of them by themselves. Linux' own choice of local ports ends below.
	HostPortFirst = 64512
	HostPortLast  = 65535
	// MaxLinkGSOBytes bounds what is cut into segments: Linux' usual value.
	MaxLinkGSOBytes = 65536
)

// Link is one interface of a network namespace, as it is there, and the packet
// sockets through which the sandbox uses it.
type Link struct {
	// Name is the interface's, and becomes the guest's.
	Name string `json:"name"`
	// Loopback says that this is what the namespace's lo has beyond 127.0.0.1/8
	// and ::1: it has no sockets, and goes to the guest's own lo.
	Loopback bool `json:"loopback,omitempty"`
	// MAC is an Ethernet address; nil says that the interface carries IP packets
	// without a frame (tun, wireguard).
	MAC []byte `json:"mac,omitempty"`
	MTU int    `json:"mtu,omitempty"`
	// Addresses are those of the interface with the bits of their networks.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Routes    []LinkRoute    `json:"routes,omitempty"`
	// Neighbors are the permanent ones; all others are found again.
	Neighbors []LinkNeighbor `json:"neighbors,omitempty"`
	// FDs are the packet sockets, bound to the interface and in non-blocking
	// mode. Flows are spread over them by the host. A loopback's are datagram
	// sockets, each connected to one of Resolvers.
	FDs []FD `json:"fds,omitempty"`
	// Resolvers are name servers of the host's own processes in the namespace,
	// docker's say, on addresses of a loopback, which its guests' queries reach
	// through FDs, parallel to them.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	// GSOMaxBytes is the longest packet that the host cuts into segments by
	// itself. 0 says that frames on FDs come as they are on the wire; else each
	// has a struct virtio_net_hdr before it.
	GSOMaxBytes int `json:"gsoMaxBytes,omitempty"`
}

// LinkRoute is a route over a [Link], of the main table.
type LinkRoute struct {
	Destination netip.Prefix `json:"destination"`
	// Gateway is unset for what is on the link itself.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Source is the preferred source address, or unset.
	Source netip.Addr `json:"source,omitzero"`
	// Metric orders routes to the same destination, the lowest first.
	Metric uint32 `json:"metric,omitempty"`
	// MTU is the path's where it is not the link's.
	MTU int `json:"mtu,omitempty"`
}

// LinkNeighbor is a permanent neighbour of a [Link].
type LinkNeighbor struct {
	Address netip.Addr `json:"address"`
	MAC     []byte     `json:"mac"`
}

// ValidateLinks refuses links that no namespace has, with an [Error] of
// KindInvalid or KindLimit. Descriptors are not looked at: whoever attaches
// links knows where they come from.
func ValidateLinks(links []Link) error {
	if len(links) > MaxLinks {
		return Errorf(KindLimit, "%d network interfaces, at most %d", len(links), MaxLinks)
	}
	names := make(map[string]bool, len(links))
	for i := range links {
		l := &links[i]
		if names[l.Name] {
			return Errorf(KindInvalid, "network interface %q: given twice", l.Name)
		}
		names[l.Name] = true
		if err := l.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) validate() error {
	switch {
	case l.Name == "" || len(l.Name) > maxLinkNameBytes || strings.ContainsAny(l.Name, "/\x00"):
		return Errorf(KindInvalid, "network interface %q: no name for one", l.Name)
	case len(l.FDs) > MaxLinkQueues:
		return Errorf(KindLimit, "network interface %s: %d sockets, at most %d", l.Name, len(l.FDs), MaxLinkQueues)
	case len(l.Addresses) > MaxLinkAddresses:
		return Errorf(KindLimit, "network interface %s: %d addresses, at most %d", l.Name, len(l.Addresses), MaxLinkAddresses)
	case len(l.Routes) > MaxLinkRoutes:
		return Errorf(KindLimit, "network interface %s: %d routes, at most %d", l.Name, len(l.Routes), MaxLinkRoutes)
	case len(l.Neighbors) > MaxLinkNeighbors:
		return Errorf(KindLimit, "network interface %s: %d neighbours, at most %d", l.Name, len(l.Neighbors), MaxLinkNeighbors)
	case l.Loopback && len(l.MAC) > 0:
		return Errorf(KindInvalid, "network interface %s: a loopback with a link address", l.Name)
	case l.Loopback && len(l.FDs) != len(l.Resolvers):
		return Errorf(KindInvalid, "network interface %s: %d sockets for %d name servers", l.Name, len(l.FDs), len(l.Resolvers))
	case !l.Loopback && len(l.Resolvers) > 0:
		return Errorf(KindInvalid, "network interface %s: name servers on an interface that is no loopback", l.Name)
	case !l.Loopback && len(l.FDs) == 0:
		return Errorf(KindInvalid, "network interface %s: no socket", l.Name)
	case !l.Loopback && (l.MTU < MinLinkMTU || l.MTU > MaxLinkMTU):
		return Errorf(KindInvalid, "network interface %s: MTU %d, want %d to %d", l.Name, l.MTU, MinLinkMTU, MaxLinkMTU)
	case len(l.MAC) != 0 && len(l.MAC) != macBytes:
		return Errorf(KindInvalid, "network interface %s: a link address of %d bytes, want %d", l.Name, len(l.MAC), macBytes)
	case l.GSOMaxBytes < 0 || l.GSOMaxBytes > MaxLinkGSOBytes:
		return Errorf(KindInvalid, "network interface %s: packets of %d bytes, want at most %d", l.Name, l.GSOMaxBytes, MaxLinkGSOBytes)
	}
	return l.validateAddresses()
}

func (l *Link) validateAddresses() error {
	for _, a := range l.Addresses {
		if !plain(a.Addr()) || !a.IsValid() {
			return Errorf(KindInvalid, "network interface %s: %s is no address with a network", l.Name, a)
		}
	}
	for _, r := range l.Routes {
		to := r.Destination
		switch {
		case !plain(to.Addr()) || !to.IsValid() || to != to.Masked():
			return Errorf(KindInvalid, "network interface %s: route to %s, which is no network", l.Name, to)
		case r.Gateway.IsValid() && (!plain(r.Gateway) || r.Gateway.Is4() != to.Addr().Is4()):
			return Errorf(KindInvalid, "network interface %s: route to %s by way of %s, of the other kind", l.Name, to, r.Gateway)
		case r.Source.IsValid() && (!plain(r.Source) || r.Source.Is4() != to.Addr().Is4()):
			return Errorf(KindInvalid, "network interface %s: route to %s from %s, of the other kind", l.Name, to, r.Source)
		case r.MTU < 0 || r.MTU > MaxLinkMTU:
			return Errorf(KindInvalid, "network interface %s: route to %s with MTU %d", l.Name, to, r.MTU)
		}
	}
	for _, r := range l.Resolvers {
		if !r.Addr().IsLoopback() || !plain(r.Addr()) || r.Port() == 0 {
			return Errorf(KindInvalid, "network interface %s: name server %s, which is on no loopback", l.Name, r)
		}
	}
	for _, n := range l.Neighbors {
		if !plain(n.Address) || len(n.MAC) != macBytes {
			return Errorf(KindInvalid, "network interface %s: neighbour %s with a link address of %d bytes", l.Name, n.Address, len(n.MAC))
		}
	}
	return nil
}

// plain says whether an address is one of a packet: valid, without a zone, and
// no IPv4 address in IPv6's clothes.
func plain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }
