// SPDX-License-Identifier: Apache-2.0

// Egress rules: their form, and how people write them.

package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// MaxEgressRules bounds the rules that every new connection is held against.
	MaxEgressRules = 4096
	// Names are as DNS has them.
	maxDomainBytes, maxLabelBytes = 253, 63
)

// EgressRule allows or denies what guests reach. The first rule that covers a
// destination decides.
type EgressRule struct {
	Allow bool `json:"allow,omitempty"`
	// To is what the rule covers, if Domain does not say so; a rule with neither
	// is a default: it decides where no other rule does.
	To netip.Prefix `json:"to,omitzero"`
	// Domain is a name in lower case whose addresses are covered, or *. before
	// one for all names below it.
	Domain string `json:"domain,omitempty"`
	// Ports narrow it; none means all, and whatever has no ports.
	Ports []PortRange `json:"ports,omitempty"`
}

// IsDefault says whether the rule is about what no other covers.
func (r *EgressRule) IsDefault() bool { return !r.To.IsValid() && r.Domain == "" }

// String writes the rule as `rungv run --egress` takes it.
func (r *EgressRule) String() string {
	verb := "deny"
	if r.Allow {
		verb = "allow"
	}
	if r.IsDefault() {
		return verb
	}
	to := r.To.String()
	switch {
	case r.Domain != "":
		verb, to = verb+"-domain", r.Domain
	case len(r.Ports) > 0 && r.To.Addr().Is6():
		to = "[" + to + "]"
	}
	if len(r.Ports) == 0 {
		return verb + "=" + to
	}
	ports := make([]string, len(r.Ports))
	for i, p := range r.Ports {
		ports[i] = p.String()
	}
	return verb + "=" + to + ":" + strings.Join(ports, ",")
}

// CoversPort says whether the rule is about the port.
func (r *EgressRule) CoversPort(port uint16) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p PortRange) bool { return p.First <= port && port <= p.Last })
}

// CoversName says whether the rule is about a name, which is in lower case,
// without its final dot, and has backslashes before bytes that hosts' names do
// not have. No rule covers one with such: servers disagree about what it means.
func (r *EgressRule) CoversName(name string) bool {
	if suffix, wild := strings.CutPrefix(r.Domain, "*"); wild {
		return len(name) > len(suffix) && strings.HasSuffix(name, suffix) && !strings.Contains(name, `\`)
	}
	return r.Domain != "" && r.Domain == name
}

// ParseEgress reads allow or deny, alone as the default, or with
// =ADDRESS[/BITS][:PORTS], or allow-domain=NAME[:PORTS]. An IPv6 address with
// ports is in brackets; ports are N or N-M, separated by commas.
func ParseEgress(s string) (EgressRule, error) {
	fail := func(format string, args ...any) (EgressRule, error) {
		return EgressRule{}, Errorf(KindInvalid, "invalid egress rule %q: %w", s, fmt.Errorf(format, args...))
	}
	verb, target, has := strings.Cut(s, "=")
	r := EgressRule{Allow: verb == "allow"}
	var network, ports string
	var err error
	switch {
	case verb == "allow-domain":
		r.Allow = true
		network, ports, _ = strings.Cut(target, ":")
		if r.Domain, err = parseDomain(network); err != nil {
			return fail("%w", err)
		}
	case verb == "deny-domain":
		return fail("names are allowed, not denied: whoever is denied a name can still ask for its address; deny all and allow some")
	case verb != "allow" && verb != "deny":
		return fail("want allow or deny, or either with =CIDR[:PORTS], or allow-domain=NAME[:PORTS]")
	case !has:
		return r, nil
	default:
		if network, ports, err = splitTarget(target); err != nil {
			return fail("%w", err)
		}
		if r.To, err = parsePrefix(network); err != nil {
			return fail("%q is neither an address nor a network: want 192.0.2.1 or 192.0.2.0/24, or allow-domain=NAME", network)
		}
	}
	if ports == "" {
		// A variable of a script that is empty would open all of them.
		if network != target && strings.HasSuffix(target, ":") {
			return fail("no ports behind the colon")
		}
		return r, nil
	}
	for _, text := range strings.Split(ports, ",") {
		p, err := ParsePortRange(text)
		if err != nil {
			return fail("%q is no port or range of ports", text)
		}
		r.Ports = append(r.Ports, p)
	}
	return r, nil
}

// splitTarget takes a network and its ports apart.
func splitTarget(target string) (network, ports string, err error) {
	inner, bracketed := strings.CutPrefix(target, "[")
	if !bracketed {
		if strings.Count(target, ":") == 1 {
			network, ports, _ = strings.Cut(target, ":")
			return network, ports, nil
		}
		return target, "", nil
	}
	network, rest, ok := strings.Cut(inner, "]")
	if !ok {
		return "", "", fmt.Errorf("no closing bracket")
	}
	if bits, ok := strings.CutPrefix(rest, "/"); ok { // [::]/0:443
		bits, after, _ := strings.Cut(bits, ":")
		network, rest = network+"/"+bits, ":"+after
		if after == "" {
			rest = ""
		}
	}
	if ports, ok = strings.CutPrefix(rest, ":"); !ok && rest != "" {
		return "", "", fmt.Errorf("%q behind the bracket", rest)
	}
	return network, ports, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}

// parseDomain reads NAME or *.NAME.
func parseDomain(s string) (string, error) {
	s = strings.TrimSuffix(strings.ToLower(s), ".")
	name := strings.TrimPrefix(s, "*.")
	if len(s) > maxDomainBytes {
		return "", fmt.Errorf("a name has at most %d bytes", maxDomainBytes)
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || len(label) > maxLabelBytes || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", fmt.Errorf("%q is no name: want example.org, or *.example.org for the names below it; others than ASCII in their xn-- form", s)
		}
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", fmt.Errorf("%q is an address: want allow=%s", name, name)
	}
	return s, nil
}
