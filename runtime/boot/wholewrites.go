// SPDX-License-Identifier: Apache-2.0

// Writes to streams. A write that may wait writes all that it was given to a pipe,
// terminal or connection, on Linux, unless a signal comes. gVisor passes on how much the
// host took at once, 64 KB of a pipe, and ends a write whenever the guest is stopped for
// a moment, as a limit on its processor time does all the while. Programs that rely on
// Linux lose the rest, Python among them when its output is unbuffered.

package boot

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"
)

// allBlockable are all signals that can be blocked.
var allBlockable = ^linux.SignalSet(0) &^ kernel.UnblockableSignals

// writes are those that a stop has interrupted halfway. A task stops at the end of a
// system call only: the write ends as one that is to be called again, and goes on where
// it was. In between no handler of a signal may run, as its program would be told that
// nothing has been written: signals are blocked until then. Its zero value is ready. mu
// is taken last.
type writes struct {
	number  atomic.Int32
	mu      sync.Mutex
	stopped map[*kernel.Task]stoppedWrite
}

// stoppedWrite is a write that goes on when its task does.
type stoppedWrite struct {
	call uintptr
	args arch.SyscallArguments
	// file is what was written to, without a reference: a killed task gives none back.
	file *vfs.FileDescription
	done uintptr
	mask linux.SignalSet
}

// whole completes write(2).
func (w *writes) whole(write kernel.SyscallFn) kernel.SyscallFn {
	return w.complete(write, func(t *kernel.Task, args arch.SyscallArguments) (usermem.IOSequence, error) {
		return t.SingleIOSequence(args[1].Pointer(), int(args[2].SizeT()), usermem.IOOpts{})
	})
}

// wholeVectors completes writev(2).
func (w *writes) wholeVectors(writev kernel.SyscallFn) kernel.SyscallFn {
	return w.complete(writev, func(t *kernel.Task, args arch.SyscallArguments) (usermem.IOSequence, error) {
		return t.IovecsIOSequence(args[1].Pointer(), int(args[2].Int()), usermem.IOOpts{})
	})
}

// complete has a system call write all of what source gives.
func (w *writes) complete(write kernel.SyscallFn, source func(*kernel.Task, arch.SyscallArguments) (usermem.IOSequence, error)) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		done, was := w.resume(t, number, args)
		file := t.GetFile(args[0].Int())
		if file != nil {
			defer file.DecRef(t)
		}
		if done > 0 && was != file {
			return done, nil, nil // It was closed, and something else may have its number.
		}
		if file == nil || !waitsForAll(t, file) {
			if done > 0 {
				return done, nil, nil
			}
			return write(t, number, args)
		}
		begins := done == 0
		if begins {
			n, control, err := write(t, number, args)
			if err != nil || n == 0 {
				return n, control, err
			}
			done = n
		}
		src, err := source(t, args)
		if err != nil || src.NumBytes() <= int64(done) || begins && !hasNumber(t, file, args[0].Int()) {
			return done, nil, nil
		}
		done, interrupted := finishWrite(t, file, done, src.DropFirst64(int64(done)))
		if interrupted && w.stop(t, stoppedWrite{call: number, args: args, file: file, done: done}) {
			return 0, nil, linuxerr.ERESTARTSYS
		}
		return done, nil, nil
	}
}

// hasNumber says whether a descriptor still is that file's.
func hasNumber(t *kernel.Task, file *vfs.FileDescription, fd int32) bool {
	now := t.GetFile(fd)
	if now == nil {
		return false
	}
	now.DecRef(t)
	return now == file
}

// finishWrite writes what is left of a write to a stream of which so much is done, and
// returns how much is done then: all of it, unless the descriptor does not wait, the
// other end goes, or the task is interrupted, in which case it may go on afterwards. As
// on Linux an error after a part of it is told by the next call, but for a pipe's
// SIGPIPE.
func finishWrite(t *kernel.Task, file *vfs.FileDescription, done uintptr, src usermem.IOSequence) (now uintptr, interrupted bool) {
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	if err := file.EventRegister(&entry); err != nil {
		return done, false
	}
	defer file.EventUnregister(&entry)
	for src.NumBytes() > 0 {
		n, err := file.Write(t, src, vfs.WriteOptions{})
		done += uintptr(n)
		src = src.DropFirst64(n)
		switch {
		case linuxerr.Equals(linuxerr.ErrWouldBlock, err):
			if t.Block(writable) != nil {
				return done, true
			}
		case linuxerr.Equals(linuxerr.EPIPE, err):
			if _, connection := file.Impl().(socket.Socket); !connection {
				_ = t.SendSignal(kernel.SignalInfoNoInfo(linux.SIGPIPE, t, t))
			}
			return done, false
		case err != nil, n == 0:
			return done, false
		}
	}
	return done, false
}

// waitsForAll says whether a write to a file waits until all is written, however long.
func waitsForAll(t *kernel.Task, file *vfs.FileDescription) bool {
	if file.StatusFlags()&linux.O_NONBLOCK != 0 {
		return false
	}
	switch impl := file.Impl().(type) {
	case *pipe.VFSPipeFD:
		return true
	case socket.Socket:
		_, kind, _ := impl.Type()
		return kind == linux.SOCK_STREAM && impl.SendTimeout() == 0
	}
	return file.Mount() == t.Kernel().HostMount()
}

// stop has a write that was interrupted go on later. It says no where a signal is the
// cause, upon which a write is short, or a debugger may be, which may do anything.
func (w *writes) stop(t *kernel.Task, s stoppedWrite) bool {
	s.mask = t.SignalMask()
	if t.PendingSignals()&^s.mask != 0 || t.Tracer() != nil {
		return false
	}
	// What is ignored would wait for its turn if it were blocked, and interrupt then.
	t.SetSignalMask(s.mask | allBlockable&^ignored(t.ThreadGroup()))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped == nil {
		w.stopped = make(map[*kernel.Task]stoppedWrite)
	}
	w.sweep()
	w.stopped[t] = s
	w.number.Store(int32(len(w.stopped)))
	return true
}

// ignored are the signals that do nothing to a process.
func ignored(tg *kernel.ThreadGroup) (set linux.SignalSet) {
	byDefault := linux.MakeSignalSet(linux.SIGCHLD, linux.SIGCONT, linux.SIGURG, linux.SIGWINCH)
	for sig := linux.Signal(1); sig <= linux.SignalMaximum; sig++ {
		one := linux.SignalSetOf(sig)
		if one&kernel.UnblockableSignals != 0 {
			continue
		}
		action, err := tg.SetSigAction(sig, nil)
		if err == nil && (action.Handler == linux.SIG_IGN || action.Handler == linux.SIG_DFL && one&byDefault != 0) {
			set |= one
		}
	}
	return set
}

// swept is how many tasks are looked at to find those that were killed.
const swept = 8

// sweep forgets tasks that were killed before they went on, if it meets them. The
// caller holds w.mu.
func (w *writes) sweep() {
	looked := 0
	for t := range w.stopped {
		if t.ExitState() != kernel.TaskExitNone {
			delete(w.stopped, t)
		}
		if looked++; looked == swept {
			return
		}
	}
}

// resume returns how much of the task's write is done, and to what, or 0 if it begins
// now.
func (w *writes) resume(t *kernel.Task, call uintptr, args arch.SyscallArguments) (done uintptr, file *vfs.FileDescription) {
	if w.number.Load() == 0 {
		return 0, nil
	}
	w.mu.Lock()
	s, ok := w.stopped[t]
	if ok {
		delete(w.stopped, t)
	} else {
		w.sweep()
	}
	w.number.Store(int32(len(w.stopped)))
	w.mu.Unlock()
	if !ok {
		return 0, nil
	}
	t.SetSignalMask(s.mask)
	if s.call != call || s.args != args {
		return 0, nil // A debugger has changed it.
	}
	return s.done, s.file
}
