// SPDX-License-Identifier: Apache-2.0

// Reading what the interfaces of a namespace are.

package netns

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// dumpAttempts is how often a list is asked for again that changed while it was
// being read.
const dumpAttempts = 10

// iface is an interface of the namespace as it was found.
type iface struct {
	link      api.Link
	index     int
	gsoMax    int
	addresses []netlink.Addr
	routes    []netlink.Route
}

// ethernet says whether its frames have a header.
func (i *iface) ethernet() bool { return len(i.link.MAC) > 0 }

// loopbackUp brings the calling thread's loopback up.
func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	return nil
}

// stable asks again while the kernel says that its answer is not of one moment.
func stable[T any](ask func() (T, error)) (T, error) {
	var answer T
	var err error
	for range dumpAttempts {
		if answer, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return answer, err
}

// read returns the interfaces that are up, in the kernel's order.
func (t *Taken) read(h *netlink.Handle) ([]iface, error) {
	links, err := stable(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []iface
	for _, l := range links {
		i, ok := t.describe(l)
		if !ok {
			continue
		}
		if err := t.readAddresses(h, l, &i); err != nil {
			return nil, err
		}
		if !i.link.Loopback {
			if err := readNeighbors(h, &i); err != nil {
				return nil, err
			}
		}
		all = append(all, i)
	}
	if len(all) > api.MaxLinks {
		return nil, api.Errorf(api.KindLimit, "%d interfaces, at most %d", len(all), api.MaxLinks)
	}
	if err := t.readRoutes(h, all); err != nil {
		return nil, err
	}
	rules, err := stable(func() ([]netlink.Rule, error) { return h.RuleList(netlink.FAMILY_ALL) })
	for _, r := range rules {
		if err == nil && r.Table != unix.RT_TABLE_LOCAL && r.Table != unix.RT_TABLE_MAIN && r.Table != unix.RT_TABLE_DEFAULT {
			t.note("routing rules beyond the main table are not taken over")
			break
		}
	}
	// A loopback without anything of its own is like any guest's.
	return slices.DeleteFunc(all, func(i iface) bool {
		return i.link.Loopback && len(i.link.Addresses)+len(i.link.Routes) == 0
	}), nil
}

// describe says what an interface is, and whether it is one to be taken.
func (t *Taken) describe(l netlink.Link) (iface, bool) {
	a := l.Attrs()
	i := iface{index: a.Index, gsoMax: int(a.GSOMaxSize)}
	i.link.Name, i.link.MTU = a.Name, min(a.MTU, api.MaxLinkMTU)
	switch {
	case a.Flags&net.FlagUp == 0:
		return i, false
	case a.Flags&net.FlagLoopback != 0:
		i.link.Loopback = true
		return i, true
	case a.MasterIndex != 0:
		t.note("interface %s is part of another and stays the host's", a.Name)
		return i, false
	case a.MTU < api.MinLinkMTU:
		t.note("interface %s has an MTU of %d and stays the host's", a.Name, a.MTU)
		return i, false
	}
	switch a.EncapType {
	case "ether":
		i.link.MAC = slices.Clone(a.HardwareAddr)
		return i, len(i.link.MAC) > 0
	case "none":
		return i, true // IP packets as they are: tun, wireguard.
	}
	t.note("interface %s is of a kind (%s) that stays the host's", a.Name, a.EncapType)
	return i, false
}

func (t *Taken) readAddresses(h *netlink.Handle, l netlink.Link, i *iface) error {
	list, err := stable(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", i.link.Name, err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		if i.link.Loopback && (ip.IsLoopback() || ip == netip.IPv6Loopback()) {
			continue
		}
		bits, _ := a.Mask.Size()
		i.link.Addresses = append(i.link.Addresses, netip.PrefixFrom(ip, bits))
		i.addresses = append(i.addresses, a)
	}
	return nil
}

// readNeighbors keeps those that somebody has set; all others are found again.
func readNeighbors(h *netlink.Handle, i *iface) error {
	list, err := stable(func() ([]netlink.Neigh, error) { return h.NeighList(i.index, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", i.link.Name, err)
	}
	for _, n := range list {
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok || n.State != netlink.NUD_PERMANENT || len(n.HardwareAddr) != len(i.link.MAC) || !i.ethernet() {
			continue
		}
		i.link.Neighbors = append(i.link.Neighbors, api.LinkNeighbor{Address: ip.Unmap(), MAC: slices.Clone(n.HardwareAddr)})
	}
	return nil
}

// readRoutes gives each interface its routes of the main table, the best first.
func (t *Taken) readRoutes(h *netlink.Handle, all []iface) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := stable(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			if err := t.addRoute(all, family, r); err != nil {
				return err
			}
		}
	}
	for i := range all {
		slices.SortStableFunc(all[i].link.Routes, func(a, b api.LinkRoute) int { return cmp.Compare(a.Metric, b.Metric) })
	}
	return nil
}

// addRoute gives a route to its interface, or notes why not.
func (t *Taken) addRoute(all []iface, family int, r netlink.Route) error {
	to, ok := destination(family, r.Dst)
	if !ok {
		return nil
	}
	if len(r.MultiPath) > 0 {
		t.note("of the ways to %s only the first is taken over", to)
		hop := r.MultiPath[0]
		r.LinkIndex, r.Gw, r.Via, r.Encap, r.Flags = hop.LinkIndex, hop.Gw, hop.Via, hop.Encap, r.Flags|hop.Flags
	}
	switch {
	case r.Type != unix.RTN_UNICAST:
		t.note("route to %s, which says that there is none, is not taken over", to)
		return nil
	case r.Encap != nil || r.Via != nil || r.NewDst != nil || r.MPLSDst != nil:
		t.note("route to %s, which is more than an IP route, is not taken over", to)
		return nil
	case r.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0:
		return nil
	}
	at := slices.IndexFunc(all, func(i iface) bool { return i.index == r.LinkIndex })
	if at < 0 {
		return nil
	}
	i := &all[at]
	route := api.LinkRoute{Destination: to, Metric: uint32(r.Priority), MTU: min(r.MTU, api.MaxLinkMTU)}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		route.Gateway = gw.Unmap()
	}
	if src, ok := netip.AddrFromSlice(r.Src); ok {
		route.Source = src.Unmap()
	}
	if len(i.link.Routes) >= api.MaxLinkRoutes {
		return api.Errorf(api.KindLimit, "interface %s: more than %d routes", i.link.Name, api.MaxLinkRoutes)
	}
	i.link.Routes = append(i.link.Routes, route)
	i.routes = append(i.routes, r)
	return nil
}

// destination is where a route leads; nil is everywhere.
func destination(family int, to *net.IPNet) (netip.Prefix, bool) {
	if to == nil {
		if family == netlink.FAMILY_V4 {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0), true
	}
	ip, ok := netip.AddrFromSlice(to.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	if family == netlink.FAMILY_V4 {
		ip = ip.Unmap()
	}
	bits, _ := to.Mask.Size()
	return netip.PrefixFrom(ip, bits).Masked(), true
}

// Addresses are the addresses that others could reach the namespace at, IPv4 first.
func (n *Namespace) Addresses() ([]netip.Prefix, error) {
	var list []netip.Prefix
	err := n.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		defer h.Close()
		all, err := (&Taken{}).read(h)
		for _, i := range all {
			for _, a := range i.link.Addresses {
				if a.Addr().IsGlobalUnicast() {
					list = append(list, a)
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of network namespace %s: %w", n.Name, err)
	}
	slices.SortStableFunc(list, func(a, b netip.Prefix) int { return cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()) })
	return list, nil
}
