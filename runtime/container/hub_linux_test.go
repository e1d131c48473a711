// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// testHub makes the hub of a container that reads input from the file.
func testHub(t *testing.T) (*hub, *RunOptions, string) {
	t.Helper()
	o := &RunOptions{Options: convert.Options{Interactive: true}}
	h, err := newHub(o, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := h.open(dir, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.end(api.ExitStatus{})
		o.Stdin.Close()
	})
	return h, o, dir
}

// attach connects and reports whether it was let in.
func attach(t *testing.T, dir string) (net.Conn, bool) {
	t.Helper()
	conn, err := dialIn(dir, attachSocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	kind, _, err := readFrame(conn, new([maxFrameBytes]byte))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatal(err)
	}
	return conn, err == nil && kind == frameReady
}

// TestClientsThatLeaveInputBehind: what a guest does not take keeps no more of the
// launcher than the limit, whoever has gone; once it takes it, all is as before.
func TestClientsThatLeaveInputBehind(t *testing.T) {
	_, o, dir := testHub(t)
	payload := make([]byte, maxFrameBytes)
	for i := range maxAttached {
		conn, in := attach(t, dir)
		if !in {
			t.Fatalf("client %d was not let in", i)
		}
		if err := writeFrame(conn, frameInput, payload); err != nil {
			t.Fatal(err)
		}
		if err := writeFrame(conn, frameInput, payload); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if _, in := attach(t, dir); in {
		t.Error("one more was let in")
	}
	go io.Copy(io.Discard, o.Stdin)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, in := attach(t, dir); in {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody is let in any more")
		}
	}
}

// shortOfFiles is a listener whose first connection finds no descriptor.
type shortOfFiles struct {
	net.Listener
	failed bool
}

func (l *shortOfFiles) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, unix.EMFILE
	}
	return l.Listener.Accept()
}

// TestAttachAfterAShortageOfDescriptors: a moment without one is not the end.
func TestAttachAfterAShortageOfDescriptors(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{listener: &shortOfFiles{Listener: l}, clients: make(map[net.Conn]struct{}), warn: t.Logf}
	ended := make(chan struct{})
	go func() {
		h.accept()
		close(ended)
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if kind, _, err := readFrame(conn, new([maxFrameBytes]byte)); err != nil || kind != frameReady {
		t.Errorf("frame %q, %v", kind, err)
	}
	h.end(api.ExitStatus{})
	<-ended
}
