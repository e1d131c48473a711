// SPDX-License-Identifier: Apache-2.0

// The guest's name server: answers from the list of hosts, everything else is
// carried to the host's servers and back as it is.

package usernet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// serverTimeout is how long one server is waited for, as in the C library.
	serverTimeout = 5 * time.Second
	// maxQueries bounds queries under way; more are dropped, and a resolver
	// asks again.
	maxQueries = 256
	// maxStreamQueries bounds what one TCP connection of a guest has under way.
	maxStreamQueries = 16
	// streamIdle closes a guest's TCP connection that asks nothing.
	streamIdle = 30 * time.Second
	// maxQueryBytes bounds a query that comes as a datagram: a question and a
	// few options. One that is longer is cut off, and so is none.
	maxQueryBytes = 4096
	// maxMessageBytes is the longest DNS message.
	maxMessageBytes = 64<<10 - 1
)

// resolver answers a sandbox's queries.
type resolver struct {
	hosts    hosts
	upstream upstream
	// allowed says whether a name that is not listed is asked for.
	allowed func(name string) bool
	// learn is told every answer of a server.
	learn func(answer []byte, q question)
	slots chan struct{}
}

func newResolver(list map[string][]netip.Addr, servers []netip.AddrPort, allowed func(string) bool, learn func([]byte, question)) *resolver {
	return &resolver{hosts: list, upstream: upstream{fixed: servers}, allowed: allowed, learn: learn, slots: make(chan struct{}, maxQueries)}
}

// exchange asks a server over some transport.
type exchange func(ctx context.Context, server netip.AddrPort, query []byte, q question) ([]byte, error)

// refused is told a name that may not be asked for.
type refused func(name string)

// resolve answers one query; nil if it is none.
func (r *resolver) resolve(ctx context.Context, query []byte, ask exchange, no refused) []byte {
	q, ok := parseQuestion(query)
	if !ok {
		return nil
	}
	if answer := r.hosts.answer(query, q); answer != nil {
		return answer
	}
	if !r.allowed(q.name) {
		no(printable(q.name))
		return refusal(query, q, rcodeRefused)
	}
	for _, server := range r.upstream.list() {
		attempt, cancel := context.WithTimeout(ctx, serverTimeout)
		answer, err := ask(attempt, server, query, q)
		cancel()
		if err == nil {
			// Before the guest can use it.
			r.learn(answer, q)
			return answer
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return refusal(query, q, rcodeServerFailure)
}

// serveDatagrams answers on a socket that keeps messages apart, until it ends.
func (r *resolver) serveDatagrams(ctx context.Context, conn net.Conn, no refused) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	buf := make([]byte, maxQueryBytes)
	for {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		select {
		case r.slots <- struct{}{}:
		default:
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		go func() {
			defer func() { <-r.slots }()
			if answer := r.resolve(ctx, query, askUDP, no); answer != nil {
				_, _ = conn.Write(answer)
			}
		}()
	}
}

// serveStream answers on a stream, in DNS' framing, until it ends.
func (r *resolver) serveStream(ctx context.Context, conn net.Conn, no refused) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var pending sync.WaitGroup
	defer func() {
		// What was asked before a half-close is answered.
		pending.Wait()
		conn.Close()
	}()
	var writing sync.Mutex
	own := make(chan struct{}, maxStreamQueries)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(streamIdle))
		query, err := readFramed(conn)
		if err != nil {
			return
		}
		own <- struct{}{}
		r.slots <- struct{}{}
		pending.Go(func() {
			defer func() { <-own; <-r.slots }()
			answer := r.resolve(ctx, query, askTCP, no)
			if answer == nil {
				cancel() // Not DNS: there is nothing to wait for.
				return
			}
			writing.Lock()
			defer writing.Unlock()
			_ = conn.SetWriteDeadline(time.Now().Add(streamIdle))
			if writeFramed(conn, answer) != nil {
				cancel()
			}
		})
	}
}

// askUDP asks a server with a datagram, from a port of its own.
func askUDP(ctx context.Context, server netip.AddrPort, query []byte, q question) ([]byte, error) {
	conn, err := dialServer(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxMessageBytes)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if answers(buf[:n], query, q) {
			return buf[:n], nil
		}
	}
}

// askTCP asks a server over a connection of its own.
func askTCP(ctx context.Context, server netip.AddrPort, query []byte, q question) ([]byte, error) {
	conn, err := dialServer(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := writeFramed(conn, query); err != nil {
		return nil, err
	}
	answer, err := readFramed(conn)
	if err == nil && !answers(answer, query, q) {
		err = errors.New("the server answered something else")
	}
	return answer, err
}

// dialServer connects. The end of ctx ends whatever waits for the connection.
func dialServer(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, nil
}

// readFramed reads a message with its length before it.
func readFramed(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}

func writeFramed(w io.Writer, msg []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}
