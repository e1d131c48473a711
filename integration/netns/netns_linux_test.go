// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/runtime/netns"
)

// TestInterface: the guest has the interface as it was, and the host still does.
func TestInterface(t *testing.T) {
	w := newWorld(t, 1450, 1450)
	mac := strings.TrimSpace(ip(t, "netns", "exec", w.pod, "cat", "/sys/class/net/eth0/address"))
	before := ip(t, "-n", w.pod, "-o", "addr") + ip(t, "-n", w.pod, "route") + ip(t, "-n", w.pod, "-6", "route")
	w.expect(t, fmt.Sprintf("%s 1450\n%s/24 %s/64\nvia %s via %s\n%s", mac, podIP, podIP6, routerIP, routerIP6, podIP), `
echo $(ip -o link show eth0 | sed "s/.*ether \([^ ]*\).*/\1/") $(ip -o link show eth0 | sed "s/.*mtu \([0-9]*\).*/\1/")
echo $(ip -o -4 addr show eth0 | awk '{print $4}') $(ip -o -6 addr show eth0 | awk '$4 ~ /^fd/ {print $4}')
echo $(ip -4 route | awk '/^default/ {print $2, $3}') $(ip -6 route | awk '/^default/ {print $2, $3; exit}')
getent ahostsv4 $(hostname) | awk 'NR == 1 {print $1}'`)
	if after := ip(t, "-n", w.pod, "-o", "addr") + ip(t, "-n", w.pod, "route") + ip(t, "-n", w.pod, "-6", "route"); after != before {
		t.Errorf("the namespace has changed from\n%s\nto\n%s", before, after)
	}
}

func TestPing(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	for _, to := range []string{routerIP, routerIP6, serverIP, serverIP6} {
		w.expect(t, "ok", "ping -qc 2 -W 5 "+to+" >&2 && echo ok")
	}
	// From outside, by the namespace's own users too.
	stop := w.serve(t, "ping-"+w.pod, "echo ready; sleep 100")
	for _, to := range []string{podIP, podIP6} {
		ping(t, w.server, to)
	}
	stop()
}

// imageRoot is the image as a folder of the host, for programs that it may lack.
func imageRoot(t *testing.T) string {
	t.Helper()
	return testbed.Need(t, image) + "/rootfs"
}

// pingCommand asks once, from a namespace.
func pingCommand(t *testing.T, ns, to string) *exec.Cmd {
	t.Helper()
	return exec.Command("ip", "netns", "exec", ns, "chroot", imageRoot(t), "ping", "-qc", "1", "-W", "5", to)
}

func ping(t *testing.T, ns, to string) {
	t.Helper()
	if output, err := pingCommand(t, ns, to).CombinedOutput(); err != nil {
		t.Errorf("from %s to %s: %v: %s", ns, to, err, output)
	}
}

// echo sends back what it gets, and its digest at the end.
func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// exchangeScript has Python send so many bytes to an address and compare what
// comes back.
const exchangeScript = `
import hashlib, os, socket, sys, threading
def exchange(address, port, size):
    data = os.urandom(size)
    s = socket.create_connection((address, port))
    def send():
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send); t.start()
    got = bytearray()
    while True:
        b = s.recv(1 << 20)
        if not b: break
        got += b
    t.join()
    assert got == data, (address, size, len(got))
for a in sys.argv[2:]:
    for n in (0, 1, 1399, 1461, 65536, 5000003):
        exchange(a, int(sys.argv[1]), n)
print("ok")`

// TestTCP sends sizes of every kind both ways, over cables of all MTUs, with a
// narrow place behind the router too: then the guest has to find the path's MTU.
func TestTCP(t *testing.T) {
	for _, c := range []struct{ mtu, farMTU int }{{1500, 1500}, {9000, 9000}, {9000, 1400}, {1500, 1280}} {
		t.Run(fmt.Sprintf("%d-%d", c.mtu, c.farMTU), func(t *testing.T) {
			w := newWorld(t, c.mtu, c.farMTU)
			listen(t, w.server, ":7000", echo)
			w.expect(t, "ok", "python3 -c '"+exchangeScript+"' 7000 "+serverIP+" "+serverIP6)

			w.serve(t, "tcp-"+w.pod, `python3 -c '
import socket, socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            b = self.request.recv(1 << 20)
            if not b: return
            self.request.sendall(b)
class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = True
s = Server(("::", 7000), Echo)
print("ready", flush=True)
s.serve_forever()'`)
			for _, address := range []string{podIP + ":7000", "[" + podIP6 + "]:7000"} {
				for _, size := range []int{1, 1400, 3_000_001} {
					if err := exchangeFrom(w.server, address, size); err != nil {
						t.Errorf("%s, %d bytes: %v", address, size, err)
					}
				}
			}
		})
	}
}

// exchangeFrom sends from a namespace and compares what comes back.
func exchangeFrom(ns, address string, size int) error {
	n, err := netns.Open(path(ns))
	if err != nil {
		return err
	}
	defer n.Close()
	var c net.Conn
	if err := n.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", address, 10*time.Second)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		_ = c.(*net.TCPConn).CloseWrite()
		sent <- err
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if sha256.Sum256(got) != sha256.Sum256(data) {
		return fmt.Errorf("%d bytes came back changed, of %d", len(got), len(data))
	}
	return nil
}

// TestUDP: datagrams up to what the protocol can hold, in fragments where the
// cable is shorter.
func TestUDP(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	for _, network := range []string{"udp4", "udp6"} {
		var c net.PacketConn
		in(t, w.server, func() (err error) {
			c, err = net.ListenPacket(network, ":7000")
			return err
		})
		t.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(buf[:n], from)
			}
		}()
	}
	w.expect(t, "ok", `python3 -c '
import os, socket, sys
for family, address in ((socket.AF_INET, sys.argv[1]), (socket.AF_INET6, sys.argv[2])):
    for size in (0, 1, 1472, 1473, 9000, 60000):
        data = os.urandom(size)
        for attempt in range(5):
            s = socket.socket(family, socket.SOCK_DGRAM)
            s.settimeout(2)
            s.sendto(data, (address, 7000))
            try:
                got = s.recv(1 << 16)
            except TimeoutError:
                continue
            assert got == data, (address, size, len(got))
            break
        else:
            sys.exit("%s: %d bytes were lost five times" % (address, size))
print("ok")' `+serverIP+" "+serverIP6)
}

// TestTwoInterfaces: both have their names, and each its network.
func TestTwoInterfaces(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	w.cable(t, w.pod, "storage1", "10.46.0.2", "fd46::2", w.server, "back0", "10.46.0.1", "fd46::1", 9000)
	listen(t, w.server, ":7000", func(c net.Conn) { fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP) })
	w.expect(t, "eth0 lo storage1\n"+podIP+"\n10.46.0.2\nfd46::2", `
echo $(ip -o link | awk -F": " '{print $2}' | sort)
for a in `+serverIP+` 10.46.0.1 fd46::1; do nc -d $a 7000 </dev/null; echo; done`)
}

// TestMacvlan: an interface that shares a card with others, which passes only what
// it was told to pass.
func TestMacvlan(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	ip(t, "-n", w.router, "link", "add", "link", "s0", "name", "mac0", "type", "macvlan", "mode", "bridge")
	ip(t, "-n", w.router, "link", "set", "mac0", "netns", path(w.pod))
	ip(t, "-n", w.pod, "addr", "add", "10.45.0.77/24", "dev", "mac0")
	ip(t, "-n", w.pod, "-6", "addr", "add", "fd45::77/64", "dev", "mac0", "nodad")
	ip(t, "-n", w.pod, "link", "set", "mac0", "up")
	listen(t, w.server, ":7000", func(c net.Conn) { fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP) })
	w.expect(t, "10.45.0.77\nfd45::77", "for a in "+serverIP+" "+serverIP6+"; do nc -d $a 7000 </dev/null; echo; done")
	stop := w.serve(t, "macvlan-"+w.pod, "echo ready; sleep 100")
	for _, to := range []string{"10.45.0.77", "fd45::77"} {
		ping(t, w.server, to) // Found by questions to all, and to a group.
	}
	stop()
}

// TestGuestRouter: a guest that forwards, as a container engine does, sends on what
// it gets in segments that fit, and behind an address of its own.
func TestGuestRouter(t *testing.T) {
	w := newWorld(t, 9000, 9000)
	data := make([]byte, 4<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	sum := sha256.Sum256(data)
	listen(t, w.server, ":7000", func(c net.Conn) { _, _ = c.Write(data) })
	w.expect(t, hex.EncodeToString(sum[:]), `
unshare -n sleep 100 & inner=$!
until [ "$(readlink /proc/$inner/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add out0 type veth peer name in0
ip link set in0 netns /proc/$inner/ns/net
ip addr add 172.31.0.1/24 dev out0; ip link set out0 up
nsenter -t $inner -n sh -c "ip addr add 172.31.0.2/24 dev in0; ip link set in0 up; ip link set lo up; ip route add default via 172.31.0.1 dev in0"
echo 1 > /proc/sys/net/ipv4/ip_forward
iptables -t nat -A POSTROUTING -s 172.31.0.0/24 -o eth0 -j MASQUERADE
nsenter -t $inner -n nc -d `+serverIP+` 7000 </dev/null | sha256sum | cut -d" " -f1
kill $inner`)
}

// TestHostProcesses: those in the namespace reach others as before, while a guest
// has its interfaces, by every way in.
func TestHostProcesses(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	listen(t, w.server, ":7000", echo)
	holder := exec.Command("ip", "netns", "exec", w.pod, "sleep", "100")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	}()
	w.serve(t, "host-"+w.pod, "echo ready; sleep 100")
	for _, to := range []string{serverIP, serverIP6} {
		ping(t, w.pod, to)
		if err := exchangeFrom(w.pod, net.JoinHostPort(to, "7000"), 1_000_003); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	nsenter := testbed.NeedCommand(t, "nsenter")
	for _, how := range [][]string{{"--net=" + path(w.pod)}, {"-t", strconv.Itoa(holder.Process.Pid), "-n"}} {
		output, err := exec.Command(nsenter, append(append(how, "chroot", imageRoot(t)), "ping", "-qc", "1", "-W", "5", serverIP)...).CombinedOutput()
		if err != nil {
			t.Errorf("nsenter %v: %v: %s", how, err, output)
		}
		if output, err := exec.Command(nsenter, append(how, "ip", "-o", "addr", "show", "eth0")...).CombinedOutput(); err != nil || !strings.Contains(string(output), podIP+"/24") {
			t.Errorf("nsenter %v: %v: %s", how, err, output)
		}
	}
}

// TestHostReachesGuest: for the host's processes in the namespace, its localhost and
// its addresses are the guest's: a port-forward connects so.
func TestHostReachesGuest(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	name := "reach-" + w.pod
	w.serve(t, name, `python3 -c '
import socket, socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            b = self.request.recv(1 << 20)
            if not b: return
            self.request.sendall(b)
def serve(family, address, port):
    class Server(socketserver.ThreadingTCPServer):
        address_family = family
        request_queue_size = 100
    s = Server((address, port), Echo)
    threading.Thread(target=s.serve_forever).start()
serve(socket.AF_INET, "0.0.0.0", 7000)
serve(socket.AF_INET6, "::1", 7000)
serve(socket.AF_INET6, "::1", 7006)
print("ready", flush=True)'`)
	for _, address := range []string{"127.0.0.1:7000", "[::1]:7000", podIP + ":7000", "localhost:7000", "127.0.0.1:7006"} {
		for _, size := range []int{1, 2_000_003} {
			if err := exchangeFrom(w.pod, address, size); err != nil {
				t.Errorf("%s, %d bytes: %v", address, size, err)
			}
		}
	}
	// Where nobody listens, nobody answers.
	for _, address := range []string{"127.0.0.1:7001", "[" + podIP6 + "]:7000"} {
		if err := exchangeFrom(w.pod, address, 1); err == nil {
			t.Errorf("%s: somebody answered", address)
		}
	}
	// Many at once.
	failed := make(chan error)
	const many = 50
	for range many {
		go func() { failed <- exchangeFrom(w.pod, "127.0.0.1:7000", 100_000) }()
	}
	for range many {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// TestDetached: a container that goes on alone keeps the interfaces, says which,
// and gives them back at its end.
func TestDetached(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	name := "detached-" + w.pod
	run := func(args ...string) testbed.Result {
		t.Helper()
		return testbed.Run(t, rungv(ctx, t, args...), nil)
	}
	if r := run("run", "-d", "--name", name, "--network", "ns:"+path(w.pod), image, "sleep", "100"); r.Code != 0 {
		t.Fatal(r)
	}
	defer func() { run("rm", "-f", name) }()
	var documents []struct {
		HostConfig      struct{ NetworkMode string }
		NetworkSettings struct{ IPAddress, Gateway, GlobalIPv6Address, IPv6Gateway string }
	}
	r := run("inspect", name)
	if err := json.Unmarshal([]byte(r.Stdout), &documents); err != nil || len(documents) != 1 {
		t.Fatalf("%v: %v", err, r)
	}
	n := documents[0].NetworkSettings
	if documents[0].HostConfig.NetworkMode != "ns:"+path(w.pod) || n.IPAddress != podIP || n.Gateway != routerIP || n.GlobalIPv6Address != podIP6 || n.IPv6Gateway != routerIP6 {
		t.Errorf("got %+v", documents[0])
	}
	if r := run("exec", name, "ping", "-qc", "1", "-W", "5", serverIP); r.Code != 0 {
		t.Error(r)
	}
	// Nobody else may have the namespace meanwhile.
	if r := run("run", "--rm", "--network", "ns:"+path(w.pod), image, "true"); r.Code != 125 || !strings.Contains(r.Stderr, "another sandbox has it") {
		t.Errorf("a second taker: %v", r)
	}
	if r := run("rm", "-f", name); r.Code != 0 {
		t.Fatal(r)
	}
	answered(t, w)
}

// answered waits until the host's own stack answers at the pod's address again.
func answered(t *testing.T, w *world) {
	t.Helper()
	var output []byte
	var err error
	for range 20 {
		if output, err = pingCommand(t, w.server, podIP).CombinedOutput(); err == nil {
			return
		}
	}
	t.Errorf("the host's stack does not have the interface back: %s", output)
}

// TestKilled: whatever is killed, the namespace is free and whole again, and goes
// when its name does.
func TestKilled(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := rungv(ctx, t, "run", "--rm", "--network", "ns:"+path(w.pod), image, "bash", "-c", "echo ready; sleep 100")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if n, _ := out.Read(make([]byte, 16)); n == 0 {
		t.Fatal("the guest did not start")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	answered(t, w)
	w.expect(t, "ok", "ping -qc 1 -W 5 "+serverIP+" >&2 && echo ok")
	if ports := strings.Fields(ip(t, "netns", "exec", w.pod, "cat", "/proc/sys/net/ipv4/ip_local_port_range")); len(ports) != 2 || ports[0] != "32768" {
		t.Errorf("the namespace's local ports are %v", ports)
	}
	ip(t, "netns", "del", w.pod)
	// The other end of the cable goes with the namespace, once nobody holds it.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := exec.Command("ip", "-n", w.router, "link", "show", "p0").Run(); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("somebody holds the namespace")
		}
	}
	if left := home.Get(t).Processes(t); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
}

func TestErrors(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--network", "ns:/run/netns/no-such-namespace"}, "no such file or directory"},
		{[]string{"--network", "ns:/proc/self/ns/mnt"}, "is not a network namespace"},
		{[]string{"--network", "ns:relative"}, "must be absolute"},
		{[]string{"--network", "ns"}, "want ns:PATH"},
		{[]string{"--network", "ns:" + path(w.pod), "-p", "80"}, "are for the network"},
	} {
		r := testbed.Run(t, rungv(ctx, t, append(append([]string{"run", "--rm"}, c.flags...), image, "true")...), nil)
		if r.Code != 125 || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%v: %v, want %q", c.flags, r, c.want)
		}
	}
	if _, err := os.Stat("/proc/sys/net/core/dev_weight"); err == nil {
		r := testbed.Run(t, rungv(ctx, t, "run", "--rm", "--network", "ns:/proc/self/ns/net", image, "true"), nil)
		if r.Code != 125 || !strings.Contains(r.Stderr, "the host's own") {
			t.Errorf("the host's namespace: %v", r)
		}
	}
	// A user may not, and is told so.
	h := home.Get(t)
	h.Image(t, image)
	r := h.Rungv(t, nil, "run", "--rm", "--network", "ns:"+path(w.pod), image, "true")
	if r.Code != 125 || !strings.Contains(r.Stderr, "operation not permitted") {
		t.Errorf("as a user: %v", r)
	}
}

// TestThroughput prints what the sandbox costs: iperf3 in a guest beside the same
// program in the namespace itself.
func TestThroughput(t *testing.T) {
	w := newWorld(t, 1500, 1500)
	chroot, root := testbed.NeedCommand(t, "chroot"), imageRoot(t)
	server := exec.Command("ip", "netns", "exec", w.server, chroot, root, "iperf3", "-s")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	time.Sleep(200 * time.Millisecond)
	for _, direction := range []string{"", "-R"} {
		client := strings.TrimSpace("iperf3 -J -t 2 -c " + serverIP + " " + direction)
		native, err := exec.Command("ip", append([]string{"netns", "exec", w.pod, chroot, root}, strings.Fields(client)...)...).Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", client, err, native)
		}
		guest := w.sh(t, client)
		a, b := rate(t, native), rate(t, []byte(guest.Stdout))
		t.Logf("iperf3 %s: %.0f MB/s in the namespace, %.0f MB/s in a guest: %.2f of it", direction, a/8e6, b/8e6, b/a)
		if b <= 0 {
			t.Errorf("nothing arrived: %v", guest)
		}
	}
}

// rate is what a client of iperf3 reports, in bits per second.
func rate(t *testing.T, report []byte) float64 {
	t.Helper()
	var r struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		t.Fatalf("%v: %s", err, report)
	}
	return r.End.Received.Rate
}
