// SPDX-License-Identifier: Apache-2.0

// Network mode netns, the sandbox's half: interfaces of a host's network namespace
// become the guest's own, under their names, with their addresses and routes. The
// host's half is package netns.

package boot

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"z.gfire.dev/gvx/runtime/api"
)

// attachLinks gives the guest's root network namespace the interfaces, before or
// after the lockdown, before or after the kernel has started. The descriptors
// become the links'. After an error some links may be attached: the guest must not
// be started then.
func (sb *sandbox) attachLinks(links []api.Link) error {
	if err := api.ValidateLinks(links); err != nil || len(links) == 0 {
		return err
	}
	ns, ok := sb.k.RootNetworkNamespace().Stack().(*netstack.Stack)
	if !ok {
		return api.Errorf(api.KindInternal, "attach network interfaces: the guest's stack is none of ours")
	}
	return attachTo(ns.Stack, links)
}

// attachTo gives a stack the interfaces.
func attachTo(s *stack.Stack, links []api.Link) error {
	var routes []metricRoute
	for i := range links {
		id, err := attachLink(s, &links[i])
		if err != nil {
			return fmt.Errorf("attach network interface %s: %w", links[i].Name, err)
		}
		for _, r := range links[i].Routes {
			routes = append(routes, metricRoute{r.Metric, stackRoute(&r, id)})
		}
	}
	// The stack takes the longest prefix, and of equals the first.
	slices.SortStableFunc(routes, func(a, b metricRoute) int { return cmp.Compare(a.metric, b.metric) })
	for _, r := range routes {
		s.AddRoute(r.route)
	}
	return nil
}

// metricRoute is a route and its place among those to the same destination.
type metricRoute struct {
	metric uint32
	route  tcpip.Route
}

// stackRoute is the stack's form of a route.
func stackRoute(r *api.LinkRoute, id tcpip.NICID) tcpip.Route {
	route := tcpip.Route{Destination: subnet(r.Destination), NIC: id, MTU: uint32(r.MTU)}
	if r.Gateway.IsValid() {
		route.Gateway = tcpipAddress(r.Gateway)
	}
	if r.Source.IsValid() {
		route.SourceHint = tcpipAddress(r.Source)
	}
	return route
}

func subnet(p netip.Prefix) tcpip.Subnet {
	return tcpip.AddressWithPrefix{Address: tcpipAddress(p.Masked().Addr()), PrefixLen: p.Bits()}.Subnet()
}

// attachLink makes one interface with its addresses and neighbours.
func attachLink(s *stack.Stack, l *api.Link) (tcpip.NICID, error) {
	id, err := linkNIC(s, l)
	if err != nil {
		return 0, err
	}
	for _, a := range l.Addresses {
		address := tcpip.ProtocolAddress{
			Protocol:          networkProtocol(a.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpipAddress(a.Addr()), PrefixLen: a.Bits()},
		}
		err := s.AddProtocolAddress(id, address, stack.AddressProperties{})
		if _, twice := err.(*tcpip.ErrDuplicateAddress); err != nil && !twice {
			return 0, fmt.Errorf("add address %s: %s", a, err)
		}
	}
	for i, r := range l.Resolvers {
		if err := relayQueries(s, r, int(l.FDs[i])); err != nil {
			return 0, err
		}
	}
	for _, n := range l.Neighbors {
		if err := s.AddStaticNeighbor(id, networkProtocol(n.Address), tcpipAddress(n.Address), tcpip.LinkAddress(n.MAC)); err != nil {
			return 0, fmt.Errorf("add neighbour %s: %s", n.Address, err)
		}
	}
	return id, nil
}

// linkNIC makes the interface itself; a loopback is there already.
func linkNIC(s *stack.Stack, l *api.Link) (tcpip.NICID, error) {
	for id, info := range s.NICInfo() {
		switch {
		case l.Loopback && info.Flags.Loopback:
			return id, nil
		case info.Name == l.Name:
			return 0, api.Errorf(api.KindExists, "the guest has an interface of this name")
		}
	}
	if l.Loopback {
		return 0, api.Errorf(api.KindInternal, "the guest has no loopback")
	}
	id := s.NextNICID()
	p, err := newPacketLink(s, id, l)
	if err != nil {
		return 0, err
	}
	var end stack.LinkEndpoint = p
	if p.ethernet {
		end = ethernet.New(p)
	}
	if err := s.CreateNICWithOptions(id, end, stack.NICOptions{Name: l.Name, DeliverLinkPackets: true}); err != nil {
		p.Close()
		return 0, fmt.Errorf("create it: %s", err)
	}
	return id, nil
}

// takeLinks attaches interfaces whose files a client has sent under an id; doc is
// a list of [api.Link] as JSON, whose descriptors are indices of those files.
func (sb *sandbox) takeLinks(ctx context.Context, id string, doc []byte) error {
	if sb.spec.Network.Mode != api.NetworkNetns {
		return api.Errorf(api.KindState, "network interfaces for a sandbox of network mode %q", sb.spec.Network.Mode)
	}
	var links []api.Link
	if err := json.Unmarshal(doc, &links); err != nil {
		return api.Errorf(api.KindInvalid, "network interfaces: %w", err)
	}
	if err := api.ValidateLinks(links); err != nil {
		return err
	}
	var set streamSet
	if slices.ContainsFunc(links, func(l api.Link) bool { return len(l.FDs) > 0 }) {
		var err error
		if set, err = sb.streams.take(ctx, id); err != nil {
			return fmt.Errorf("network interfaces: %w", err)
		}
	}
	if err := set.numberLinks(links); err != nil {
		set.close()
		return api.Errorf(api.KindInvalid, "network interfaces: %w", err)
	}
	return sb.attachLinks(links)
}

// numberLinks replaces indices of files by the descriptors that they have here,
// and refuses those that are no sockets.
func (s streamSet) numberLinks(links []api.Link) error {
	used := make([]bool, len(s.fds))
	for i := range links {
		for j, n := range links[i].FDs {
			if n < 0 || int(n) >= len(s.fds) || used[n] {
				return fmt.Errorf("%s names file %d of %d, or one that another has", links[i].Name, n, len(s.fds))
			}
			used[n] = true
			links[i].FDs[j] = api.FD(s.fds[n])
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return fmt.Errorf("none names file %d", i)
	}
	for _, fd := range s.fds {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return fmt.Errorf("a file is no socket")
		}
	}
	return nil
}
