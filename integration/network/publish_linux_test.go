// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// upperServer is a guest that serves TCP and UDP: it answers with what it gets
// in upper case.
const upperServer = `exec python3 - <<'END'
import socket, threading
def tcp():
    s = socket.create_server(("0.0.0.0", 80), backlog=128)
    print("ready", flush=True)
    while True:
        c, _ = s.accept()
        data = b""
        while b := c.recv(65536):
            data += b
        c.sendall(data.upper())
        c.close()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("0.0.0.0", 53))
threading.Thread(target=tcp, daemon=True).start()
while True:
    b, who = u.recvfrom(65536)
    u.sendto(b.upper(), who)
END`

// ask sends all of a question and returns all of the answer.
func ask(network, address, question string) (string, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, question); err != nil {
		return "", err
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		all, err := io.ReadAll(c)
		return string(all), err
	}
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// TestPublish reaches a guest by every kind of published port.
func TestPublish(t *testing.T) {
	h := getHome(t)
	path := h.Path("run", "guest.sock")
	// A socket file that nobody listens on any more.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	h.Chown(t, path)
	name := server(t, upperServer, "-p", "80", "-p", "81", "-p", "53/udp", "-p", "unix:"+path+":80")

	tcp := strings.Fields(h.MustRungv(t, "port", name, "80"))[0]
	udp := strings.TrimSpace(h.MustRungv(t, "port", name, "53/udp"))
	long := strings.Repeat("question ", 100000)
	for _, c := range []struct{ network, address, question string }{
		{"tcp", tcp, long}, {"unix", path, long}, {"udp", udp, "question"}, {"udp", udp, strings.Repeat("q", 9000)},
	} {
		got, err := ask(c.network, c.address, c.question)
		if err != nil || got != strings.ToUpper(c.question) {
			t.Errorf("%s: %d bytes, %v, want %d", c.network, len(got), err, len(c.question))
		}
	}
	// Nobody listens in the guest, and the client learns it.
	closed := strings.TrimSpace(h.MustRungv(t, "port", name, "81"))
	if got, err := ask("tcp", closed, "x"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a port on which nobody listens: %q, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket file: %v, %v, want mode 0600", info, err)
	}
	// In use: refused before anything is done, and the first is not harmed.
	for _, flag := range []string{tcp + ":80", "unix:" + path + ":80"} {
		if result := sh(t, "true", "-p", flag); result.Code != 125 || !strings.Contains(result.Stderr, "address already in use") {
			t.Errorf("-p %s a second time: %v", flag, result)
		}
	}
	if got, err := ask("unix", path, "again"); err != nil || got != "AGAIN" {
		t.Errorf("after the second try: %q, %v", got, err)
	}
	h.MustRungv(t, "kill", name)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the socket file stays after the container's end")
		}
	}
}

// TestBetweenGuests lets a guest measure with iperf3 against another: out
// through one router, in through the other, both ways, TCP and UDP.
func TestBetweenGuests(t *testing.T) {
	h := getHome(t)
	name := server(t, "iperf3 -s -D && sleep 0.3 && echo ready && exec sleep 600", "-p", "5201", "-p", "5201/udp")
	_, port, _ := net.SplitHostPort(strings.TrimSpace(h.MustRungv(t, "port", name, "5201")))
	for _, flags := range []string{"-n 64M", "-n 64M -R", "-n 16M -P 4"} {
		script := fmt.Sprintf("iperf3 -c 10.0.2.2 -p %s %s -J > /out && python3 -c 'import json; print(json.load(open(\"/out\"))[\"end\"][\"sum_received\"][\"bytes\"] > 0)'", port, flags)
		expect(t, "True", script, "--egress", "allow=127.0.0.1:"+port)
	}
}
