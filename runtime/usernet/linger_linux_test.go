// SPDX-License-Identifier: Apache-2.0

// Sandboxes that have closes wait.

package usernet

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// TestLingeringHoldsUpNobody: a sandbox that has a connection's close wait for a peer
// which takes nothing holds up neither its own requests nor who changes the policy,
// nor the broker's end. A reset stays one.
func TestLingeringHoldsUpNobody(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	s.b.Start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// connect returns a connection whose peer takes nothing more, and that peer.
	connect := func(seconds int32) (*os.File, net.Conn) {
		t.Helper()
		_, f := s.dial(netwire.TCP, l.Addr().String())
		peer, err := l.Accept()
		if f == nil || err != nil {
			t.Fatal(f, err)
		}
		t.Cleanup(func() { peer.Close() })
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			for err := error(nil); err == nil; _, err = unix.Write(int(fd), make([]byte, 1<<16)) {
			}
			if err := unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: seconds}); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return f, peer
	}
	giveBack := func(f *os.File) {
		f.Close()
		s.write((&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: s.next}).Append(nil))
	}
	done := make(chan struct{})
	const hour = 3600
	f, _ := connect(hour)
	giveBack(f)
	go func() {
		defer close(done)
		if m, _ := s.dial(netwire.TCP, echoServer(t)); m.Result != netwire.OK {
			t.Errorf("behind what lingers: %v", m.Result)
		}
		s.b.SetPolicy(mustPolicy(t, loopbackRule))
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a close that lingers holds up the broker")
	}

	f, peer := connect(0)
	giveBack(f)
	_ = peer.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, peer); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the peer of a connection that is reset: %v", err)
	}

	f, _ = connect(hour) // For the broker's end, which closes the last descriptor.
	f.Close()
}

// TestACloseThatLingersAllTheSame, since the sandbox had the last word, keeps nobody but
// the sandbox itself from anything.
func TestACloseThatLingersAllTheSame(t *testing.T) {
	s := newSandbox(t, Options{}, loopbackRule)
	lingering, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over) })
	var once sync.Once
	s.b.flows.letGo = func(fd int) {
		once.Do(func() { close(lingering) })
		<-over
		unix.Close(fd)
	}
	s.b.Start()
	server := echoServer(t)
	first, _ := s.dial(netwire.TCP, server)
	if m, _ := s.dial(netwire.TCP, server); m.Result != netwire.OK {
		t.Fatal(m.Result)
	}
	s.write((&netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: first.ID}).Append(nil))
	<-lingering
	done := make(chan error)
	go func() {
		s.b.SetPolicy(mustPolicy(t))
		if n := len(s.b.Connections()); n != 0 {
			t.Errorf("%d connections are open under a policy that denies them", n)
		}
		done <- s.b.Close()
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "linger") {
			t.Errorf("the broker's end: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it holds up the policy, or the broker's end")
	}
}
