// SPDX-License-Identifier: Apache-2.0

// The sandbox's end of the broker's channel.

package boot

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

// brokerClient asks the broker for connections and takes in those of published
// ports. Without its broker it has none to give: flows go on, new ones fail.
type brokerClient struct {
	file    *os.File
	raw     syscall.RawConn
	inbound func(netwire.Message, *hostConn)

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan dialed
	gone    bool
}

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
	c := &brokerClient{file: os.NewFile(uintptr(fd), "network"), inbound: inbound, waiting: make(map[uint32]chan dialed)}
	var err error
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("network channel, descriptor %d: %w", fd, err)
	}
	return c, nil
}

// dial asks for a connection and waits for the answer, which takes as long as
// the host's network does. How many wait at once is bounded by the callers.
func (c *brokerClient) dial(protocol netwire.Protocol, to, from netip.AddrPort) (netwire.Result, *hostConn) {
	answer := make(chan dialed, 1)
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return netwire.NetUnreachable, nil
	}
	c.next++
	id := c.next
	c.waiting[id] = answer
	c.mu.Unlock()

	r := netwire.Request{Protocol: protocol, ID: id, To: to, From: from}
	if _, err := c.file.Write(r.Append(make([]byte, 0, netwire.RequestBytes))); err != nil {
		c.hangUp()
	}
	d := <-answer
	return d.result, d.conn
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
			if conn, err = newHostConn(fd, m); err != nil {
				log.Warningf("network: %v", err)
			}
		}
		switch {
		case m.Kind == netwire.Answer:
			c.deliver(m, conn)
		case conn != nil:
			go c.inbound(m, conn)
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
	}
	if d.result != netwire.OK && conn != nil {
		conn.file.Close()
		d.conn = nil
	}
	if !ok {
		if d.conn != nil {
			d.conn.file.Close()
		}
		return
	}
	answer <- d
}

// hangUp answers all who wait, and those to come.
func (c *brokerClient) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for id, answer := range c.waiting {
		answer <- dialed{netwire.NetUnreachable, nil}
		delete(c.waiting, id)
	}
}

// hostConn is a connection of the host.
type hostConn struct {
	file *os.File
	raw  syscall.RawConn
	// endsEmpty says that an empty read is the end even of a packet socket.
	endsEmpty bool
}

// newHostConn takes over fd, which does not block.
func newHostConn(fd int, m netwire.Message) (*hostConn, error) {
	f := os.NewFile(uintptr(fd), m.Protocol.String())
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("descriptor %d from the broker: %w", fd, err)
	}
	return &hostConn{f, raw, m.Flags&netwire.EndsEmpty != 0}, nil
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
	c.file.Close()
}
