// SPDX-License-Identifier: Apache-2.0

// Name servers in a network namespace that is the guest's otherwise: docker has
// one in each container's, on its loopback, which is not the guest's. Queries that
// guests send to its address go out by a socket that the launcher has connected to
// it there.

package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// maxQueries bounds the queries that have no answer yet; the oldest go first.
	maxQueries = 1024
	// queryPatience is longer than any resolver waits for an answer.
	queryPatience = 30 * time.Second
	// maxQueryBytes is the longest datagram.
	maxQueryBytes = 65535
	// queryHeaderBytes is a DNS header's length; its first two are the id.
	queryHeaderBytes = 12
)

// query is one that waits for its answer.
type query struct {
	from net.Addr
	id   uint16
	at   time.Time
}

// queryRelay carries the datagrams of all guest processes over one socket, on which
// each query has an id of the relay's.
type queryRelay struct {
	guest *gonet.UDPConn
	host  *os.File

	mu      sync.Mutex
	next    uint16
	pending map[uint16]query
}

// relayQueries serves a name server's address in the guest's stack. It takes over
// fd, a connected datagram socket.
func relayQueries(s *stack.Stack, server netip.AddrPort, fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("name server %s, descriptor %d: %w", server, fd, err)
	}
	host := os.NewFile(uintptr(fd), "resolver")
	local := tcpip.FullAddress{Addr: tcpipAddress(server.Addr()), Port: server.Port()}
	guest, err := gonet.DialUDP(s, &local, nil, networkProtocol(server.Addr()))
	if err != nil {
		host.Close()
		return fmt.Errorf("serve name server %s in the guest: %w", server, err)
	}
	r := &queryRelay{guest: guest, host: host, pending: make(map[uint16]query)}
	go r.ask()
	go r.answer()
	return nil
}

// ask sends the guest's queries out.
func (r *queryRelay) ask() {
	buffer := make([]byte, maxQueryBytes)
	for {
		n, from, err := r.guest.ReadFrom(buffer)
		if err != nil {
			log.Warningf("queries of the guest: %v", err)
			return
		}
		if n < queryHeaderBytes {
			continue
		}
		id := r.enter(from, binary.BigEndian.Uint16(buffer))
		binary.BigEndian.PutUint16(buffer, id)
		// A server that is gone refuses: the guest asks again, or another one.
		_, _ = r.host.Write(buffer[:n])
	}
}

// enter remembers whose query has which id.
func (r *queryRelay) enter(from net.Addr, id uint16) uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for old, q := range r.pending {
		if now.Sub(q.at) > queryPatience {
			delete(r.pending, old)
		}
	}
	for len(r.pending) >= maxQueries {
		var oldest uint16
		at := now.Add(time.Hour)
		for id, q := range r.pending {
			if q.at.Before(at) {
				oldest, at = id, q.at
			}
		}
		delete(r.pending, oldest)
	}
	for {
		r.next++
		if _, taken := r.pending[r.next]; !taken {
			r.pending[r.next] = query{from: from, id: id, at: now}
			return r.next
		}
	}
}

// answer brings answers back.
func (r *queryRelay) answer() {
	buffer := make([]byte, maxQueryBytes)
	for {
		n, err := r.host.Read(buffer)
		if err != nil {
			if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, io.EOF) {
				continue // Nobody listens there just now, or an empty datagram.
			}
			log.Warningf("answers of a name server: %v", err)
			return
		}
		if n < queryHeaderBytes {
			continue
		}
		r.mu.Lock()
		q, ok := r.pending[binary.BigEndian.Uint16(buffer)]
		delete(r.pending, binary.BigEndian.Uint16(buffer))
		r.mu.Unlock()
		if !ok {
			continue
		}
		binary.BigEndian.PutUint16(buffer, q.id)
		_, _ = r.guest.WriteTo(buffer[:n], q.from)
	}
}
