// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"z.gfire.dev/gvx/runtime/api"
)

// cable is a pair of sockets that carry messages as packet sockets carry frames.
func cable(t *testing.T) (a, b api.FD) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// Enough for all that is under way: what has no room is lost, as ever.
		for _, option := range []int{unix.SO_SNDBUF, unix.SO_SNDBUFFORCE} {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 8<<20)
		}
	}
	return api.FD(fds[0]), api.FD(fds[1])
}

// linkStack is a stack such as guests have.
func linkStack(t *testing.T) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{addressedIPv4, addressedIPv6, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := tuneStack(s); err != nil {
		t.Fatal(err)
	}
	if err := addLoopback(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Destroy)
	return s
}

// endLink is the link of one end of a cable, numbered 1 or 2.
func endLink(fd api.FD, n byte, ethernet bool, gso int) api.Link {
	l := api.Link{
		Name: "eth0", MTU: 1500, FDs: []api.FD{fd}, GSOMaxBytes: gso,
		Addresses: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, 0, n}), 24),
			netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd07::%d", n)), 64),
		},
		Routes: []api.LinkRoute{
			{Destination: netip.MustParsePrefix("10.7.0.0/24")},
			{Destination: netip.MustParsePrefix("fd07::/64")},
		},
	}
	if ethernet {
		l.MAC = []byte{2, 0, 0, 0, 7, n}
	}
	return l
}

// TestLinksCarryStreams sends both ways over every kind of link, into a stack that
// forwards too, for which every frame is cut into segments.
func TestLinksCarryStreams(t *testing.T) {
	for _, c := range []struct {
		name     string
		ethernet bool
		gso      int
		forward  bool
	}{
		{"ethernet", true, 0, false},
		{"offload", true, 65536, false},
		{"offload into a router", true, 65536, true},
		{"no frames", false, 0, false},
		{"no frames, offload into a router", false, 65536, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := linkStack(t), linkStack(t)
			a, b := cable(t)
			for s, l := range map[*stack.Stack]api.Link{near: endLink(a, 1, c.ethernet, c.gso), far: endLink(b, 2, c.ethernet, c.gso)} {
				if err := attachTo(s, []api.Link{l}); err != nil {
					t.Fatal(err)
				}
			}
			if c.forward {
				for _, protocol := range []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber} {
					if err := far.SetForwardingDefaultAndAllNICs(protocol, true); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, address := range []string{"10.7.0.2", "fd07::2"} {
				exchange(t, near, far, netip.MustParseAddr(address))
			}
		})
	}
}

// exchange sends some megabytes to an address and has them sent back.
func exchange(t *testing.T, near, far *stack.Stack, address netip.Addr) {
	t.Helper()
	const port, sizeBytes = 80, 3 << 20
	full := tcpip.FullAddress{Addr: tcpipAddress(address), Port: port}
	l, err := gonet.ListenTCP(far, full, networkProtocol(address))
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
		_, _ = io.Copy(c, c)
	}()
	c, err := gonet.DialTCPWithBind(t.Context(), near, tcpip.FullAddress{}, full, networkProtocol(address))
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, sizeBytes)
	rng := rand.NewChaCha8(sha256.Sum256([]byte(address.String())))
	_, _ = rng.Read(data)
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, sizeBytes)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	sending.Wait()
	if !bytes.Equal(got, data) {
		t.Errorf("%s: the data came back changed", address)
	}
}

// TestLinksAttached looks at what a stack has afterwards.
func TestLinksAttached(t *testing.T) {
	s := linkStack(t)
	a, _ := cable(t)
	b, _ := cable(t)
	eth0, eth1 := endLink(a, 1, true, 65536), endLink(b, 2, true, 0)
	eth1.Name = "eth1"
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	gateway := netip.MustParseAddr("10.7.0.254")
	eth0.Routes = append(eth0.Routes, api.LinkRoute{Destination: everywhere, Gateway: netip.MustParseAddr("10.7.0.253"), Metric: 200})
	eth1.Routes = append(eth1.Routes, api.LinkRoute{Destination: everywhere, Gateway: gateway, Metric: 100, MTU: 1400, Source: netip.MustParseAddr("10.7.0.2")})
	eth0.Neighbors = []api.LinkNeighbor{{Address: gateway, MAC: []byte{2, 0, 0, 0, 0, 9}}}
	lo := api.Link{Name: "lo", Loopback: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
	if err := attachTo(s, []api.Link{eth0, eth1, lo}); err != nil {
		t.Fatal(err)
	}
	names := map[string]stack.NICInfo{}
	for _, info := range s.NICInfo() {
		names[info.Name] = info
	}
	if len(names) != 3 || names["eth0"].MTU != 1500 || names["eth0"].LinkAddress != tcpip.LinkAddress(eth0.MAC) || !names["eth1"].Flags.Up {
		t.Errorf("interfaces %+v", names)
	}
	if len(names["lo"].ProtocolAddresses) != 3 {
		t.Errorf("lo has %v", names["lo"].ProtocolAddresses)
	}
	route, err := s.FindRoute(0, tcpip.Address{}, tcpip.AddrFrom4([4]byte{203, 0, 113, 1}), header.IPv4ProtocolNumber, false)
	if err != nil {
		t.Fatal(err)
	}
	defer route.Release()
	if route.NextHop() != tcpipAddress(gateway) || route.MTU() != 1400-header.IPv4MinimumSize || route.LocalAddress().String() != "10.7.0.2" {
		t.Errorf("the way out is by %s from %s, MTU %d", route.NextHop(), route.LocalAddress(), route.MTU())
	}
	c, _ := cable(t)
	if err := attachTo(s, []api.Link{endLink(c, 3, true, 0)}); api.KindOf(err) != api.KindExists {
		t.Errorf("a second eth0: %v", err)
	}
	if first, last := s.PortRange(); first != firstLocalPort || last != lastLocalPort || last >= api.HostPortFirst {
		t.Errorf("local ports %d to %d", first, last)
	}
}

// TestNumberLinks: files that came with the wrong list are nobody's.
func TestNumberLinks(t *testing.T) {
	a, b := cable(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, fd := range []api.FD{a, b} {
		defer unix.Close(int(fd))
	}
	good := streamSet{fds: []int{int(a), int(b)}}
	links := []api.Link{{Name: "eth0", FDs: []api.FD{1}}, {Name: "eth1", FDs: []api.FD{0}}}
	if err := good.numberLinks(links); err != nil || links[0].FDs[0] != b || links[1].FDs[0] != a {
		t.Errorf("got %v, %v", links, err)
	}
	for name, c := range map[string]struct {
		set streamSet
		fds []api.FD
	}{
		"beyond":    {good, []api.FD{0, 2}},
		"negative":  {good, []api.FD{0, -1}},
		"twice":     {good, []api.FD{0, 0}},
		"left":      {good, []api.FD{0}},
		"no socket": {streamSet{fds: []int{int(null.Fd())}}, []api.FD{0}},
	} {
		if err := c.set.numberLinks([]api.Link{{Name: "eth0", FDs: c.fds}}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestLinkSockets: one that would wait is refused before it hangs the sandbox.
func TestLinkSockets(t *testing.T) {
	a, _ := cable(t)
	if err := unix.SetNonblock(int(a), false); err != nil {
		t.Fatal(err)
	}
	if _, err := newPacketLink(linkStack(t), 2, &api.Link{Name: "eth0", MTU: 1500, FDs: []api.FD{a}}); err == nil {
		t.Error("a blocking socket was taken")
	}
}
