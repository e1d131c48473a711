// SPDX-License-Identifier: Apache-2.0

// Networks and published ports as users write them.

package convert

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// hostGateway is docker's word for the host as its guests see it.
const hostGateway = "host-gateway"

// defaultHostIP is where ports are published unless the user says where: not
// to the world, as docker does.
var defaultHostIP = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ParseNetwork reads a network's name. Docker's names for its usual network
// mean ours.
func ParseNetwork(s string) (string, error) {
	switch s {
	case "", "bridge", "default", string(api.NetworkNAT):
		return string(api.NetworkNAT), nil
	case string(api.NetworkNone):
		return s, nil
	case namespaceWord:
		return "", api.Errorf(api.KindInvalid, "network %q: want ns:PATH, such as ns:/run/netns/NAME", s)
	case "host":
		return "", api.Errorf(api.KindUnsupported, "network \"host\": the guest of an image does not get the host's own network: publish ports with -p, and reach the host's loopback at %s with --egress allow=127.0.0.1:PORT", api.NATGateway)
	}
	if path, ok := NetworkNamespace(s); ok {
		if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
			return "", api.Errorf(api.KindInvalid, "network %q: the path of a network namespace must be absolute", s)
		}
		return namespaceWord + ":" + filepath.Clean(path), nil
	}
	return "", api.Errorf(api.KindInvalid, "network %q not found: want nat, none or ns:PATH", s)
}

// namespaceWord is podman's word for a network namespace of the host.
const namespaceWord = "ns"

// NetworkNamespace returns the path of the network namespace that a network's
// name leads to.
func NetworkNamespace(network string) (path string, ok bool) {
	word, path, ok := strings.Cut(network, ":")
	return path, ok && word == namespaceWord
}

// ParsePublish reads docker's [[IP:][HOST]:]GUEST[/tcp|/udp], where both
// numbers may be ranges of one length, and unix:PATH:GUEST.
func ParsePublish(s string) ([]api.Port, error) {
	fail := func(format string, args ...any) ([]api.Port, error) {
		return nil, api.Errorf(api.KindInvalid, "invalid published port %q: %w", s, fmt.Errorf(format, args...))
	}
	rest, transport, has := strings.Cut(s, "/")
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return parsePublishUnix(s, path)
	}
	if !has {
		transport = string(api.TCP)
	}
	if transport != string(api.TCP) && transport != string(api.UDP) {
		return fail("unknown protocol %q: want tcp or udp", transport)
	}
	guestText, hostText, ip := rest, "", defaultHostIP
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		hostText, guestText = rest[:i], rest[i+1:]
		if j := strings.LastIndexByte(hostText, ':'); j >= 0 {
			var err error
			if ip, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(hostText[:j], "["), "]")); err != nil {
				return fail("%q is not an ip address", hostText[:j])
			}
			hostText = hostText[j+1:]
		}
	}
	guest, err := api.ParsePortRange(guestText)
	if err != nil || guest.First == 0 {
		return fail("%q is no port of a guest", guestText)
	}
	host := api.PortRange{}
	if hostText != "" {
		if host, err = api.ParsePortRange(hostText); err != nil {
			return fail("%q is no port of a host", hostText)
		}
	}
	fixed := host != api.PortRange{}
	if fixed && host.Last-host.First != guest.Last-guest.First {
		return fail("the ranges %s and %s differ in length", host, guest)
	}
	if count := int(guest.Last-guest.First) + 1; count > api.MaxPorts {
		return fail("%d ports, at most %d", count, api.MaxPorts)
	}
	var ports []api.Port
	for i := uint16(0); i <= guest.Last-guest.First; i++ {
		p := api.Port{HostIP: ip.Unmap(), GuestPort: guest.First + i, Transport: api.Transport(transport)}
		if fixed {
			p.HostPort = host.First + i
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// parsePublishUnix reads PATH:GUEST; the path is made absolute, since it is
// written down.
func parsePublishUnix(s, text string) ([]api.Port, error) {
	i := strings.LastIndexByte(text, ':')
	if i <= 0 {
		return nil, api.Errorf(api.KindInvalid, "invalid published port %q: want unix:PATH:PORT", s)
	}
	guest, err := api.ParsePortRange(strings.TrimSuffix(text[i+1:], "/tcp"))
	if err != nil || guest.First != guest.Last || guest.First == 0 {
		return nil, api.Errorf(api.KindInvalid, "invalid published port %q: %q is no port of a guest", s, text[i+1:])
	}
	if !filepath.IsAbs(text[:i]) {
		return nil, api.Errorf(api.KindInvalid, "invalid published port %q: the path must be absolute", s)
	}
	p := api.Port{Path: filepath.Clean(text[:i]), GuestPort: guest.First, Transport: api.TCP}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return []api.Port{p}, nil
}
