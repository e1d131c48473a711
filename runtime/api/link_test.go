// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func goodLink() Link {
	return Link{
		Name: "eth0", MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 1500, FDs: []FD{7}, GSOMaxBytes: 65536,
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("fd00::3/64")},
		Routes: []LinkRoute{
			{Destination: netip.MustParsePrefix("10.1.2.0/24"), Source: netip.MustParseAddr("10.1.2.3")},
			{Destination: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fe80::1"), Metric: 1024},
		},
		Neighbors: []LinkNeighbor{{Address: netip.MustParseAddr("10.1.2.1"), MAC: []byte{2, 0, 0, 0, 0, 2}}},
	}
}

func TestLinkTravels(t *testing.T) {
	want := goodLink()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Link
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestValidateLinks(t *testing.T) {
	if err := ValidateLinks([]Link{goodLink(), {Name: "lo", Loopback: true}}); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	in6 := netip.MustParseAddr("::ffff:10.0.0.1")
	for name, spoil := range map[string]func(*Link){
		"no name":              func(l *Link) { l.Name = "" },
		"long name":            func(l *Link) { l.Name = strings.Repeat("e", 16) },
		"no socket":            func(l *Link) { l.FDs = nil },
		"many sockets":         func(l *Link) { l.FDs = make([]FD, MaxLinkQueues+1) },
		"loopback with socket": func(l *Link) { l.Loopback = true },
		"infiniband address":   func(l *Link) { l.MAC = make([]byte, 20) },
		"no MTU":               func(l *Link) { l.MTU = 0 },
		"huge packets":         func(l *Link) { l.GSOMaxBytes = 1 << 20 },
		"no address":           func(l *Link) { l.Addresses[0] = netip.Prefix{} },
		"mapped address":       func(l *Link) { l.Addresses[0] = netip.PrefixFrom(in6, 96) },
		"route to a host":      func(l *Link) { l.Routes[0].Destination = netip.MustParsePrefix("10.0.0.1/8") },
		"mixed gateway":        func(l *Link) { l.Routes[0].Gateway = netip.MustParseAddr("fe80::1") },
		"zoned gateway":        func(l *Link) { l.Routes[1].Gateway = netip.MustParseAddr("fe80::1%eth0") },
		"mixed source":         func(l *Link) { l.Routes[0].Source = in6 },
		"short neighbour":      func(l *Link) { l.Neighbors[0].MAC = nil },
		"many addresses":       func(l *Link) { l.Addresses = make([]netip.Prefix, MaxLinkAddresses+1) },
		"many routes":          func(l *Link) { l.Routes = make([]LinkRoute, MaxLinkRoutes+1) },
		"many neighbours":      func(l *Link) { l.Neighbors = make([]LinkNeighbor, MaxLinkNeighbors+1) },
	} {
		l := goodLink()
		spoil(&l)
		if err := ValidateLinks([]Link{l}); KindOf(err) != KindInvalid && KindOf(err) != KindLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ValidateLinks([]Link{goodLink(), goodLink()}); KindOf(err) != KindInvalid {
		t.Errorf("a name twice: %v", err)
	}
	if err := ValidateLinks(make([]Link, MaxLinks+1)); KindOf(err) != KindLimit {
		t.Errorf("many: %v", err)
	}
}
