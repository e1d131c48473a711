// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
	"strings"
	"testing"
)

func TestArrivalID(t *testing.T) {
	for _, s := range []string{"127.0.0.1:80", "[::1]:65535", "10.1.2.3:1", "[fd00::2]:8080"} {
		want := netip.MustParseAddrPort(s)
		id := ArrivalID(want)
		if got, ok := ParseArrival(id); !ok || got != want || len(id) != ExecIDBytes {
			t.Errorf("%s: got %s, %v, %d bytes", s, got, ok, len(id))
		}
	}
	for _, bad := range []string{
		"", arrivalWord, strings.Repeat("a", ExecIDBytes), ArrivalID(netip.MustParseAddrPort("127.0.0.1:0")),
		ArrivalID(netip.MustParseAddrPort("127.0.0.1:1"))[:31] + "x",
	} {
		if to, ok := ParseArrival(bad); ok {
			t.Errorf("%q: taken for %s", bad, to)
		}
	}
}
