// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListenerAcceptsWithoutNames connects package net's own client to the
// listener that runs under the allow-list.
func TestListenerAcceptsWithoutNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	nl, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := nl.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newFDListener(fd)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := io.ReadAll(c)
		c.Close()
		got <- string(b)
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "hello")
	c.Close()
	if s := <-got; s != "hello" {
		t.Errorf("read %q", s)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		closed <- err
	}()
	l.Close()
	if err := <-closed; err == nil {
		t.Error("Accept returned no error after Close")
	}
}
