// SPDX-License-Identifier: Apache-2.0

// The host's resolver: what /etc/resolv.conf says.

package usernet

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	resolvConf = "/etc/resolv.conf"
	// maxServers is the C library's MAXNS: servers behind it are never asked.
	maxServers = 3
	// maxSearch is how many search domains are passed on.
	maxSearch = 32
	// maxResolvBytes bounds the file that is read.
	maxResolvBytes = 64 << 10
	// resolvRecheck is how often the file is looked at while names are asked
	// for: a host changes networks while a sandbox runs.
	resolvRecheck = time.Second
	dnsPort       = 53
)

// Resolver is how a host resolves names.
type Resolver struct {
	Servers []netip.AddrPort
	Search  []string
}

// HostResolver reads the host's resolver configuration. A host without one has
// no servers.
func HostResolver() Resolver { return ResolverOf(resolvConf) }

// ResolverOf is HostResolver for another file.
func ResolverOf(path string) Resolver {
	f, err := os.Open(path)
	if err != nil {
		return Resolver{}
	}
	defer f.Close()
	b := make([]byte, maxResolvBytes)
	n, _ := f.Read(b)
	return parseResolv(string(b[:n]))
}

func parseResolv(text string) Resolver {
	var r Resolver
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || line[0] == '#' || line[0] == ';' {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && len(r.Servers) < maxServers {
				r.Servers = append(r.Servers, netip.AddrPortFrom(a, dnsPort))
			}
		case "domain", "search":
			// The last of either counts.
			r.Search = fields[1:min(len(fields), maxSearch+1)]
		}
	}
	return r
}

// upstream knows the servers to ask.
type upstream struct {
	fixed []netip.AddrPort

	mu      sync.Mutex
	checked time.Time
	changed time.Time
	servers []netip.AddrPort
}

// list returns the servers that hold now.
func (u *upstream) list() []netip.AddrPort {
	if len(u.fixed) > 0 {
		return u.fixed
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if now.Sub(u.checked) < resolvRecheck {
		return u.servers
	}
	u.checked = now
	st, err := os.Stat(resolvConf)
	if err != nil || st.ModTime().Equal(u.changed) {
		return u.servers
	}
	u.changed, u.servers = st.ModTime(), HostResolver().Servers
	return u.servers
}
