// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// TestPacketsToEverywhere: a guest that sends faster than its broker answers has
// no more flows that wait than there are places, and others once those are free.
func TestPacketsToEverywhere(t *testing.T) {
	n := newTestNetwork(t)
	answer := make(chan struct{})
	n.mu.Lock()
	n.answer = answer
	n.mu.Unlock()
	peer := netip.MustParseAddrPort("192.0.2.1:9")
	n.results[peer.String()] = netwire.Denied
	scan := func() {
		for i := range 4 * maxConnecting {
			n.nat.packets.send(packetKey{netwire.UDP, netip.AddrPortFrom(natGuest, uint16(i+1)), peer}, nil, []byte("x"))
		}
	}
	waiting := func() int {
		n.nat.broker.mu.Lock()
		defer n.nat.broker.mu.Unlock()
		return len(n.nat.broker.waiting)
	}
	scan()
	eventually(t, "all places are taken", func() bool { return waiting() >= maxConnecting })
	scan()
	time.Sleep(100 * time.Millisecond)
	if k := waiting(); k > maxConnecting {
		t.Errorf("%d requests wait, at most %d", k, maxConnecting)
	}
	close(answer)
	eventually(t, "all places are free", func() bool { return waiting() == 0 && len(n.nat.packets.connecting) == 0 })
	scan()
	eventually(t, "there are new requests", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.requests) > maxConnecting
	})
}

// TestEmptyDatagram: an empty datagram of a guest does not end a flow whose host
// side takes it for the end.
func TestEmptyDatagram(t *testing.T) {
	n := newTestNetwork(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	client := os.NewFile(uintptr(fds[0]), "client")
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(natTimeout))
	c, err := gonet.DialUDP(n.guest, &tcpip.FullAddress{Port: 53}, nil, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(natTimeout))
	m := netwire.Message{Kind: netwire.Inbound, Protocol: netwire.UDP, Flags: netwire.EndsEmpty, Port: 53}
	if err := unix.Sendmsg(n.fd, m.Append(nil), unix.UnixRights(fds[1]), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[1])
	if _, err := client.WriteString("ask"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	k, from, err := c.ReadFrom(buf)
	if err != nil || string(buf[:k]) != "ask" {
		t.Fatalf("the guest got %q, %v", buf[:k], err)
	}
	for _, packet := range []string{"", "answer"} {
		if _, err := c.WriteTo([]byte(packet), from); err != nil {
			t.Fatal(err)
		}
	}
	if k, err = client.Read(buf); err != nil || string(buf[:k]) != "answer" {
		t.Errorf("the client got %q, %v", buf[:k], err)
	}
}

// TestQuotes: an ICMP error has the beginning of the guest's packet, which its
// kernel finds the socket by.
func TestQuotes(t *testing.T) {
	for _, c := range []struct {
		protocol    netwire.Protocol
		guest, peer string
		want        []byte // Protocol of the IP header, then the transport's bytes.
	}{
		{netwire.UDP, "10.0.2.15:258", "192.0.2.1:772", []byte{17, 1, 2, 3, 4, 0, 0, 0, 0}},
		{netwire.TCP, "[fd67:7678::15]:258", "[2001:db8::1]:772", []byte{6, 1, 2, 3, 4, 0, 0, 0, 0}},
		{netwire.Echo, "10.0.2.15:258", "192.0.2.1:0", []byte{1, 8, 0, 0, 0, 1, 2, 0, 0}},
		{netwire.Echo, "[fd67:7678::15]:258", "[2001:db8::1]:0", []byte{58, 128, 0, 0, 0, 1, 2, 0, 0}},
	} {
		key := packetKey{c.protocol, netip.MustParseAddrPort(c.guest), netip.MustParseAddrPort(c.peer)}
		quote := appendQuote(nil, key)
		var ip header.Network = header.IPv4(quote)
		valid := header.IPv4(quote).IsValid(len(quote))
		if key.guest.Addr().Is6() {
			ip, valid = header.IPv6(quote), header.IPv6(quote).IsValid(len(quote))
		}
		if !valid || ip.SourceAddress() != tcpipAddress(key.guest.Addr()) || ip.DestinationAddress() != tcpipAddress(key.peer.Addr()) {
			t.Errorf("%s from %s: %x", c.protocol, c.guest, quote)
			continue
		}
		if got := append([]byte{byte(ip.TransportProtocol())}, ip.Payload()...); !bytes.Equal(got, c.want) {
			t.Errorf("%s from %s: %x, want %x", c.protocol, c.guest, got, c.want)
		}
	}
}
