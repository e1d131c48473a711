// SPDX-License-Identifier: Apache-2.0

// TCP flows: a guest's connection, ended by the router's stack, and one of the
// host, ended by the host's kernel, with their bytes carried between.

package boot

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// maxHandshakes bounds connections that guests are opening. What is above
	// is not answered, and the guest's kernel asks again.
	maxHandshakes = 1024
	// maxStreams bounds TCP flows: each holds a descriptor of the sandbox and
	// what the four socket buffers hold.
	maxStreams = 16384
	// copyBytes is the most that one read of the host's side takes.
	copyBytes = 128 << 10
	// moveBytes are worth a question how many there are.
	moveBytes = 16 << 10
	// inboundTimeout is how long the guest may take to accept a client of a
	// published port.
	inboundTimeout = 30 * time.Second
	// Keepalive towards the guest finds connections that its kernel has
	// forgotten, such as those it closed and whose peer on the host never does.
	// The guest's kernel answers in no time while it knows the connection.
	keepaliveIdle  = time.Minute
	keepalivePause = 15 * time.Second
	keepaliveCount = 4
)

// copyBuffers are in use only while there are bytes to carry: an idle flow
// holds none.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copyBytes); return &b }}

// forwardTCP handles a guest's request for a connection, on a goroutine of its
// own. The guest's handshake is completed only once the host's is.
func (n *nat) forwardTCP(r *tcp.ForwarderRequest) {
	id := r.ID()
	if !n.streams.take() {
		r.Complete(false)
		return
	}
	defer n.streams.release()
	to, from := addrPort(id.LocalAddress, id.LocalPort), addrPort(id.RemoteAddress, id.RemotePort)
	result, host := n.broker.dial(netwire.TCP, to, from, n.owners.take(id))
	if result != netwire.OK {
		r.Complete(result == netwire.Refused)
		n.unreachable(packetKey{netwire.TCP, from, to}, result)
		return
	}
	var queue waiter.Queue
	ep, err := r.CreateEndpoint(&queue)
	r.Complete(false)
	if err != nil {
		log.Debugf("network: handshake with guest %s: %s", from, err)
		host.reset()
		return
	}
	newStream(ep, &queue, host).carry(n.workers.run)
}

// inbound takes in a client of a published port.
func (n *nat) inbound(m netwire.Message, host *hostConn) {
	if m.Protocol == netwire.UDP {
		n.inboundUDP(m, host)
		return
	}
	if m.Protocol != netwire.TCP || !n.streams.take() {
		host.reset()
		return
	}
	defer n.streams.release()
	var queue waiter.Queue
	ep, err := n.dialGuest(m.Port, &queue)
	if err != nil {
		log.Debugf("network: published port %d: %s", m.Port, err)
		host.reset() // As the guest's own answer would be.
		return
	}
	newStream(ep, &queue, host).carry(n.workers.run)
}

// dialGuest connects to a port of the guest, from the gateway: over IPv6 where
// nobody listens on IPv4.
func (n *nat) dialGuest(port uint16, queue *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	ep, err := n.dialGuestAt(natGateway, natGuest, port, queue)
	if _, refused := err.(*tcpip.ErrConnectionRefused); refused && n.ipv6 {
		return n.dialGuestAt(natGateway6, natGuest6, port, queue)
	}
	return ep, err
}

func (n *nat) dialGuestAt(from, to netip.Addr, port uint16, queue *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	ep, err := n.router.NewEndpoint(tcp.ProtocolNumber, networkProtocol(to), queue)
	if err != nil {
		return nil, err
	}
	if err := ep.Bind(tcpip.FullAddress{NIC: n.nic, Addr: tcpipAddress(from)}); err != nil {
		ep.Close()
		return nil, err
	}
	return connected(ep, queue, tcpip.FullAddress{NIC: n.nic, Addr: tcpipAddress(to), Port: port})
}

// connected connects an endpoint, within inboundTimeout. It closes one that cannot
// be.
func connected(ep tcpip.Endpoint, queue *waiter.Queue, to tcpip.FullAddress) (tcpip.Endpoint, tcpip.Error) {
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	err := ep.Connect(to)
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		limit := time.NewTimer(inboundTimeout)
		defer limit.Stop()
		select {
		case <-ready:
			err = ep.LastError()
		case <-limit.C:
			err = &tcpip.ErrTimeout{}
		}
	}
	if err != nil {
		ep.Close()
		return nil, err
	}
	return ep, nil
}

// stream is one flow. Two goroutines carry its bytes, one each way; the one
// that meets an error ends both.
type stream struct {
	guest tcpip.Endpoint
	queue *waiter.Queue
	host  *hostConn

	mu      sync.Mutex
	aborted bool
	// over says that carry gives both sides back: abort comes too late.
	over bool
}

func newStream(guest tcpip.Endpoint, queue *waiter.Queue, host *hostConn) *stream {
	o := guest.SocketOptions()
	o.SetDelayOption(false)
	idle, pause := tcpip.KeepaliveIdleOption(keepaliveIdle), tcpip.KeepaliveIntervalOption(keepalivePause)
	_ = guest.SetSockOpt(&idle)
	_ = guest.SetSockOpt(&pause)
	_ = guest.SetSockOptInt(tcpip.KeepaliveCountOption, keepaliveCount)
	o.SetKeepAlive(true)
	return &stream{guest: guest, queue: queue, host: host}
}

// carry carries bytes until both directions have ended, or one has failed. It has
// run run one of them on another goroutine.
func (s *stream) carry(run func(func())) {
	// A reset from the guest must be seen even while both directions wait for
	// the host. Whoever notifies holds locks of the endpoint.
	entry := waiter.NewFunctionEntry(waiter.EventHUp|waiter.EventErr, func(waiter.EventMask) { go s.checkGuest() })
	s.queue.EventRegister(&entry)
	s.host.whenEnded(s.abort)
	var out sync.WaitGroup
	out.Add(1)
	run(func() {
		defer out.Done()
		s.carryOut()
	})
	s.carryIn()
	out.Wait()
	s.queue.EventUnregister(&entry)
	s.mu.Lock()
	s.over = true
	aborted := s.aborted
	s.mu.Unlock()
	if aborted {
		s.host.reset()
	} else {
		s.host.close()
	}
	s.guest.Close()
}

// abort ends both directions, with a reset to both sides.
func (s *stream) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted || s.over {
		return
	}
	s.aborted = true
	s.guest.Abort()
	s.host.interrupt()
}

// checkGuest aborts the flow if the guest has: an end of sending, though it is
// news of the same kind, is not one.
func (s *stream) checkGuest() {
	if tcp.EndpointState(s.guest.State()) == tcp.StateError {
		s.abort()
	}
}

// hostWriter writes what the guest's side hands it straight to the host's
// descriptor, without a copy in between.
type hostWriter struct {
	fd  int
	err error
}

// Write implements io.Writer. When the host's side is full it takes a part,
// and the rest stays where it is.
func (w *hostWriter) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(w.fd, b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.err = err
			return done, err
		}
		done += n
	}
	return done, nil
}

// carryOut carries what the guest sends, and its end of sending.
func (s *stream) carryOut() {
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	s.queue.EventRegister(&entry)
	defer s.queue.EventUnregister(&entry)
	for {
		var guestErr tcpip.Error
		var hostErr error
		// Inside, so that no event is missed between a full socket and the
		// wait for room in it.
		err := s.host.raw.Write(func(fd uintptr) bool {
			w := hostWriter{fd: int(fd)}
			_, guestErr = s.guest.Read(&w, tcpip.ReadOptions{})
			hostErr = w.err
			return hostErr != unix.EAGAIN
		})
		if err != nil || hostErr != nil {
			s.abort()
			return
		}
		switch guestErr.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-readable
		case *tcpip.ErrClosedForReceive:
			s.host.closeWrite()
			return
		default: // The guest has reset the connection, or is gone.
			s.abort()
			return
		}
	}
}

// carryIn carries what the host's side sends, and its end of sending.
func (s *stream) carryIn() {
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	s.queue.EventRegister(&entry)
	defer s.queue.EventUnregister(&entry)
	// much says that there was enough to be worth moving without a copy.
	for much := false; ; {
		if much {
			full, err := s.moveIn()
			if full {
				<-writable
				continue
			}
			if err != nil {
				s.abort()
				return
			}
		}
		// Nothing was there to be moved: an end, an error, or what came since.
		buf, n, err := s.host.read()
		if err != nil {
			s.abort()
			return
		}
		if n == 0 {
			copyBuffers.Put(buf)
			if s.guest.Shutdown(tcpip.ShutdownWrite) != nil {
				s.abort()
			}
			return
		}
		much = n >= moveBytes
		ok := s.writeGuest((*buf)[:n], writable)
		copyBuffers.Put(buf)
		if !ok {
			s.abort()
			return
		}
	}
}

// errGuestWrite is a guest that takes no more.
var errGuestWrite = errors.New("the guest's connection does not take what the host sends")

// moveIn reads what the host's side holds straight into the guest's segments,
// without a copy in between, until it holds little or nothing, or the guest's
// window is full.
func (s *stream) moveIn() (full bool, err error) {
	cerr := s.host.raw.Control(func(fd uintptr) {
		for {
			held, herr := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			if herr != nil || held < moveBytes {
				return
			}
			r := &hostReader{fd: int(fd), left: held}
			_, werr := s.guest.Write(r, tcpip.WriteOptions{})
			switch werr.(type) {
			case nil:
			case *tcpip.ErrWouldBlock:
				full = true
				return
			default:
				err = errGuestWrite
				return
			}
		}
	})
	if err == nil {
		err = cerr
	}
	return full, err
}

// hostReader hands the guest's side what the host's descriptor holds, of which
// it knows how much that is at least.
type hostReader struct{ fd, left int }

// Len implements tcpip.Payloader.
func (r *hostReader) Len() int { return r.left }

// Read implements io.Reader. Whoever calls it asks for no more than Len.
func (r *hostReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Read(r.fd, b[:min(len(b), r.left)])
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		r.left -= n
		return n, nil
	}
}

// writeGuest writes all of b, waiting for room in the guest's window.
func (s *stream) writeGuest(b []byte, writable <-chan struct{}) bool {
	r := bytes.NewReader(b)
	for r.Len() > 0 {
		switch _, err := s.guest.Write(r, tcpip.WriteOptions{}); err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-writable
		default:
			return false
		}
	}
	return true
}

// read waits for bytes and returns them in a buffer of copyBuffers, which is
// the caller's unless there is an error.
func (c *hostConn) read() (buf *[]byte, n int, err error) {
	werr := c.raw.Read(func(fd uintptr) bool {
		buf = copyBuffers.Get().(*[]byte)
		for {
			if n, err = unix.Read(int(fd), *buf); err != unix.EINTR {
				break
			}
		}
		if err != nil {
			copyBuffers.Put(buf)
		}
		return err != unix.EAGAIN
	})
	if werr != nil {
		return nil, 0, werr
	}
	return buf, n, err
}
