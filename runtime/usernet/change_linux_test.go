// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
	networkv1 "z.gfire.dev/gvx/runtime/control/network/v1"
)

func mustPolicy(t *testing.T, rules ...api.EgressRule) *Policy {
	t.Helper()
	p, err := NewPolicy(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// TestChangeEndsTCP changes the policy under connections of a sandbox that does
// nothing for it: the denied one is of no more use to it, the other is.
func TestChangeEndsTCP(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	peer := make(chan net.Conn, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			peer <- c
		}
	}()
	m, denied := s.dial(netwire.TCP, l.Addr().String())
	if m.Flags != netwire.Held {
		t.Errorf("flags %d of a connection under the policy", m.Flags)
	}
	id := s.next
	_, kept := s.dial(netwire.TCP, echoServer(t))
	far := <-peer
	defer far.Close()

	keep := netip.MustParseAddrPort(l.Addr().String()).Port()
	ended := s.b.SetPolicy(mustPolicy(t, deny("127.0.0.1/32", api.PortRange{First: keep, Last: keep}), loopbackRule))
	if ended != 1 {
		t.Errorf("%d connections ended, want 1", ended)
	}
	if m, _ := s.receive(); m.Kind != netwire.Ended || m.ID != id || m.Protocol != netwire.TCP {
		t.Errorf("%+v, want word that connection %d has ended", m, id)
	}
	if _, err := denied.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write to an ended connection: %v", err)
	}
	if n, err := denied.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read from an ended connection: %d, %v", n, err)
	}
	_ = far.SetDeadline(time.Now().Add(time.Minute))
	if n, err := far.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the host's end: %d, %v", n, err)
	}
	// What the peer sends now is refused by the host's kernel.
	eventually(t, "a reset for a peer that goes on", func() bool { _, err := far.Write([]byte("more")); return err != nil })
	if n, _ := denied.Read(make([]byte, 8)); n != 0 {
		t.Error("an ended connection still receives")
	}
	buf := make([]byte, 5)
	_, _ = kept.WriteString("hello")
	if _, err := io.ReadFull(kept, buf); err != nil || string(buf) != "hello" {
		t.Errorf("the allowed connection: %q, %v", buf, err)
	}
	if list := s.b.Connections(); len(list) != 1 || list[0].By.Name != "te?st" {
		t.Errorf("connections: %+v", list)
	}
	if len(s.seen) != 1 || !s.seen[0].Ended || !strings.Contains(s.seen[0].String(), "process te?st[7]") {
		t.Errorf("denials: %v", s.seen)
	}
}

// TestChangeEndsUDP is the same for datagrams, which have no end of their own.
func TestChangeEndsUDP(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	_ = pc.SetDeadline(time.Now().Add(time.Minute))
	_, f := s.dial(netwire.UDP, pc.LocalAddr().String())
	_, _ = f.WriteString("ping")
	buf := make([]byte, 16)
	_, from, err := pc.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.b.SetPolicy(mustPolicy(t)); n != 1 {
		t.Errorf("%d ended", n)
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("an ended socket still sends")
	}
	_, _ = pc.WriteTo([]byte("late"), from)
	_ = f.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if n, _ := f.Read(buf); n != 0 {
		t.Errorf("an ended socket still receives: %q", buf[:n])
	}
}

// TestClosedGivesBack: a connection ends when the sandbox has closed its side
// and said so, and then nothing is left of it; a reset stays a reset.
func TestClosedGivesBack(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	result := make(chan error, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, err = c.Read(make([]byte, 1))
			result <- err
			c.Close()
		}
	}()
	for _, want := range []error{io.EOF, unix.ECONNRESET} {
		_, f := s.dial(netwire.TCP, l.Addr().String())
		if want == unix.ECONNRESET {
			raw, _ := f.SyscallConn()
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			})
		}
		f.Close()
		for _, r := range []netwire.Request{
			{Ask: netwire.Closed, Protocol: netwire.UDP, ID: s.next}, // Not this one.
			{Ask: netwire.Closed, Protocol: netwire.TCP, ID: s.next + 1000},
			{Ask: netwire.Closed, Protocol: netwire.TCP, ID: s.next},
			{Ask: netwire.Closed, Protocol: netwire.TCP, ID: s.next}, // Again.
		} {
			s.write(r.Append(nil))
		}
		if err := <-result; !errors.Is(err, want) {
			t.Errorf("the peer got %v, want %v", err, want)
		}
	}
	eventually(t, "no connections", func() bool { return len(s.b.Connections()) == 0 })
}

// TestSharedPacket: the requests of a packet are handled one after the other: what
// is given back makes room for what is asked for behind it.
func TestSharedPacket(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.flows.most = 1
	s.b.Start()
	server := echoServer(t)
	if m, _ := s.dial(netwire.TCP, server); m.Result != netwire.OK {
		t.Fatal(m.Result)
	}
	first := s.next
	s.next += 2
	ask := netwire.Request{Ask: netwire.Connect, Protocol: netwire.TCP, To: netip.MustParseAddrPort(server), From: netip.MustParseAddrPort("10.0.2.15:40000")}
	var packet []byte
	for i := range uint32(netwire.MaxRequests - 2) { // Of nobody.
		packet = (&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: 1000 + i}).Append(packet)
	}
	packet = (&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: first}).Append(packet)
	ask.ID = first + 1
	s.write(ask.Append(packet))
	if m, f := s.receive(); m.ID != ask.ID || m.Result != netwire.OK || f == nil {
		t.Errorf("behind what was given back: %+v, descriptor %v", m, f)
	}
	ask.ID = first + 2
	s.write((&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: first + 1}).Append(ask.Append(nil)))
	if m, _ := s.receive(); m.ID != ask.ID || m.Result != netwire.Busy {
		t.Errorf("before what is given back: %+v, want that there is no room", m)
	}
	eventually(t, "no connections", func() bool { return len(s.b.Connections()) == 0 })
}

// TestGivenBackTooSoon: a connection that is given back before it has been sent
// is closed after that, so that its number is nobody else's meanwhile.
func TestGivenBackTooSoon(t *testing.T) {
	for name, giveBack := range map[string]func(*flows){
		"by the sandbox": func(fds *flows) { fds.remove(1, netwire.TCP) }, "at the end": (*flows).closeAll,
	} {
		fds, err := newFlows()
		if err != nil {
			t.Fatal(err)
		}
		near, far, err := socketpair(unix.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		fd, err := unix.Dup(int(far.Fd()))
		far.Close()
		if err != nil {
			t.Fatal(err)
		}
		f := &flow{fd: fd, protocol: netwire.TCP}
		if result := fds.add(1, f, func() bool { return true }); result != netwire.OK {
			t.Fatal(result)
		}
		giveBack(fds)
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Errorf("%s: closed while it is sent: %v", name, err)
		}
		fds.handed(f)
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s: still open after it was sent", name)
		}
	}
}

// TestFlowLimits: a sandbox that gives nothing back gets no more than its share,
// nor two connections by one id.
func TestFlowLimits(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	limit := func(n int) {
		s.b.flows.mu.Lock()
		defer s.b.flows.mu.Unlock()
		s.b.flows.most = n
	}
	limit(3)
	s.b.Start()
	server := echoServer(t)
	for range 3 {
		if m, _ := s.dial(netwire.TCP, server); m.Result != netwire.OK {
			t.Fatal(m)
		}
	}
	if m, _ := s.dial(netwire.TCP, server); m.Result != netwire.Busy {
		t.Errorf("%s beyond the limit", m.Result)
	}
	limit(10)
	s.next--
	s.next--
	if m, _ := s.dial(netwire.TCP, server); m.Result != netwire.Failed {
		t.Errorf("%s for an id in use", m.Result)
	}
	if n := len(s.b.Connections()); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
	if err := s.b.Close(); err != nil {
		t.Error(err)
	}
	if n := len(s.b.flows.open); n != 0 {
		t.Errorf("%d connections after the end", n)
	}
}

// dnsServer answers any question for an address with an alias and one record.
func dnsServer(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 1024)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			alias := dnsmessage.MustNewName("Alias.CDN.test.")
			m.Response = true
			m.Answers = []dnsmessage.Resource{
				{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 5}, Body: &dnsmessage.CNAMEResource{CNAME: alias}},
				{Header: dnsmessage.ResourceHeader{Name: alias, Class: dnsmessage.ClassINET, TTL: 5}, Body: &dnsmessage.AResource{A: addr.As4()}},
				{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("other.test."), Class: dnsmessage.ClassINET, TTL: 5}, Body: &dnsmessage.AResource{A: [4]byte{203, 0, 113, 9}}},
			}
			out, err := m.Pack()
			if err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// TestDomains resolves an allowed name and one that is not, and finds the
// address of the first allowed for as long as its answer holds.
func TestDomains(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.80")
	s := newSandbox(t, Options{
		Servers: []netip.AddrPort{dnsServer(t, addr)},
		Hosts:   map[string][]netip.Addr{"db.allowed.test": {netip.MustParseAddr("192.0.2.9")}},
	}, domain("*.allowed.test"))
	now := time.Now()
	s.b.learned.clock = func() time.Time { return now }
	s.b.Start()
	ask := func(name string) (rcode byte) {
		t.Helper()
		_, f := s.dial(netwire.UDP, "10.0.2.3:53")
		defer f.Close()
		_, _ = f.Write(query(3, name, typeA))
		buf := make([]byte, 512)
		n, err := f.Read(buf)
		if err != nil || n < dnsHeaderBytes {
			t.Fatal(n, err)
		}
		return buf[3] & 0xf
	}
	allowed := func(a netip.Addr) bool { ok, _ := s.b.allows(&flow{to: netip.AddrPortFrom(a, 443)}); return ok }
	if allowed(addr) {
		t.Error("an address is allowed before anybody asked for its name")
	}
	if rcode := ask("www.other.test"); rcode != rcodeRefused || allowed(addr) {
		t.Errorf("a name that is not allowed: rcode %d, its address allowed: %t", rcode, allowed(addr))
	}
	if len(s.seen) != 1 || s.seen[0].Target() != "name www.other.test" || s.seen[0].By.PID != 7 {
		t.Errorf("denials: %v", s.seen)
	}
	if rcode := ask("WWW.allowed.test"); rcode != 0 || !allowed(addr) {
		t.Errorf("an allowed name: rcode %d, its address allowed: %t", rcode, allowed(addr))
	}
	if allowed(netip.MustParseAddr("203.0.113.9")) {
		t.Error("an address of a name that was not asked for is allowed")
	}
	if !allowed(netip.MustParseAddr("192.0.2.9")) {
		t.Error("an address that the list of hosts has for an allowed name is denied")
	}
	now = now.Add(minLearnedTTL + time.Second)
	if allowed(addr) {
		t.Error("an address is allowed after its answer has ended")
	}
	if allowed(netip.MustParseAddr("203.0.113.9")) {
		t.Error("an address nobody resolved is allowed")
	}
}

// TestLearnedWithoutDisguise: an address is learnt as what it is judged as, so
// that a host behind NAT64 is reached by its name.
func TestLearnedWithoutDisguise(t *testing.T) {
	l := newLearned(nil)
	l.add(netip.MustParseAddr("64:ff9b::c000:250"), "a.test", 0)
	for _, a := range []string{"64:ff9b::c000:250", "192.0.2.80"} {
		if names := l.names(netip.MustParseAddr(a)); len(names) != 1 {
			t.Errorf("%s has the names %v", a, names)
		}
	}
}

// TestChangeKeepsNames: what was reached by a name outlives the answer that had
// its address, and a change of policy under which the name is allowed.
func TestChangeKeepsNames(t *testing.T) {
	server := netip.MustParseAddrPort(echoServer(t))
	s := newSandbox(t, Options{}, loopbackRule)
	var later atomic.Int64
	s.b.learned.clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	s.b.learned.add(server.Addr(), "db.test", 0)
	s.b.Start()
	_, f := s.dial(netwire.TCP, server.String())
	later.Store(int64(minLearnedTTL + time.Second))
	list := s.b.flows.list()
	if f == nil || len(list) != 1 {
		t.Fatalf("connections: %+v", list)
	}
	// A name never opens the loopback: ask about an address that it does.
	list[0].to = netip.MustParseAddrPort("192.0.2.80:443")
	s.b.policy.Store(mustPolicy(t, domain("*.test")))
	if allowed, why := s.b.allows(&list[0]); !allowed {
		t.Error(why)
	}
	s.b.policy.Store(mustPolicy(t, domain("other.test")))
	if allowed, _ := s.b.allows(&list[0]); allowed {
		t.Error("allowed by a name that it does not have")
	}
	if c := s.b.Connections(); len(c) != 1 || len(c[0].Names) != 1 || c[0].Names[0] != "db.test" {
		t.Errorf("connections: %+v", c)
	}
}

// TestLearnedIsBounded: a guest that asks for everything fills no memory, and
// its latest answer counts.
func TestLearnedIsBounded(t *testing.T) {
	l := newLearned(nil)
	last := netip.Addr{}
	for i := range 3 * maxLearned {
		last = netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
		l.add(last, "a.test", 0)
		l.add(netip.MustParseAddr("198.51.100.1"), fmt.Sprint(i), time.Hour)
	}
	pairs := 0
	for _, names := range l.ends {
		pairs += len(names)
	}
	if pairs != l.count || l.count > maxLearned {
		t.Errorf("%d pairs, %d counted, want at most %d", pairs, l.count, maxLearned)
	}
	if n := len(l.names(netip.MustParseAddr("198.51.100.1"))); n > maxNamesPerAddress {
		t.Errorf("%d names of one address", n)
	}
	if len(l.names(last)) != 1 {
		t.Error("the latest answer is forgotten")
	}
}

// FuzzLearn feeds servers' answers.
func FuzzLearn(f *testing.F) {
	f.Add(answerOf(query(1, "a.b", typeA), "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04\xc0\x00\x02\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newLearned(nil)
		l.learn(b, question{name: "a.b", kind: typeA, class: classIN})
		if l.count > maxAnswerRecords {
			t.Errorf("%d addresses of one answer", l.count)
		}
	})
}

// TestControl changes and shows the policy through the control socket.
func TestControl(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule, domain("a.b"))
	path := filepath.Join(t.TempDir(), "n.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.b.Control(l); err != nil {
		t.Fatal(err)
	}
	s.b.Start()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	client := networkv1.NewNetworkClient(c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	_, f := s.dial(netwire.TCP, echoServer(t))
	if f == nil {
		t.Fatal("not connected")
	}
	if list, err := client.Connections(ctx, &networkv1.ConnectionsRequest{}); err != nil || len(list.Connections) != 1 || list.Connections[0].Process.Pid != 7 {
		t.Errorf("%v, %v", list, err)
	}
	added, err := client.SetPolicy(ctx, &networkv1.SetPolicyRequest{Rules: []string{"allow", "allow-domain=*.c.d:443"}, Add: true})
	if err != nil || added.Ended != 0 || strings.Join(added.Rules, " ") != "allow allow-domain=*.c.d:443 allow=127.0.0.1/32 allow-domain=a.b" {
		t.Errorf("%v, %v", added, err)
	}
	if _, err := client.SetPolicy(ctx, &networkv1.SetPolicyRequest{Rules: []string{"allow=x"}}); err == nil || !strings.Contains(err.Error(), "neither an address nor a network") {
		t.Errorf("a bad rule: %v", err)
	}
	set, err := client.SetPolicy(ctx, &networkv1.SetPolicyRequest{Rules: []string{"deny"}})
	if err != nil || set.Ended != 1 || strings.Join(set.Rules, " ") != "deny" {
		t.Errorf("%v, %v", set, err)
	}
	if m, _ := s.receive(); m.Kind != netwire.Ended {
		t.Errorf("%+v", m)
	}
	if m, _ := s.dial(netwire.TCP, "127.0.0.1:9"); m.Result != netwire.Denied {
		t.Errorf("%+v under the new policy", m)
	}
	denials, err := client.Denials(ctx, &networkv1.DenialsRequest{})
	if err != nil || len(denials.Denials) != 2 || !denials.Denials[0].Ended || denials.Denials[1].Target != "tcp 127.0.0.1:9" {
		t.Errorf("%v, %v", denials, err)
	}
	if err := s.b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's file after the end: %v", err)
	}
}
