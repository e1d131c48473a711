// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
)

// sandbox plays the sandbox's end of a broker's channel.
type sandbox struct {
	t    *testing.T
	b    *Broker
	fd   int
	next uint32
	mu   sync.Mutex
	seen []Denial
}

// loopbackRule lets tests reach their own servers.
var loopbackRule = allow("127.0.0.1/32")

func newSandbox(t *testing.T, o Options, rules ...api.EgressRule) *sandbox {
	t.Helper()
	s := &sandbox{t: t}
	var err error
	if o.Policy, err = NewPolicy(rules); err != nil {
		t.Fatal(err)
	}
	o.Denied = func(d Denial) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, d)
	}
	if s.b, err = New(o); err != nil {
		t.Fatal(err)
	}
	if s.fd, err = unix.Dup(int(s.b.File().Fd())); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(s.fd, false); err != nil {
		t.Fatal(err)
	}
	s.b.Donated()
	t.Cleanup(func() {
		unix.Close(s.fd)
		if err := s.b.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *sandbox) write(packet []byte) {
	s.t.Helper()
	if _, err := unix.Write(s.fd, packet); err != nil {
		s.t.Fatal(err)
	}
}

// receive returns the next message and its descriptor as a file, or nil.
func (s *sandbox) receive() (netwire.Message, *os.File) {
	s.t.Helper()
	buf, oob := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(s.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := netwire.ParseMessage(buf[:n])
	if err != nil {
		s.t.Fatalf("broker sent %x", buf[:n])
	}
	if oobn == 0 {
		return m, nil
	}
	list, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		s.t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		s.t.Fatal(err, fds)
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	s.t.Cleanup(func() { f.Close() })
	_ = f.SetDeadline(time.Now().Add(time.Minute))
	return m, f
}

// dial asks for one connection and waits for the answer to it.
func (s *sandbox) dial(protocol netwire.Protocol, to string) (netwire.Message, *os.File) {
	s.t.Helper()
	s.next++
	r := netwire.Request{Ask: netwire.Connect, Protocol: protocol, ID: s.next, By: netwire.Process{PID: 7, Name: "te\x1bst"}, To: netip.MustParseAddrPort(to), From: netip.MustParseAddrPort("10.0.2.15:40000")}
	s.write(r.Append(nil))
	m, f := s.receive()
	if m.Kind != netwire.Answer || m.ID != r.ID || m.Protocol != protocol || (m.Result == netwire.OK) != (f != nil) {
		s.t.Fatalf("%s %s: answered with %+v, descriptor %v", protocol, to, m, f)
	}
	return m, f
}

// echoServer returns the address of a TCP server that sends back what it gets.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestDialTCP(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	_, port, _ := net.SplitHostPort(echoServer(t))
	for _, host := range []string{"127.0.0.1", "10.0.2.2"} {
		_, f := s.dial(netwire.TCP, net.JoinHostPort(host, port))
		if f == nil {
			t.Fatal("no connection to", host)
		}
		if _, err := f.WriteString("hello"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(f, buf); err != nil || string(buf) != "hello" {
			t.Errorf("%s: %q, %v", host, buf, err)
		}
	}
}

func TestDialResults(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule, deny("192.0.2.0/24"))
	s.b.Start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := l.Addr().String()
	l.Close()
	for to, want := range map[string]netwire.Result{
		unused:               netwire.Refused,
		"169.254.169.254:80": netwire.Denied,
		"127.0.0.2:80":       netwire.Denied,
		"192.0.2.1:443":      netwire.Denied,
		"10.0.2.77:80":       netwire.HostUnreachable,
		"10.0.2.3:80":        netwire.Refused,
		"[::1]:80":           netwire.Denied,
	} {
		if m, _ := s.dial(netwire.TCP, to); m.Result != want {
			t.Errorf("%s: %s, want %s", to, m.Result, want)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) != 4 || !strings.Contains(s.seen[0].String(), "egress denied: tcp ") {
		t.Errorf("denials reported: %v", s.seen)
	}
}

func TestDialUDP(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	m, f := s.dial(netwire.UDP, pc.LocalAddr().String())
	if f == nil || m.Flags != netwire.Held {
		t.Fatalf("%+v", m)
	}
	if _, err := f.WriteString("ping"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, from, err := pc.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "ping" {
		t.Fatal(err)
	}
	_, _ = pc.WriteTo([]byte("pong"), from)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != "pong" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func TestNameServer(t *testing.T) {
	server := startServer(t, "payload")
	s := newSandbox(t, Options{Servers: []netip.AddrPort{server}, Hosts: map[string][]netip.Addr{"db": {netip.MustParseAddr("192.0.2.9")}}})
	s.b.Start()
	m, f := s.dial(netwire.UDP, "10.0.2.3:53")
	if m.Flags != netwire.EndsEmpty {
		t.Errorf("flags %d", m.Flags)
	}
	q := query(3, "example.org", typeA)
	_, _ = f.Write(q)
	buf := make([]byte, 512)
	if n, err := f.Read(buf); err != nil || !bytes.Equal(buf[:n], answerOf(q, "payload")) {
		t.Errorf("%x, %v", buf[:n], err)
	}
	_, stream := s.dial(netwire.TCP, "10.0.2.3:53")
	_ = writeFramed(stream, query(4, "db", typeA))
	if got, err := readFramed(stream); err != nil || !bytes.HasSuffix(got, []byte{192, 0, 2, 9}) {
		t.Errorf("%x, %v", got, err)
	}
}

// TestGarbage plays a sandbox that was taken over.
func TestGarbage(t *testing.T) {
	closed := (&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: 1}).Append(nil)
	for name, packet := range map[string][]byte{
		"short": {1}, "long": make([]byte, 4096), "zeros": make([]byte, netwire.RequestBytes),
		"one and a half":         bytes.Repeat(closed, 2)[:netwire.RequestBytes*3/2],
		"one and zeros":          append(bytes.Clone(closed), make([]byte, netwire.RequestBytes)...),
		"more than there may be": bytes.Repeat(closed, netwire.MaxRequests+1),
	} {
		var warned []string
		s := newSandbox(t, Options{Warn: func(f string, a ...any) { warned = append(warned, f) }})
		s.b.Start()
		s.write(packet)
		buf := make([]byte, 64)
		if n, err := unix.Read(s.fd, buf); n != 0 || err != nil {
			t.Errorf("%s: %d, %v, want that the broker hangs up", name, n, err)
		}
		s.b.tasks.Wait()
		if len(warned) != 1 {
			t.Errorf("%s: warned %q", name, warned)
		}
	}
}

// TestDeafSandbox floods the broker and reads no answer: it must neither hang
// nor grow, and Close must end it.
func TestDeafSandbox(t *testing.T) {
	s := newSandbox(t, Options{})
	s.b.Start()
	if err := unix.SetNonblock(s.fd, true); err != nil {
		t.Fatal(err)
	}
	r := netwire.Request{Ask: netwire.Connect, Protocol: netwire.TCP, To: netip.MustParseAddrPort("127.0.0.1:1"), From: netip.MustParseAddrPort("10.0.2.15:1")}
	packet := r.Append(nil)
	full := 0
	for full < 20 {
		if _, err := unix.Write(s.fd, packet); errors.Is(err, unix.EAGAIN) {
			full++
			time.Sleep(time.Millisecond)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.b.slots); n > maxAttempts {
		t.Errorf("%d attempts", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 || len(s.seen) > 10*denialsPerWindow {
		t.Errorf("%d denials reported", len(s.seen))
	}
}

func TestPublishTCP(t *testing.T) {
	s := newSandbox(t, Options{})
	path := filepath.Join(t.TempDir(), "s.sock")
	// A socket that nobody listens on any more.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	bound, err := s.b.Publish([]api.Port{
		{HostIP: loopback, GuestPort: 80, Transport: api.TCP},
		{Path: path, GuestPort: 2375, Transport: api.TCP},
	})
	if err != nil || bound[0].HostPort == 0 {
		t.Fatal(bound, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", st, err)
	}
	s.b.Start()
	for i, network := range []string{"tcp", "unix"} {
		address := bound[i].Path
		if network == "tcp" {
			address = bound[i].Host()
		}
		client, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		m, f := s.receive()
		if m.Kind != netwire.Inbound || m.Port != bound[i].GuestPort || f == nil {
			t.Fatalf("%+v, %v", m, f)
		}
		_, _ = f.WriteString("served")
		f.Close()
		if got, err := io.ReadAll(client); err != nil || string(got) != "served" {
			t.Errorf("%s: %q, %v", network, got, err)
		}
		client.Close()
	}
	// What is in use is refused, and not harmed.
	other, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []api.Port{bound[0], bound[1], {Path: file, GuestPort: 1, Transport: api.TCP}} {
		if _, err := other.Publish([]api.Port{p}); api.KindOf(err) != api.KindExists {
			t.Errorf("%s a second time: %v", p.Host(), err)
		}
	}
	if err := s.b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket file after the end: %v", err)
	}
	s.b.ports = nil // Closed; the cleanup closes again.
}

func TestPublishUDP(t *testing.T) {
	s := newSandbox(t, Options{})
	bound, err := s.b.Publish([]api.Port{{HostIP: loopback, GuestPort: 53, Transport: api.UDP}})
	if err != nil {
		t.Fatal(err)
	}
	s.b.Start()
	for range 2 {
		client, err := net.Dial("udp", bound[0].Host())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Write([]byte("question"))
		m, f := s.receive()
		if m.Protocol != netwire.UDP || m.Flags != netwire.EndsEmpty || m.Port != 53 {
			t.Fatalf("%+v", m)
		}
		buf := make([]byte, 64)
		if n, err := f.Read(buf); err != nil || string(buf[:n]) != "question" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		_, _ = f.WriteString("answer")
		if n, err := client.Read(buf); err != nil || string(buf[:n]) != "answer" {
			t.Errorf("%q, %v", buf[:n], err)
		}
		client.Close()
	}
}

func TestResultOf(t *testing.T) {
	for err, want := range map[error]netwire.Result{
		&net.OpError{Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}: netwire.Refused,
		&net.OpError{Err: os.NewSyscallError("connect", unix.ENETUNREACH)}:  netwire.NetUnreachable,
		&net.OpError{Err: os.NewSyscallError("connect", unix.EHOSTUNREACH)}: netwire.HostUnreachable,
		&net.OpError{Err: os.ErrDeadlineExceeded}:                           netwire.TimedOut,
		context.Canceled: netwire.Failed,
	} {
		if got := resultOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
