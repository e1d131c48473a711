// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// query makes a query for a name.
func query(id uint16, name string, kind uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	for _, label := range strings.Split(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, kind)
	return binary.BigEndian.AppendUint16(b, classIN)
}

// answerOf is a server's answer: the query again, marked, and a payload.
func answerOf(query []byte, payload string) []byte {
	out := append([]byte(nil), query...)
	out[2] |= 0x80
	return append(out, payload...)
}

// samePort listens on one loopback port for both transports.
func samePort(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		// Somebody may have it for TCP.
		if l, err := net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			t.Cleanup(func() { pc.Close(); l.Close() })
			return pc, l
		}
		pc.Close()
	}
	t.Fatal("no port is free for both transports")
	return nil, nil
}

// startServer runs a name server for both transports on a loopback port. Its
// UDP side sends garbage before each answer.
func startServer(t *testing.T, payload string) netip.AddrPort {
	t.Helper()
	pc, l := samePort(t)
	go func() {
		buf := make([]byte, maxMessageBytes)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			wrong := answerOf(buf[:n], "forged")
			wrong[0]++
			for _, msg := range [][]byte{{}, wrong, buf[:n], answerOf(buf[:n], payload)} {
				_, _ = pc.WriteTo(msg, from)
			}
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			msg, err := readFramed(c)
			if err == nil {
				_ = writeFramed(c, answerOf(msg, payload))
			}
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// newTestResolver forwards what its switch says, and learns nothing.
func newTestResolver(h hosts, servers []netip.AddrPort, forward *bool) *resolver {
	return newResolver(h, servers, func(string) bool { return *forward }, func([]byte, question) {})
}

// nobodyRefused is for queries whose refusal is seen in the answer.
func nobodyRefused(string) {}

func TestResolve(t *testing.T) {
	// Nobody listens on the first server's port: the second is asked.
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deadServer := netip.MustParseAddrPort(dead.LocalAddr().String())
	dead.Close()
	large := strings.Repeat("x", 40000)
	forward := true
	r := newTestResolver(nil, []netip.AddrPort{deadServer, startServer(t, large)}, &forward)
	for name, ask := range map[string]exchange{"udp": askUDP, "tcp": askTCP} {
		q := query(77, "Example.org", typeA)
		if got := r.resolve(context.Background(), q, ask, nobodyRefused); !bytes.Equal(got, answerOf(q, large)) {
			t.Errorf("%s: %d bytes, want the server's answer", name, len(got))
		}
	}
	r.upstream.fixed = []netip.AddrPort{deadServer}
	if got := r.resolve(context.Background(), query(1, "example.org", typeA), askUDP, nobodyRefused); len(got) < 4 || got[3]&0xf != rcodeServerFailure {
		t.Errorf("no server: %x, want a server failure", got)
	}
	forward = false
	if got := r.resolve(context.Background(), query(1, "example.org", typeA), askUDP, nobodyRefused); len(got) < 4 || got[3]&0xf != rcodeRefused {
		t.Errorf("not forwarded: %x, want refused", got)
	}
}

func TestHosts(t *testing.T) {
	h := hosts{"db.local": {netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("2001:db8::7")}}
	r := newTestResolver(h, nil, new(bool))
	got := r.resolve(context.Background(), query(5, "DB.local", typeA), askUDP, nobodyRefused)
	if n := binary.BigEndian.Uint16(got[6:]); n != 2 || !bytes.HasSuffix(got, []byte{192, 0, 2, 8}) {
		t.Errorf("A: %d answers in %x", n, got)
	}
	got = r.resolve(context.Background(), query(5, "db.local", typeAAAA), askUDP, nobodyRefused)
	if n := binary.BigEndian.Uint16(got[6:]); n != 1 || got[3]&0xf != 0 {
		t.Errorf("AAAA: %d answers in %x", n, got)
	}
	got = r.resolve(context.Background(), query(5, "db.local", 16), askUDP, nobodyRefused)
	if n := binary.BigEndian.Uint16(got[6:]); n != 0 || got[3]&0xf != 0 {
		t.Errorf("TXT: %d answers in %x, want none and no error", n, got)
	}
}

func TestServeStream(t *testing.T) {
	r := newTestResolver(hosts{"a.b": {netip.MustParseAddr("192.0.2.7")}}, nil, new(bool))
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() { r.serveStream(context.Background(), far, nobodyRefused); close(done) }()
	for id := range uint16(3) {
		if err := writeFramed(near, query(id, "a.b", typeA)); err != nil {
			t.Fatal(err)
		}
		if got, err := readFramed(near); err != nil || binary.BigEndian.Uint16(got) != id {
			t.Fatalf("query %d: %x, %v", id, got, err)
		}
	}
	if err := writeFramed(near, []byte("GET / HTTP/1.0")); err != nil {
		t.Fatal(err)
	}
	<-done // What is not DNS ends the stream.
	if len(r.slots) != 0 {
		t.Errorf("%d slots are taken at the end", len(r.slots))
	}
}

func TestParseResolv(t *testing.T) {
	r := parseResolv("# c\nnameserver 192.0.2.1\nnameserver bad\nnameserver fe80::1%eth0\nsearch a b\noptions x\nnameserver 127.0.0.53\nnameserver 192.0.2.4\n; end\nsearch corp.example\n")
	if len(r.Servers) != maxServers || r.Servers[2].String() != "127.0.0.53:53" || strings.Join(r.Search, " ") != "corp.example" {
		t.Errorf("%+v", r)
	}
}

// TestQuestionNames: only what is one name to every server has the form of that
// name; the rest is covered by no rule.
func TestQuestionNames(t *testing.T) {
	ask := func(labels ...string) []byte {
		b := query(1, "", typeA)[:dnsHeaderBytes]
		for _, label := range labels {
			b = append(append(b, byte(len(label))), label...)
		}
		return append(b, 0, 0, typeA, 0, classIN)
	}
	p := mustPolicy(t, domain("*.example.org"), domain("kernel.org"))
	for _, c := range []struct {
		labels  []string
		want    string
		allowed bool
	}{
		{[]string{"a", "Example", "ORG"}, "a.example.org", true},
		{[]string{"_x-1", "example", "org"}, "_x-1.example.org", true},
		{[]string{"a.example", "org"}, `a\046example.org`, false},
		{[]string{"a.example.org"}, `a\046example\046org`, false},
		{[]string{"evil.test\x00", "example", "org"}, `evil\046test\000.example.org`, false},
		{[]string{"\u212aernel", "org"}, `\226\132\170ernel.org`, false}, // The sign for kelvin, in lower case k.
		{[]string{`a\`, "example", "org"}, `a\092.example.org`, false},
	} {
		q, ok := parseQuestion(ask(c.labels...))
		if !ok || q.name != c.want || p.Resolves(q.name) != c.allowed {
			t.Errorf("%q: %t, %s, allowed %t", c.labels, ok, q.name, p.Resolves(q.name))
		}
	}
	long := []string{strings.Repeat("a", 63), strings.Repeat("b", 63), strings.Repeat("c", 63), strings.Repeat("d", 61)}
	if q, ok := parseQuestion(ask(long...)); !ok || len(q.name) != 253 {
		t.Errorf("the longest name: %t, %d bytes", ok, len(q.name))
	}
	long[3] += "d"
	if q, ok := parseQuestion(ask(long...)); ok {
		t.Errorf("a name of %d bytes", len(q.name))
	}
}

// FuzzQuestion feeds guests' queries; what is accepted can be answered.
func FuzzQuestion(f *testing.F) {
	f.Add(query(1, "example.org", typeA))
	f.Add(query(1, "a.b", typeAAAA))
	h := hosts{"a.b": {netip.MustParseAddr("192.0.2.7")}}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, ok := parseQuestion(b)
		if !ok {
			return
		}
		for _, answer := range [][]byte{refusal(b, q, rcodeRefused), h.answer(b, q)} {
			if answer != nil && !answers(answer, b, q) {
				t.Errorf("%x: %x is no answer", b, answer)
			}
		}
	})
}
