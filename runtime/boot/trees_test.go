// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
)

// TestMuteStreams: a socket that takes streams takes them still, and sends nothing,
// to whomever.
func TestMuteStreams(t *testing.T) {
	dir := t.TempDir()
	socket := func(name string) (int, *unix.SockaddrUnix) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		addr := &unix.SockaddrUnix{Name: filepath.Join(dir, name)}
		if err := unix.Bind(fd, addr); err != nil {
			t.Fatal(err)
		}
		return fd, addr
	}
	streams, to := socket("streams")
	client, from := socket("client")
	if err := unix.Sendto(streams, []byte("x"), 0, from); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := muteStreams(api.FD(streams)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(streams, []byte("x"), unix.MSG_NOSIGNAL, from); !errors.Is(err, unix.EPIPE) {
		t.Errorf("it sends: %v", err)
	}
	if err := unix.Sendto(client, []byte("in"), 0, to); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 8)
	if n, _, err := unix.Recvfrom(streams, buf, 0); err != nil || string(buf[:n]) != "in" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := muteStreams(api.NoFD); err != nil {
		t.Error(err)
	}
}
