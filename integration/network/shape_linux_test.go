// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestWhatAGuestIsGiven: the addresses that programs and documents rely on, and what
// other networks there are.
func TestWhatAGuestIsGiven(t *testing.T) {
	const ask = `ip -o -4 addr show eth0 | awk '{print $4}'; ip -4 route show default | awk '{print $3}'; awk '$1 == "nameserver" {print $2}' /etc/resolv.conf`
	expect(t, "10.0.2.15/24\n10.0.2.2\n10.0.2.3", ask)
	expect(t, "10.0.2.15/24\n10.0.2.2\n10.0.2.3", ask, "--network", "nat")
	expect(t, "lo", `ip -o link show | awk -F': ' '{print $2}'`, "--network", "none")
	if r := sh(t, "true", "--network", "host"); r.Code != 125 || !strings.Contains(r.Stderr, "host") {
		t.Errorf("--network host: %v", r)
	}
}

// TestPublishAddresses: where a port is published that was not said where.
func TestPublishAddresses(t *testing.T) {
	h := getHome(t)
	name := server(t, "echo ready; exec sleep 600", "-p", "80", "-p", "0:81", "-p", "127.0.0.2:0:82", "-p", "0:83/udp")
	for port, host := range map[string]string{"80": "127.0.0.1", "81": "127.0.0.1", "82": "127.0.0.2", "83/udp": "127.0.0.1"} {
		got, number, err := net.SplitHostPort(strings.TrimSpace(h.MustRungv(t, "port", name, port)))
		if n, _ := strconv.Atoi(number); err != nil || got != host || n == 0 {
			t.Errorf("port %s is published at %s:%s, %v; want %s", port, got, number, err, host)
		}
	}
	missing := h.Path("nosuch", "guest.sock")
	if r := sh(t, "true", "-p", "unix:"+missing+":80"); r.Code != 125 || !strings.Contains(r.Stderr, "nosuch") {
		t.Errorf("a socket in a directory that does not exist: %v", r)
	}
	if _, err := os.Stat(h.Path("nosuch")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

// mostOnTheWay is more than all buffers between two programs hold.
const mostOnTheWay = 64 << 20

// TestSlowReaders: who sends faster than the other end reads has to wait, both ways, and
// what was sent arrives.
func TestSlowReaders(t *testing.T) {
	read, sent := make(chan struct{}), make(chan int64, 1)
	in := listen(t, func(c *net.TCPConn) {
		<-read
		n, _ := io.Copy(io.Discard, c)
		sent <- n
	})
	out := listen(t, func(c *net.TCPConn) {
		_ = c.SetWriteDeadline(time.Now().Add(3 * time.Second))
		n, err := io.Copy(c, &pattern{})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a guest that does not read: %v", err)
		}
		sent <- n
	})
	inFlag, inAddress := allowed(t, in)
	outFlag, outAddress := allowed(t, out)
	host, inPort, _ := net.SplitHostPort(inAddress)
	_, outPort, _ := net.SplitHostPort(outAddress)
	lines := make(chan string, 4)
	startGuest(t, getHome(t), "network-slow", `exec python3 -u - <<'END'
import socket, time
s = socket.create_connection(("`+host+`", `+inPort+`))
s.settimeout(3)
total = 0
try:
    while True: total += s.send(b"x" * 65536)
except TimeoutError: print(total)
s.close()
s = socket.create_connection(("`+host+`", `+outPort+`))
time.sleep(6)
total = 0
while data := s.recv(1 << 20): total += len(data)
print(total)
END`, []string{inFlag, outFlag}, func(r io.Reader) {
		for scan := bufio.NewScanner(r); scan.Scan(); {
			lines <- scan.Text()
		}
		close(lines)
	})
	for _, way := range []string{"guest to host", "host to guest"} {
		told, _ := strconv.ParseInt(<-lines, 10, 64)
		if way == "guest to host" {
			close(read)
		}
		if n := <-sent; n != told || n == 0 || n > mostOnTheWay {
			t.Errorf("%s: %d bytes at one end, %d at the other; want the same, and at most %d on the way", way, n, told, mostOnTheWay)
		}
	}
}

// TestDatagramsThatNobodyAnswers: what the broker keeps for them goes after a time.
func TestDatagramsThatNobodyAnswers(t *testing.T) {
	if !testbed.Nightly() {
		t.Skip("takes half a minute: set GVX_NIGHTLY")
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	flag, address := allowed(t, pc.LocalAddr())
	host, port, _ := net.SplitHostPort(address)
	name := server(t, `exec python3 -u -c 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("`+host+`", `+port+`)); print("ready"); time.sleep(600)'`, flag)
	h := getHome(t)
	if _, _, err := pc.ReadFrom(make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	if list := h.MustRungv(t, "network", "connections", name); !strings.Contains(list, "udp") {
		t.Errorf("connections lack the datagram's: %s", list)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		list := h.MustRungv(t, "network", "connections", name)
		if !strings.Contains(list, "udp") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it stays: %s", list)
		}
	}
}
