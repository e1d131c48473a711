// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// callerPair makes a caller and its other end.
func callerPair(t *testing.T) (*caller, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	far := os.NewFile(uintptr(fds[1]), "far")
	defer far.Close()
	conn, err := net.FileConn(far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c, err := openCaller(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	return c, conn
}

// TestCallerThatNeverReads: it holds the launcher up for a moment, once, and
// finds nothing but whole lines before the one that was cut.
func TestCallerThatNeverReads(t *testing.T) {
	c, far := callerPair(t)
	c.patience = 50 * time.Millisecond
	heard := 0
	for c.warn("%s", strings.Repeat("x", api.MaxEventBytes)) {
		if heard++; heard > 1000 {
			t.Fatal("a socket without an end")
		}
	}
	c.patience = time.Hour // Nobody may wait for it a second time.
	if c.warn("more") || !c.failed(errors.New("more"), 1) {
		t.Error("heard by one who does not listen")
	}
	c.conn.Close()
	lines := bufio.NewReader(far)
	for n := range heard + 1 { // hello, and what was heard
		var e api.Event
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			t.Fatalf("event %d of %d: %v", n, heard+1, err)
		}
	}
}

// TestEventLinesHaveABound, whatever an error says.
func TestEventLinesHaveABound(t *testing.T) {
	c, far := callerPair(t)
	lines := bufio.NewReader(far)
	for _, message := range []string{"\x00", "\xff", "<", "\u2028", "\u00e9"} {
		go c.failed(errors.New(strings.Repeat(message, api.MaxEventBytes)), 125)
		for {
			line, err := lines.ReadBytes('\n')
			var e api.Event
			if err == nil {
				err = json.Unmarshal(line, &e)
			}
			if err != nil || len(line) > api.MaxEventBytes {
				t.Fatalf("%q: a line of %d bytes, %v", message, len(line), err)
			}
			if e.Type == api.EventFailed {
				break
			}
		}
	}
}
