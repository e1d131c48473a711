// SPDX-License-Identifier: Apache-2.0

// The words of a guest's network: addresses, published ports, egress rules.

package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The addresses of [NetworkNAT], the same in every sandbox.
const (
	NATGuest   = "10.0.2.15"
	NATGateway = "10.0.2.2"
	NATDNS     = "10.0.2.3"
	NATSubnet  = "10.0.2.0/24"
	// NATPrefixBits are the bits of NATSubnet.
	NATPrefixBits = 24
)

const (
	// MaxPorts bounds published ports: each holds a descriptor and a thread of
	// control in the launcher.
	MaxPorts = 1024
	// MaxEgressRules bounds the rules that every new connection is held against.
	MaxEgressRules = 4096
	// maxUnixPathBytes is what fits into a socket address, with its final zero.
	maxUnixPathBytes = 107
)

// Transport names a transport protocol as docker does.
type Transport string

const (
	// TCP carries streams.
	TCP Transport = "tcp"
	// UDP carries datagrams.
	UDP Transport = "udp"
)

// Port is a published port: what reaches an address of the host goes to a port
// of the guest.
type Port struct {
	// HostIP and HostPort are the host's side; port 0 lets the host choose.
	HostIP   netip.Addr `json:"hostIP,omitzero"`
	HostPort uint16     `json:"hostPort,omitempty"`
	// Path is the host's side where it is a unix socket; HostIP is then unset.
	Path string `json:"path,omitempty"`
	// GuestPort is the guest's side, on its own address.
	GuestPort uint16    `json:"guestPort"`
	Transport Transport `json:"transport"`
}

// Host is the host's side, as people write it.
func (p *Port) Host() string {
	if p.Path != "" {
		return "unix:" + p.Path
	}
	return netip.AddrPortFrom(p.HostIP, p.HostPort).String()
}

// Guest is the guest's side, as docker writes it: 80/tcp.
func (p *Port) Guest() string { return fmt.Sprintf("%d/%s", p.GuestPort, p.Transport) }

// Validate refuses a port that nobody could listen on.
func (p *Port) Validate() error {
	switch {
	case p.GuestPort == 0:
		return Errorf(KindInvalid, "published port %s: no port of the guest", p.Host())
	case p.Transport != TCP && p.Transport != UDP:
		return Errorf(KindInvalid, "published port %s: unknown protocol %q: want tcp or udp", p.Host(), p.Transport)
	case p.Path == "" && !p.HostIP.IsValid():
		return Errorf(KindInvalid, "published port %s: no address of the host", p.Guest())
	case p.Path != "" && p.Transport != TCP:
		return Errorf(KindInvalid, "published port unix:%s: a unix socket carries tcp only", p.Path)
	case len(p.Path) > maxUnixPathBytes || strings.ContainsRune(p.Path, 0):
		return Errorf(KindInvalid, "published port unix:%s: the path is longer than the %d bytes of a socket address", p.Path, maxUnixPathBytes)
	}
	return nil
}

// EgressRule allows or denies what guests reach. The first rule that covers a
// destination decides.
type EgressRule struct {
	Allow bool `json:"allow,omitempty"`
	// To is what the rule covers; one that is not set is a default: it decides
	// where no other rule does.
	To netip.Prefix `json:"to,omitzero"`
	// Ports narrow it; none means all, and whatever has no ports.
	Ports []PortRange `json:"ports,omitempty"`
}

// String writes the rule as `rungv run --egress` takes it.
func (r *EgressRule) String() string {
	verb := "deny"
	if r.Allow {
		verb = "allow"
	}
	if !r.To.IsValid() {
		return verb
	}
	to := r.To.String()
	if len(r.Ports) == 0 {
		return verb + "=" + to
	}
	if r.To.Addr().Is6() {
		to = "[" + to + "]"
	}
	ports := make([]string, len(r.Ports))
	for i, p := range r.Ports {
		ports[i] = p.String()
	}
	return verb + "=" + to + ":" + strings.Join(ports, ",")
}

// CoversPort says whether the rule is about the port.
func (r *EgressRule) CoversPort(port uint16) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p PortRange) bool { return p.First <= port && port <= p.Last })
}

// PortRange is a range of ports, both ends included.
type PortRange struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// String writes the range as N or N-M.
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}
