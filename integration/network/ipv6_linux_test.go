// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// needIPv6 ends the test on a host whose kernel has no IPv6.
func needIPv6(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		testbed.Missing(t, "IPv6 in the host's kernel")
	}
}

// TestIPv6 reaches what an IPv6 host reaches, with curl, nc, ping and host, and
// is told of the rest; rules and published ports are IPv6 too.
func TestIPv6(t *testing.T) {
	needIPv6(t)
	isolate(t, `ip addr add 2001:db8::7/64 dev lo
ip -6 route add default dev lo
ip -6 route add unreachable 2001:db8:1::/48
ip -6 route add prohibit 2001:db8:2::/48`)
	testbed.ServeTCP(t, "[::]:8080", func(c *net.TCPConn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		body := "from " + host
		_, _ = io.ReadAtLeast(c, make([]byte, 1024), 4)
		fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	})
	expect(t, "fd67:7678::15/64", `ip -6 -o addr show eth0 | awk '{print $4}'`)
	expect(t, "from 2001:db8::7", "curl -sS 'http://[2001:db8::7]:8080/'")
	expect(t, "1 received", "ping -6 -c 1 -W 20 2001:db8::7 | grep -o '1 received'")
	expect(t, "1 received", "ping -6 -c 1 -W 20 fd67:7678::2 | grep -o '1 received'")
	expect(t, "Network is unreachable\nNetwork is unreachable\nConnection refused", `for to in 2001:db8:1::1 2001:db8:2::1 2001:db8::7; do
	nc -v -w 20 $to 81 2>&1 | grep -o 'Connection refused\|No route to host\|Network is unreachable\|timed out'
done`)
	// The host's loopback is the gateway's, and protected.
	script := `nc -v -w 20 fd67:7678::2 8080 </dev/null 2>&1 | grep -o 'Network is unreachable' || curl -sS 'http://[fd67:7678::2]:8080/'`
	expect(t, "Network is unreachable", script)
	expect(t, "Network is unreachable", script, "--egress", "allow=::/0")
	expect(t, "from ::1", `curl -sS 'http://[fd67:7678::2]:8080/'`, "--egress", "allow=[::1]:8080")
	script = `curl -sS 'http://[2001:db8::7]:8080/' 2>/dev/null || echo none`
	expect(t, "none", script, "--egress", "deny=2001:db8::/32")
	expect(t, "from 2001:db8::7", script, "--egress", "deny", "--egress", "allow=[2001:db8::/32]:8080")
	expect(t, "db.test has IPv6 address 2001:db8::44", "host -t AAAA db.test. fd67:7678::3 | grep has", "--add-host", "db.test:2001:db8::44")

	name := server(t, upperServer, "-p", "[::1]::80")
	if got := getHome(t).MustRungv(t, "inspect", "-f", "{{.NetworkSettings.GlobalIPv6Address}}", name); strings.TrimSpace(got) != "fd67:7678::15" {
		t.Errorf("inspect: %q", got)
	}
	address := strings.TrimSpace(getHome(t).MustRungv(t, "port", name, "80"))
	if !strings.HasPrefix(address, "[::1]:") {
		t.Fatalf("published at %s", address)
	}
	if got, err := ask("tcp", address, "question"); err != nil || got != "QUESTION" {
		t.Errorf("a port published on ::1: %q, %v", got, err)
	}
}

// TestNoIPv6: where the host has none the guest has none either, and programs
// need not wait to find out.
func TestNoIPv6(t *testing.T) {
	isolate(t, "ip addr add 198.51.100.7/32 dev lo")
	expect(t, "0", "ip -6 -o addr show eth0 | wc -l")
	expect(t, "Network is unreachable", "nc -v -w 20 2001:db8::7 80 2>&1 | grep -o 'Network is unreachable'")
}
