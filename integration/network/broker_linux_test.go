// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestABrokerThatEnds: the guest's connections end with the broker, new ones and names
// fail, and all else goes on: the guest's own network, its files, execs.
// The broker is a part of the launcher, so its channel is what can end alone.
func TestABrokerThatEnds(t *testing.T) {
	testbed.NeedRoot(t, "taking a launcher's descriptor")
	address := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	flag, guest := allowed(t, address)
	host, port, _ := net.SplitHostPort(guest)
	const name = "network-brokerless"
	h := getHome(t)
	lines := make(chan string, 16)
	problems := startGuest(t, h, name, `exec python3 -u - <<'END'
import errno, os, socket, time
far = ("`+host+`", `+port+`)
def tell(what, do):
    try: print(what, do())
    except socket.gaierror: print(what, "no such name")
    except TimeoutError: print(what, "timeout")
    except OSError as e: print(what, errno.errorcode[e.errno])
def echo(s):
    s.sendall(b"hello")
    return s.recv(5).decode()
s = socket.create_connection(far)
tell("before", lambda: echo(s))
tell("after", lambda: s.recv(1))
tell("again", lambda: socket.create_connection(far, timeout=20) and "connected")
tell("name", lambda: socket.gethostbyname("some.example"))
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
peer, _ = listener.accept()
peer.sendall(b"near")
tell("own", lambda: near.recv(4).decode())
with open("/file", "w") as f: f.write("written")
while not os.path.exists("/go"): time.sleep(.05)
print("end")
END`, []string{flag}, func(r io.Reader) {
		for scan := bufio.NewScanner(r); scan.Scan(); {
			lines <- scan.Text()
		}
		close(lines)
	})
	want := func(prefix string, allowed ...string) {
		t.Helper()
		line := <-lines
		if result, found := strings.CutPrefix(line, prefix+" "); !found || !slices.Contains(allowed, result) {
			t.Fatalf("%q, want %q and one of %q; stderr: %s", line, prefix, allowed, problems)
		}
	}
	want("before", "hello")
	if list := h.MustRungv(t, "network", "connections", name); !strings.Contains(list, port) {
		t.Errorf("connections lack the guest's: %s", list)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(h.MustRungv(t, "inspect", "-f", "{{.Sandbox.LauncherPid}}", name)))
	if err != nil {
		t.Fatal(err)
	}
	if n := hangUp(t, pid); n != 1 {
		t.Fatalf("launcher %d has %d channels of packets, want the broker's", pid, n)
	}
	want("after", "ECONNRESET")
	want("again", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH")
	want("name", "no such name")
	want("own", "near")
	if list := h.MustRungv(t, "network", "connections", name); strings.Contains(list, port) {
		t.Errorf("connections that are left: %s", list)
	}
	if got := h.MustRungv(t, "exec", name, "sh", "-c", "cat /file; touch /go"); got != "written" {
		t.Errorf("an exec reads %q", got)
	}
	if line := <-lines; line != "end" {
		t.Errorf("the guest's last word: %q", line)
	}
}

// hangUp ends what the process sends by its sockets for packets in order
// (SOCK_SEQPACKET), as its death would, and returns how many there are.
func hangUp(t *testing.T, pid int) (sockets int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		number, _ := strconv.Atoi(entry.Name())
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err == unix.EBADF {
			continue // closed since
		}
		if err != nil {
			t.Fatalf("descriptor %d of process %d: %v", number, pid, err)
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind == unix.SOCK_SEQPACKET {
			sockets++
			if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
				t.Error(err)
			}
		}
		unix.Close(fd)
	}
	return sockets
}
