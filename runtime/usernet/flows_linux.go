// SPDX-License-Identifier: Apache-2.0

// The connections that a sandbox has, so that a change of policy can end them.
// The broker keeps a descriptor of each: a sandbox that was taken over would not
// give its own back. Both must be closed for the connection to be; a sandbox
// closes its own and says so.

package usernet

import (
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// maxFlows bounds connections of one sandbox: a little more than an honest
	// one has.
	maxFlows = 24 << 10
	// flowShare is which part of the descriptors that the launcher may have
	// connections get: the rest must always be there for the others.
	flowShare = 2
)

// flow is one connection that was handed over.
type flow struct {
	// fd is the broker's own descriptor of it.
	fd       int
	protocol netwire.Protocol
	to, from netip.AddrPort
	by       netwire.Process
	// names are those by which the guest knew the address when it connected: an
	// answer's end is no end of what was reached by it.
	names []string
	// ended is what the policy has ended; handing is a flow whose descriptor is
	// being sent, and over one that the table has let go of.
	ended, handing, over bool
}

// flows are the connections of a sandbox by the id of their request.
type flows struct {
	most int
	// letGo closes a descriptor that the sandbox has had. It may take as long as the
	// sandbox wants: it is never called with mu, which a change of policy needs.
	letGo func(fd int)

	mu     sync.Mutex
	open   map[uint32]*flow
	closed bool
}

// newFlows asks how many descriptors there may be.
func newFlows() (*flows, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	return &flows{most: int(min(maxFlows, files.Cur/flowShare)), letGo: letGo, open: make(map[uint32]*flow)}, nil
}

// add enters a connection, whose descriptor belongs to the table from then on.
// allowed is asked again under the lock that a change of policy takes, so that
// none slips through between the two. The flow is being handed over until
// [flows.handed].
func (t *flows) add(id uint32, f *flow, allowed func() bool) netwire.Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed || t.open[id] != nil:
		return netwire.Failed // An honest sandbox does not use an id twice.
	case len(t.open) >= t.most:
		return netwire.Busy
	case !allowed():
		return netwire.Denied
	}
	f.handing = true
	t.open[id] = f
	return netwire.OK
}

// handed says that the flow's descriptor has been sent, or could not be.
func (t *flows) handed(f *flow) {
	t.mu.Lock()
	f.handing = false
	over := f.over
	t.mu.Unlock()
	if over {
		t.letGo(f.fd)
	}
}

// remove closes the broker's side of a connection, if it is there.
func (t *flows) remove(id uint32, protocol netwire.Protocol) {
	t.mu.Lock()
	f := t.open[id]
	mine := f != nil && f.protocol == protocol && t.forget(id, f)
	t.mu.Unlock()
	if mine {
		t.letGo(f.fd)
	}
}

// forget takes a connection from the table, and says whether its descriptor is the
// caller's to close: not while it is being sent. A sandbox that gives back what it has
// not got yet would be sent whatever has the number next. The caller holds t.mu.
func (t *flows) forget(id uint32, f *flow) bool {
	delete(t.open, id)
	f.over = true
	return !f.handing
}

// letGo closes a descriptor that the sandbox has had.
func letGo(fd int) {
	neverLinger(fd)
	unix.Close(fd)
}

// neverLinger has the close of a connection that the sandbox has had not wait: it
// would for as long as the socket is to linger, which is the sandbox's to set. One that
// sets it again at the right moment has its own requests wait, and nobody else. An
// honest sandbox sets no time, which makes the close a reset; that stays.
func neverLinger(fd int) {
	if l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger != 0 {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	}
}

// replace calls change and ends what judge denies then. It returns the denials
// of what has been ended.
func (t *flows) replace(change func(), judge func(*flow) *Denial) map[uint32]*Denial {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
	ended := make(map[uint32]*Denial)
	for id, f := range t.open {
		if f.ended {
			continue
		}
		if d := judge(f); d != nil {
			f.end()
			ended[id] = d
		}
	}
	return ended
}

// list returns what is open.
func (t *flows) list() []flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]flow, 0, len(t.open))
	for _, f := range t.open {
		if !f.ended {
			all = append(all, *f)
		}
	}
	return all
}

// endAll ends everything, for good. What it returns is to be closed.
func (t *flows) endAll() (fds []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for id, f := range t.open {
		f.end()
		if t.forget(id, f) {
			fds = append(fds, f.fd)
		}
	}
	return fds
}

// closeAll is endAll, and closes what that returns.
func (t *flows) closeAll() {
	for _, fd := range t.endAll() {
		t.letGo(fd)
	}
}

// end makes a connection useless to whoever has a descriptor of it.
func (f *flow) end() {
	f.ended = true
	_ = unix.Shutdown(f.fd, unix.SHUT_RDWR)
	if f.protocol != netwire.TCP {
		// Shut down, a socket of packets still hears its peer: it gets none.
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(f.fd), uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody))
	}
}

// nobody is the address that disconnects a socket: of no family.
var nobody = unix.RawSockaddr{Family: unix.AF_UNSPEC}
