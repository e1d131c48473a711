// SPDX-License-Identifier: Apache-2.0

// The host's network: what a sandbox needs whose guests were given it.

package policy

import (
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// HostNetworkTable returns the entries for a sandbox whose guests use the host's
// network, by explicit configuration alone: the Sentry makes a socket of the host for
// each of a guest's, as gVisor's hostinet does. It may be one that a gofer serves.
//
// Sockets of the internet's families and netlink's questions about interfaces are all
// that can be made: no unix socket, which in the host's namespace would reach its
// abstract ones, and no raw or packet socket.
func HostNetworkTable(arch Arch) []Entry {
	return append(TreesTable(arch), join(arch, hostSocketEntries(), hostOptionEntries())...)
}

// Flags that gVisor lets a guest's messages have, and its own.
const (
	sendFlags = unix.MSG_DONTWAIT | unix.MSG_EOR | unix.MSG_FASTOPEN | unix.MSG_MORE | unix.MSG_NOSIGNAL | unix.MSG_OOB
	recvFlags = unix.MSG_CTRUNC | unix.MSG_DONTWAIT | unix.MSG_ERRQUEUE | unix.MSG_OOB | unix.MSG_PEEK | unix.MSG_TRUNC | unix.MSG_WAITALL
)

// hostSocketEntries make sockets and use them.
func hostSocketEntries() []Entry {
	const ours = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	return []Entry{
		{"socket", args(anyOf(0, unix.AF_INET, unix.AF_INET6), is(1, unix.SOCK_STREAM|ours), is(2, unix.IPPROTO_TCP)), "host network: a guest's TCP socket", ""},
		{"socket", args(anyOf(0, unix.AF_INET, unix.AF_INET6), is(1, unix.SOCK_DGRAM|ours), is(2, unix.IPPROTO_UDP)), "host network: a guest's UDP socket", ""},
		{"socket", args(is(0, unix.AF_INET), is(1, unix.SOCK_DGRAM|ours), is(2, unix.IPPROTO_ICMP)), "host network: a guest's ping, where the host permits it", ""},
		{"socket", args(is(0, unix.AF_INET6), is(1, unix.SOCK_DGRAM|ours), is(2, unix.IPPROTO_ICMPV6)), "host network: the same for IPv6", ""},
		{"socket", args(anyOf(0, unix.AF_INET, unix.AF_INET6), is(1, unix.SOCK_STREAM), is(2, 0)), "host network: asks what interfaces can do", ""},
		{"socket", args(is(0, unix.AF_NETLINK), is(1, unix.SOCK_RAW|unix.SOCK_CLOEXEC), is(2, unix.NETLINK_ROUTE)), "host network: asks for interfaces, addresses, routes; to change any takes a capability of the host", ""},
		{"bind", args(descriptor(0)), "host network: a guest's bind; netlink's", ""},
		{"connect", args(descriptor(0)), "host network: a guest's connect", ""},
		{"listen", args(descriptor(0)), "host network: a guest's listen", ""},
		{"accept4", args(descriptor(0), is(3, ours)), "host network: a guest's accept", ""},
		{"getsockname", args(descriptor(0)), "host network: a guest's getsockname; netlink's", ""},
		{"getpeername", args(descriptor(0)), "host network: a guest's getpeername", ""},
		{"shutdown", args(descriptor(0), anyOf(1, unix.SHUT_RD, unix.SHUT_RDWR)), "host network: a guest's shutdown", ""},
		{"sendto", args(descriptor(0), within(3, sendFlags)), "host network: a guest's sendto; netlink's questions", ""},
		{"sendmsg", args(descriptor(0), within(2, sendFlags)), "host network: a guest's sendmsg", ""},
		{"recvfrom", args(descriptor(0), within(3, recvFlags)), "host network: a guest's recvfrom; netlink's answers", ""},
		{"recvmsg", args(descriptor(0), within(2, recvFlags)), "host network: a guest's recvmsg", ""},
		{"ioctl", args(descriptor(0), anyOf(1, unix.TIOCOUTQ, linux.SIOCGIFCONF, linux.SIOCGIFFLAGS, linux.SIOCGIFHWADDR, linux.SIOCGIFINDEX,
			linux.SIOCGIFMTU, linux.SIOCGIFNAME, linux.SIOCGIFNETMASK, linux.SIOCGIFTXQLEN, linux.SIOCETHTOOL)), "host network: a guest asks about sockets and interfaces; what ethtool changes takes a capability of the host", ""},
	}
}

// hostOptions are the options of sockets that gVisor asks its host for, by level: those
// that a guest may set and get, and what it may do but one of. A filter for packets is not
// among them, nor anything of netfilter's but the destination before translation.
var hostOptions = []struct {
	level                  uint64
	both, setOnly, getOnly []uint64
}{
	{linux.SOL_SOCKET, []uint64{
		linux.SO_ACCEPTCONN, linux.SO_BINDTODEVICE, linux.SO_BROADCAST, linux.SO_KEEPALIVE, linux.SO_LINGER, linux.SO_NO_CHECK,
		linux.SO_OOBINLINE, linux.SO_PASSCRED, linux.SO_RCVBUF, linux.SO_RCVLOWAT, linux.SO_REUSEADDR,
		linux.SO_REUSEPORT, linux.SO_SNDBUF, linux.SO_TIMESTAMP,
	}, []uint64{linux.SO_RCVBUFFORCE}, []uint64{linux.SO_ERROR}},
	{linux.SOL_IP, []uint64{
		linux.IP_HDRINCL, linux.IP_MULTICAST_IF, linux.IP_MULTICAST_LOOP,
		linux.IP_MULTICAST_TTL, linux.IP_MTU_DISCOVER, linux.IP_PKTINFO, linux.IP_RECVERR, linux.IP_RECVORIGDSTADDR,
		linux.IP_RECVTOS, linux.IP_RECVTTL, linux.IP_TOS, linux.IP_TTL,
	}, []uint64{linux.IP_ADD_MEMBERSHIP, linux.IP_DROP_MEMBERSHIP}, []uint64{linux.SO_ORIGINAL_DST}},
	{linux.SOL_IPV6, []uint64{
		linux.IPV6_CHECKSUM, linux.IPV6_MULTICAST_HOPS, linux.IPV6_RECVERR, linux.IPV6_RECVHOPLIMIT, linux.IPV6_RECVORIGDSTADDR,
		linux.IPV6_RECVPKTINFO, linux.IPV6_RECVTCLASS, linux.IPV6_TCLASS, linux.IPV6_UNICAST_HOPS, linux.IPV6_V6ONLY,
	}, nil, []uint64{linux.IP6T_ORIGINAL_DST}},
	{linux.SOL_TCP, []uint64{
		linux.TCP_CONGESTION, linux.TCP_CORK, linux.TCP_DEFER_ACCEPT, linux.TCP_INQ, linux.TCP_KEEPCNT, linux.TCP_KEEPIDLE,
		linux.TCP_KEEPINTVL, linux.TCP_LINGER2, linux.TCP_MAXSEG, linux.TCP_NODELAY, linux.TCP_QUICKACK, linux.TCP_SYNCNT,
		linux.TCP_USER_TIMEOUT, linux.TCP_WINDOW_CLAMP,
	}, nil, []uint64{linux.TCP_INFO}},
	{linux.SOL_ICMPV6, []uint64{linux.ICMPV6_FILTER}, nil, nil},
}

// hostOptionEntries are the options of a guest's sockets.
func hostOptionEntries() []Entry {
	var all []Entry
	for _, o := range hostOptions {
		all = append(all,
			Entry{"setsockopt", args(descriptor(0), is(1, o.level), anyOf(2, slices.Concat(o.both, o.setOnly)...)), "host network: options of a guest's sockets", ""},
			Entry{"getsockopt", args(descriptor(0), is(1, o.level), anyOf(2, slices.Concat(o.both, o.getOnly)...)), "host network: a guest asks for them", ""})
	}
	return all
}
