// SPDX-License-Identifier: Apache-2.0

// Published UDP ports. One socket of the host hears all clients, and answers
// must name theirs, which a sandbox may not do: it could name anybody. So each
// client gets a socket pair, and datagrams are carried between.

package usernet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPeers bounds the clients of one published UDP port.
	maxPeers = 1024
	// peerIdle forgets a client: the time that Linux' connection tracking
	// gives a UDP stream.
	peerIdle = 120 * time.Second
	// maxDatagramBytes is the longest UDP payload.
	maxDatagramBytes = 65507
)

// relay carries the datagrams of one published port.
type relay struct {
	b *Broker
	p *port

	mu    sync.Mutex
	peers map[netip.AddrPort]*peer
}

// peer is one client.
type peer struct {
	conn *os.File
	raw  syscall.RawConn
	// heard is when it last sent something, in Unix nanoseconds.
	heard atomic.Int64
}

func newRelay(b *Broker, p *port) *relay {
	return &relay{b: b, p: p, peers: make(map[netip.AddrPort]*peer)}
}

// serve carries datagrams in, until the port is closed.
func (r *relay) serve() {
	defer r.closeAll()
	buf := make([]byte, maxDatagramBytes)
	for {
		n, from, err := r.p.packets.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Another error is an answer's (port unreachable). An empty datagram
		// would look like the end of the pair.
		if err != nil || n == 0 {
			continue
		}
		p := r.peer(from)
		if p == nil {
			continue
		}
		p.heard.Store(time.Now().UnixNano())
		// It never waits: what does not fit is lost, as datagrams are.
		_ = p.raw.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), buf[:n])
			return true
		})
	}
}

// peer returns a client's pair, made if need be; nil when there are too many.
func (r *relay) peer(from netip.AddrPort) *peer {
	r.mu.Lock()
	p := r.peers[from]
	n := len(r.peers)
	r.mu.Unlock()
	if p != nil || n >= maxPeers || r.b.ctx.Err() != nil {
		return p
	}
	near, far, err := socketpair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil
	}
	defer far.Close()
	p = &peer{conn: near}
	if p.raw, err = near.SyscallConn(); err != nil {
		near.Close()
		return nil
	}
	r.mu.Lock()
	r.peers[from] = p
	r.mu.Unlock()
	r.b.inbound(r.p, far)
	r.b.tasks.Go(func() { r.carryOut(p, from) })
	return p
}

// carryOut carries the guest's datagrams to a client until the guest closes
// its end or nothing has come for a while.
func (r *relay) carryOut(p *peer, to netip.AddrPort) {
	defer func() {
		r.mu.Lock()
		delete(r.peers, to)
		r.mu.Unlock()
		p.conn.Close()
	}()
	buf := make([]byte, maxDatagramBytes)
	for {
		_ = p.conn.SetReadDeadline(time.Now().Add(peerIdle))
		n, err := p.conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(time.Unix(0, p.heard.Load())) < peerIdle {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		_, _ = r.p.packets.WriteToUDPAddrPort(buf[:n], to)
	}
}

func (r *relay) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		p.conn.Close()
	}
}
