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
// network, whatever capabilities the bundle names, and makes none of its own.
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
unshare -n true 2>&1
ls /sys/class/net; cat /sys/class/net/lo/mtu`)
	want := `port 80 EACCES
raw EAFNOSUPPORT
packet EAFNOSUPPORT
netfilter EPROTONOSUPPORT
filter ENOPROTOOPT
tables EPERM
`
	if !strings.HasPrefix(output, want) {
		t.Errorf("%s\nwant\n%s", output, want)
	}
	for _, line := range []string{"no address\n", "no bridge\n", "unshare failed: Operation not permitted\n", "\nlo\n"} {
		if !strings.Contains(output, line) {
			t.Errorf("%q is missing of\n%s", line, output)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	out, err := exec.Command("ip", "-o", "addr", "show", "dev", "lo").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.55.0.1") || strings.Contains(string(out), "10.66.") {
		t.Errorf("the host's lo: %s, %v", out, err)
	}
	if out, _ := exec.Command("ip", "link", "show", "dev", "lo").CombinedOutput(); !strings.Contains(string(out), "UP") {
		t.Errorf("the host's lo: %s", out)
	}
}

// hostileScript is what would end a sandbox on gVisor's hostinet as it is, or hang it:
// control messages that the host has to cut, questions about routes where a default
// has no gateway, options longer than memory, closes that linger for ever, descriptors
// without end.
const hostileScript = `
import errno, os, socket, struct, sys
def say(what, f):
    try: print(what, f(), flush=True)
    except OSError as e: print(what, errno.errorcode[e.errno], flush=True)
def cut():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0))
    for option in (socket.IP_RECVTOS, 12, 8, 20): s.setsockopt(socket.IPPROTO_IP, option, 1)
    s.setsockopt(socket.SOL_SOCKET, 29, 1)
    out = []
    for room in (1, 12, 16, 17, 18, 20, 24, 40, 100, 1000):
        s.sendto(b'x', s.getsockname())
        data, messages, flags, _ = s.recvmsg(10, room)
        out.append((data, len(messages), int(flags & socket.MSG_CTRUNC)))
    return out
say('cut', cut)
def route():
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = struct.pack('BBBBBBBBI', socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + struct.pack('HH4s', 8, 1, socket.inet_aton('192.0.2.1'))
    message = struct.pack('IHHII', 16 + len(body), 26, 1, 1, 0) + body
    n = s.send(message)
    return n == len(message)
say('route', route)
say('route', route)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def option():
    s = socket.socket()
    length = ctypes.c_int(0x7fffffff)
    r = libc.getsockopt(s.fileno(), socket.IPPROTO_TCP, socket.TCP_CONGESTION, ctypes.create_string_buffer(16384), ctypes.byref(length))
    return r, 0 < length.value <= 8192
say('option', option)
say('short', lambda: libc.setsockopt(socket.socket().fileno(), socket.SOL_SOCKET, 20, b'x', 1))
import fcntl
def conf():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    buf = ctypes.create_string_buffer(4096)
    conf = bytearray(struct.pack('iiQ', 0x7fffffff, 0, ctypes.addressof(buf)))
    fcntl.ioctl(s, 0x8912, conf)
    return buf.raw[:2], socket.inet_ntoa(buf.raw[20:24]), socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack('40s', b'lo'))[20:24])
say('conf', conf)
def linger():
    l = socket.create_server(('127.0.0.1', 0))
    if os.fork() == 0:
        a = socket.create_connection(l.getsockname())
        b, _ = l.accept()
        a.setblocking(False)
        try:
            while True: a.send(bytes(1 << 16))
        except BlockingIOError: pass
        a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 2**31 - 1))
        os._exit(0)
    return os.wait()[1]
say('linger', linger)
def kept():
    l = socket.create_server(('127.0.0.1', 0))
    a = socket.create_connection(l.getsockname())
    b, _ = l.accept()
    for seconds in (0, 5): a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, seconds))
    a.sendall(b'all of it')
    a.close()
    return b.recv(100), b.recv(100)
say('kept', kept)
def exhaust():
    pids = []
    for _ in range(4):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            import resource
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            held = []
            try:
                while True: held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            except OSError as e: os.write(w, errno.errorcode[e.errno].encode())
            os.read(0, 1)
            os._exit(0)
        os.close(w)
        pids.append((pid, os.read(r, 100).decode()))
    forked = os.system('true')
    for pid, _ in pids: os.kill(pid, 9)
    for pid, _ in pids: os.waitpid(pid, 0)
    return [why for _, why in pids], forked
say('exhaust', exhaust)
say('after', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).getsockname()[1])
`

// TestHostNetworkSurvivesItsGuest: what a guest asks of the host's network ends
// neither its sandbox nor waits for ever.
func TestHostNetworkSurvivesItsGuest(t *testing.T) {
	b := onHostNetwork(t, "rungv", image)
	if out, err := exec.Command("ip", "route", "replace", "unreachable", "default", "metric", "4000").CombinedOutput(); err != nil {
		t.Fatalf("a default route without a gateway: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "route", "del", "unreachable", "default", "metric", "4000").Run() })
	script := filepath.Join(b.Dir, "rootfs", "script.py")
	if err := os.WriteFile(script, []byte(hostileScript), 0o644); err != nil {
		t.Fatal(err)
	}
	// The guest's own limit is above what the sandbox has.
	b.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 20, Hard: 1 << 20}}
	b.Runtime, b.Args = "prlimit", append([]string{"--nofile=4096:4096", b.Runtime}, b.Args...)
	output, code := shell(t, b, "exec python3 /script.py </dev/zero 2>&1")
	t.Log(output)
	for _, line := range []string{
		"(b'x', 0, 8)", "(b'x', 1, 8)", "route ENOTSUP\nroute ENOTSUP\n", "option (0, True)\n", "short -1\n", "conf (b'lo', '127.0.0.1', '127.0.0.1')\n",
		"linger 0\n", "kept (b'all of it', b'')\n", "ENFILE", "], 0)\n", "after 0\n",
	} {
		if !strings.Contains(output, line) {
			t.Errorf("%q is missing", line)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}
