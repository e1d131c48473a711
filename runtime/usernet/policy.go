// SPDX-License-Identifier: Apache-2.0

// The egress policy.

package usernet

import (
	"net/netip"
	"slices"

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
	natDNS, natDNS6         = netip.MustParseAddr(api.NATDNS), netip.MustParseAddr(api.NATDNS6)
	natGateway, natGateway6 = netip.MustParseAddr(api.NATGateway), netip.MustParseAddr(api.NATGateway6)
	natSubnet, natSubnet6   = netip.MustParsePrefix(api.NATSubnet), netip.MustParsePrefix(api.NATSubnet6)
	loopback                = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// Policy says what guests reach. It does not change; a broker changes to
// another.
type Policy struct {
	rules   []api.EgressRule
	byDef   bool
	defRule string
	// domains says that there are rules with names.
	domains bool
	// given are the rules as they were given, defaults included.
	given []api.EgressRule
}

// NewPolicy makes a policy of rules, in the order in which they are tried. Of
// several defaults the last counts. Rules with names and no default deny the
// rest: to allow some names and all addresses would be to allow all.
func NewPolicy(rules []api.EgressRule) (*Policy, error) {
	if len(rules) > api.MaxEgressRules {
		return nil, api.Errorf(api.KindLimit, "egress: %d rules, at most %d: join some into wider networks", len(rules), api.MaxEgressRules)
	}
	p := &Policy{byDef: true, given: slices.Clone(rules)}
	for _, r := range rules {
		if r.IsDefault() {
			p.byDef, p.defRule = r.Allow, r.String()
			continue
		}
		if plain := undisguisePrefix(r.To); plain != r.To {
			return nil, api.Errorf(api.KindInvalid, "egress rule %s: this is %s, written as IPv6, and is judged as that: write %s", r.String(), plain, plain)
		}
		p.domains = p.domains || r.Domain != ""
		p.rules = append(p.rules, r)
	}
	if p.domains && p.defRule == "" {
		p.byDef, p.defRule = false, "deny, which rules with names imply"
	}
	return p, nil
}

// Rules are the rules that the policy was made of.
func (p *Policy) Rules() []api.EgressRule { return slices.Clone(p.given) }

// Check says whether a guest may reach a destination, and why not. Without
// ports (ICMP), the port is 0. names are those by which the guest may know the
// address.
func (p *Policy) Check(to netip.AddrPort, names []string) (allowed bool, why string) {
	plain := undisguise(to.Addr())
	for _, shield := range protected {
		if shield.prefix.Contains(plain) {
			return p.match(plain, names, to.Port(), shield.prefix, false, shield.what)
		}
	}
	return p.match(plain, names, to.Port(), netip.Prefix{}, p.byDef, "by "+p.defRule)
}

// match asks the rules. Inside a shield only rules that lie inside it may
// allow: a name never does, since whoever owns it chooses its addresses.
func (p *Policy) match(to netip.Addr, names []string, port uint16, shield netip.Prefix, otherwise bool, reason string) (bool, string) {
	for i := range p.rules {
		r := &p.rules[i]
		if !covers(r, to, names) || !r.CoversPort(port) {
			continue
		}
		if !r.Allow {
			return false, "by " + r.String()
		}
		if !shield.IsValid() || r.Domain == "" && r.To.Bits() >= shield.Bits() {
			return true, ""
		}
	}
	if otherwise {
		return true, ""
	}
	return false, reason
}

func covers(r *api.EgressRule, to netip.Addr, names []string) bool {
	if r.Domain == "" {
		return r.To.Contains(to)
	}
	return slices.ContainsFunc(names, r.CoversName)
}

// Resolves says whether the guest may ask for a name. The name server answers
// for the whole internet: where the default denies, only a rule inside the
// guest's own network allows it. With rules that have names, those names are all
// there is, unless such a rule takes that back.
func (p *Policy) Resolves(name string) bool {
	if !p.domains {
		allowed, _ := p.match(natDNS, nil, dnsPort, natSubnet, p.byDef, "")
		return allowed
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.Allow && r.CoversName(name) {
			return true
		}
		if r.Domain == "" && r.To.Contains(natDNS) && r.To.Bits() >= natSubnet.Bits() && r.CoversPort(dnsPort) {
			return r.Allow
		}
	}
	return false
}

// undisguisePrefix returns the IPv4 network that an IPv6 one stands for, or the
// network itself. A rule for the latter would cover nothing.
func undisguisePrefix(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	plain := undisguise(p.Addr())
	if plain.BitLen() == p.Addr().BitLen() {
		return p
	}
	for _, d := range disguises {
		if bits := p.Bits() - d.at*8; bits >= 0 && d.prefix.Contains(p.Addr()) {
			return netip.PrefixFrom(plain, min(bits, plain.BitLen()))
		}
	}
	return p
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
