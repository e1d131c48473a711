// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// TestStream sends much both ways at once, and checks that each end of sending
// arrives behind the last byte, in both orders.
func TestStream(t *testing.T) {
	n := newTestNetwork(t)
	down := make([]byte, 5<<20+7)
	rand.New(rand.NewSource(1)).Read(down)
	for name, hostFirst := range map[string]bool{"host ends first": true, "guest ends first": false} {
		var got [32]byte
		received := make(chan struct{})
		server := listen(t, func(c *net.TCPConn) {
			defer close(received)
			if hostFirst {
				_, _ = c.Write(down)
				_ = c.CloseWrite()
			}
			h := sha256.New()
			_, _ = io.Copy(h, c)
			got = [32]byte(h.Sum(nil))
			if !hostFirst {
				_, _ = c.Write(down)
			}
		})
		c, err := n.dial(server)
		if err != nil {
			t.Fatal(err)
		}
		up := down[:3<<20+1]
		go func() {
			_, _ = c.Write(up)
			if !hostFirst {
				_ = c.CloseWrite()
			}
		}()
		all, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(all, down) {
			t.Errorf("%s: guest got %d of %d bytes, %v", name, len(all), len(down), err)
		}
		if hostFirst {
			// The guest may still send after the host has ended.
			time.Sleep(50 * time.Millisecond)
			_ = c.CloseWrite()
		}
		select {
		case <-received:
		case <-time.After(natTimeout):
			t.Fatalf("%s: the end of sending did not arrive", name)
		}
		if got != sha256.Sum256(up) {
			t.Errorf("%s: the host got other bytes", name)
		}
		c.Close()
	}
}

// TestBackPressure stops reading on one side: the other has to stop too,
// instead of filling this process' memory.
func TestBackPressure(t *testing.T) {
	n := newTestNetwork(t)
	stop := make(chan struct{})
	server := listen(t, func(*net.TCPConn) { <-stop })
	defer close(stop)
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
	const bound = 64 << 20 // Four socket buffers hold a few megabytes each.
	sent := 0
	for chunk := make([]byte, 1<<20); sent < bound; {
		k, err := c.Write(chunk)
		sent += k
		if err != nil {
			break
		}
	}
	if sent >= bound {
		t.Errorf("%d bytes sent to a peer that reads nothing", sent)
	}
}

// TestConnectResults checks what a guest sees of connections that fail.
func TestConnectResults(t *testing.T) {
	n := newTestNetwork(t)
	n.mu.Lock()
	n.results = map[string]netwire.Result{
		"192.0.2.1:80": netwire.Refused, "192.0.2.2:80": netwire.HostUnreachable,
		"192.0.2.3:80": netwire.NetUnreachable, "192.0.2.4:80": netwire.Denied,
	}
	n.mu.Unlock()
	for to, want := range map[string]string{
		"192.0.2.1:80": (&tcpip.ErrConnectionRefused{}).String(), "192.0.2.2:80": (&tcpip.ErrHostUnreachable{}).String(),
		"192.0.2.3:80": (&tcpip.ErrNetworkUnreachable{}).String(), "192.0.2.4:80": (&tcpip.ErrHostUnreachable{}).String(),
	} {
		_, err := n.dial(to)
		var op *net.OpError
		if !errors.As(err, &op) || op.Err.Error() != want {
			t.Errorf("%s: %v, want %s", to, err, want)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.requests {
		if r.From.Addr() != natGuest || r.From.Port() == 0 {
			t.Errorf("%s from %s", r.To, r.From)
		}
	}
}

// TestHandshakeWaits checks that a guest is not connected before its host is.
func TestHandshakeWaits(t *testing.T) {
	n := newTestNetwork(t)
	n.mu.Lock()
	n.answer = make(chan struct{})
	n.mu.Unlock()
	server := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	connected := make(chan error, 1)
	go func() {
		c, err := n.dial(server)
		if err == nil {
			c.Close()
		}
		connected <- err
	}()
	select {
	case err := <-connected:
		t.Fatalf("connected before the host was: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(n.answer)
	if err := <-connected; err != nil {
		t.Error(err)
	}
}

// TestReset carries resets both ways.
func TestReset(t *testing.T) {
	n := newTestNetwork(t)
	end := make(chan struct{})
	server := listen(t, func(c *net.TCPConn) {
		<-end
		_ = c.SetLinger(0)
	})
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	close(end)
	_, err = io.ReadAll(c)
	if want := (&tcpip.ErrConnectionReset{}).String(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("guest reads %v, want %s", err, want)
	}
	c.Close()

	seen := make(chan error, 1)
	server = listen(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("unread")) // A close with bytes unread is a reset.
		_, err := io.ReadAll(c)
		seen <- err
	})
	if c, err = n.dial(server); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	c.Close()
	if err := <-seen; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("host reads %v, want a reset", err)
	}
}

// TestGuestLeaves closes a guest's connection while the host sends: the host
// learns it, and nothing stays.
func TestGuestLeaves(t *testing.T) {
	n := newTestNetwork(t)
	failed := make(chan error, 1)
	server := listen(t, func(c *net.TCPConn) {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := c.Write(chunk); err != nil {
				failed <- err
				return
			}
		}
	})
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-failed; !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("the host's write: %v, want a reset", err)
	}
	eventually(t, "the flow's place returns", func() bool {
		n.nat.streams.mu.Lock()
		defer n.nat.streams.mu.Unlock()
		return n.nat.streams.count == 0
	})
	n.allGivenBack(t)
}

// TestGuestResets resets a connection whose host neither reads nor ends.
func TestGuestResets(t *testing.T) {
	n := newTestNetwork(t)
	stop := make(chan struct{})
	defer close(stop)
	server := listen(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("unread"))
		<-stop
	})
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = c.Write(chunk)
	}
	c.Close() // With bytes unread: a reset.
	eventually(t, "the flow's place returns", func() bool {
		n.nat.streams.mu.Lock()
		defer n.nat.streams.mu.Unlock()
		return n.nat.streams.count == 0
	})
	n.allGivenBack(t)
}

// TestDatagrams carries datagrams of all sizes, and the news of a closed port.
func TestDatagrams(t *testing.T) {
	n := newTestNetwork(t)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 65536)
		for {
			k, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:k], from)
		}
	}()
	c := n.udp(gateway(pc.LocalAddr()))
	buf := make([]byte, 65536)
	for _, size := range []int{1, 0, 1472, 9000, 65507 - 28} {
		packet := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := c.Write(packet); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if k, err := c.Read(buf); err != nil || !bytes.Equal(buf[:k], packet) {
			t.Errorf("%d bytes: got %d, %v", size, k, err)
		}
	}
	pc.Close()
	// The news comes with the next call, as on Linux.
	eventually(t, "a closed port is refused", func() bool {
		_, err := c.Write([]byte("x"))
		return err != nil && strings.Contains(err.Error(), (&tcpip.ErrConnectionRefused{}).String())
	})
}

// TestPacketFlowsEnd checks that flows make room for others and end when idle.
func TestPacketFlowsEnd(t *testing.T) {
	n := newTestNetwork(t)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	peer := netip.MustParseAddrPort(gateway(pc.LocalAddr()))
	flows := &n.nat.packets
	var last packetKey
	for i := range maxPacketFlows + 50 {
		eventually(t, "a place among those that connect", func() bool { return len(flows.connecting) < maxConnecting })
		last = packetKey{netwire.UDP, netip.AddrPortFrom(natGuest, uint16(i+1)), peer}
		flows.send(last, nil, []byte("x"))
	}
	flows.mu.Lock()
	if flows.flows[last] == nil {
		t.Error("no room was made for the last flow")
	}
	count := len(flows.flows)
	var some []*packetFlow
	for _, f := range flows.flows {
		some = append(some, f)
	}
	flows.mu.Unlock()
	if count > maxPacketFlows {
		t.Errorf("%d flows, at most %d", count, maxPacketFlows)
	}
	// As if all had been silent for long: whoever waits looks at the clock.
	for _, f := range some {
		f.used.Store(0)
		f.mu.Lock()
		if f.host != nil {
			f.host.interrupt()
		}
		f.mu.Unlock()
	}
	eventually(t, "idle flows end", func() bool {
		flows.mu.Lock()
		defer flows.mu.Unlock()
		for _, f := range flows.flows {
			f.used.Store(0)
			f.mu.Lock()
			if f.host != nil {
				f.host.interrupt()
			}
			f.mu.Unlock()
		}
		return len(flows.flows) == 0
	})
}

// TestInbound takes in clients of published ports.
func TestInbound(t *testing.T) {
	n := newTestNetwork(t)
	l, err := gonet.ListenTCP(n.guest, tcpip.FullAddress{Port: 80}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String()+" ")
		_, _ = io.Copy(c, c)
	}()
	client := n.inboundPair(t, netwire.Message{Kind: netwire.Inbound, Protocol: netwire.TCP, Port: 80})
	_, _ = client.Write([]byte("hello"))
	_ = client.(*net.TCPConn).CloseWrite()
	if all, err := io.ReadAll(client); err != nil || string(all) != "10.0.2.2 hello" {
		t.Errorf("%q, %v", all, err)
	}
	client = n.inboundPair(t, netwire.Message{Kind: netwire.Inbound, Protocol: netwire.TCP, Port: 81})
	if _, err := io.ReadAll(client); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("nobody listens: %v, want a reset", err)
	}
}

// TestBrokerGone checks that flows end with the broker, that new ones fail, and
// that nothing else does.
func TestBrokerGone(t *testing.T) {
	n := newTestNetwork(t)
	server := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	_, _ = n.udp(gateway(pc.LocalAddr())).Write([]byte("x"))
	if _, _, err := pc.ReadFrom(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = unix.Shutdown(n.fd, unix.SHUT_RDWR)
	if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), (&tcpip.ErrConnectionReset{}).String()) {
		t.Errorf("a flow after the broker's end: %v, want a reset", err)
	}
	eventually(t, "no flows", func() bool {
		n.nat.packets.mu.Lock()
		defer n.nat.packets.mu.Unlock()
		n.nat.broker.mu.Lock()
		defer n.nat.broker.mu.Unlock()
		return len(n.nat.packets.flows) == 0 && len(n.nat.broker.conns) == 0
	})
	if _, err := n.dial(server); err == nil {
		t.Error("connected without a broker")
	}
}

// TestEnded plays a broker that ends connections under a new policy, one before
// its flow has even begun.
func TestEnded(t *testing.T) {
	n := newTestNetwork(t)
	server := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	ended, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	n.mu.Lock()
	id := n.requests[0].ID
	n.mu.Unlock()
	kept, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	m := netwire.Message{Kind: netwire.Ended, Protocol: netwire.TCP, ID: id}
	if _, err := unix.Write(n.fd, m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(ended); err == nil {
		t.Error("an ended connection ends without an error")
	}
	_, _ = kept.Write([]byte("still"))
	buf := make([]byte, 5)
	if _, err := io.ReadFull(kept, buf); err != nil || string(buf) != "still" {
		t.Errorf("the other connection: %q, %v", buf, err)
	}
	kept.Close()
	n.allGivenBack(t)

	conn := &hostConn{}
	conn.end()
	called := false
	conn.whenEnded(func() { called = true })
	if !called {
		t.Error("whoever comes too late does not hear of the end")
	}
}

// TestIPv6 carries a stream and datagrams, and their errors, over IPv6.
func TestIPv6(t *testing.T) {
	n := newTestNetwork(t)
	server := listenAt(t, "[::1]:0", func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	c, err := n.dial(server)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("hello"))
	_ = c.CloseWrite()
	if all, err := io.ReadAll(c); err != nil || string(all) != "hello" {
		t.Errorf("%q, %v", all, err)
	}
	c.Close()
	for result, want := range map[netwire.Result]tcpip.Error{
		netwire.Refused: &tcpip.ErrConnectionRefused{}, netwire.HostUnreachable: &tcpip.ErrNetworkUnreachable{},
		netwire.NetUnreachable: &tcpip.ErrNetworkUnreachable{}, netwire.Denied: &tcpip.ErrNetworkUnreachable{},
	} {
		to := fmt.Sprintf("[2001:db8::%x]:80", 16+int(result))
		n.mu.Lock()
		n.results[to] = result
		n.mu.Unlock()
		if _, err := n.dial(to); err == nil || !strings.Contains(err.Error(), want.String()) {
			t.Errorf("%s: %v, want %s", result, err, want)
		}
	}
	pc, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	u := n.udp(gateway(pc.LocalAddr()))
	buf := make([]byte, 65536)
	for _, size := range []int{1, 0, 1452, 65507 - 48} {
		packet := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := u.Write(packet); err != nil {
			t.Fatal(err)
		}
		k, from, err := pc.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:k], packet) {
			t.Fatalf("%d bytes: got %d, %v", size, k, err)
		}
		_, _ = pc.WriteTo(buf[:k], from)
		if k, err := u.Read(buf); err != nil || !bytes.Equal(buf[:k], packet) {
			t.Errorf("%d bytes back: got %d, %v", size, k, err)
		}
	}
	pc.Close()
	eventually(t, "a closed port is refused", func() bool {
		_, err := u.Write([]byte("x"))
		return err != nil && strings.Contains(err.Error(), (&tcpip.ErrConnectionRefused{}).String())
	})
}

// TestInboundIPv6 reaches a server of the guest that listens on IPv6 alone.
func TestInboundIPv6(t *testing.T) {
	n := newTestNetwork(t)
	l, err := gonet.ListenTCP(n.guest, tcpip.FullAddress{Addr: tcpipAddress(natGuest6), Port: 80}, ipv6.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
			c.Close()
		}
	}()
	client := n.inboundPair(t, netwire.Message{Kind: netwire.Inbound, Protocol: netwire.TCP, Port: 80})
	if all, err := io.ReadAll(client); err != nil || string(all) != natGateway6.String() {
		t.Errorf("%q, %v", all, err)
	}
}

// TestCounts opens and closes many connections at once, and expects that no
// goroutine, descriptor or place is left.
func TestCounts(t *testing.T) {
	n := newTestNetwork(t)
	server := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	once := func(count int) {
		var group sync.WaitGroup
		for range count {
			group.Go(func() {
				c, err := n.dial(server)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = c.Write([]byte("hello"))
				_ = c.CloseWrite()
				if all, err := io.ReadAll(c); err != nil || string(all) != "hello" {
					t.Errorf("%q, %v", all, err)
				}
			})
		}
		group.Wait()
	}
	once(4)
	settled := func() int { time.Sleep(200 * time.Millisecond); return runtime.NumGoroutine() }
	before := settled()
	once(200)
	eventually(t, "goroutines return to what they were", func() bool { return runtime.NumGoroutine() <= before+2 })
	eventually(t, "places return", func() bool {
		n.nat.streams.mu.Lock()
		defer n.nat.streams.mu.Unlock()
		return n.nat.streams.count == 0
	})
	n.allGivenBack(t)
}
