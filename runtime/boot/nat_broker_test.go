// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// TestGivenBackTogether: connections that have ended are given back with the next
// request, or when there are many, or soon; those of which a peer learns, at once.
func TestGivenBackTogether(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(natTimeout / time.Second)}); err != nil {
		t.Fatal(err)
	}
	c, err := newBrokerClient(fds[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.file.Close()
	c.delay = time.Hour // Soon is when this test says so.
	packet := func() (list []netwire.Request) {
		t.Helper()
		buf := make([]byte, netwire.MaxRequests*netwire.RequestBytes+1)
		n, err := unix.Read(fds[0], buf)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < n; at += netwire.RequestBytes {
			r, err := netwire.ParseRequest(buf[at:min(at+netwire.RequestBytes, n)])
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, r)
		}
		return list
	}
	held := func(id uint32) *hostConn {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(pair[1]) })
		conn, err := c.newHostConn(pair[0], netwire.Message{Protocol: netwire.TCP, ID: id, Flags: netwire.Held})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	held(100).close()
	go c.dial(netwire.TCP, netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("10.0.2.15:40000"), netwire.Process{})
	if list := packet(); len(list) != 2 || list[0].Ask != netwire.Closed || list[0].ID != 100 || list[1].Ask != netwire.Connect {
		t.Errorf("a request and what has ended before it: %v", list)
	}
	for id := range uint32(netwire.MaxRequests - 1) {
		held(200 + id).close()
	}
	if list := packet(); len(list) != netwire.MaxRequests-1 {
		t.Errorf("many: %v", list)
	}
	held(300).close()
	held(301).reset()
	if list := packet(); len(list) != 1 || list[0].ID != 301 {
		t.Errorf("a reset: %v", list)
	}
	c.delay = 0
	c.giveBack.Reset(c.delay)
	if list := packet(); len(list) != 1 || list[0].ID != 300 {
		t.Errorf("alone: %v", list)
	}
	held(302).close()
	if list := packet(); len(list) != 1 || list[0].ID != 302 {
		t.Errorf("alone, by itself: %v", list)
	}
}
