// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// engineNetwork makes what a container engine makes: two bridges, a namespace on
// the first (a) and one on the second (b), joined by veth pairs, with a web
// server in each.
const engineNetwork = `set -e
for i in 1 2; do
	ip link add br$i type bridge
	ip addr add 172.2$i.0.1/16 dev br$i
	ip link set br$i up
done
join() { # namespace bridge number
	ip netns add $1
	ip link add v$1 type veth peer name eth0 netns $1 2>/dev/null || { ip link add v$1 type veth peer name e$1; ip link set e$1 netns $1; ip -n $1 link set e$1 name eth0; }
	ip link set v$1 master br$2 up
	ip -n $1 addr add 172.2$2.0.$3/16 dev eth0
	ip -n $1 link set lo up
	ip -n $1 link set eth0 up
	ip -n $1 route add default via 172.2$2.0.1 dev eth0
}
join a 1 2; join c 1 3; join b 2 2
echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p /srv/a /srv/b; echo from-a > /srv/a/index.html; echo from-b > /srv/b/index.html
(cd /srv/a; exec ip netns exec a python3 -m http.server 80 >/dev/null 2>&1) &
(cd /srv/b; exec ip netns exec b python3 -m http.server 80 >/dev/null 2>&1) &
for n in a b; do until ip netns exec $n curl -s -o /dev/null http://127.0.0.1/; do sleep 0.1; done; done
set +e
get() { curl -s -m 60 "$@" || echo none; }
try() { curl -s -m 3 "$@" || echo none; }
within() { ip netns exec "$@"; }
export -f get try
`

// ruleSets are the same rules by the tools that people have: masquerade, a
// published port by addrtype and destination, a filter that forwards what is
// known and what comes from inside, and keeps the bridges apart.
var ruleSets = map[string]string{
	"iptables-nft": `set -e
iptables() { iptables-nft -w "$@"; }
for i in 1 2; do iptables -t nat -A POSTROUTING -s 172.2$i.0.0/16 ! -o br$i -j MASQUERADE; done
iptables -t nat -N DOCKER
iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables -t nat -A DOCKER ! -i br1 -p tcp --dport 8080 -j DNAT --to-destination 172.21.0.2:80
iptables -N DOCKER
iptables -N ISOLATE-1
iptables -N ISOLATE-2
iptables -P FORWARD DROP
iptables -A FORWARD -j ISOLATE-1
for i in 1 2; do
	iptables -A FORWARD -o br$i -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	iptables -A FORWARD -o br$i -j DOCKER
	iptables -A FORWARD -i br$i ! -o br$i -j ACCEPT
	iptables -A FORWARD -i br$i -o br$i -j ACCEPT
	iptables -A ISOLATE-1 -i br$i ! -o br$i -j ISOLATE-2
	iptables -A ISOLATE-2 -o br$i -j DROP
done
iptables -A ISOLATE-1 -j RETURN
iptables -A ISOLATE-2 -j RETURN
iptables -A DOCKER -d 172.21.0.2/32 ! -i br1 -o br1 -p tcp --dport 80 -j ACCEPT
iptables-nft-save | grep -q 'MASQUERADE'
set +e
`,
	"nft": `nft -f - <<'END' || exit 1
table ip engine {
	chain DOCKER { iifname != "br1" tcp dport 8080 counter dnat to 172.21.0.2:80; }
	chain prerouting { type nat hook prerouting priority -100; policy accept; fib daddr type local counter jump DOCKER; }
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		ip saddr 172.21.0.0/16 oifname != "br1" counter masquerade
		ip saddr 172.22.0.0/16 oifname != "br2" counter masquerade
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
		iifname "br1" oifname "br2" counter drop
		iifname "br2" oifname "br1" counter drop
		ct state established,related counter accept
		iifname "br1" counter accept
		iifname "br2" counter accept
		ip daddr 172.21.0.2 tcp dport 80 counter accept
	}
}
END
nft list ruleset | grep -q masquerade || exit 1
`,
}

// TestEngine lets traffic pass through a container engine's network under each
// rule set: what has to arrive does, and what has not does not.
func TestEngine(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 8<<20/16)
	web := listen(t, func(c *net.TCPConn) { // One that the guest is served by.
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(large), large)
	})
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(large)))
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	flag, address := allowed(t, web)
	udpFlag, udpAddress := allowed(t, pc.LocalAddr())
	_, udpPort, _ := net.SplitHostPort(udpAddress)
	for tool, rules := range ruleSets {
		t.Run(tool, func(t *testing.T) {
			script := engineNetwork + `within a bash -c 'echo before: $(try http://` + address + `/ | wc -c)'
` + rules + `
echo bridge: $(within c curl -s -m 60 http://172.21.0.2/) $(get http://172.21.0.2/)
echo isolated: $(within a bash -c 'try http://172.22.0.2/') $(within b bash -c 'try http://172.21.0.2/')
echo masquerade: $(within a curl -s -m 60 http://` + address + `/ | sha256sum | cut -d' ' -f1)
echo ping: $(within b ping -c 1 -W 20 10.0.2.2 | grep -o '1 received')
echo datagrams: $(within a python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect(("10.0.2.2", ` + udpPort + `))
for size in (1, 1400): # A longer one is fragments, which this kernel does not masquerade.
    s.send(b"x" * size)
    print(len(s.recv(65536)), end=" ")
')
within a python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("172.21.0.2", 99))
n = 0
while s.recv(16) != b"end":
    n += 1
print(n)' > /tmp/once &
sleep 1
within c python3 -c '
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for word in [b"x"] * 50 + [b"end"]:
    s.sendto(word, ("172.21.0.2", 99))
    time.sleep(0.01)'
wait $!
echo once: $(cat /tmp/once)
echo dnat from outside: ready
exec sleep 600`
			h := getHome(t)
			name := fmt.Sprintf("engine-%s", tool)
			out := startScript(t, name, script, flag, udpFlag, "-p", "8080", "-p", "80")
			want := map[string]string{
				// Without a rule nothing comes back: nobody knows the way.
				"before": "5", "bridge": "from-a from-a", "isolated": "none none", "masquerade": digest, "ping": "1 received",
				"datagrams": "1 1400",
				// A bridge hands its own stack nothing that is for another port.
				"once": "50", "dnat from outside": "ready",
			}
			for line := range strings.Lines(out) {
				what, got, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if want[what] != got {
					t.Errorf("%s: %q, want %q", what, got, want[what])
				}
				delete(want, what)
			}
			for what := range want {
				t.Errorf("%s: nothing: %s", what, out)
			}
			// A client of the host comes in by the port that the guest's rules
			// publish; by that of the server itself there is nobody.
			published := strings.TrimSpace(h.MustRungv(t, "port", name, "8080"))
			if got, err := httpGet(published); err != nil || got != "from-a" {
				t.Errorf("a port that is published twice: %q, %v", got, err)
			}
			if got, err := httpGet(strings.TrimSpace(h.MustRungv(t, "port", name, "80"))); err == nil {
				t.Errorf("a port that the guest does not publish: %q", got)
			}
		})
	}
}

// httpGet is the body of an answer, on one connection.
func httpGet(address string) (string, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	all, err := io.ReadAll(c)
	_, body, found := strings.Cut(string(all), "\r\n\r\n")
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	return strings.TrimSpace(body), err
}

// startScript starts a guest in the background and returns what it prints up to
// the line that ends with "ready".
func startScript(t *testing.T, name, script string, flags ...string) string {
	t.Helper()
	h := getHome(t)
	lines := make(chan string, 1)
	startGuest(t, h, name, script, flags, func(r io.Reader) {
		var all strings.Builder
		buf := make([]byte, 4096)
		for !strings.HasSuffix(strings.TrimSpace(all.String()), "ready") {
			n, err := r.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				break
			}
		}
		lines <- all.String()
		_, _ = io.Copy(io.Discard, r)
	})
	select {
	case out := <-lines:
		return out
	case <-time.After(commandTimeout):
		t.Fatal("the guest does not get ready")
		return ""
	}
}

// TestLegacyTables filters with iptables-legacy, which has filter rules but no
// masquerade in this kernel.
func TestLegacyTables(t *testing.T) {
	a := listen(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "served") })
	flag, address := allowed(t, a)
	to := strings.Replace(address, ":", " ", 1)
	_, port, _ := net.SplitHostPort(address)
	expect(t, "served\ndropped\nserved", `set -e
try() { timeout 2 nc `+to+` </dev/null || echo -n dropped; echo; }
try
iptables-legacy -A OUTPUT -p tcp --dport `+port+` -j DROP
try
iptables-legacy -D OUTPUT 1
try`, flag)
}

// TestRawSockets: who has CAP_NET_RAW sends and sees packets, who has not does
// not.
func TestRawSockets(t *testing.T) {
	script := `python3 - <<'END'
import socket
for family, kind, protocol in ((socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))):
    try:
        socket.socket(family, kind, protocol)
        print("made")
    except PermissionError:
        print("denied")
END`
	expect(t, "made\nmade", script)
	expect(t, "denied\ndenied", script, "--cap-drop", "NET_RAW")
	expect(t, "2 packets captured", `tcpdump -i eth0 -c 2 -nn icmp 2>&1 >/dev/null | grep captured &
sleep 1; ping -c 3 -i 0.3 10.0.2.2 > /dev/null; wait`)
	// A packet of its own making: ARP for the gateway, and its answer.
	expect(t, "02:67:76:78:00:02", `python3 - <<'END'
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
s.bind(("eth0", 0x0806))
s.settimeout(20)
own = bytes.fromhex("02677678000f")
s.send(b"\xff" * 6 + own + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + own + bytes([10, 0, 2, 15]) + bytes(6) + bytes([10, 0, 2, 2]))
while (b := s.recv(100))[20:22] != b"\0\2":
    pass
print(b[22:28].hex(":"))
END`)
}
