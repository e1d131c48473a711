// SPDX-License-Identifier: Apache-2.0

// Connections of the host's processes to a guest, on the streams socket.

package control

import (
	"encoding/binary"
	"net/netip"
)

// arrivalWord begins the id of a connection. No exec has such an id: theirs are
// hexadecimal digits.
const arrivalWord = "arrival:"

// ArrivalID is the id under which one connected stream socket is handed over that
// is meant for an address of the guest. It is ExecIDBytes long:
//
//	offset  size  meaning
//	0       8     "arrival:"
//	8       16    the address, IPv4 as IPv6 has it
//	24      2     the port, big endian
//	26      6     zero
//
// No call follows: the sandbox connects to its guest, and carries bytes until one
// side ends.
func ArrivalID(to netip.AddrPort) string {
	id := make([]byte, ExecIDBytes)
	copy(id, arrivalWord)
	address := to.Addr().As16()
	copy(id[8:], address[:])
	binary.BigEndian.PutUint16(id[24:], to.Port())
	return string(id)
}

// ParseArrival reads the address of an ArrivalID, if that is what it is.
func ParseArrival(id string) (netip.AddrPort, bool) {
	if len(id) != ExecIDBytes || id[:8] != arrivalWord || id[26:] != "\x00\x00\x00\x00\x00\x00" {
		return netip.AddrPort{}, false
	}
	to := netip.AddrPortFrom(netip.AddrFrom16([16]byte([]byte(id[8:24]))).Unmap(), binary.BigEndian.Uint16([]byte(id[24:26])))
	return to, to.Port() != 0
}
