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
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	syscalls "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/state"
)

// epollWait is a wait for events that goes on until a time.
type epollWait struct {
	epoll    int32
	events   hostarch.Addr
	most     int32
	deadline ktime.Time
}

// Restart implements kernel.SyscallRestartBlock.
func (w *epollWait) Restart(t *kernel.Task) (uintptr, error) {
	for {
		left := max(w.deadline.Sub(t.Kernel().MonotonicClock().Now()), 0)
		millis := min((left+time.Millisecond-1)/time.Millisecond, math.MaxInt32)
		n, _, err := syscalls.EpollPwait(t, 0, arch.SyscallArguments{
			{Value: uintptr(w.epoll)}, {Value: uintptr(w.events)}, {Value: uintptr(w.most)}, {Value: uintptr(millis)},
		})
		if linuxerr.Equals(linuxerr.ErrInterrupted, err) {
			t.SetSyscallRestartBlock(w)
			return 0, linuxerr.ERESTART_RESTARTBLOCK
		}
		if n > 0 || err != nil || millis < math.MaxInt32 {
			return n, err
		}
	}
}

// goOnWaiting completes epoll_wait(2), and epoll_pwait(2) and epoll_pwait2(2) where
// masked says so. Waits for a time under another mask of signals end early still: the
// mask is not known to who goes on.
func goOnWaiting(masked bool, timeout func(*kernel.Task, arch.SyscallArguments) (time.Duration, bool)) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(wait kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			began := t.Kernel().MonotonicClock().Now()
			length, limited := timeout(t, args)
			n, control, err := wait(t, number, args)
			if !linuxerr.Equals(linuxerr.ErrInterrupted, err) {
				return n, control, err
			}
			switch {
			case !limited:
				return 0, nil, linuxerr.ERESTARTNOHAND
			case masked && args[4].Pointer() != 0:
				return n, control, err
			}
			w := &epollWait{epoll: args[0].Int(), events: args[1].Pointer(), most: args[2].Int(), deadline: began.Add(length)}
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
		return 0, true // The call itself says so.
	}
	n := timeout.ToNsec()
	return time.Duration(n), n >= 0 // As gVisor has it.
}

func init() { state.Register((*epollWait)(nil)) }

// StateTypeName implements state.Type.
func (*epollWait) StateTypeName() string { return "gvx/boot.epollWait" }

// StateFields implements state.Type.
func (*epollWait) StateFields() []string { return []string{"epoll", "events", "most", "deadline"} }

// StateSave implements state.SaverLoader.
func (w *epollWait) StateSave(s state.Sink) {
	s.Save(0, &w.epoll)
	s.Save(1, &w.events)
	s.Save(2, &w.most)
	s.Save(3, &w.deadline)
}

// StateLoad implements state.SaverLoader.
func (w *epollWait) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &w.epoll)
	s.Load(1, &w.events)
	s.Load(2, &w.most)
	s.Load(3, &w.deadline)
}
