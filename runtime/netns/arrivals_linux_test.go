// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// TestArrivals: what is the guest's arrives, with its address; the rest does not.
func TestArrivals(t *testing.T) {
	w := newWorld(t)
	taken, err := w.near.Take()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	listen(t, w.near, "127.0.0.11:4444")
	a, err := taken.Arrivals()
	if errors.Is(err, unix.EPERM) {
		t.Skipf("this host or user: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	go func() {
		for {
			c, to, err := a.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "for ", to)
			c.Close()
		}
	}()
	ask := func(address string) (string, error) {
		var answer []byte
		err := w.near.Do(func() error {
			c, err := net.DialTimeout("tcp", address, patience)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			answer, err = io.ReadAll(c)
			return err
		})
		return string(answer), err
	}
	for _, to := range []string{"127.0.0.1:80", "127.0.0.1:64511", "[::1]:8080", nearIP + ":22", "[" + nearIP6 + "]:443"} {
		if got, err := ask(to); err != nil || got != "for "+to {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
	// The host's own: a service on an address of its own, and ports.
	if got, err := ask("127.0.0.11:4444"); err != nil || got != "" {
		t.Errorf("the host's service: %q, %v", got, err)
	}
	for _, to := range []string{"127.0.0.11:80", fmt.Sprintf("127.0.0.1:%d", api.HostPortLast)} {
		if got, err := ask(to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
	a.Close()
	if _, _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := ask("127.0.0.1:80"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end: %v", err)
	}
}

// exhausted is a listener in a process without a free descriptor.
type exhausted struct {
	net.Listener
	asked chan struct{}
}

func (l exhausted) Accept() (net.Conn, error) {
	l.asked <- struct{}{}
	return nil, unix.EMFILE
}

// TestArrivalsWithoutDescriptors: it goes on asking, without haste, and ends.
func TestArrivalsWithoutDescriptors(t *testing.T) {
	a := &Arrivals{arrived: make(chan *net.TCPConn), closed: make(chan struct{})}
	l := exhausted{asked: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.accept(l)
	}()
	<-l.asked
	first := time.Now()
	<-l.asked
	if pause := time.Since(first); pause < acceptPause/2 {
		t.Errorf("asked again after %v", pause)
	}
	a.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("it has not ended")
	}
}
