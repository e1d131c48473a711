// SPDX-License-Identifier: Apache-2.0

// Waits for events. gVisor ends them whenever the guest is stopped for a moment, as a
// limit on its processor time does all the while, and tells the program of a signal that
// there was not. They go on instead; a signal with a handler still ends them, as on
// Linux, whatever the handler's flags say.

package boot

import (
	gocontext "context"
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	syscalls "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/state"
)

// epollWait is a wait for events that goes on until a time.
type epollWait struct {
	args     arch.SyscallArguments
	deadline ktime.Time
}

// Restart implements kernel.SyscallRestartBlock.
func (w *epollWait) Restart(t *kernel.Task) (uintptr, error) {
	left := max(w.deadline.Sub(t.Kernel().MonotonicClock().Now()), 0)
	millis := min((left+time.Millisecond-1)/time.Millisecond, math.MaxInt32)
	args := w.args
	args[3].Value = uintptr(millis)
	n, _, err := syscalls.EpollPwait(t, 0, args)
	if linuxerr.Equals(linuxerr.ErrInterrupted, err) {
		t.SetSyscallRestartBlock(w)
		return 0, linuxerr.ERESTART_RESTARTBLOCK
	}
	return n, err
}

// goOnWaiting completes epoll_wait(2), epoll_pwait(2) and epoll_pwait2(2). Waits under
// another mask of signals end early still: the mask is not known to who goes on.
func goOnWaiting(timeout func(*kernel.Task, arch.SyscallArguments) (time.Duration, bool)) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(wait kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			began := t.Kernel().MonotonicClock().Now()
			n, control, err := wait(t, number, args)
			if !linuxerr.Equals(linuxerr.ErrInterrupted, err) {
				return n, control, err
			}
			length, limited := timeout(t, args)
			if !limited {
				return 0, nil, linuxerr.ERESTARTNOHAND
			}
			w := &epollWait{args: arch.SyscallArguments{args[0], args[1], args[2]}, deadline: began.Add(length)}
			t.SetSyscallRestartBlock(w)
			return 0, nil, linuxerr.ERESTART_RESTARTBLOCK
		}
	}
}

// millisOf is the timeout of epoll_wait(2) and epoll_pwait(2); below 0 is none.
func millisOf(_ *kernel.Task, args arch.SyscallArguments) (time.Duration, bool) {
	n := args[3].Int()
	return time.Duration(n) * time.Millisecond, n >= 0
}

// timespecOf is that of epoll_pwait2(2).
func timespecOf(t *kernel.Task, args arch.SyscallArguments) (time.Duration, bool) {
	var timeout linux.Timespec
	if args[3].Pointer() == 0 {
		return 0, false
	}
	if _, err := timeout.CopyIn(t, args[3].Pointer()); err != nil {
		return 0, true // It was there a moment ago: the guest takes what it gets.
	}
	return timeout.ToDuration(), true
}

// unmasked leaves calls alone that wait under another mask.
func unmasked(wrap func(kernel.SyscallFn) kernel.SyscallFn) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(wait kernel.SyscallFn) kernel.SyscallFn {
		goingOn := wrap(wait)
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if args[4].Pointer() != 0 {
				return wait(t, number, args)
			}
			return goingOn(t, number, args)
		}
	}
}

func init() { state.Register((*epollWait)(nil)) }

// StateTypeName implements state.Type.
func (*epollWait) StateTypeName() string { return "gvx/boot.epollWait" }

// StateFields implements state.Type.
func (*epollWait) StateFields() []string { return []string{"args", "deadline"} }

// StateSave implements state.SaverLoader.
func (w *epollWait) StateSave(s state.Sink) {
	s.Save(0, &w.args)
	s.Save(1, &w.deadline)
}

// StateLoad implements state.SaverLoader.
func (w *epollWait) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &w.args)
	s.Load(1, &w.deadline)
}
