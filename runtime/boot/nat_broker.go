// SPDX-License-Identifier: Apache-2.0

// The sandbox's end of the broker's channel.

package boot

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// brokerClient asks the broker for connections and takes in those of published
// ports. When its broker dies all of them end, and there are no new ones; the
// sandbox lives on.
type brokerClient struct {
	fd   int
	file *os.File
	raw  syscall.RawConn
	// inbound takes in a client of a published port. It does not wait.
	inbound func(netwire.Message, *hostConn)

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan dialed
	conns   map[*hostConn]struct{}
	// held are those of conns that the broker holds too, by id.
	held map[uint32]*hostConn
	gone bool
	// closed are connections to give back, with the next request or when
	// giveBack fires.
	closed   []netwire.Request
	giveBack *time.Timer
	delay    time.Duration // for tests
}

// giveBackDelay is how long a connection that has ended at both sides may wait to
// be given back: under load it goes along with a request, which it costs nothing.
const giveBackDelay = 10 * time.Millisecond

// dialed is the answer to a request.
type dialed struct {
	result netwire.Result
	conn   *hostConn
}

// newBrokerClient takes over fd. Until receive runs, nothing is answered.
func newBrokerClient(fd int, inbound func(netwire.Message, *hostConn)) (*brokerClient, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("network channel, descriptor %d: %w", fd, err)
	}
	c := &brokerClient{fd: fd, file: os.NewFile(uintptr(fd), "network"), inbound: inbound, delay: giveBackDelay,
		waiting: make(map[uint32]chan dialed), conns: make(map[*hostConn]struct{}), held: make(map[uint32]*hostConn)}
	var err error
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("network channel, descriptor %d: %w", fd, err)
	}
	return c, nil
}

// dial asks for a connection and waits for the answer, which takes as long as
// the host's network does. How many wait at once is bounded by the callers.
func (c *brokerClient) dial(protocol netwire.Protocol, to, from netip.AddrPort, by netwire.Process) (netwire.Result, *hostConn) {
	answer := make(chan dialed, 1)
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return netwire.NetUnreachable, nil
	}
	id := c.unusedID()
	c.waiting[id] = answer
	closed := c.takeClosed()
	c.mu.Unlock()

	c.send(append(closed, netwire.Request{Ask: netwire.Connect, Protocol: protocol, ID: id, To: to, From: from, By: by})...)
	d := <-answer
	return d.result, d.conn
}

// unusedID returns an id that no request and no connection has. The caller
// holds c.mu.
func (c *brokerClient) unusedID() uint32 {
	for {
		c.next++
		if c.waiting[c.next] == nil && c.held[c.next] == nil {
			return c.next
		}
	}
}

// send sends up to netwire.MaxRequests requests. It waits while the channel is full.
func (c *brokerClient) send(requests ...netwire.Request) {
	packet := make([]byte, 0, len(requests)*netwire.RequestBytes)
	for i := range requests {
		packet = requests[i].Append(packet)
	}
	if _, err := c.file.Write(packet); err != nil {
		c.hangUp()
	}
}

// takeClosed takes what is to be given back: less than a packet has room for. The
// caller holds c.mu.
func (c *brokerClient) takeClosed() []netwire.Request {
	closed := c.closed
	c.closed = nil
	return closed
}

// sendClosed gives back what has waited for a request to go along with.
func (c *brokerClient) sendClosed() {
	c.mu.Lock()
	closed := c.takeClosed()
	gone := c.gone
	c.mu.Unlock()
	if len(closed) > 0 && !gone {
		c.send(closed...)
	}
}

// giveBackSoon gives a connection back with the next request, or soon. What it
// returns is to be sent at once. The caller holds c.mu, and does not when it sends.
func (c *brokerClient) giveBackSoon(r netwire.Request) (now []netwire.Request) {
	c.closed = append(c.closed, r)
	if len(c.closed) == netwire.MaxRequests-1 {
		return c.takeClosed()
	}
	if len(c.closed) == 1 {
		if c.giveBack == nil {
			c.giveBack = time.AfterFunc(c.delay, c.sendClosed)
		} else {
			c.giveBack.Reset(c.delay)
		}
	}
	return nil
}

// receive reads the broker's messages until it is gone.
func (c *brokerClient) receive() {
	defer c.hangUp()
	packet := make([]byte, netwire.MessageBytes+1)
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		n, fd, err := c.receiveOne(packet, rights)
		if err != nil || n == 0 {
			log.Infof("network: the broker is gone: %v", err)
			return
		}
		m, err := netwire.ParseMessage(packet[:n])
		if err != nil {
			log.Warningf("network: the broker's message: %v", err)
			return
		}
		var conn *hostConn
		if fd >= 0 {
			if conn, err = c.newHostConn(fd, m); err != nil {
				log.Warningf("network: %v", err)
			}
		}
		switch {
		case m.Kind == netwire.Answer:
			c.deliver(m, conn)
		case m.Kind == netwire.Ended:
			c.endHeld(m.ID)
		case conn != nil:
			c.inbound(m, conn)
		}
	}
}

// receiveOne reads one message and its descriptor, -1 if it has none.
func (c *brokerClient) receiveOne(packet, rights []byte) (n, fd int, err error) {
	var rightsLen int
	if werr := c.raw.Read(func(s uintptr) bool {
		for {
			n, rightsLen, _, _, err = unix.Recvmsg(int(s), packet, rights, unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}); werr != nil {
		return 0, -1, werr
	}
	if err != nil || rightsLen == 0 {
		return n, -1, err
	}
	// With the process' last descriptor in use the kernel drops this one, and
	// what is left is a header or nothing.
	list, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	if err != nil || len(list) == 0 {
		return n, -1, nil
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) == 0 {
		return n, -1, nil
	}
	return n, fds[0], nil
}

// deliver gives an answer to whoever waits for it.
func (c *brokerClient) deliver(m netwire.Message, conn *hostConn) {
	c.mu.Lock()
	answer, ok := c.waiting[m.ID]
	delete(c.waiting, m.ID)
	c.mu.Unlock()
	d := dialed{m.Result, conn}
	if (m.Result == netwire.OK) != (conn != nil) {
		d.result = netwire.Failed
		if m.Flags&netwire.Held != 0 && conn == nil {
			// The descriptor was lost on the way: there was none left here. Not
			// by this goroutine, which must not wait for the channel.
			go c.send(netwire.Request{Ask: netwire.Closed, Protocol: m.Protocol, ID: m.ID})
		}
	}
	if (!ok || d.result != netwire.OK) && conn != nil {
		go conn.close()
		d.conn = nil
	}
	if ok {
		answer <- d
	}
}

// endHeld ends a connection of which the broker says that it has ended.
func (c *brokerClient) endHeld(id uint32) {
	c.mu.Lock()
	conn := c.held[id]
	c.mu.Unlock()
	if conn != nil {
		go conn.end()
	}
}

// hangUp answers all who wait, and those to come, and ends all connections. A broker
// that lives, but is not heard any more, learns of it then, and lets go of them.
func (c *brokerClient) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.gone
	c.gone = true
	for id, answer := range c.waiting {
		answer <- dialed{netwire.NetUnreachable, nil}
		delete(c.waiting, id)
	}
	if !first {
		return // Connections that came since have ended as they came.
	}
	conns := slices.Collect(maps.Keys(c.conns))
	go func() {
		for _, conn := range conns {
			conn.end()
		}
		_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}()
}

// hostConn is a connection of the host.
type hostConn struct {
	file *os.File
	raw  syscall.RawConn
	// client is nil for one that no broker knows of.
	client *brokerClient
	// protocol and id are the request's; id counts if held is set.
	protocol netwire.Protocol
	id       uint32
	held     bool
	// endsEmpty says that an empty read is the end even of a packet socket.
	endsEmpty bool
	closing   sync.Once

	mu    sync.Mutex
	ended bool
	onEnd func()
}

// newHostConn takes over fd, which does not block.
func (c *brokerClient) newHostConn(fd int, m netwire.Message) (*hostConn, error) {
	f := os.NewFile(uintptr(fd), m.Protocol.String())
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("descriptor %d from the broker: %w", fd, err)
	}
	conn := &hostConn{
		file: f, raw: raw, client: c, protocol: m.Protocol, id: m.ID,
		held: m.Flags&netwire.Held != 0, endsEmpty: m.Flags&netwire.EndsEmpty != 0,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = struct{}{}
	if conn.held {
		c.held[conn.id] = conn
	}
	conn.ended = c.gone
	return conn, nil
}

// whenEnded has f called when the broker, or its death, ends the connection; at
// once if it has. The caller must not hold what f takes.
func (c *hostConn) whenEnded(f func()) {
	c.mu.Lock()
	c.onEnd = f
	ended := c.ended
	c.mu.Unlock()
	if ended {
		f()
	}
}

// end tells whoever has the connection that it has ended.
func (c *hostConn) end() {
	c.mu.Lock()
	c.ended = true
	f := c.onEnd
	c.mu.Unlock()
	if f != nil {
		f()
	}
}

// close closes the connection and tells the broker, which may hold it too: soon, as
// nothing of it is to reach its peer any more.
func (c *hostConn) close() { c.closeFor(false) }

// closeFor closes the connection; at once says that its peer learns something by
// the broker's closing it too.
func (c *hostConn) closeFor(atOnce bool) {
	c.closing.Do(func() {
		c.file.Close()
		b := c.client
		if b == nil {
			return // Of no broker.
		}
		b.mu.Lock()
		delete(b.conns, c)
		if c.held {
			delete(b.held, c.id)
		}
		var now []netwire.Request
		if r := (netwire.Request{Ask: netwire.Closed, Protocol: c.protocol, ID: c.id}); c.held && !b.gone {
			if atOnce {
				now = []netwire.Request{r}
			} else {
				now = b.giveBackSoon(r)
			}
		}
		b.mu.Unlock()
		if len(now) > 0 {
			b.send(now...)
		}
	})
}

// interrupt ends waits for the connection, now and later.
func (c *hostConn) interrupt() { _ = c.file.SetDeadline(time.Unix(1, 0)) }

// closeWrite tells the peer that nothing more comes.
func (c *hostConn) closeWrite() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
}

// reset closes the connection so that the peer learns of a reset.
func (c *hostConn) reset() {
	_ = c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	c.closeFor(true)
}
