// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"
)

func TestParseEgress(t *testing.T) {
	for s, want := range map[string]string{
		"allow":                         "allow",
		"deny":                          "deny",
		"deny=192.0.2.1":                "deny=192.0.2.1/32",
		"allow=192.0.2.9/24":            "allow=192.0.2.0/24",
		"allow=192.0.2.0/24:443":        "allow=192.0.2.0/24:443",
		"allow=127.0.0.1:80,8000-8010":  "allow=127.0.0.1/32:80,8000-8010",
		"allow=2001:db8::/32":           "allow=2001:db8::/32",
		"allow=[2001:db8::/32]:443":     "allow=[2001:db8::/32]:443",
		"allow=[2001:db8::]/32:443":     "allow=[2001:db8::/32]:443",
		"allow=[2001:db8::1]":           "allow=2001:db8::1/128",
		"allow=::ffff:192.0.2.1":        "allow=192.0.2.1/32",
		"allow=[2001:db8::]/32":         "allow=2001:db8::/32",
		"allow=2001:db8::":              "allow=2001:db8::/128",
		"allow=[2001:db8::/32]:1,5-443": "allow=[2001:db8::/32]:1,5-443",
		"allow-domain=Example.org.":     "allow-domain=example.org",
		"allow-domain=*.pypi.org:443":   "allow-domain=*.pypi.org:443",
		"allow-domain=_x.a-b.xn--p1ai":  "allow-domain=_x.a-b.xn--p1ai",
	} {
		r, err := ParseEgress(s)
		if err != nil || r.String() != want {
			t.Errorf("%s: %s, %v, want %s", s, &r, err, want)
		}
		if again, err := ParseEgress(r.String()); err != nil || again.String() != want {
			t.Errorf("%s: read again as %s, %v", want, &again, err)
		}
	}
	for _, s := range []string{"", "maybe", "allow=", "allow=x", "allow=1.2.3.4/33", "allow=1.2.3.4:x", "allow=1.2.3.4:2-1",
		"allow=192.0.2.1:", "allow=192.0.2.0/24:", "allow=[::1]:", "allow=[::]/0:", "allow=[::1", "allow=[::1]x", "allow=fe80::1%eth0", "deny-domain=example.org",
		"allow-domain", "allow-domain=", "allow-domain=*", "allow-domain=*.", "allow-domain=a..b", "allow-domain=a.*.b", "allow-domain=192.0.2.1",
		"allow-domain=a b", "allow-domain=b\u00fccher.example", "allow-domain=a.b:", "allow-domain=a.b:x", "allow-domain=" + strings.Repeat("a", 64),
		"allow-domain=" + strings.Repeat("a.", 127) + "a"} {
		if r, err := ParseEgress(s); err == nil {
			t.Errorf("%q: %s", s, &r)
		}
	}
}

func TestCoversName(t *testing.T) {
	for _, c := range []struct {
		domain, name string
		want         bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "x.a.b", false},
		{"a.b", "xa.b", false},
		{"*.a.b", "x.a.b", true},
		{"*.a.b", "y.x.a.b", true},
		{"*.a.b", "a.b", false},
		{"*.a.b", ".a.b", false},
		{"*.a.b", "xa.b", false},
		{"*.a.b", `x\046y.a.b`, false},
		{"", "", false},
	} {
		r := EgressRule{Allow: true, Domain: c.domain}
		if got := r.CoversName(c.name); got != c.want {
			t.Errorf("%q covers %q: %t", c.domain, c.name, got)
		}
	}
}

// FuzzEgress feeds rules; what is accepted has a form that reads the same.
func FuzzEgress(f *testing.F) {
	for _, s := range []string{"deny", "allow=[2001:db8::/32]:1,5-443", "allow-domain=*.a.b:443"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseEgress(s)
		if err != nil {
			return
		}
		if again, err := ParseEgress(r.String()); err != nil || again.String() != r.String() {
			t.Errorf("%q is %s, read again as %s, %v", s, &r, &again, err)
		}
	})
}
