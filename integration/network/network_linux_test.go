// SPDX-License-Identifier: Apache-2.0

// Package network tests `rungv run --network nat` end to end, as an ordinary
// user, with the network's usual clients and servers in the guest and the
// test's own on the host's loopback, to which an egress rule lets guests.
package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest: Debian with curl, nc, host, iperf3 and Python.
const image = "net"

// commandTimeout bounds a sandbox of these tests.
const commandTimeout = 3 * time.Minute

var home = struct {
	once sync.Once
	home *testbed.Home
	err  error
}{}

func TestMain(m *testing.M) {
	code := m.Run()
	if home.home != nil {
		if err := home.home.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "remove the test's home:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// getHome returns the package's home with the image imported.
func getHome(t *testing.T) *testbed.Home {
	t.Helper()
	testbed.Need(t, image)
	home.once.Do(func() { home.home, home.err = testbed.NewHome() })
	if home.err != nil {
		t.Fatal(home.err)
	}
	home.home.Image(t, image)
	return home.home
}

// sh runs a script in a guest; flags go before the image.
func sh(t *testing.T, script string, flags ...string) testbed.Result {
	t.Helper()
	return getHome(t).Rungv(t, nil, append(append([]string{"run", "--rm"}, flags...), image, "bash", "-c", script)...)
}

// expect runs a script that has to succeed and print what is wanted.
func expect(t *testing.T, want, script string, flags ...string) {
	t.Helper()
	result := sh(t, script, flags...)
	if result.Code != 0 || strings.TrimSpace(result.Stdout) != want {
		t.Errorf("script %q with flags %q: %v, want %q", script, flags, result, want)
	}
}

// names numbers the sandboxes of this process.
var names atomic.Int64

// startGuest starts a guest in the background; read gets its standard output. It
// ends with the test.
func startGuest(t *testing.T, h *testbed.Home, name, script string, flags []string, read func(io.Reader)) (problems *strings.Builder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	cmd := h.Command(ctx, append(append([]string{"run", "--rm", "--name", name}, flags...), image, "bash", "-c", script)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	problems = &strings.Builder{}
	cmd.Stderr = problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); read(stdout) }()
	t.Cleanup(func() {
		defer cancel()
		_ = h.Command(ctx, "rm", "-f", name).Run()
		<-done
		_ = cmd.Wait()
	})
	return problems
}

// server starts a guest in the background that prints "ready" once it serves,
// and returns its name.
func server(t *testing.T, script string, flags ...string) string {
	t.Helper()
	name := fmt.Sprintf("network-%d", names.Add(1))
	ready := make(chan bool, 1)
	problems := startGuest(t, getHome(t), name, script, flags, func(r io.Reader) {
		buf := make([]byte, 4096)
		n, _ := io.ReadAtLeast(r, buf, len("ready"))
		ready <- strings.Contains(string(buf[:n]), "ready")
		_, _ = io.Copy(io.Discard, r)
	})
	if !<-ready {
		time.Sleep(100 * time.Millisecond) // For its last words.
		t.Fatalf("guest %q did not get ready: %s", script, problems.String())
	}
	return name
}

// allowed returns the flag that lets guests reach a listener of this host, and
// the listener's address as they see it.
func allowed(t *testing.T, a net.Addr) (flag, address string) {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return "--egress=allow=127.0.0.1:" + port, net.JoinHostPort("10.0.2.2", port)
}

// listen makes a TCP server on the host's loopback.
func listen(t *testing.T, handle func(*net.TCPConn)) net.Addr {
	t.Helper()
	return testbed.ServeTCP(t, "127.0.0.1:0", handle)
}

// pattern is an endless stream of bytes that do not repeat soon.
type pattern struct{ at uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.at * 0x9e3779b97f4a7c15 >> 56)
		p.at++
	}
	return len(b), nil
}

// TestTransfer moves much both ways with curl, and compares digests.
func TestTransfer(t *testing.T) {
	size := int64(100 << 20)
	if testbed.Nightly() {
		size = 1 << 30
	}
	digest := sha256.New()
	_, _ = io.CopyN(digest, &pattern{}, size)
	want := hex.EncodeToString(digest.Sum(nil))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
			_, _ = io.CopyN(w, &pattern{}, size)
			return
		}
		h := sha256.New()
		_, _ = io.Copy(h, r.Body)
		_, _ = io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	flag, address := allowed(t, l.Addr())
	expect(t, want+"\n"+want, `set -e
curl -sSf -o /file http://`+address+`/
sha256sum /file | cut -d' ' -f1
curl -sSf -T /file http://`+address+`/ -H Expect:`, flag)
}

// TestHalfClose ends sending before the answer comes, with nc, both ways.
func TestHalfClose(t *testing.T) {
	a := listen(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // Ends only with the guest's end of sending.
		fmt.Fprintf(c, "%d bytes", len(all))
		// The guest's kernel reports an error to poll once both ends have
		// ended, even with bytes left to read, and nc gives up then.
		time.Sleep(500 * time.Millisecond)
	})
	flag, address := allowed(t, a)
	expect(t, "100000 bytes", `head -c 100000 /dev/zero | nc -N `+strings.Replace(address, ":", " ", 1), flag)
}

// TestDenied tries what the policy forbids; the last of it works when allowed.
func TestDenied(t *testing.T) {
	a := listen(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "secret") })
	flag, address := allowed(t, a)
	_, port, _ := net.SplitHostPort(address)
	script := `for to in '10.0.2.2 ` + port + `' '169.254.169.254 80' '100.100.100.200 80' '168.63.129.16 80'; do
	nc -v -w 20 $to </dev/null 2>&1 | grep -o 'No route to host\|secret\|timed out'
done`
	refused := strings.TrimSpace(strings.Repeat("No route to host\n", 4))
	expect(t, refused, script)
	expect(t, refused, script, "--egress", "allow=0.0.0.0/0")
	expect(t, refused, script, "--egress", "deny", "--egress", "allow=127.0.0.1:1") // Another port.
	expect(t, "secret", `nc 10.0.2.2 `+port+` </dev/null`, "--egress", "deny", flag)
	// UDP and ICMP are told too.
	expect(t, "refused\n3 13", `python3 - <<'END'
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect(("169.254.169.254", 53))
s.send(b"x")
try:
    s.recv(1)
except ConnectionRefusedError:
    print("refused")
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout(20)
s.sendto(struct.pack("!BBHHH", 8, 0, 0xf7fd, 1, 1), ("169.254.169.254", 0))
while (answer := s.recv(100))[20] == 8:
    pass
print(answer[20], answer[21])  # destination unreachable, administratively prohibited
END`)
}

// TestResults checks what a guest sees of destinations that do not answer.
func TestResults(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	flag, address := allowed(t, l.Addr())
	l.Close()
	expect(t, "Connection refused", `nc -v -w 20 `+strings.Replace(address, ":", " ", 1)+` 2>&1 | grep -o 'Connection refused'`, flag)
	expect(t, "1 received", `ping -c 1 -W 20 10.0.2.2 | grep -o '1 received'`)
	// Nobody else is on the guest's own network.
	expect(t, "No route to host", `nc -v -w 20 10.0.2.77 80 2>&1 | grep -o 'No route to host'`)
}

// TestConcurrent opens many connections at once, holds all of them open, and
// then finds the sandbox with as many descriptors as before.
func TestConcurrent(t *testing.T) {
	count := 500
	if testbed.Nightly() {
		count = 2000
	}
	a := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	flag, address := allowed(t, a)
	host, port, _ := net.SplitHostPort(address)
	name := server(t, fmt.Sprintf(`exec python3 - <<'END'
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
print("ready", flush=True)
while True:
    conns = [socket.create_connection((%q, %s), timeout=60) for _ in range(%d)]
    for i, c in enumerate(conns):
        c.sendall(b"%%08d" %% i)
    assert all(c.recv(8, socket.MSG_WAITALL) == b"%%08d" %% i for i, c in enumerate(conns))
    for c in conns:
        c.close()
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.bind(("0.0.0.0", 7))
    s.listen()
    c, _ = s.accept()
    c.sendall(b"done")
    c.recv(1)
    c.close()
    s.close()
END`, host, port, count), flag, "-p", "7")
	h := getHome(t)
	address = strings.TrimSpace(h.MustRungv(t, "port", name, "7"))
	round := func() int {
		t.Helper()
		for deadline := time.Now().Add(commandTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				continue // Reset before it was even connected.
			}
			_ = c.SetDeadline(deadline)
			word := make([]byte, 4)
			if _, err := io.ReadFull(c, word); err == nil {
				// The guest goes on once this is closed: count before.
				n := settled(t, h, name)
				if list := h.MustRungv(t, "network", "connections", name); strings.Contains(list, "tcp") {
					t.Errorf("the launcher still holds connections: %s", list)
				}
				c.Close()
				return n
			}
			c.Close() // Reset: it does not listen yet.
		}
		t.Fatalf("the guest has not finished its %d connections", count)
		return 0
	}
	first, second := round(), round()
	if second > first+2 || second > 100 {
		t.Errorf("%d descriptors after %d connections, %d after as many again", first, count, second)
	}
}

// settled returns how many descriptors a sandbox has, once that no longer
// falls.
func settled(t *testing.T, h *testbed.Home, name string) int {
	t.Helper()
	pid := strings.TrimSpace(h.MustRungv(t, "inspect", "-f", "{{.Sandbox.Pid}}", name))
	least := 1 << 30
	for range 20 {
		list, err := os.ReadDir("/proc/" + pid + "/fd")
		if err != nil {
			testbed.Missing(t, "a look at the sandbox's descriptors (root): %v", err)
		}
		least = min(least, len(list))
		time.Sleep(50 * time.Millisecond)
	}
	return least
}
