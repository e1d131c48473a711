// SPDX-License-Identifier: Apache-2.0

// Packet sockets.

package netns

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// socketBufferBytes is what a burst may fill while the sandbox is busy: the
	// window of one fast connection as the host counts it. Its default holds
	// three of the longest packets.
	socketBufferBytes = 8 << 20
	// defaultGSOMaxBytes is the kernel's own where it does not say.
	defaultGSOMaxBytes = 65536
	// packetIgnoreOutgoing is PACKET_IGNORE_OUTGOING (Linux 4.20): no copies of
	// what the host's stack sends.
	packetIgnoreOutgoing = 23
)

// networkOrder is a 16-bit number as it stands in packets and socket addresses.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// openSocket opens a packet socket on an interface and says how long the packets
// are that it cuts into segments by itself. With split it takes nothing for the
// host's own ports.
func openSocket(i *iface, split bool) (*os.File, int, error) {
	fail := func(what string, err error) (*os.File, int, error) {
		return nil, 0, refused(fmt.Sprintf("packet socket on %s: %s", i.link.Name, what), err)
	}
	// Protocol 0 receives nothing, so that nothing arrives that the options below
	// would have kept away.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail("open", err)
	}
	f := os.NewFile(uintptr(fd), "packets of "+i.link.Name)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetIgnoreOutgoing, 1); err != nil {
		f.Close()
		return fail("ignore what the host sends", err)
	}
	gso := 0
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err == nil {
		// Segments and checksums are left to the host for any interface: what the
		// card cannot do the kernel does, once, at the very end.
		if gso = i.gsoMax; gso <= 0 {
			gso = defaultGSOMaxBytes
		}
		gso = min(gso, api.MaxLinkGSOBytes)
	}
	// The forced form goes beyond the host's limit, for who may.
	for _, option := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, option[0], socketBufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option[1], socketBufferBytes)
		}
	}
	if split {
		if err := attachFilter(fd, i.ethernet()); err != nil {
			f.Close()
			return fail("leave the host its ports", err)
		}
	}
	// Guests join groups without telling the host, whose card might filter them.
	membership := unix.PacketMreq{Ifindex: int32(i.index), Type: unix.PACKET_MR_ALLMULTI}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &membership); err != nil {
		f.Close()
		return fail("receive multicast", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: i.index}); err != nil {
		f.Close()
		return fail("bind", err)
	}
	return f, gso, nil
}

// attachFilter keeps frames to the host's own ports out of a socket.
func attachFilter(fd int, ethernet bool) error {
	program, err := bpf.Assemble(hostPortsFilter(linkHeaderBytes(ethernet)))
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, ins := range program {
		filter[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// networkLong is networkOrder for 32 bits.
func networkLong(n uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, n))
}
