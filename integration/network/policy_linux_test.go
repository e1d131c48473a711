// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestPolicyChanges takes a container from one phase to another: a connection
// that the new rules deny ends on both sides, and is listed as denied.
func TestPolicyChanges(t *testing.T) {
	ends := make(chan error, 1)
	agent := listen(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		ends <- err
	})
	scoring := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	agentFlag, agentAddress := allowed(t, agent)
	scoringFlag, scoringAddress := allowed(t, scoring)
	h := getHome(t)
	host, port, _ := net.SplitHostPort(agentAddress)
	_, scoringPort, _ := net.SplitHostPort(scoringAddress)
	name := server(t, fmt.Sprintf(`exec python3 - <<'END'
import socket, sys, time
a = socket.create_connection((%q, %s))
a.sendall(b"x"); a.recv(1)
try:
    socket.create_connection((%q, %s), timeout=30)
except OSError as e:
    first = e.errno
print("ready", flush=True)
try:
    while a.recv(1): pass
    over = "end"
except OSError as e:
    over = type(e).__name__
b = socket.create_connection((%q, %s), timeout=30)
s = socket.create_server(("0.0.0.0", 7))
c, _ = s.accept()
c.sendall(f"{first} {over}".encode())
time.sleep(600)
END`, host, port, host, scoringPort, host, scoringPort), "--egress", "deny", agentFlag, "-p", "7")

	if got := h.MustRungv(t, "network", "policy", name); !strings.HasPrefix(got, "deny\nallow=127.0.0.1/32:") {
		t.Errorf("policy: %q", got)
	}
	if got := h.MustRungv(t, "network", "connections", name); !strings.Contains(got, "127.0.0.1:"+port) || !strings.Contains(got, "python3[1]") {
		t.Errorf("connections: %q", got)
	}
	rules := h.Path("scoring.rules")
	if err := os.WriteFile(rules, []byte("# the scoring phase\ndeny\n"+strings.TrimPrefix(scoringFlag, "--egress=")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	result := h.Rungv(t, nil, "network", "policy", name, "set", "@"+rules)
	if result.Code != 0 || !strings.Contains(result.Stderr, "1 connections ended") {
		t.Errorf("set: %v", result)
	}
	if err := <-ends; err != nil {
		t.Logf("the host's end of the ended connection: %v", err)
	}
	c, err := net.Dial("tcp", strings.TrimSpace(h.MustRungv(t, "port", name, "7")))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err != nil {
			t.Fatal(err)
		}
		var told []byte
		_ = c.SetReadDeadline(deadline)
		buf := make([]byte, 64)
		n, readErr := c.Read(buf)
		told = buf[:n]
		c.Close()
		if n > 0 {
			// EHOSTUNREACH before; a reset or an end after.
			if s := string(told); s != "113 ConnectionResetError" && s != "113 end" {
				t.Errorf("the guest saw %q", s)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the guest does not answer: %v", readErr)
		}
		c, err = net.Dial("tcp", strings.TrimSpace(h.MustRungv(t, "port", name, "7")))
	}
	got := h.MustRungv(t, "network", "denials", name)
	for _, want := range []string{"10.0.2.2:" + scoringPort, "tcp 127.0.0.1:" + port, "ended: the host's loopback", "python3[1]"} {
		if !strings.Contains(got, want) {
			t.Errorf("denials lack %q: %s", want, got)
		}
	}
	// Rules that are none change nothing.
	before := h.MustRungv(t, "network", "policy", name)
	if result := h.Rungv(t, nil, "network", "policy", name, "add", "allow=999"); result.Code == 0 {
		t.Errorf("a bad rule: %v", result)
	}
	if after := h.MustRungv(t, "network", "policy", name); after != before {
		t.Errorf("a bad rule changed the policy to %q", after)
	}
}

// TestNetworkSocketIsPrivate: another user cannot change a container's network.
func TestNetworkSocketIsPrivate(t *testing.T) {
	testbed.NeedRoot(t, "another user")
	h := getHome(t)
	name := server(t, "echo ready; exec sleep 600")
	id := strings.TrimSpace(h.MustRungv(t, "inspect", "-f", "{{.ID}}", name))
	matches, err := filepath.Glob(h.Path("run", "gvx", "containers", id, "network.sock"))
	if err != nil || len(matches) != 1 {
		t.Fatal(matches, err)
	}
	info, err := os.Stat(matches[0])
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want mode 0600", info, err)
	}
	dir, err := os.Stat(filepath.Dir(matches[0]))
	if err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v, want mode 0700", dir, err)
	}
}

// TestDomains allows names: they are resolved, their addresses are reached, and
// others are not, though they be known.
func TestDomains(t *testing.T) {
	isolate(t, "ip addr add 198.51.100.0/32 dev lo; ip addr add 198.51.100.1/32 dev lo")
	startNameServer(t)
	for _, a := range []string{"198.51.100.0:80", "198.51.100.1:80"} {
		testbed.ServeTCP(t, a, func(c *net.TCPConn) { _, _ = io.WriteString(c, "served") })
	}
	flags := []string{"--dns", nameServer, "--egress", "allow-domain=*.allowed.test:80"}
	get := func(to string) string {
		return "nc -v -w 20 " + to + " </dev/null 2>&1 | grep -o 'served\\|refused\\|No route to host\\|Temporary failure in name resolution'\n"
	}
	// In this order: an address is not allowed before its name was asked for.
	expect(t, strings.Join([]string{
		"No route to host", "served", "served", "No route to host", "Temporary failure in name resolution", "No route to host",
	}, "\n"), get("198.51.100.0 80")+get("www.allowed.test 80")+get("198.51.100.0 80")+get("198.51.100.1 80")+get("www.other.test 80")+get("www.allowed.test 81"), flags...)
	// A default in the rules is kept to, but for names.
	expect(t, "served\nTemporary failure in name resolution", get("198.51.100.1 80")+get("www.other.test 80"), append(flags, "--egress", "allow")...)
	expect(t, "served", get("www.other.test 80"), append(flags, "--egress", "allow=10.0.2.3", "--egress", "allow=198.51.100.0")...)

	name := server(t, "host -t A secret.other.test. >/dev/null; echo ready; exec sleep 600", flags...)
	got := getHome(t).MustRungv(t, "network", "denials", name)
	if !strings.Contains(got, "name secret.other.test") || !strings.Contains(got, "host[") {
		t.Errorf("denials: %s", got)
	}
}
