// SPDX-License-Identifier: Apache-2.0

// Options and interfaces of sockets on the host's network: see hostsockets.go.

package boot

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/socket/hostinet"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// getHostOption is getsockopt(2): hostinet makes as much room as the guest names.
func getHostOption(t *kernel.Task, _ *vfs.FileDescription, s *hostinet.Socket, args arch.SyscallArguments) (uintptr, error) {
	level, name := args[1].Int(), args[2].Int()
	if level == linux.SOL_SOCKET && (name == linux.SO_TYPE || name == linux.SO_DOMAIN || name == linux.SO_PROTOCOL) {
		return 0, errNotOurs // What the Sentry knows itself.
	}
	at, lengthAt := args[3].Pointer(), args[4].Pointer()
	var length int32
	if _, err := primitive.CopyInt32In(t, lengthAt, &length); err != nil {
		return 0, err
	}
	if length < 0 {
		return 0, linuxerr.EINVAL
	}
	value, e := s.GetSockOpt(t, int(level), int(name), at, int(min(length, maxOptionBytes)))
	if e != nil {
		return 0, e.ToError()
	}
	data := make([]byte, value.SizeBytes())
	value.MarshalBytes(data)
	data = data[:min(len(data), int(length))]
	if _, err := t.CopyOutBytes(at, data); err != nil {
		return 0, err
	}
	_, err := primitive.CopyInt32Out(t, lengthAt, int32(len(data)))
	return 0, err
}

// The kernel's numbers of options that gVisor has no names for.
const (
	soAttachFilter, soMark                 = 26, 36
	soAttachBPF, soReuseFilter, soReuseBPF = 50, 51, 52
	ipTransparent, ipv6Transparent         = 19, 75
	joinIPv6, joinGroup, joinSource        = 20, 42, 46
	addSource                              = 39
	tcpMD5, tcpULP, tcpMD5Ext              = 14, 31, 32
	// Those of netfilter begin here, at both levels.
	netfilterOptions, netfilterEnd = 64, 96
)

// refusedOptions are options that gVisor would take and not apply, though somebody
// may rely on them; the error is what Linux says without a capability over the
// network, or of an option that it has not.
var refusedOptions = map[[2]int32]error{
	{linux.SOL_SOCKET, soMark}:         linuxerr.EPERM,
	{linux.SOL_SOCKET, soAttachFilter}: linuxerr.ENOPROTOOPT,
	{linux.SOL_SOCKET, soAttachBPF}:    linuxerr.ENOPROTOOPT,
	{linux.SOL_SOCKET, soReuseFilter}:  linuxerr.ENOPROTOOPT,
	{linux.SOL_SOCKET, soReuseBPF}:     linuxerr.ENOPROTOOPT,
	{linux.SOL_IP, ipTransparent}:      linuxerr.EPERM,
	{linux.SOL_IP, addSource}:          linuxerr.ENOPROTOOPT,
	{linux.SOL_IP, joinGroup}:          linuxerr.ENOPROTOOPT,
	{linux.SOL_IP, joinSource}:         linuxerr.ENOPROTOOPT,
	{linux.SOL_IPV6, ipv6Transparent}:  linuxerr.EPERM,
	{linux.SOL_IPV6, joinIPv6}:         linuxerr.ENOPROTOOPT,
	{linux.SOL_IPV6, joinGroup}:        linuxerr.ENOPROTOOPT,
	{linux.SOL_IPV6, joinSource}:       linuxerr.ENOPROTOOPT,
	{linux.SOL_TCP, tcpMD5}:            linuxerr.ENOPROTOOPT,
	{linux.SOL_TCP, tcpMD5Ext}:         linuxerr.ENOPROTOOPT,
	{linux.SOL_TCP, tcpULP}:            linuxerr.ENOPROTOOPT,
}

// setHostOption is setsockopt(2). A close that lingers would keep a thread of the
// Sentry from a guest's signals, for as long as its peer likes: only the kind that
// resets is the host's, for the others a close sends what is left behind its back.
func setHostOption(t *kernel.Task, _ *vfs.FileDescription, s *hostinet.Socket, args arch.SyscallArguments) (uintptr, error) {
	level, name, length := args[1].Int(), args[2].Int(), args[4].Int()
	if length < 0 || length > maxOptionBytes {
		return 0, linuxerr.EINVAL
	}
	if level == linux.SOL_SOCKET && (name == linux.SO_RCVTIMEO || name == linux.SO_SNDTIMEO) && length < linux.SizeOfTimeval {
		return 0, linuxerr.EINVAL // hostinet takes it to be there.
	}
	if err := refusedOptions[[2]int32{level, name}]; err != nil {
		return 0, err
	}
	if (level == linux.SOL_IP || level == linux.SOL_IPV6) && netfilterOptions <= name && name < netfilterEnd {
		return 0, linuxerr.EPERM
	}
	value := make([]byte, length)
	if _, err := t.CopyInBytes(args[3].Pointer(), value); err != nil {
		return 0, err
	}
	if level == linux.SOL_SOCKET && name == linux.SO_LINGER && length >= linux.SizeOfLinger {
		if seconds := binary.NativeEndian.Uint32(value[4:]); seconds != 0 {
			clear(value) // Not the reset either, should one have been asked for before.
		}
	}
	return 0, s.SetSockOpt(t, int(level), int(name), value).ToError()
}

// hostInterfaceCall is what older programs ask about addresses, by ioctl(2).
func hostInterfaceCall(t *kernel.Task, _ *vfs.FileDescription, _ *hostinet.Socket, args arch.SyscallArguments) (uintptr, error) {
	stack := t.NetworkNamespace().Stack()
	if stack == nil {
		return 0, errNotOurs
	}
	switch at := args[2].Pointer(); args[1].Uint() {
	case linux.SIOCGIFCONF:
		return 0, listInterfaces(t, stack, at)
	case linux.SIOCGIFADDR:
		return 0, interfaceAddress(t, stack, at, false)
	case linux.SIOCGIFBRDADDR:
		return 0, interfaceAddress(t, stack, at, true)
	}
	return 0, errNotOurs
}

// requestBytes is a struct ifreq: a name, and a union of 24 bytes.
const requestBytes = unix.IFNAMSIZ + 24

// listInterfaces is SIOCGIFCONF: a request for each interface that has an IPv4 address.
func listInterfaces(t *kernel.Task, stack inet.Stack, at hostarch.Addr) error {
	var conf linux.IFConf
	if _, err := conf.CopyIn(t, at); err != nil {
		return err
	}
	if conf.Len < 0 {
		return linuxerr.EINVAL
	}
	interfaces, addresses := stack.Interfaces(), stack.InterfaceAddrs()
	var list []byte
	for _, index := range slices.Sorted(maps.Keys(interfaces)) {
		if a, ok := firstIPv4(addresses[index]); ok {
			list = append(list, addressRequest(interfaces[index].Name, a.Addr())...)
		}
	}
	if conf.Ptr != 0 {
		list = list[:min(len(list), int(conf.Len))/requestBytes*requestBytes]
		if _, err := t.CopyOutBytes(hostarch.Addr(conf.Ptr), list); err != nil {
			return err
		}
	}
	conf.Len = int32(len(list))
	_, err := conf.CopyOut(t, at)
	return err
}

// interfaceAddress is SIOCGIFADDR, or SIOCGIFBRDADDR.
func interfaceAddress(t *kernel.Task, stack inet.Stack, at hostarch.Addr, broadcast bool) error {
	var request linux.IFReq
	if _, err := request.CopyIn(t, at); err != nil {
		return err
	}
	i := findInterface(stack, request.Name())
	if i.index == 0 {
		return linuxerr.ENODEV
	}
	a, ok := firstIPv4(stack.InterfaceAddrs()[i.index])
	if !ok {
		return linuxerr.EADDRNOTAVAIL
	}
	address := a.Addr()
	if broadcast {
		address = lastOf(a)
	}
	_, err := t.CopyOutBytes(at, addressRequest(i.Name, address))
	return err
}

// firstIPv4 is an interface's first IPv4 address, with its prefix.
func firstIPv4(list []inet.InterfaceAddr) (netip.Prefix, bool) {
	for _, a := range list {
		if address, ok := netip.AddrFromSlice(a.Addr); ok && address.Is4() && a.PrefixLen <= 32 {
			return netip.PrefixFrom(address, int(a.PrefixLen)), true
		}
	}
	return netip.Prefix{}, false
}

// lastOf is the last address of a network: the one for all of it.
func lastOf(p netip.Prefix) netip.Addr {
	host := uint32(1)<<(32-p.Bits()) - 1 // 0 for a prefix of all bits
	raw := p.Addr().As4()
	binary.BigEndian.PutUint32(raw[:], binary.BigEndian.Uint32(raw[:])|host)
	return netip.AddrFrom4(raw)
}

// addressRequest is a struct ifreq with an interface's name and an address.
func addressRequest(name string, address netip.Addr) []byte {
	request := make([]byte, requestBytes)
	copy(request[:unix.IFNAMSIZ-1], name)
	binary.NativeEndian.PutUint16(request[unix.IFNAMSIZ:], unix.AF_INET)
	raw := address.As4()
	copy(request[unix.IFNAMSIZ+4:], raw[:])
	return request
}
