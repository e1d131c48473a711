// SPDX-License-Identifier: Apache-2.0

// UDP and ICMP echo flows: packets carried one by one between the guest and a
// connected socket of the host.

package boot

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// maxPacketFlows bounds flows; beyond it the one that was silent longest
	// makes room.
	maxPacketFlows = 4096
	// maxConnecting bounds flows that wait for their socket, each of them with a
	// goroutine, even if it has made room for another since. Beyond it a packet
	// of a new flow is lost.
	maxConnecting = 1024
	// maxPending bounds the packets of a flow that wait for its socket.
	maxPending = 16
	// Flows end when nothing came for so long: the times that Linux' connection
	// tracking has.
	idleUnanswered = 30 * time.Second
	idleAnswered   = 120 * time.Second
	// A resolver asks from a new port each time: once all is answered its flow
	// is over, and a busy guest would soon have too many.
	idleResolved = time.Second
	// Ports of the gateway that stand for clients of published UDP ports.
	firstInboundPort, lastInboundPort = 32768, 60999
)

// packetKey names a flow. For ICMP echo the guest's port is its identifier.
type packetKey struct {
	protocol    netwire.Protocol
	guest, peer netip.AddrPort
}

// packetFlows are the flows of a router.
type packetFlows struct {
	n        *nat
	most     int
	mu       sync.Mutex
	flows    map[packetKey]*packetFlow
	nextPort uint16
	// connecting has an entry for each flow that waits for its socket.
	connecting chan struct{}
}

func (t *packetFlows) init(n *nat, most int) {
	t.n, t.most, t.flows, t.nextPort = n, most, make(map[packetKey]*packetFlow), firstInboundPort
	t.connecting = make(chan struct{}, maxConnecting)
}

// packetFlow is one flow.
type packetFlow struct {
	n   *nat
	key packetKey
	// used is when the last packet came, in Unix nanoseconds.
	used atomic.Int64
	// sent and received count packets.
	sent, received atomic.Int64

	// mu is taken after packetFlows.mu, if both are.
	mu      sync.Mutex
	host    *hostConn
	pending [][]byte
	ended   bool
}

// forwardUDP takes a datagram of the guest. It says no to none: a guest learns
// that nobody listens when the host does.
func (n *nat) forwardUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	peer := addrPort(id.LocalAddress, id.LocalPort)
	if peer.Addr().IsMulticast() || pkt.NetworkPacketInfo.LocalAddressBroadcast || isBroadcast(peer.Addr()) || peer.Port() == 0 {
		return true // To everybody on a network where nobody else is.
	}
	n.packets.send(packetKey{netwire.UDP, addrPort(id.RemoteAddress, id.RemotePort), peer}, pkt.Owner, pkt.Data().AsRange().ToSlice())
	return true
}

// forwardICMP takes an echo request for somebody beyond the router. All else
// is left to the router's stack.
func (n *nat) forwardICMP(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.ICMPv4(pkt.TransportHeader().Slice())
	if len(h) < header.ICMPv4MinimumSize || h.Type() != header.ICMPv4Echo {
		return false
	}
	return n.forwardEcho(pkt, h, h.Ident())
}

// forwardICMP6 is the same for IPv6.
func (n *nat) forwardICMP6(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.ICMPv6(pkt.TransportHeader().Slice())
	if len(h) < header.ICMPv6EchoMinimumSize || h.Type() != header.ICMPv6EchoRequest {
		return false
	}
	return n.forwardEcho(pkt, h, h.Ident())
}

func (n *nat) forwardEcho(pkt *stack.PacketBuffer, h []byte, ident uint16) bool {
	ip := pkt.Network()
	peer := addrPort(ip.DestinationAddress(), 0)
	switch a := peer.Addr(); {
	case a == natGateway, a == natDNS, a == natGateway6, a == natDNS6:
		return false
	case a.IsMulticast(), isBroadcast(a):
		return true
	}
	message := append(append([]byte(nil), h...), pkt.Data().AsRange().ToSlice()...)
	n.packets.send(packetKey{netwire.Echo, addrPort(ip.SourceAddress(), ident), peer}, pkt.Owner, message)
	return true
}

// isBroadcast knows the two broadcast addresses of the guest's network.
func isBroadcast(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || a == netip.AddrFrom4([4]byte{10, 0, 2, 255})
}

// send sends a guest's packet on its flow, which is made if need be, for the
// packet's owner.
func (t *packetFlows) send(key packetKey, owner tcpip.PacketOwner, packet []byte) {
	t.mu.Lock()
	f := t.flows[key]
	if f == nil {
		select {
		case t.connecting <- struct{}{}:
		default:
			t.mu.Unlock()
			return
		}
		f = t.add(key)
		go f.connect(owner)
	}
	t.mu.Unlock()
	f.send(packet)
}

// add enters a flow. The caller holds t.mu.
func (t *packetFlows) add(key packetKey) *packetFlow {
	if len(t.flows) >= t.most {
		t.evict()
	}
	f := &packetFlow{n: t.n, key: key}
	f.touch()
	t.flows[key] = f
	return f
}

// evict ends the flow that was silent longest. The caller holds t.mu.
func (t *packetFlows) evict() {
	var oldest *packetFlow
	for _, f := range t.flows {
		if oldest == nil || f.used.Load() < oldest.used.Load() {
			oldest = f
		}
	}
	delete(t.flows, oldest.key)
	oldest.end()
}

// remove ends a flow.
func (t *packetFlows) remove(f *packetFlow) {
	t.mu.Lock()
	if t.flows[f.key] == f {
		delete(t.flows, f.key)
	}
	t.mu.Unlock()
	f.end()
}

// inboundUDP enters the flow of a client of a published port, which the guest
// sees as a port of the gateway.
func (n *nat) inboundUDP(m netwire.Message, host *hostConn) {
	t := &n.packets
	key := packetKey{netwire.UDP, netip.AddrPortFrom(natGuest, m.Port), netip.AddrPort{}}
	t.mu.Lock()
	for range lastInboundPort - firstInboundPort + 1 {
		key.peer = netip.AddrPortFrom(natGateway, t.nextPort)
		if t.nextPort++; t.nextPort > lastInboundPort {
			t.nextPort = firstInboundPort
		}
		if t.flows[key] == nil {
			break
		}
	}
	if t.flows[key] != nil {
		t.mu.Unlock()
		host.close()
		return
	}
	f := t.add(key)
	t.mu.Unlock()
	f.open(host)
}

func (f *packetFlow) touch() { f.used.Store(time.Now().UnixNano()) }

// idle is how long the flow may be silent.
func (f *packetFlow) idle() time.Duration {
	received := f.received.Load()
	switch {
	case (f.key.peer.Addr() == natDNS || f.key.peer.Addr() == natDNS6) && received >= f.sent.Load():
		return idleResolved
	case received > 0:
		return idleAnswered
	}
	return idleUnanswered
}

// send sends one packet to the host's side, or keeps it until there is one.
func (f *packetFlow) send(packet []byte) {
	f.touch()
	f.sent.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
	case f.host != nil:
		f.write(packet)
	case len(f.pending) < maxPending:
		f.pending = append(f.pending, packet)
	}
}

// write sends one packet. It does not wait: what does not fit is lost, as
// packets are. The caller holds f.mu.
func (f *packetFlow) write(packet []byte) {
	if len(packet) == 0 && f.host.endsEmpty {
		return // It would end the flow.
	}
	var err error
	_ = f.host.raw.Control(func(fd uintptr) {
		// The first error may be about a packet before this one, and then this
		// one has not been sent.
		for range 2 {
			if _, err = unix.Write(int(fd), packet); err == nil || err == unix.EAGAIN {
				return
			}
			go f.report(err) // Not here: it sends to the guest.
		}
	})
}

// connect gets the flow its socket and serves it. The caller has taken a place
// among those that connect.
func (f *packetFlow) connect(owner tcpip.PacketOwner) {
	result, host := f.n.broker.dial(f.key.protocol, f.key.peer, f.key.guest, processOf(owner))
	<-f.n.packets.connecting
	if result != netwire.OK {
		f.n.packets.remove(f)
		if result == netwire.Failed && f.key.protocol == netwire.Echo {
			result = netwire.HostUnreachable // The host has no ping sockets for us.
		}
		f.n.unreachable(f.key, result)
		return
	}
	f.open(host)
}

// open sends what has waited, and serves the flow until it ends.
func (f *packetFlow) open(host *hostConn) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		host.close()
		return
	}
	f.host = host
	for _, packet := range f.pending {
		f.write(packet)
	}
	f.pending = nil
	f.mu.Unlock()
	host.whenEnded(func() { f.n.packets.remove(f) })
	f.serve()
	f.n.packets.remove(f)
}

// end closes the socket; serve returns then.
func (f *packetFlow) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.pending = true, nil
	if f.host != nil {
		go f.host.close() // It may wait for the channel.
	}
}

// serve carries what comes from the host's side to the guest.
func (f *packetFlow) serve() {
	route, err := f.n.routeToGuest(f.key)
	if err != nil {
		return
	}
	defer route.Release()
	for {
		_ = f.host.file.SetReadDeadline(time.Unix(0, f.used.Load()).Add(f.idle()))
		buf, n, err := f.host.read()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if time.Since(time.Unix(0, f.used.Load())) >= f.idle() {
				return
			}
			continue
		case err != nil && !f.report(err):
			return
		case err != nil:
			continue
		case n == 0 && f.host.endsEmpty:
			copyBuffers.Put(buf)
			return
		}
		f.touch()
		f.received.Add(1)
		f.n.deliver(route, f.key, (*buf)[:n])
		copyBuffers.Put(buf)
	}
}

// report tells the guest what an error of the host's socket means; false says
// that the socket is of no more use.
func (f *packetFlow) report(err error) bool {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return false
	}
	results := map[unix.Errno]netwire.Result{
		unix.ECONNREFUSED: netwire.Refused, unix.EHOSTUNREACH: netwire.HostUnreachable, unix.EHOSTDOWN: netwire.HostUnreachable,
		unix.ENETUNREACH: netwire.NetUnreachable, unix.ENETDOWN: netwire.NetUnreachable, unix.EACCES: netwire.Denied, unix.EPERM: netwire.Denied,
	}
	if r, ok := results[errno]; ok {
		f.n.unreachable(f.key, r)
		return true
	}
	// Too long for the host's network, or no room: this packet is lost.
	return errno == unix.EMSGSIZE || errno == unix.ENOBUFS
}
