// SPDX-License-Identifier: Apache-2.0

// A guest's stack behind a router, for tests: no Sentry around them, and a broker
// that the test plays.

package boot

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/nftables"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
)

// natTimeout bounds every wait of these tests.
const natTimeout = 20 * time.Second

// testNetwork is a guest's stack behind a router, without a Sentry around them,
// and a broker that the test plays.
type testNetwork struct {
	t     testing.TB
	guest *stack.Stack
	nat   *nat
	fd    int

	mu sync.Mutex
	// results override what the broker answers by destination.
	results  map[string]netwire.Result
	requests []netwire.Request
	answer   chan struct{}
	// held are connections handed over and not yet given back, by id.
	held map[uint32]bool
}

type testIDs struct{}

func (testIDs) UniqueID() uint64 { return 1 }

func newTestNetwork(t testing.TB) *testNetwork {
	t.Helper()
	nftables.EnableNFTables()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNetwork{t: t, fd: fds[0], results: map[string]netwire.Result{}, held: map[uint32]bool{}}
	made, err := newNAT(api.FD(fds[1]), true)
	if err != nil {
		t.Fatal(err)
	}
	m := &stackMaker{clock: tcpip.NewStdClock(), ids: testIDs{}}
	s, err := m.CreateStack()
	if err != nil {
		t.Fatal(err)
	}
	n.nat, n.guest = made, s.(*netstack.Stack).Stack
	if err := made.attach(s.(*netstack.Stack)); err != nil {
		t.Fatal(err)
	}
	go n.serve()
	t.Cleanup(func() {
		_ = unix.Shutdown(n.fd, unix.SHUT_RDWR)
		n.guest.Destroy()
		n.nat.router.Destroy()
	})
	return n
}

// serve plays the broker: the gateway is this host's loopback.
func (n *testNetwork) serve() {
	defer unix.Close(n.fd)
	buf := make([]byte, netwire.MaxRequests*netwire.RequestBytes+1)
	for {
		k, err := unix.Read(n.fd, buf)
		if err != nil || k == 0 {
			return
		}
		for at := 0; at < k; at += netwire.RequestBytes {
			r, err := netwire.ParseRequest(buf[at:min(at+netwire.RequestBytes, k)])
			if err != nil {
				n.t.Errorf("router sent %x", buf[:k])
				return
			}
			n.handle(r)
		}
	}
}

func (n *testNetwork) handle(r netwire.Request) {
	if r.Ask != netwire.Closed {
		go n.connect(r)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.held[r.ID] {
		n.t.Errorf("connection %d is given back and was not held", r.ID)
	}
	delete(n.held, r.ID)
}

func (n *testNetwork) connect(r netwire.Request) {
	n.mu.Lock()
	n.requests = append(n.requests, r)
	result, wait := n.results[r.To.String()], n.answer
	n.mu.Unlock()
	if wait != nil {
		<-wait
	}
	m := netwire.Message{Kind: netwire.Answer, Protocol: r.Protocol, ID: r.ID, Result: result}
	if result != netwire.OK {
		_, _ = unix.Write(n.fd, m.Append(nil))
		return
	}
	host := netip.MustParseAddr("127.0.0.1")
	if r.To.Addr().Is6() {
		host = netip.IPv6Loopback()
	}
	c, err := net.Dial(r.Protocol.String(), netip.AddrPortFrom(host, r.To.Port()).String())
	if err != nil {
		m.Result = netwire.Refused
		_, _ = unix.Write(n.fd, m.Append(nil))
		return
	}
	defer c.Close()
	m.Flags = netwire.Held
	n.mu.Lock()
	n.held[r.ID] = true
	n.mu.Unlock()
	n.send(m, c)
}

// allGivenBack waits until the broker holds no connection.
func (n *testNetwork) allGivenBack(t *testing.T) {
	t.Helper()
	eventually(t, "all connections are given back", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.held) == 0
	})
}

// send hands over a connection.
func (n *testNetwork) send(m netwire.Message, c net.Conn) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		n.t.Error(err)
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if err := unix.Sendmsg(n.fd, m.Append(nil), unix.UnixRights(int(fd)), nil, 0); err != nil {
			n.t.Error(err)
		}
	})
}

// dial connects from the guest.
func (n *testNetwork) dial(to string) (*gonet.TCPConn, error) {
	a := netip.MustParseAddrPort(to)
	ctx, cancel := context.WithTimeout(n.t.Context(), natTimeout)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, n.guest, tcpip.FullAddress{Addr: tcpipAddress(a.Addr()), Port: a.Port()}, networkProtocol(a.Addr()))
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(natTimeout))
	}
	return c, err
}

// udp connects a UDP socket of the guest.
func (n *testNetwork) udp(to string) *gonet.UDPConn {
	n.t.Helper()
	a := netip.MustParseAddrPort(to)
	c, err := gonet.DialUDP(n.guest, nil, &tcpip.FullAddress{Addr: tcpipAddress(a.Addr()), Port: a.Port()}, networkProtocol(a.Addr()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(natTimeout))
	return c
}

// gateway is the guest's address of a listener of this host.
func gateway(a net.Addr) string {
	at := netip.MustParseAddrPort(a.String())
	if at.Addr().Is6() {
		return netip.AddrPortFrom(natGateway6, at.Port()).String()
	}
	return netip.AddrPortFrom(natGateway, at.Port()).String()
}

// listen makes a TCP server of this host that handles each client.
func listen(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	return listenAt(t, "127.0.0.1:0", handle)
}

func listenAt(t testing.TB, address string, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(natTimeout))
				handle(c.(*net.TCPConn))
			}()
		}
	}()
	return gateway(l.Addr())
}

// inboundPair hands the router one end of a connection and returns the other.
func (n *testNetwork) inboundPair(t *testing.T, m netwire.Message) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	_ = client.SetDeadline(time.Now().Add(natTimeout))
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	n.send(m, far)
	far.Close()
	return client
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(natTimeout); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}
