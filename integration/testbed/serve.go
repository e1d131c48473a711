// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"net"
	"testing"
)

// ServeTCP listens on an address, in the network namespace of the caller's
// thread, until the test ends. Each client is handled by a goroutine of its own
// and its connection closed then.
func ServeTCP(t testing.TB, address string, handle func(*net.TCPConn)) net.Addr {
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
				handle(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr()
}
