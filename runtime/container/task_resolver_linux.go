// SPDX-License-Identifier: Apache-2.0

// Name servers that an engine has put into a container's network namespace.

package container

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"path"
	"strings"
)

const (
	// resolvConf is where a container's list of name servers is.
	resolvConf = "/etc/resolv.conf"
	// maxResolvConfBytes bounds what is read of it, maxResolvers how many of its
	// servers count, as in every C library.
	maxResolvConfBytes = 64 << 10
	maxResolvers       = 3
)

// loopbackResolvers are the name servers of the container's list that are on a
// loopback address: processes of the host's in the namespace, as docker's. The list
// is a file that the engine mounts.
func (t *Task) loopbackResolvers() []netip.AddrPort {
	for i := len(t.spec.Mounts) - 1; i >= 0; i-- {
		m := &t.spec.Mounts[i]
		if path.Clean(m.Destination) != resolvConf || !path.IsAbs(m.Source) {
			continue
		}
		f, err := os.Open(m.Source)
		if err != nil {
			t.note("read the container's name servers: %v", err)
			return nil
		}
		defer f.Close()
		return parseLoopbackResolvers(f)
	}
	return nil
}

// parseLoopbackResolvers reads resolv.conf(5).
func parseLoopbackResolvers(r io.Reader) []netip.AddrPort {
	var list []netip.AddrPort
	lines := bufio.NewScanner(io.LimitReader(r, maxResolvConfBytes))
	for n := 0; lines.Scan() && n < maxResolvers; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		n++
		if a, err := netip.ParseAddr(fields[1]); err == nil && a.IsLoopback() && a.Zone() == "" && !a.Is4In6() {
			list = append(list, netip.AddrPortFrom(a, resolverPort))
		}
	}
	return list
}
