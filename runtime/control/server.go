// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/ttrpc"

	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// Server serves one sandbox's control channel.
type Server struct {
	ttrpc *ttrpc.Server

	mu     sync.Mutex
	closed bool
	conns  map[*servedConn]struct{}
}

// NewServer makes a server that answers with service. The service's errors
// cross with their kinds; it need not call [ToStatus] itself.
func NewServer(service controlv1.SandboxService) (*Server, error) {
	t, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(withKinds))
	if err != nil {
		return nil, fmt.Errorf("make control server: %w", err)
	}
	controlv1.RegisterSandboxService(t, service)
	return &Server{ttrpc: t, conns: make(map[*servedConn]struct{})}, nil
}

// withKinds gives every error that leaves the server its kind.
func withKinds(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	answer, err := method(ctx, unmarshal)
	if err != nil {
		return nil, ToStatus(err)
	}
	return answer, nil
}

// ServeConn serves the one connection conn and returns when it has closed: by
// the other end, by a fault, or by [Server.Close].
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) error {
	l := &oneConn{first: make(chan net.Conn, 1), done: make(chan struct{}), addr: conn.LocalAddr()}
	l.first <- s.track(conn, l.finish)
	err := s.ttrpc.Serve(ctx, l)
	if errors.Is(err, errOneConnDone) || errors.Is(err, ttrpc.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the control channel: %w", err)
}

// ServeListener serves every connection of l until [Server.Close].
func (s *Server) ServeListener(ctx context.Context, l net.Listener) error {
	err := s.ttrpc.Serve(ctx, &trackedListener{Listener: l, server: s})
	if errors.Is(err, ttrpc.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the control socket: %w", err)
}

// Close closes all listeners and connections at once, calls in progress
// included: ttrpc's own Close leaves a connection with a call in progress be.
func (s *Server) Close() error {
	err := s.ttrpc.Close()
	s.mu.Lock()
	s.closed = true
	conns := make([]*servedConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	return err
}

// track enters conn into the set that Close closes; onClose, if any, is called
// when conn closes.
func (s *Server) track(conn net.Conn, onClose func()) *servedConn {
	c := &servedConn{Conn: conn, server: s, onClose: onClose}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		c.Close()
	}
	return c
}

// servedConn is a connection that its server knows.
type servedConn struct {
	net.Conn
	server  *Server
	onClose func()
}

func (c *servedConn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	if c.onClose != nil {
		defer c.onClose()
	}
	return c.Conn.Close()
}

// trackedListener enters what it accepts into its server's set.
type trackedListener struct {
	net.Listener
	server *Server
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.server.track(conn, nil), nil
}

var errOneConnDone = errors.New("the connection has closed")

// oneConn is a listener with one connection to give: ttrpc serves listeners
// only. Accept gives it, then blocks until that connection has closed.
type oneConn struct {
	first chan net.Conn
	done  chan struct{}
	once  sync.Once
	addr  net.Addr
}

func (l *oneConn) finish() { l.once.Do(func() { close(l.done) }) }

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.first:
		return c, nil
	case <-l.done:
		return nil, errOneConnDone
	}
}

func (l *oneConn) Close() error {
	l.finish()
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.addr }
