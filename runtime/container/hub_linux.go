// SPDX-License-Identifier: Apache-2.0

// Where the streams of a detached container go: into its log and to whoever is
// attached.

package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/outputlog"
	"z.gfire.dev/gvx/runtime/state"
)

const (
	// attachPatience is how long a client that takes nothing holds up the
	// guest before it is dropped.
	attachPatience = 10 * time.Second
	// maxAttached bounds clients: each costs the launcher a goroutine and a
	// buffer.
	maxAttached = 64
	// acceptPause is how long nobody is let in when that has failed: descriptors
	// may be short for a moment.
	acceptPause = 100 * time.Millisecond
)

// hub carries a detached container's streams.
type hub struct {
	interactive, tty bool
	warn             func(string, ...any)

	// log is nil without one. input takes what clients type, nil without -i.
	log      *outputlog.Writer
	input    *os.File
	listener net.Listener

	mu      sync.Mutex
	clients map[net.Conn]struct{}
	// served counts the goroutines of clients: one that has gone may have left
	// input that the guest does not take.
	served int
	resize func(rows, columns uint16)
	ended  bool
}

// newHub makes the hub of a container with the options o, and puts it into o in
// the user's place.
func newHub(o *RunOptions, warn func(string, ...any)) (*hub, error) {
	h := &hub{interactive: o.Interactive, tty: o.TTY, warn: warn, clients: make(map[net.Conn]struct{})}
	if o.Interactive {
		var err error
		if o.Stdin, h.input, err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("make a pipe for the guest's input: %w", err)
		}
	}
	o.Stdout, o.Stderr = &hubStream{h: h, kind: frameStdout}, &hubStream{h: h, kind: frameStderr}
	o.DetachKeys, o.hub = nil, h
	return h, nil
}

// open makes the log and the attach socket in the container's directory.
func (h *hub) open(dir string, cfg *state.LogConfig) error {
	if cfg != nil {
		var err error
		h.log, err = outputlog.New(dir, outputlog.Options{MaxSizeBytes: cfg.MaxSizeBytes, MaxFiles: cfg.MaxFiles})
		if err != nil {
			return err
		}
	}
	var err error
	if h.listener, err = listenIn(dir, attachSocket); err != nil {
		return err
	}
	go h.accept()
	return nil
}

// bind gives the hub the terminal to resize, once there is one.
func (h *hub) bind(resize func(rows, columns uint16)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resize = resize
}

func (h *hub) accept() {
	for {
		conn, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		h.mu.Lock()
		ok := !h.ended && h.served < maxAttached
		if ok {
			// Under the lock: no output comes between.
			conn.SetWriteDeadline(time.Now().Add(attachPatience))
			ok = writeFrame(conn, frameReady, nil) == nil
		}
		if ok {
			h.clients[conn] = struct{}{}
			h.served++
		}
		h.mu.Unlock()
		if !ok {
			conn.Close()
			continue
		}
		go h.serve(conn)
	}
}

// serve reads a client's frames until it has gone.
func (h *hub) serve(conn net.Conn) {
	defer h.drop(conn)
	buf := new([maxFrameBytes]byte)
	for {
		t, payload, err := readFrame(conn, buf)
		if err != nil {
			return
		}
		switch t {
		case frameInput:
			if h.input != nil {
				if _, err := h.input.Write(payload); err != nil {
					return
				}
			}
		case frameSize:
			rows, columns, ok := parseSize(payload)
			h.mu.Lock()
			resize := h.resize
			h.mu.Unlock()
			if ok && h.tty && resize != nil {
				resize(rows, columns)
			}
		}
	}
}

func (h *hub) drop(conn net.Conn) {
	h.mu.Lock()
	delete(h.clients, conn)
	h.served--
	h.mu.Unlock()
	conn.Close()
}

// hubStream is one of the guest's outputs.
type hubStream struct {
	h    *hub
	kind frameType
	log  io.Writer
}

// Write implements io.Writer. A log that fails (its disk is full) is given up:
// the guest goes on, as with docker.
func (s *hubStream) Write(p []byte) (int, error) {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.log != nil {
		if s.log == nil {
			s.log = h.log.Stream(map[frameType]string{frameStdout: outputlog.Stdout, frameStderr: outputlog.Stderr}[s.kind])
		}
		if _, err := s.log.Write(p); err != nil {
			h.warn("%v: the log ends here", err)
			h.log.Close()
			h.log = nil
		}
	}
	for rest := p; len(rest) > 0 && len(h.clients) > 0; {
		piece := rest[:min(len(rest), maxFrameBytes)]
		rest = rest[len(piece):]
		for conn := range h.clients {
			conn.SetWriteDeadline(time.Now().Add(attachPatience))
			if writeFrame(conn, s.kind, piece) != nil {
				delete(h.clients, conn)
				conn.Close()
			}
		}
	}
	return len(p), nil
}

// end tells the clients how the guest ended, and closes everything; it may be
// called again. The container's lock is given up after it: who waits for that
// finds the log complete.
func (h *hub) end(exit api.ExitStatus) {
	payload, err := json.Marshal(exit)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	if h.listener != nil {
		h.listener.Close()
	}
	for conn := range h.clients {
		conn.SetWriteDeadline(time.Now().Add(attachPatience))
		if err == nil {
			_ = writeFrame(conn, frameExit, payload)
		}
		conn.Close()
	}
	clear(h.clients)
	if h.log != nil {
		if err := h.log.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			h.warn("%v", err)
		}
		h.log = nil
	}
	if h.input != nil {
		h.input.Close()
	}
}

// resizeGuest gives the guest's terminal a size.
func (u *run) resizeGuest(rows, columns uint16) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_ = u.process.Control.Resize(ctx, u.handle.ID(), rows, columns)
}
