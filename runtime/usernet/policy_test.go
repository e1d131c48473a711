// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"net/netip"
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
		got, why := p.Check(netip.MustParseAddrPort(c.to))
		if got != c.want || got != (why == "") {
			t.Errorf("%s: %s: %t (%s), want %t", c.name, c.to, got, why, c.want)
		}
	}
}

func TestPolicyResolves(t *testing.T) {
	for want, rules := range map[bool][][]api.EgressRule{
		true:  {nil, {{}, allow("10.0.2.3/32")}, {allow("127.0.0.1/32")}},
		false: {{{}}, {deny("10.0.2.3/32")}, {{}, allow("192.0.2.0/24")}},
	} {
		for _, r := range rules {
			p, err := NewPolicy(r)
			if err != nil || p.resolves() != want {
				t.Errorf("%v: resolves %t, %v", r, !want, err)
			}
		}
	}
}
