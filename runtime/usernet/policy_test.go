// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"net/netip"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

func allow(to string, ports ...api.PortRange) api.EgressRule {
	return api.EgressRule{Allow: true, To: netip.MustParsePrefix(to), Ports: ports}
}

func deny(to string, ports ...api.PortRange) api.EgressRule {
	return api.EgressRule{To: netip.MustParsePrefix(to), Ports: ports}
}

func TestPolicy(t *testing.T) {
	none := []api.EgressRule{}
	for _, c := range []struct {
		name  string
		rules []api.EgressRule
		to    string
		want  bool
	}{
		{"public", none, "93.184.216.34:80", true},
		{"private", none, "192.168.1.1:22", true},
		{"loopback", none, "127.0.0.1:80", false},
		{"all of loopback", none, "127.8.9.10:80", false},
		{"unspecified", none, "0.0.0.0:80", false},
		{"metadata", none, "169.254.169.254:80", false},
		{"Azure", none, "168.63.129.16:80", false},
		{"broadcast", none, "255.255.255.255:67", false},
		{"IPv6 public", none, "[2606:4700::1]:443", true},
		{"IPv6 loopback", none, "[::1]:80", false},
		{"IPv6 unspecified", none, "[::]:80", false},
		{"link-local", none, "[fe80::1]:80", false},
		{"Amazon's IPv6", none, "[fd00:ec2::254]:80", false},
		{"mapped loopback", none, "[::ffff:127.0.0.1]:80", false},
		{"compatible loopback", none, "[::127.0.0.1]:80", false},
		{"NAT64 metadata", none, "[64:ff9b::169.254.169.254]:80", false},
		{"6to4 metadata", none, "[2002:a9fe:a9fe::1]:80", false},

		{"a rule that names loopback", []api.EgressRule{allow("127.0.0.1/32")}, "127.0.0.1:80", true},
		{"a rule for its neighbour", []api.EgressRule{allow("127.0.0.1/32")}, "127.0.0.2:80", false},
		{"a wide rule", []api.EgressRule{allow("0.0.0.0/0")}, "127.0.0.1:80", false},
		{"a wide rule, metadata", []api.EgressRule{allow("0.0.0.0/0")}, "169.254.169.254:80", false},
		{"a wide rule, behind it a narrow one", []api.EgressRule{allow("0.0.0.0/0"), allow("169.254.169.254/32")}, "169.254.169.254:80", true},
		{"a port", []api.EgressRule{allow("127.0.0.1/32", api.PortRange{First: 8000, Last: 8010})}, "127.0.0.1:8010", true},
		{"another port", []api.EgressRule{allow("127.0.0.1/32", api.PortRange{First: 8000, Last: 8010})}, "127.0.0.1:8011", false},
		{"first match", []api.EgressRule{deny("10.1.0.0/16"), allow("10.0.0.0/8")}, "10.1.2.3:1", false},
		{"first match, other order", []api.EgressRule{allow("10.0.0.0/8"), deny("10.1.0.0/16")}, "10.1.2.3:1", true},
		{"deny all", []api.EgressRule{{}}, "93.184.216.34:80", false},
		{"deny all but", []api.EgressRule{{}, allow("93.184.216.0/24")}, "93.184.216.34:80", true},
		{"a denied disguise", []api.EgressRule{deny("93.184.216.0/24")}, "[64:ff9b::5db8:d822]:80", false},
	} {
		p, err := NewPolicy(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		got, why := p.Check(netip.MustParseAddrPort(c.to), nil)
		if got != c.want || got != (why == "") {
			t.Errorf("%s: %s: %t (%s), want %t", c.name, c.to, got, why, c.want)
		}
	}
}

func TestPolicyResolves(t *testing.T) {
	for want, rules := range map[bool][][]api.EgressRule{
		true: {nil, {{}, allow("10.0.2.3/32")}, {allow("127.0.0.1/32")}},
		// A wide rule is about addresses, and names lead out of it.
		false: {{{}}, {deny("10.0.2.3/32")}, {{}, allow("192.0.2.0/24")}, {{}, allow("10.0.0.0/8")}, {{}, allow("0.0.0.0/0")}},
	} {
		for _, r := range rules {
			p, err := NewPolicy(r)
			if err != nil || p.Resolves("example.org") != want {
				t.Errorf("%v: resolves %t, %v", r, !want, err)
			}
		}
	}
}

// TestDisguisedRules: a rule about IPv4 addresses in disguise would cover
// nothing, since those are judged as what they are.
func TestDisguisedRules(t *testing.T) {
	for to, plain := range map[string]string{
		"64:ff9b::a00:0/104": "10.0.0.0/8", "64:ff9b::/96": "0.0.0.0/0", "2002:a00::/24": "10.0.0.0/8",
		"2002:a00:1:2::/64": "10.0.0.1/32", "::ffff:10.0.0.0/104": "10.0.0.0/8", "::127.0.0.1/128": "127.0.0.1/32",
	} {
		if _, err := NewPolicy([]api.EgressRule{deny(to)}); err == nil || !strings.Contains(err.Error(), "write "+plain) {
			t.Errorf("%s: %v, want to hear of %s", to, err, plain)
		}
	}
	for _, to := range []string{"::/0", "::1/128", "::/128", "2000::/3", "64:ff9b::/32", "2001:db8::/32", "0.0.0.0/0"} {
		if _, err := NewPolicy([]api.EgressRule{deny(to)}); err != nil {
			t.Error(err)
		}
	}
}

func domain(name string, ports ...api.PortRange) api.EgressRule {
	return api.EgressRule{Allow: true, Domain: name, Ports: ports}
}

// TestPolicyDomains: names stand for addresses, never for protected ones, and
// are the only ones to be resolved.
func TestPolicyDomains(t *testing.T) {
	https := api.PortRange{First: 443, Last: 443}
	for _, c := range []struct {
		name  string
		rules []api.EgressRule
		to    string
		names []string
		want  bool
	}{
		{"a name", []api.EgressRule{domain("a.b")}, "192.0.2.1:80", []string{"x.y", "a.b"}, true},
		{"another", []api.EgressRule{domain("a.b")}, "192.0.2.1:80", []string{"x.y"}, false},
		{"no name", []api.EgressRule{domain("a.b")}, "192.0.2.1:80", nil, false},
		{"IPv6", []api.EgressRule{domain("a.b")}, "[2001:db8::1]:80", []string{"a.b"}, true},
		{"a port", []api.EgressRule{domain("*.b", https)}, "192.0.2.1:443", []string{"a.b"}, true},
		{"another port", []api.EgressRule{domain("*.b", https)}, "192.0.2.1:80", []string{"a.b"}, false},
		{"denied before", []api.EgressRule{deny("192.0.2.0/24"), domain("a.b")}, "192.0.2.1:80", []string{"a.b"}, false},
		{"a name of the loopback", []api.EgressRule{domain("a.b")}, "127.0.0.1:80", []string{"a.b"}, false},
		{"a name of the metadata", []api.EgressRule{domain("a.b")}, "169.254.169.254:80", []string{"a.b"}, false},
		{"a name of a disguise", []api.EgressRule{domain("a.b")}, "[64:ff9b::7f00:1]:80", []string{"a.b"}, false},
		{"an explicit default", []api.EgressRule{domain("a.b"), {Allow: true}}, "192.0.2.1:80", nil, true},
	} {
		p, err := NewPolicy(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		if got, why := p.Check(netip.MustParseAddrPort(c.to), c.names); got != c.want {
			t.Errorf("%s: %t (%s)", c.name, got, why)
		}
	}
	for _, c := range []struct {
		rules []api.EgressRule
		name  string
		want  bool
	}{
		{[]api.EgressRule{domain("*.b")}, "a.b", true},
		{[]api.EgressRule{domain("*.b")}, "a.c", false},
		{[]api.EgressRule{domain("a.b"), {Allow: true}}, "a.c", false},
		{[]api.EgressRule{domain("a.b"), allow("0.0.0.0/0")}, "a.c", false},
		{[]api.EgressRule{domain("a.b"), allow("10.0.2.3/32")}, "a.c", true},
		{[]api.EgressRule{deny("10.0.2.3/32"), domain("a.b")}, "a.b", false},
	} {
		p, err := NewPolicy(c.rules)
		if err != nil || p.Resolves(c.name) != c.want {
			t.Errorf("%v: resolves %s: %t, %v", ruleTexts(c.rules), c.name, !c.want, err)
		}
	}
}
