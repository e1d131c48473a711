// SPDX-License-Identifier: Apache-2.0

// Writes to the standard streams. A write that may wait writes all that it was given to
// a pipe or terminal, on Linux. gVisor passes on how much the host took at once, 64 KB
// of a pipe: programs that rely on Linux lose the rest, Python among them when its
// output is unbuffered.

package boot

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"
)

// writeAll completes write(2).
func writeAll(write kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := write(t, number, args)
		if err != nil || n == 0 || n >= uintptr(args[2].SizeT()) {
			return n, control, err
		}
		return finishWrite(t, args[0].Int(), n, func() (usermem.IOSequence, error) {
			return t.SingleIOSequence(args[1].Pointer(), int(args[2].SizeT()), usermem.IOOpts{})
		}), control, nil
	}
}

// writeAllVectors completes writev(2).
func writeAllVectors(write kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := write(t, number, args)
		if err != nil || n == 0 {
			return n, control, err
		}
		return finishWrite(t, args[0].Int(), n, func() (usermem.IOSequence, error) {
			return t.IovecsIOSequence(args[1].Pointer(), int(args[2].Int()), usermem.IOOpts{})
		}), control, nil
	}
}

// finishWrite writes what is left of a write to a stream of the host's of which so much
// is done, and returns how much is done then: all of it, unless the descriptor does not
// wait, the other end goes, or a signal comes. As on Linux an error after a part of it
// is told by the next call, but for SIGPIPE.
func finishWrite(t *kernel.Task, fd int32, done uintptr, source func() (usermem.IOSequence, error)) uintptr {
	file := t.GetFile(fd)
	if file == nil {
		return done
	}
	defer file.DecRef(t)
	if file.Mount() != t.Kernel().HostMount() || file.StatusFlags()&linux.O_NONBLOCK != 0 {
		return done
	}
	src, err := source()
	if err != nil || src.NumBytes() <= int64(done) {
		return done
	}
	src = src.DropFirst64(int64(done))
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	if err := file.EventRegister(&entry); err != nil {
		return done
	}
	defer file.EventUnregister(&entry)
	for src.NumBytes() > 0 {
		n, err := file.Write(t, src, vfs.WriteOptions{})
		done += uintptr(n)
		src = src.DropFirst64(n)
		switch {
		case linuxerr.Equals(linuxerr.ErrWouldBlock, err):
			if t.Block(writable) != nil {
				return done
			}
		case linuxerr.Equals(linuxerr.EPIPE, err):
			_ = t.SendSignal(kernel.SignalInfoNoInfo(linux.SIGPIPE, t, t))
			return done
		case err != nil, n == 0:
			return done
		}
	}
	return done
}
