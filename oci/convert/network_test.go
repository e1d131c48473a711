// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

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
	for s, want := range map[string]string{"": "nat", "bridge": "nat", "default": "nat", "nat": "nat", "none": "none"} {
		if got, err := ParseNetwork(s); err != nil || got != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for s, want := range map[string]api.Kind{"host": api.KindUnsupported, "mine": api.KindInvalid} {
		if _, err := ParseNetwork(s); api.KindOf(err) != want {
			t.Errorf("%q: %v", s, err)
		}
	}
}
