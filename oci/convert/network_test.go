// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

func TestParsePublish(t *testing.T) {
	for s, want := range map[string]string{
		"80":                    "127.0.0.1:0>80/tcp",
		"80/udp":                "127.0.0.1:0>80/udp",
		"8080:80":               "127.0.0.1:8080>80/tcp",
		"0:80":                  "127.0.0.1:0>80/tcp",
		"0.0.0.0:8080:80/tcp":   "0.0.0.0:8080>80/tcp",
		"0.0.0.0::80":           "0.0.0.0:0>80/tcp",
		"[::1]:8080:80":         "[::1]:8080>80/tcp",
		"8000-8001:9000-9001":   "127.0.0.1:8000>9000/tcp 127.0.0.1:8001>9001/tcp",
		"7-8":                   "127.0.0.1:0>7/tcp 127.0.0.1:0>8/tcp",
		"65535:65535":           "127.0.0.1:65535>65535/tcp",
		"unix:/run/d.sock:2375": "unix:/run/d.sock>2375/tcp",
		"unix:/run/a:b:1":       "unix:/run/a:b>1/tcp",
	} {
		ports, err := ParsePublish(s)
		var got []string
		for i := range ports {
			got = append(got, ports[i].Host()+">"+ports[i].Guest())
			if err := ports[i].Validate(); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "0", "80/sctp", "65536", "1:2:3", "h:1:2", "::", "1-2:1-3", "2-1", "-1", "1-65535",
		"unix:", "unix:/x", "unix:rel:1", "unix:/x:0", "unix:/x:1/udp", "unix:/" + strings.Repeat("x", 200) + ":1"} {
		if ports, err := ParsePublish(s); err == nil || api.KindOf(err) != api.KindInvalid {
			t.Errorf("%q: %v, %v", s, ports, err)
		}
	}
}

func TestParseNetwork(t *testing.T) {
	for s, want := range map[string]string{"": "nat", "bridge": "nat", "default": "nat", "nat": "nat", "none": "none", "ns:/run//netns/x": "ns:/run/netns/x"} {
		if got, err := ParseNetwork(s); err != nil || got != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for s, want := range map[string]api.Kind{
		"host": api.KindUnsupported, "mine": api.KindInvalid, "ns": api.KindInvalid, "ns:": api.KindInvalid, "ns:rel": api.KindInvalid,
	} {
		if _, err := ParseNetwork(s); api.KindOf(err) != want {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestNetworkNamespace: a guest there has the namespace's address, and the name
// servers that it was given.
func TestNetworkNamespace(t *testing.T) {
	if path, ok := NetworkNamespace("ns:/run/netns/x"); !ok || path != "/run/netns/x" {
		t.Errorf("got %q, %v", path, ok)
	}
	for _, other := range []string{"", "nat", "none", "nsx:/a"} {
		if _, ok := NetworkNamespace(other); ok {
			t.Errorf("%q leads to a namespace", other)
		}
	}
	o := Options{Network: "ns:/run/netns/x", OwnAddress: "10.1.2.3", DNS: []string{"10.1.2.1"}}
	s, err := Sandbox(Input{ID: strings.Repeat("a", 64), Cores: 2, Options: o, Image: ispec.ImageConfig{Cmd: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Network.Mode != api.NetworkNetns || s.Network.BrokerFD != api.NoFD {
		t.Errorf("got %+v", s.Network)
	}
	if text := string(hosts(&o, "h")); !strings.Contains(text, "10.1.2.3\th\n") {
		t.Errorf("hosts: %s", text)
	}
	if text := string(resolvConf(&o)); text != "nameserver 10.1.2.1\n" {
		t.Errorf("resolv.conf: %s", text)
	}
	o.DNS = nil
	if text := string(resolvConf(&o)); !strings.Contains(text, "--dns") {
		t.Errorf("resolv.conf without servers: %s", text)
	}
}
