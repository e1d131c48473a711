// SPDX-License-Identifier: Apache-2.0

// Whether the host has IPv6.

package usernet

import "golang.org/x/sys/unix"

// somewhere6 is an address of the internet. Nothing is ever sent to it.
var somewhere6 = unix.SockaddrInet6{Port: 9, Addr: [16]byte{0x20, 0x00, 15: 1}}

// HostHasIPv6 says whether the host could reach the internet by IPv6, as far as
// its routes know. A guest gets an IPv6 address then, and else none: programs
// prefer IPv6 where they see any.
func HostHasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// Connecting a socket for datagrams only looks for a route.
	return unix.Connect(fd, &somewhere6) == nil
}
