// SPDX-License-Identifier: Apache-2.0

// The egress policy.

package usernet

import (
	"net/netip"

	"z.gfire.dev/gvx/runtime/api"
)

// protected are destinations that only a rule inside them opens.
var protected = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "the host's loopback"},
	{netip.MustParsePrefix("0.0.0.0/8"), "the host itself"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, where clouds keep their metadata"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata (Alibaba)"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's metadata (Azure)"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud's metadata (Oracle)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "broadcast or reserved"},
	{netip.MustParsePrefix("::1/128"), "the host's loopback"},
	{netip.MustParsePrefix("::/128"), "the host itself"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("fd00:ec2::/32"), "a cloud's metadata (Amazon)"},
	{netip.MustParsePrefix("fd20:ce::/32"), "a cloud's metadata (Google)"},
}

// Prefixes whose addresses are IPv4 addresses in disguise, and where in them
// those begin. A policy about the disguise would be none.
var disguises = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("::ffff:0:0/96"), 12},
	{netip.MustParsePrefix("::/96"), 12},
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
}

var (
	natDNS     = netip.MustParseAddr(api.NATDNS)
	natGateway = netip.MustParseAddr(api.NATGateway)
	natSubnet  = netip.MustParsePrefix(api.NATSubnet)
	loopback   = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// Policy says what guests reach. It does not change.
type Policy struct {
	rules   []api.EgressRule
	byDef   bool
	defRule string
}

// NewPolicy makes a policy of rules, in the order in which they are tried. Of
// several defaults the last counts.
func NewPolicy(rules []api.EgressRule) (*Policy, error) {
	if len(rules) > api.MaxEgressRules {
		return nil, api.Errorf(api.KindLimit, "egress: %d rules, at most %d: join some into wider networks", len(rules), api.MaxEgressRules)
	}
	p := &Policy{byDef: true}
	for _, r := range rules {
		if !r.To.IsValid() {
			p.byDef, p.defRule = r.Allow, r.String()
			continue
		}
		p.rules = append(p.rules, r)
	}
	return p, nil
}

// Check says whether a guest may reach a destination, and why not. Without
// ports (ICMP), the port is 0.
func (p *Policy) Check(to netip.AddrPort) (allowed bool, why string) {
	plain := undisguise(to.Addr())
	for _, shield := range protected {
		if shield.prefix.Contains(plain) {
			return p.match(plain, to.Port(), shield.prefix, false, shield.what)
		}
	}
	return p.match(plain, to.Port(), netip.Prefix{}, p.byDef, "by "+p.defRule)
}

// match asks the rules. Inside a shield only rules that lie inside it may
// allow.
func (p *Policy) match(to netip.Addr, port uint16, shield netip.Prefix, otherwise bool, reason string) (bool, string) {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.To.Contains(to) || !r.CoversPort(port) {
			continue
		}
		if !r.Allow {
			return false, "by " + r.String()
		}
		if !shield.IsValid() || r.To.Bits() >= shield.Bits() {
			return true, ""
		}
	}
	if otherwise {
		return true, ""
	}
	return false, reason
}

// resolves says whether the guest may ask the host's resolver.
func (p *Policy) resolves() bool {
	allowed, _ := p.match(natDNS, dnsPort, netip.Prefix{}, p.byDef, "")
	return allowed
}

// undisguise returns the IPv4 address that an IPv6 address stands for, or the
// address itself.
func undisguise(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	a = a.WithZone("")
	if a == netip.IPv6Unspecified() || a == netip.IPv6Loopback() {
		return a
	}
	b := a.As16()
	for _, d := range disguises {
		if d.prefix.Contains(a) {
			return netip.AddrFrom4([4]byte(b[d.at : d.at+4]))
		}
	}
	return a
}
