// SPDX-License-Identifier: Apache-2.0

// The channel to a program that started rungv: see [api.Event]. Such a program
// learns what became of its container, apart from the guest's own output, and
// its end is noticed, however it ended.

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/state"
)

// noCaller is the value of --caller-fd that says that a person started us.
const noCaller = -1

// callerPatience is how long a caller that reads nothing may hold up a run, once:
// whoever waits here may be handling a signal or the guest's end. What the socket
// holds for it is many times what a run has to say.
const callerPatience = 5 * time.Second

// caller is the program at the other end. A nil *caller is a person.
type caller struct {
	conn net.Conn
	// gone is closed when the caller has ended, start when it wants the guest
	// to run.
	gone, start chan struct{}
	// mu serialises events.
	mu sync.Mutex
	// patience is callerPatience.
	patience time.Duration
	// deaf says that an event could not be written as a whole: another one
	// would not begin a line.
	deaf bool
}

// openCaller takes over the descriptor that --caller-fd names.
func openCaller(fd int) (*caller, error) {
	file := os.NewFile(uintptr(fd), "caller")
	if file == nil {
		return nil, api.Errorf(api.KindInvalid, "--caller-fd %d: not a descriptor", fd)
	}
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "--caller-fd %d: want a connected stream socket: %w", fd, err)
	}
	c := &caller{conn: conn, gone: make(chan struct{}), start: make(chan struct{}), patience: callerPatience}
	go c.listen()
	c.send(api.Event{Type: api.EventHello, Protocol: api.CallerProtocol, Version: Version})
	return c, nil
}

// listen reads the caller's words until there can be no more.
func (c *caller) listen() {
	defer close(c.gone)
	started := false
	lines := bufio.NewScanner(c.conn)
	for lines.Scan() {
		if lines.Text() == api.CallerStart && !started {
			started = true
			close(c.start)
		}
	}
}

// send writes an event and says whether it went out. A caller that has gone is
// noticed elsewhere.
func (c *caller) send(e api.Event) bool {
	if c == nil {
		return false
	}
	if len(e.Message) > api.MaxEventBytes/8 {
		// In JSON a byte can take six.
		cut := api.MaxEventBytes / 8
		for cut > 0 && !utf8.RuneStart(e.Message[cut]) {
			cut--
		}
		e.Message = e.Message[:cut] + "…"
	}
	line, err := json.Marshal(e)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deaf {
		_ = c.conn.SetWriteDeadline(time.Now().Add(c.patience))
		_, err = c.conn.Write(append(line, '\n'))
		c.deaf = err != nil
	}
	return !c.deaf
}

// created, ready, started and ended report a container's life.
func (c *caller) created(id, control string) {
	c.send(api.Event{Type: api.EventCreated, Container: id, Control: control})
}
func (c *caller) ready()   { c.send(api.Event{Type: api.EventReady}) }
func (c *caller) started() { c.send(api.Event{Type: api.EventStarted}) }
func (c *caller) ended(exit api.ExitStatus) {
	c.send(api.Event{Type: api.EventEnded, Exit: &exit})
}

// context is ctx until the caller has gone; call stop when the work is done.
func (c *caller) context(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	if c == nil {
		return ctx, func() {}
	}
	ctx, stop = context.WithCancel(ctx)
	go func() {
		select {
		case <-c.gone:
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

// failed reports a verb's error and says whether there is a program to hear it,
// or was: it is not for the standard error of a guest.
func (c *caller) failed(err error, code int) bool {
	kind := api.KindOf(err)
	if errors.Is(err, state.ErrNoContainer) {
		kind = api.KindState // A program asks for its own: it has ended. What is not found is a file.
	}
	c.send(api.Event{Type: api.EventFailed, Kind: kind, Message: strings.TrimRight(err.Error(), "\n"), Code: code})
	return c != nil
}

// warn reports a warning and says whether there was anybody to hear it.
func (c *caller) warn(format string, args ...any) bool {
	return c.send(api.Event{Type: api.EventWarning, Message: fmt.Sprintf(format, args...)})
}
