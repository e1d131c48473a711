// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// busyServer is a server of this host that takes no more clients: an attempt to
// connect waits until serve lets them in.
func busyServer(t *testing.T) (address string, serve func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	// Those who fill its queue.
	for range 8 {
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(client) })
		if err := unix.Connect(client, at); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
		if over, err := connected(client); err != nil {
			t.Fatal(err)
		} else if !over {
			port := uint16(at.(*unix.SockaddrInet4).Port)
			return netip.AddrPortFrom(loopback, port).String(), func() {
				go func() {
					for {
						conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
						if err != nil {
							return
						}
						defer unix.Close(conn)
					}
				}()
				t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
			}
		}
	}
	t.Fatal("a listener with a queue for one takes eight clients")
	return "", nil
}

// request asks for a TCP connection, and does not wait for the answer.
func (s *sandbox) request(to string) (id uint32) {
	s.t.Helper()
	s.next++
	r := netwire.Request{Ask: netwire.Connect, Protocol: netwire.TCP, ID: s.next, To: netip.MustParseAddrPort(to), From: netip.MustParseAddrPort("10.0.2.15:40000")}
	s.write(r.Append(nil))
	return s.next
}

// TestSlowHoldsUpNobody: a server that is long in answering is waited for beside
// the service of other requests, and its connection is handed over in the end.
func TestSlowHoldsUpNobody(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	address, serve := busyServer(t)
	slow := s.request(address)
	for range 3 {
		if m, _ := s.dial(netwire.TCP, echoServer(t)); m.Result != netwire.OK {
			t.Fatalf("beside a slow one: %v", m.Result)
		}
	}
	serve()
	if m, f := s.receive(); m.ID != slow || m.Result != netwire.OK || f == nil {
		t.Errorf("the slow one is answered with %+v, descriptor %v", m, f)
	}
	eventually(t, "no attempt is under way", func() bool { return len(s.b.slots) == 0 })
}

// TestSlowLogHoldsUpNobody: whoever is told of denials may take its time.
func TestSlowLogHoldsUpNobody(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	s.mu.Lock() // The log's.
	denied := s.request("169.254.169.254:80")
	m, _ := s.dial(netwire.TCP, echoServer(t))
	s.mu.Unlock()
	if m.Result != netwire.OK {
		t.Errorf("beside a denial: %v", m.Result)
	}
	if m, _ := s.receive(); m.ID != denied || m.Result != netwire.Denied {
		t.Errorf("the denied one is answered with %+v", m)
	}
}

// TestDeniedMeanwhileIsUnderWay: an attempt that a change of policy denies counts as
// one until that is told, which bounds how many wait for the log.
func TestDeniedMeanwhileIsUnderWay(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	address, serve := busyServer(t)
	slow := s.request(address)
	eventually(t, "an attempt is under way", func() bool { return len(s.b.slots) == 1 })
	s.mu.Lock() // The log's.
	s.b.SetPolicy(mustPolicy(t))
	serve()
	eventually(t, "the change is noticed", func() bool { kept, _ := s.b.Denials(); return len(kept) == 1 })
	for range 10 {
		if n := len(s.b.slots); n != 1 {
			t.Errorf("%d attempts are under way while one is told to be denied", n)
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.mu.Unlock()
	if m, _ := s.receive(); m.ID != slow || m.Result != netwire.Denied {
		t.Errorf("it is answered with %+v", m)
	}
	eventually(t, "no attempt is under way", func() bool { return len(s.b.slots) == 0 })
}

// TestConnected: an attempt is over when it has succeeded and when it has failed,
// and not before.
func TestConnected(t *testing.T) {
	dial := func(to string) int {
		t.Helper()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		a := netip.MustParseAddrPort(to)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}); err != nil && err != unix.EINPROGRESS && err != unix.ECONNREFUSED {
			t.Fatal(err)
		}
		return fd
	}
	if over, err := connected(dial(echoServer(t))); !over || err != nil {
		t.Errorf("to a server: over %v, %v", over, err)
	}
	busy, serve := busyServer(t)
	fd := dial(busy)
	if over, err := connected(fd); over || err != nil {
		t.Errorf("to a busy server: over %v, %v", over, err)
	}
	serve()
	eventually(t, "the busy server's client is connected", func() bool {
		over, err := connected(fd)
		return over && err == nil
	})

	// A reset that comes after the handshake and before anybody looks.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd = dial(l.Addr().String())
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
	eventually(t, "the client of a server that resets it has failed", func() bool {
		over, err := connected(fd)
		return over && err == unix.ECONNRESET
	})
}
