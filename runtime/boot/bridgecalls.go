// SPDX-License-Identifier: Apache-2.0

// brctl's calls: bridges by ioctl(2), net/bridge/br_ioctl.c of the kernel. gVisor makes
// bridges by netlink only. A port cannot be taken out of its bridge, by netlink neither.

package boot

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/socket/netlink/nlmsg"
)

// bridgeCalls completes ioctl(2) on sockets.
func bridgeCalls(ioctl kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		switch args[1].Uint() {
		case unix.SIOCBRADDBR, unix.SIOCBRDELBR, unix.SIOCBRADDIF:
		default:
			return ioctl(t, number, args)
		}
		file := t.GetFile(args[0].Int())
		if file == nil {
			return 0, nil, linuxerr.EBADF
		}
		defer file.DecRef(t)
		if _, ok := file.Impl().(socket.Socket); !ok {
			return ioctl(t, number, args)
		}
		return 0, nil, bridgeCall(t, args)
	}
}

func bridgeCall(t *kernel.Task, args arch.SyscallArguments) error {
	namespace := t.NetworkNamespace()
	if !namespace.HasCapability(t, linux.CAP_NET_ADMIN) {
		return linuxerr.EPERM
	}
	// A name, or a struct ifreq: a name, and the index of an interface.
	request := make([]byte, linux.IFNAMSIZ)
	command := args[1].Uint()
	if command == unix.SIOCBRADDIF {
		request = make([]byte, linux.IFNAMSIZ+4)
	}
	if _, err := t.CopyInBytes(args[2].Pointer(), request); err != nil {
		return err
	}
	stack := namespace.Stack()
	if stack == nil {
		return linuxerr.EOPNOTSUPP
	}
	name, _, _ := bytes.Cut(request[:linux.IFNAMSIZ-1], []byte{0})
	bridge := findInterface(stack, string(name))
	if command == unix.SIOCBRADDBR {
		switch {
		case !validInterfaceName(name):
			return linuxerr.EINVAL
		case bridge.index != 0:
			return linuxerr.EEXIST
		}
		return setLink(t, stack, linux.NLM_F_CREATE|linux.NLM_F_EXCL, 0, func(m *nlmsg.Message) {
			var info nlmsg.NestedAttr
			info.PutAttrString(linux.IFLA_INFO_KIND, interfaceKindBridge)
			m.PutAttrString(linux.IFLA_IFNAME, string(name))
			m.PutNestedAttr(linux.IFLA_LINKINFO, info)
		})
	}
	switch {
	case bridge.index == 0 && command == unix.SIOCBRDELBR:
		return linuxerr.ENXIO
	case bridge.index == 0:
		return linuxerr.ENODEV
	case bridge.Kind != interfaceKindBridge && command == unix.SIOCBRDELBR:
		return linuxerr.EPERM
	case bridge.Kind != interfaceKindBridge:
		return linuxerr.EOPNOTSUPP
	case command == unix.SIOCBRDELBR:
		return stack.RemoveInterface(t, bridge.index)
	}
	index := int32(binary.NativeEndian.Uint32(request[linux.IFNAMSIZ:]))
	port, ok := stack.Interfaces()[index]
	switch {
	case !ok:
		return linuxerr.EINVAL
	case port.Master != 0:
		return linuxerr.EBUSY
	case port.Flags&linux.IFF_LOOPBACK != 0 || port.DeviceType != linux.ARPHRD_ETHER:
		return linuxerr.EINVAL
	case port.Kind == interfaceKindBridge:
		return linuxerr.ELOOP
	}
	return setLink(t, stack, 0, index, func(m *nlmsg.Message) {
		m.PutAttr(linux.IFLA_MASTER, primitive.AllocateUint32(uint32(bridge.index)))
	})
}

// findInterface returns an interface by name; its index is 0 if there is none.
func findInterface(stack inet.Stack, name string) netInterface {
	for index, i := range stack.Interfaces() {
		if i.Name == name {
			return netInterface{index, i}
		}
	}
	return netInterface{}
}

// validInterfaceName says what dev_valid_name does.
func validInterfaceName(name []byte) bool {
	return len(name) > 0 && string(name) != "." && string(name) != ".." && !slices.ContainsFunc(name, func(c byte) bool {
		return c == '/' || c == ':' || c == ' ' || c >= '\t' && c <= '\r'
	})
}

// setLink makes or changes an interface as a netlink message of type RTM_NEWLINK does.
func setLink(t *kernel.Task, stack inet.Stack, flags uint16, index int32, attributes func(*nlmsg.Message)) error {
	m := nlmsg.NewMessage(linux.NetlinkMessageHeader{Type: linux.RTM_NEWLINK, Flags: flags})
	m.Put(&linux.InterfaceInfoMessage{Index: index})
	attributes(m)
	whole, _, ok := nlmsg.ParseMessage(m.Finalize())
	if !ok {
		return linuxerr.EINVAL
	}
	return stack.SetInterface(t, whole).ToError()
}
