// SPDX-License-Identifier: Apache-2.0

// Signals that the launcher gets: to the guest, or against the run.

package container

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

// proxied are the signals that docker sends on to the guest: all that can be
// caught, but for those that are about this process (SIGCHLD, SIGPIPE, SIGURG,
// SIGTTIN and SIGTTOU of a background job, faults).
var proxied = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGTERM, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGXFSZ,
	syscall.SIGVTALRM, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR, syscall.SIGSTKFLT,
}

// Real-time signals, as far as the C library leaves them to programs.
const (
	firstRealTime = 35
	lastRealTime  = 64
)

// queuedSignals bounds signals that wait while one is being delivered; the
// kernel would merge them too.
const queuedSignals = 64

// signals catches what is sent to this process.
type signals struct {
	c chan os.Signal
	// raw takes them from the runtime; a goroutine sorts them into c.
	raw chan os.Signal
	// all is closed once every signal is caught.
	all chan struct{}

	mu sync.Mutex
	// running says that the guest decides what a signal means.
	running bool
	// ended is the first signal that ends the process by default and came
	// before the guest ran.
	ended syscall.Signal
}

// stopDelay is how long signals are caught beyond a run. A process whose run is
// over has mostly ended by then, and what follows would only have kept it.
const stopDelay = 100 * time.Millisecond

// catchSignals starts to catch. Until the guest runs, a signal that would end
// the process calls cancel.
func catchSignals(tty bool, cancel context.CancelFunc) *signals {
	s := &signals{c: make(chan os.Signal, queuedSignals), raw: make(chan os.Signal, queuedSignals), all: make(chan struct{})}
	var first, rest []os.Signal
	for _, sig := range proxied {
		switch {
		case sig == syscall.SIGHUP && signal.Ignored(syscall.SIGHUP): // nohup
		case ends(sig):
			first = append(first, sig)
		default:
			rest = append(rest, sig)
		}
	}
	for n := syscall.Signal(firstRealTime); n <= lastRealTime; n++ {
		rest = append(rest, n)
	}
	// A write to a closed pipe shall be an error: by default Go dies of it
	// when the pipe is its standard output.
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(s.raw, first...)
	// The Go runtime switches threads twice for each signal, which for all of
	// them takes milliseconds: beside the fork of the sandbox process, then. What
	// is not caught yet is dropped, but for those that end every Go program.
	go func() {
		defer close(s.all)
		signal.Notify(s.raw, rest...)
	}()
	go func() {
		for sig := range s.raw {
			s.sort(sig, cancel)
		}
	}()
	return s
}

// sort enqueues a signal, or ends a run whose guest does not run yet.
func (s *signals) sort(sig os.Signal, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running && ends(sig) {
		if s.ended == 0 {
			s.ended = sig.(syscall.Signal)
		}
		cancel()
		return
	}
	s.enqueue(sig)
}

// enqueue drops what nobody takes for too long.
func (s *signals) enqueue(sig os.Signal) {
	select {
	case s.c <- sig:
	default:
	}
}

// ends reports whether a signal asks a program to end.
func ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return true
	}
	return false
}

// fatal returns the signal that ended the run before its guest ran, or 0.
func (s *signals) fatal() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// proxy begins to hand signals to the guest. One that came too late to keep it
// from running is the first.
func (s *signals) proxy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = true
	if s.ended != 0 {
		s.enqueue(s.ended)
		s.ended = 0
	}
}

// stop gives the signals back, a moment later.
func (s *signals) stop() {
	time.AfterFunc(stopDelay, func() {
		<-s.all
		signal.Stop(s.raw)
		close(s.raw)
	})
}

// signal handles one signal while the guest runs. It reports whether the run
// is over, and then its status.
func (u *run) signal(sig os.Signal) (api.ExitStatus, bool) {
	n := sig.(syscall.Signal)
	switch {
	case u.o.TTY && n == syscall.SIGWINCH:
		u.resize()
		return api.ExitStatus{}, false
	case u.o.TTY && n == syscall.SIGCONT:
		// After a stop the shell has given the terminal its own mode.
		if err := u.streams.MakeRaw(); err != nil {
			u.warn("%v", err)
		}
		u.resize()
	case u.o.TTY && n == syscall.SIGHUP:
		// The user's terminal is gone, and so is the guest's.
		u.signalForeground(n)
		u.streams.HangUp()
	}
	if !u.o.SignalProxy {
		if !ends(n) {
			return api.ExitStatus{}, false
		}
		u.process.End(endGrace)
		return api.ExitStatus{Code: exitSignalBase + int(n), Signal: int(n), At: time.Now().UTC()}, true
	}
	if ends(n) {
		u.measureVolumes()
	}
	if u.delivery.unanswered() && ends(n) {
		u.killStuck()
		return api.ExitStatus{}, false
	}
	u.delivery.send(n, u.deliver)
	return api.ExitStatus{}, false
}

const (
	// impatience is how long a signal must have waited for the sandbox to take
	// it before another one that asks for the end means it.
	impatience = time.Second
	// stuckAfter is when a sandbox that has not even taken a signal is stuck:
	// a millisecond's work, unless the host is in distress.
	stuckAfter = 10 * time.Second
)

// delivery hands signals to the sandbox one after the other, beside the loop that
// reacts to all else.
type delivery struct {
	mu    sync.Mutex
	queue []syscall.Signal
	// since is when the sandbox was asked to take the first of them.
	since time.Time
}

// send enqueues a signal. deliver is called for each, in order.
func (d *delivery) send(n syscall.Signal, deliver func(syscall.Signal)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) >= queuedSignals {
		return
	}
	if d.queue = append(d.queue, n); len(d.queue) > 1 {
		return
	}
	d.since = time.Now()
	go func() {
		for {
			d.mu.Lock()
			n := d.queue[0]
			d.since = time.Now()
			d.mu.Unlock()
			deliver(n)
			d.mu.Lock()
			d.queue = d.queue[1:]
			done := len(d.queue) == 0
			d.mu.Unlock()
			if done {
				return
			}
		}
	}()
}

// unanswered tells whether the sandbox has left a signal lying.
func (d *delivery) unanswered() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue) > 0 && time.Since(d.since) >= impatience
}

// deliver has the sandbox take a signal. One that asks for the end, and that a
// sandbox does not take, ends the sandbox.
func (u *run) deliver(n syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	err := u.process.Control.Signal(ctx, u.handle.ID(), int(n), control.TargetInit)
	// The guest may be on its way out: its end will be reported.
	if err == nil || ctx.Err() == nil || api.KindOf(err) == api.KindState {
		return
	}
	if ends(n) {
		u.killStuck()
		return
	}
	u.warn("send signal %v to the guest: the sandbox process %d does not answer", n, u.process.PID)
}

// killStuck ends a sandbox that takes no signals. Its end is reported like that of
// any sandbox that was killed.
func (u *run) killStuck() {
	u.warn("the sandbox process %d does not answer: it is killed", u.process.PID)
	u.process.Kill()
}

// resize gives the guest's terminal the size of the user's.
func (u *run) resize() {
	if !u.o.TTY {
		return
	}
	rows, columns, ok := u.streams.UserSize()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := u.process.Control.Resize(ctx, u.handle.ID(), rows, columns); err != nil && ctx.Err() != nil {
		u.warn("resize the guest's terminal: %v", err)
	}
}
