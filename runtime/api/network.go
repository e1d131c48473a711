// SPDX-License-Identifier: Apache-2.0

// The words of a guest's network: addresses and published ports.

package api

import (
	"fmt"
	"net/netip"
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

// The same for IPv6, where the host has it: a unique local network of ours,
// from which nothing is routed.
const (
	NATGuest6      = "fd67:7678::15"
	NATGateway6    = "fd67:7678::2"
	NATDNS6        = "fd67:7678::3"
	NATSubnet6     = "fd67:7678::/64"
	NATPrefixBits6 = 64
)

const (
	// MaxPorts bounds published ports: each holds a descriptor and a thread of
	// control in the launcher.
	MaxPorts = 1024
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

// ParsePortRange reads N or N-M. Port 0 is a range of its own.
func ParsePortRange(s string) (PortRange, error) {
	firstText, lastText, both := strings.Cut(s, "-")
	if !both {
		lastText = firstText
	}
	first, err := strconv.ParseUint(firstText, 10, 16)
	if err != nil {
		return PortRange{}, err
	}
	last, err := strconv.ParseUint(lastText, 10, 16)
	if err != nil || last < first || both && first == 0 {
		return PortRange{}, fmt.Errorf("%q is no range of ports", s)
	}
	return PortRange{First: uint16(first), Last: uint16(last)}, nil
}
