// SPDX-License-Identifier: Apache-2.0

// System calls of guests on the host's network: what stands between them and gVisor's
// hostinet, which trusts its host with the lengths of what it answers, and a guest
// with what it asks for. All of it is in force in network mode host alone.

package boot

import (
	"errors"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/socket/control"
	"gvisor.dev/gvisor/pkg/sentry/socket/hostinet"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	guest "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

const (
	// hostControlBytes is more than all control messages of one datagram take, with
	// every option that asks for some: a host never has to cut one.
	hostControlBytes = 1024
	// maxControlBytes is gVisor's bound on what a guest may name.
	maxControlBytes = 10 << 20
	// maxOptionBytes bounds the value of a socket's option, in both directions.
	maxOptionBytes = 8 << 10
	// socketShare is the part of the sandbox' descriptors that guests' sockets may
	// take. Guests' processes and the control socket need some, too.
	socketShare = 2
)

// hostCalls wrap system calls where guests are on the host's network.
func (sb *sandbox) hostCalls() map[string]func(kernel.SyscallFn) kernel.SyscallFn {
	if sb.hostNetwork == nil {
		return nil
	}
	return map[string]func(kernel.SyscallFn) kernel.SyscallFn{
		"socket": sb.boundedSockets, "accept": sb.boundedSockets, "accept4": sb.boundedSockets,
		"recvmsg": onHostSocket(receiveOne), "recvmmsg": onHostSocket(receiveMany),
		"getsockopt": onHostSocket(getHostOption), "setsockopt": onHostSocket(setHostOption), "ioctl": onHostSocket(hostInterfaceCall),
		"sendto": outliveRoutes, "sendmsg": outliveRoutes, "sendmmsg": outliveRoutes, "write": outliveRoutes, "writev": outliveRoutes,
		"splice": outliveRoutes, "sendfile": outliveRoutes,
		"unshare": oneNetwork(flagsOf), "clone": oneNetwork(flagsOf), "clone3": oneNetwork(clone3FlagsOf),
	}
}

// oneNetwork refuses network namespaces: one would have no interface, and programs
// wait for ever for what netlink has to say of it.
func oneNetwork(flags func(*kernel.Task, arch.SyscallArguments) uint64) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(call kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if flags(t, args)&linux.CLONE_NEWNET != 0 {
				return 0, nil, linuxerr.EPERM
			}
			return call(t, number, args)
		}
	}
}

// flagsOf are unshare's and clone's flags.
func flagsOf(_ *kernel.Task, args arch.SyscallArguments) uint64 { return args[0].Uint64() }

// clone3FlagsOf are those in the structure of clone3, 0 if it cannot be read: clone3
// says so.
func clone3FlagsOf(t *kernel.Task, args arch.SyscallArguments) uint64 {
	var flags uint64
	_, _ = primitive.CopyUint64In(t, args[0].Pointer(), &flags)
	return flags
}

// errNotOurs has gVisor's own function make a call.
var errNotOurs = errors.New("left to gVisor")

// onHostSocket has a call made by do where its first argument is a socket of the
// host's, and do does not say errNotOurs.
func onHostSocket(do func(*kernel.Task, *vfs.FileDescription, *hostinet.Socket, arch.SyscallArguments) (uintptr, error)) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(call kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			file := t.GetFile(args[0].Int())
			if file == nil {
				return call(t, number, args)
			}
			defer file.DecRef(t)
			if s, ok := file.Impl().(*hostinet.Socket); ok {
				if n, err := do(t, file, s, args); err != errNotOurs {
					return n, nil, err
				}
			}
			return call(t, number, args)
		}
	}
}

// boundedSockets leaves descriptors to others: each socket of a guest's is one of the
// sandbox process. How many there are is asked by making one: the kernel gives away
// the lowest number.
func (sb *sandbox) boundedSockets(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		fd, err := unix.EpollCreate1(0)
		if err != nil {
			return 0, nil, linuxerr.ENFILE
		}
		unix.Close(fd)
		if uint64(fd) >= sb.openFiles/socketShare {
			return 0, nil, linuxerr.ENFILE
		}
		return call(t, number, args)
	}
}

// receiveOne is recvmsg(2): hostinet panics at a control message that the host had to
// cut. It is given room for all; what the guest has no room for is cut here.
func receiveOne(t *kernel.Task, file *vfs.FileDescription, s *hostinet.Socket, args arch.SyscallArguments) (uintptr, error) {
	return receive(t, s, args[1].Pointer(), receiveFlags(file, s, args[2].Int()), waitFor(t, s, 0))
}

// receiveMany is recvmmsg(2), likewise.
func receiveMany(t *kernel.Task, file *vfs.FileDescription, s *hostinet.Socket, args arch.SyscallArguments) (uintptr, error) {
	var within time.Duration
	if at := args[4].Pointer(); at != 0 {
		var ts linux.Timespec
		if _, err := ts.CopyIn(t, at); err != nil {
			return 0, err
		}
		if !ts.Valid() {
			return 0, linuxerr.EINVAL
		}
		within = max(1, ts.ToDuration())
	}
	flags, wait := receiveFlags(file, s, args[3].Int()), waitFor(t, s, within)
	var header guest.MessageHeader64
	size := uint64(header.SizeBytes())
	// A struct mmsghdr is a header and a length, in whole words.
	const lengthBytes = 8
	var count uintptr
	for ; count < uintptr(min(args[2].Uint(), linux.UIO_MAXIOV)); count++ {
		at, ok := args[1].Pointer().AddLength(uint64(count) * (size + lengthBytes))
		if !ok {
			return 0, linuxerr.EFAULT
		}
		n, err := receive(t, s, at, flags, wait)
		if err == nil {
			_, err = primitive.CopyUint32Out(t, at+hostarch.Addr(size), uint32(n))
		}
		if err != nil && count == 0 {
			return 0, err
		}
		if err != nil {
			break
		}
		if flags&linux.MSG_WAITFORONE != 0 {
			flags |= linux.MSG_DONTWAIT
		}
	}
	return count, nil
}

// receiveFlags are those of a call, with what socket and descriptor add to them.
func receiveFlags(file *vfs.FileDescription, s *hostinet.Socket, flags int32) int32 {
	if file.StatusFlags()&linux.O_NONBLOCK != 0 || s.RecvTimeout() < 0 {
		flags |= linux.MSG_DONTWAIT
	}
	return flags
}

// waiting is how long a call waits: until a time, if it is bounded.
type waiting struct {
	bounded bool
	until   ktime.Time
}

// waitFor is the waiting of a call which may take so long, or as long as the socket says.
func waitFor(t *kernel.Task, s *hostinet.Socket, within time.Duration) waiting {
	if within == 0 {
		within = time.Duration(s.RecvTimeout())
	}
	if within <= 0 {
		return waiting{}
	}
	return waiting{true, t.Kernel().MonotonicClock().Now().Add(within)}
}

// Members of struct msghdr that are written back.
const (
	nameLengthAt    = 8
	controlLengthAt = 40
	headerFlagsAt   = 48
)

// receive receives one message into what the header at a guest's address says.
func receive(t *kernel.Task, s *hostinet.Socket, at hostarch.Addr, flags int32, wait waiting) (uintptr, error) {
	var header guest.MessageHeader64
	if _, err := header.CopyIn(t, at); err != nil {
		return 0, err
	}
	switch {
	case header.IovLen > linux.UIO_MAXIOV:
		return 0, linuxerr.EMSGSIZE
	case header.ControlLen > maxControlBytes:
		return 0, linuxerr.ENOBUFS
	}
	dst, err := t.IovecsIOSequence(hostarch.Addr(header.Iov), int(header.IovLen), usermem.IOOpts{})
	if err != nil {
		return 0, err
	}
	var room uint64
	if header.ControlLen > 0 {
		room = hostControlBytes
	}
	known := flags &^ (linux.MSG_CMSG_CLOEXEC | linux.MSG_NOSIGNAL | linux.MSG_WAITFORONE)
	n, got, from, fromLength, messages, e := s.RecvMsg(t, dst, int(known), wait.bounded, wait.until, header.NameLen != 0, room)
	if e != nil {
		return 0, linuxerr.ConvertIntr(e.ToError(), linuxerr.ERESTARTSYS)
	}
	defer messages.Release(t)
	all := control.PackControlMessages(t, messages, make([]byte, 0, hostControlBytes))
	fits := control.PackControlMessages(t, messages, make([]byte, 0, min(header.ControlLen, hostControlBytes)))
	if len(fits) < len(all) {
		got |= linux.MSG_CTRUNC
	}
	if header.NameLen != 0 {
		if from != nil {
			name := make([]byte, from.SizeBytes())
			from.MarshalUnsafe(name)
			if _, err := t.CopyOutBytes(hostarch.Addr(header.Name), name[:min(len(name), int(header.NameLen), int(fromLength))]); err != nil {
				return 0, err
			}
		}
		if _, err := primitive.CopyUint32Out(t, at+nameLengthAt, fromLength); err != nil {
			return 0, err
		}
	}
	if len(fits) > 0 {
		if _, err := t.CopyOutBytes(hostarch.Addr(header.Control), fits); err != nil {
			return 0, err
		}
	}
	if _, err := primitive.CopyUint64Out(t, at+controlLengthAt, uint64(len(fits))); err != nil {
		return 0, err
	}
	_, err = primitive.CopyInt32Out(t, at+headerFlagsAt, int32(got))
	return uintptr(n), err
}

// routesPackage answers netlink's questions about routes.
const routesPackage = "gvisor.dev/gvisor/pkg/sentry/socket/netlink/route."

// outliveRoutes has a question about the way to an address fail, where gVisor would
// end the sandbox: it compares each route's destination with it, and hostinet's
// default routes have none. gVisor holds no lock then.
func outliveRoutes(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (n uintptr, c *kernel.SyscallControl, err error) {
		defer func() {
			if p := recover(); p != nil {
				if !panickedIn(routesPackage) {
					panic(p)
				}
				log.Warningf("a question about a route: %v", p)
				n, c, err = 0, nil, linuxerr.EOPNOTSUPP
			}
		}()
		return call(t, number, args)
	}
}

// panickedIn says whether the function that panicked, and is being recovered from, is
// one of a package.
func panickedIn(prefix string) bool {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for panicking := false; ; {
		frame, more := frames.Next()
		switch {
		case panicking && !strings.HasPrefix(frame.Function, "runtime."):
			return strings.HasPrefix(frame.Function, prefix)
		case frame.Function == "runtime.gopanic":
			panicking = true
		}
		if !more {
			return false
		}
	}
}
