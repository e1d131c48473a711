// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// TestQueriesAreRelayed: answers come back under the query's own id, also after a
// datagram that is empty or too short.
func TestQueriesAreRelayed(t *testing.T) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{udp.NewProtocol},
	})
	t.Cleanup(s.Destroy)
	const nic = 1
	if err := s.CreateNIC(nic, loopback.New()); err != nil {
		t.Fatal(err)
	}
	own := netip.MustParsePrefix("127.0.0.1/8")
	address := tcpip.AddressWithPrefix{Address: tcpipAddress(own.Addr()), PrefixLen: own.Bits()}
	if err := s.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address}, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: address.Subnet(), NIC: nic}})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	server := os.NewFile(uintptr(fds[1]), "server")
	defer server.Close()
	name := netip.MustParseAddrPort("127.0.0.11:53")
	if err := relayQueries(s, name, fds[0]); err != nil {
		t.Fatal(err)
	}
	guest, err := gonet.DialUDP(s, nil, &tcpip.FullAddress{Addr: tcpipAddress(name.Addr()), Port: name.Port()}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	for _, before := range [][]byte{nil, {}, {1, 2}} {
		query := make([]byte, queryHeaderBytes+1)
		binary.BigEndian.PutUint16(query, 0xabcd)
		if _, err := guest.Write(query); err != nil {
			t.Fatal(err)
		}
		asked := make([]byte, maxQueryBytes)
		n, err := server.Read(asked)
		if err != nil || n != len(query) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if before != nil {
			if _, err := unix.Write(fds[1], before); err != nil {
				t.Fatal(err)
			}
		}
		asked[queryHeaderBytes] = 7
		if _, err := server.Write(asked[:n]); err != nil {
			t.Fatal(err)
		}
		if err := guest.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, maxQueryBytes)
		n, err = guest.Read(answer)
		if err != nil || n != len(query) || binary.BigEndian.Uint16(answer) != 0xabcd || answer[queryHeaderBytes] != 7 {
			t.Errorf("after %v: %x, %v", before, answer[:n], err)
		}
	}
}
