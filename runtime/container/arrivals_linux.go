// SPDX-License-Identifier: Apache-2.0

// Connections that the host's processes in a sandbox's network namespace make to
// its guest.

package container

import (
	"net/netip"
	"os"

	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/netns"
)

// serveArrivals accepts them and hands them over to the sandbox whose sockets are in
// dir, until stop is called. Where the host has no way to accept them, there are
// none.
func serveArrivals(taken *netns.Taken, dir string, note func(format string, args ...any)) (stop func()) {
	arrivals, err := taken.Arrivals()
	if err != nil {
		note("%v", err)
		return func() {}
	}
	go func() {
		for {
			c, to, err := arrivals.Accept()
			if err != nil {
				return
			}
			f, err := c.File()
			c.Close() // The file is another descriptor of it.
			if err == nil {
				err = handOver(dir, to, f)
			}
			if err != nil {
				note("connection to %s in the guest: %v", to, err)
			}
		}
	}()
	return arrivals.Close
}

func handOver(dir string, to netip.AddrPort, f *os.File) error {
	defer f.Close()
	return sendFiles(dir, control.ArrivalID(to), []*os.File{f})
}
