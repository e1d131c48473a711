// SPDX-License-Identifier: Apache-2.0

// The broker: its channel to the sandbox, and who is connected to what.

package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control/netwire"
)

// maxAttempts bounds connections being opened at once: each holds a descriptor
// and waits up to dialTimeout. A guest's kernel repeats what was refused as
// busy.
const maxAttempts = 1024

// Options describe a broker. Policy alone changes in its life.
type Options struct {
	// Policy says what guests reach at first; nil is the policy without rules.
	Policy *Policy
	// Hosts are names that the guest's name server knows by itself.
	Hosts map[string][]netip.Addr
	// Servers are asked for all other names; none means the host's own.
	Servers []netip.AddrPort
	// Denied, if not nil, is told what the policy denied, though not all of a
	// flood. Warn, if not nil, is told what went wrong.
	// After a change of policy it also hears what that has ended.
	Denied func(Denial)
	Warn   func(format string, args ...any)
}

// Broker serves one sandbox.
type Broker struct {
	o        Options
	policy   atomic.Pointer[Policy]
	resolver *resolver
	learned  *learned
	flows    *flows
	near     *os.File
	raw      syscall.RawConn
	far      *os.File

	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	slots   chan struct{}
	streams chan struct{}
	denials denials

	// changing is held while a policy is made of the one before it.
	changing sync.Mutex
	// sending keeps messages apart; it is held while the sandbox's end is full.
	sending sync.Mutex

	// ports are bound by Publish, before Start, and closed by Close.
	ports []*port
}

// New makes a broker and its channel.
func New(o Options) (*Broker, error) {
	if o.Policy == nil {
		o.Policy = &Policy{byDef: true}
	}
	near, far, err := socketpair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, fmt.Errorf("make the network channel: %w", err)
	}
	b := &Broker{
		o: o, near: near, far: far,
		learned: newLearned(o.Hosts),
		slots:   make(chan struct{}, maxAttempts),
		streams: make(chan struct{}, maxResolverFlows),
	}
	b.policy.Store(o.Policy)
	b.resolver = newResolver(o.Hosts, o.Servers, func(name string) bool { return b.policy.Load().Resolves(name) }, b.learned.learn)
	if b.flows, err = newFlows(); err == nil {
		b.raw, err = near.SyscallConn()
	}
	if err != nil {
		near.Close()
		far.Close()
		return nil, fmt.Errorf("make the network channel: %w", err)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// File is the end of the channel to donate.
func (b *Broker) File() *os.File { return b.far }

// Donated closes the broker's copy of the donated end, after the start.
func (b *Broker) Donated() { b.far.Close() }

// Start begins to serve.
func (b *Broker) Start() {
	b.tasks.Go(b.serve)
	for _, p := range b.ports {
		b.tasks.Go(func() { p.serve(b) })
	}
}

// Close ends the service: ports are closed, attempts are given up, unix
// sockets removed, and the guest's connections ended.
func (b *Broker) Close() error {
	b.cancel()
	b.near.Close()
	b.far.Close()
	var problems []error
	for _, p := range b.ports {
		problems = append(problems, p.close())
	}
	fds := b.flows.endAll()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, fd := range fds {
			b.flows.letGo(fd)
		}
		b.tasks.Wait()
	}()
	select {
	case <-closed:
	case <-time.After(closePatience):
		// All are ended; what lingers goes with this process.
		problems = append(problems, errors.New("close the guest's connections: the sandbox has some linger"))
	}
	return errors.Join(problems...)
}

// closePatience bounds the wait for closes, which take no time but by a sandbox that
// was taken over, and for attempts, which have been told to end.
const closePatience = 5 * time.Second

// serve reads requests until the sandbox hangs up: then it has no connections
// any more.
func (b *Broker) serve() {
	defer b.flows.closeAll()
	// Nobody is there to take in clients of published ports either.
	defer func() { _ = unixShutdown(b.raw) }()
	// One byte more than a packet shows that one is longer.
	buf := make([]byte, netwire.MaxRequests*netwire.RequestBytes+1)
	for {
		n, err := b.near.Read(buf)
		if err != nil || n == 0 {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && b.ctx.Err() == nil {
				b.warn("read the network channel: %v", err)
			}
			return
		}
		for at := 0; at < n; at += netwire.RequestBytes {
			r, err := netwire.ParseRequest(buf[at:min(at+netwire.RequestBytes, n)])
			if err != nil {
				// The other end is the same program: it could not say this.
				b.warn("the sandbox sent a %w on its network channel: it gets no more connections", err)
				return
			}
			b.handle(r)
		}
	}
}

// handle does what one request asks for.
func (b *Broker) handle(r netwire.Request) {
	r.By.Name = printable(r.By.Name)
	if r.Ask == netwire.Closed {
		b.flows.remove(r.ID, r.Protocol)
		return
	}
	select {
	case b.slots <- struct{}{}:
	default:
		b.answer(r, netwire.Busy)
		return
	}
	// Most connections are there at once, or not at all, and are answered here: a
	// goroutine for each would cost more than the connection.
	wait := b.connect(r)
	if wait == nil {
		<-b.slots
		return
	}
	b.tasks.Go(func() {
		defer func() { <-b.slots }()
		wait()
	})
}

// answer tells the sandbox that it gets no connection.
func (b *Broker) answer(r netwire.Request, result netwire.Result) {
	b.send(netwire.Message{Kind: netwire.Answer, Protocol: r.Protocol, ID: r.ID, Result: result}, -1)
}

// handOverHeld gives the sandbox a connection that the broker keeps: one that is
// under the policy. Its descriptor is the table's from now on. What may take its
// time is left to wait.
func (b *Broker) handOverHeld(r netwire.Request, f *flow) (wait func()) {
	var why string
	result := b.flows.add(r.ID, f, func() (allowed bool) {
		allowed, why = b.allows(f)
		return allowed
	})
	switch result {
	case netwire.OK:
		defer b.flows.handed(f)
		b.handOver(r, f.fd, netwire.Held)
	case netwire.Denied: // The policy has changed meanwhile.
		unix.Close(f.fd)
		return func() { b.deny(r, why) }
	default:
		unix.Close(f.fd)
		b.answer(r, result)
	}
	return nil
}

// handOver gives the sandbox the connection it asked for. The caller keeps its
// own copy, to be closed.
func (b *Broker) handOver(r netwire.Request, fd int, flags uint8) {
	m := netwire.Message{Kind: netwire.Answer, Protocol: r.Protocol, ID: r.ID, Flags: flags}
	if err := b.send(m, fd); err != nil {
		if flags&netwire.Held != 0 {
			b.flows.remove(r.ID, r.Protocol)
		}
		b.answer(r, netwire.Failed)
	}
}

// send sends a message, with a descriptor unless fd is negative. It waits while
// the channel is full. After an error, such as too many descriptors of this user
// under way already, the message has not been sent.
func (b *Broker) send(m netwire.Message, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	packet := m.Append(make([]byte, 0, netwire.MessageBytes))
	b.sending.Lock()
	defer b.sending.Unlock()
	var err error
	werr := b.raw.Write(func(s uintptr) bool {
		for {
			err = unix.Sendmsg(int(s), packet, rights, nil, unix.MSG_NOSIGNAL)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	return errors.Join(werr, err)
}

func (b *Broker) warn(format string, args ...any) {
	if b.o.Warn != nil {
		b.o.Warn("%v", fmt.Errorf(format, args...))
	}
}

// socketpair returns two connected unix sockets that do not block.
func socketpair(kind int) (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "network"), os.NewFile(uintptr(fds[1]), "network"), nil
}

func unixShutdown(raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// kindOf classifies an error of a listening socket.
func kindOf(err error) api.Kind {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return api.KindExists
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return api.KindPermission
	}
	return api.KindInvalid
}
