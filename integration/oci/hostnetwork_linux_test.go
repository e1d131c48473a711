// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/integration/testbed"
)

// allowHostNetwork is the configuration without which there is none.
const allowHostNetwork = "--allow-host-network"

// onHostNetwork makes a bundle on the host's network: that of the tests' namespace.
func onHostNetwork(t *testing.T, runtime, image string) *testbed.Bundle {
	t.Helper()
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "replace", "10.55.0.1/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	b := newBundleOf(t, runtime, image)
	b.Spec.Linux.Namespaces = slices.DeleteFunc(b.Spec.Linux.Namespaces, isNetwork)
	if runtime == "rungv" {
		b.Args = append(b.Args, allowHostNetwork)
	}
	return b
}

// echoes serves TCP and UDP on an address of the host's, and returns the port.
func echoes(t *testing.T, host string) int {
	t.Helper()
	port := testbed.ServeTCP(t, net.JoinHostPort(host, "0"), func(c *net.TCPConn) { _, _ = io.Copy(c, c) }).(*net.TCPAddr).Port
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(host), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := u.ReadFromUDP(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteToUDP(buf[:n], from)
		}
	}()
	return port
}

// hostNetworkScript is what guests of both runtimes see alike. Its arguments are the
// ports of the host's servers on 127.0.0.1, ::1 and 10.55.0.1.
const hostNetworkScript = `
import errno, os, socket, struct, sys, threading
def say(what, f):
    try: print(what, f())
    except OSError as e: print(what, errno.errorcode[e.errno])
def tcp(to):
    with socket.create_connection(to, 5) as s:
        peer = s.getpeername()[:2]
        big = os.urandom(3 << 20)
        threading.Thread(target=lambda: (s.sendall(big), s.shutdown(socket.SHUT_WR))).start()
        got = b''
        while piece := s.recv(1 << 16): got += piece
        return got == big, peer == to
def udp(to):
    with socket.socket(socket.AF_INET6 if ':' in to[0] else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.sendto(b'datagram', to)
        return s.recvfrom(100)[0], s.recvmsg.__name__
def gathered(to):
    with socket.create_connection(to, 5) as s:
        s.sendmsg([b'one ', b'two'])
        a, b = bytearray(4), bytearray(3)
        n = s.recvmsg_into([a, b])[0]
        return n, a, b
def options(to):
    with socket.create_connection(to, 5) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
        return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
for to in zip(('127.0.0.1', '::1', '10.55.0.1'), map(int, sys.argv[1:])):
    say(f'tcp {to[0]}', lambda: tcp(to))
    say(f'udp {to[0]}', lambda: udp(to))
    say(f'gathered {to[0]}', lambda: gathered(to))
    say(f'options {to[0]}', lambda: options(to))
say('refused', lambda: tcp(('127.0.0.1', 1)))
say('unreachable', lambda: tcp(('192.0.2.77', 80)))
say('names', lambda: sorted(n for _, n in socket.if_nameindex()))
say('index', lambda: socket.if_nametoindex('lo'))
say('abstract socket of the host', lambda: socket.socket(socket.AF_UNIX).connect('\0gvx-no-such-socket'))
say('foreign address', lambda: socket.socket().bind(('203.0.113.9', 0)))
say('devices', lambda: sorted(l.split(':')[0].strip() for l in list(open('/proc/net/dev'))[2:]))
`

// TestHostNetwork: a bundle without a network namespace has the host's network if
// rungv is allowed to give it, and finds there what it finds with runc.
func TestHostNetwork(t *testing.T) {
	written := map[string]string{}
	for _, runtime := range []string{"runc", "rungv"} {
		b := onHostNetwork(t, runtime, image)
		script := filepath.Join(b.Dir, "rootfs", "script.py")
		if err := os.WriteFile(script, []byte(hostNetworkScript), 0o644); err != nil {
			t.Fatal(err)
		}
		command := fmt.Sprintf("python3 /script.py %d %d %d 2>&1", echoes(t, "127.0.0.1"), echoes(t, "::1"), echoes(t, "10.55.0.1"))
		output, code := shell(t, b, command)
		written[runtime] = fmt.Sprintf("%s(%d)", output, code)
	}
	if written["rungv"] != written["runc"] {
		t.Errorf("rungv:\n%s\nrunc:\n%s", written["rungv"], written["runc"])
	}
	if !strings.Contains(written["runc"], "tcp ::1 (True, True)") || !strings.Contains(written["runc"], "refused ECONNREFUSED") {
		t.Errorf("runc's guest saw none of it:\n%s", written["runc"])
	}
}

// TestHostNetworkServes: what a guest listens on is the host's port.
func TestHostNetworkServes(t *testing.T) {
	b := onHostNetwork(t, "rungv", image)
	reapOrphans(t)
	b.Spec.Process.Args = []string{"python3", "-u", "-c", `
import socket
s = socket.create_server(('', 0), family=socket.AF_INET6, dualstack_ipv6=True)
print(s.getsockname()[1])
for _ in range(2):
    c, _ = s.accept()
    c.sendall(c.recv(100) + b' back')
    c.close()
`}
	c, err := create(t, b)
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	var port int
	if _, err := fmt.Fscanln(c.output, &port); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"10.55.0.1", "::1"} {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, fmt.Sprint(port)), patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "there and"); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || string(answer) != "there and back" {
			t.Errorf("%s: %q, %v", host, answer, err)
		}
	}
	if _, code := c.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestHostNetworkIsUnprivileged: the guest's root has no rights over the host's
// network, whatever capabilities the bundle names; what it makes itself is its own.
func TestHostNetworkIsUnprivileged(t *testing.T) {
	b := onHostNetwork(t, "rungv", "net")
	all := []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"}
	b.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	output, code := shell(t, b, `python3 - <<'EOF' 2>&1
import errno, os, socket
def say(what, f):
    try: print(what, f())
    except OSError as e: print(what, errno.errorcode[e.errno])
say('port 80', lambda: socket.socket().bind(('', 80)))
say('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) and 'made')
say('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW) and 'made')
say('netfilter', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) and 'made')
s = socket.socket()
say('filter', lambda: s.setsockopt(socket.SOL_SOCKET, 26, bytes(16)))
say('tables', lambda: s.setsockopt(socket.IPPROTO_IP, 64, bytes(100)))
EOF
ip link set lo down 2>&1 && echo down
ip addr add 10.66.0.1/32 dev lo 2>&1 >/dev/null || echo no address
ip link add b0 type bridge 2>/dev/null || echo no bridge
unshare -n sh -c 'ip addr add 10.66.0.2/32 dev lo && ip -o -4 addr show | grep -c 10.66.0.2; ip -o link | wc -l'
cat /sys/class/net/lo/operstate`)
	// What gVisor does not know of a socket's options it takes and does not do.
	want := `port 80 EACCES
raw EAFNOSUPPORT
packet EAFNOSUPPORT
netfilter EPROTONOSUPPORT
filter None
tables None
`
	if !strings.HasPrefix(output, want) {
		t.Errorf("%s\nwant\n%s", output, want)
	}
	for _, line := range []string{"no address\n", "no bridge\n", "\n1\n1\n"} {
		if !strings.Contains(output, line) {
			t.Errorf("%q is missing of\n%s", line, output)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	out, err := exec.Command("ip", "-o", "addr", "show", "dev", "lo").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.55.0.1") || strings.Contains(string(out), "10.66.") {
		t.Errorf("the host's lo: %s, %v", out, err)
	}
	if out, _ := exec.Command("ip", "link", "show", "dev", "lo").CombinedOutput(); !strings.Contains(string(out), "UP") {
		t.Errorf("the host's lo: %s", out)
	}
}
