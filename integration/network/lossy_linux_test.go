// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

const (
	lossyNear, lossyFar = "198.51.100.1", "198.51.100.2"
	// lossPercent of the packets are lost in each direction.
	lossPercent = 3
)

// wire is a bad cable between the test's network namespace, where the launcher
// is, and another one.
type wire struct {
	// cut drops everything.
	cut     atomic.Bool
	carried [2]atomic.Int64
	lost    atomic.Int64
}

// tun makes an interface in the thread's network namespace that the test is the
// other end of.
func tun(address, peer string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var request struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "wire")
	request.flags = unix.IFF_TUN | unix.IFF_NO_PI
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		unix.Close(fd)
		return nil, errno
	}
	output, err := exec.Command("/bin/sh", "-ec", "ip link set lo up; ip addr add "+address+" peer "+peer+" dev wire; ip link set wire up").CombinedOutput()
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// isolateBehindWire is isolate with a wire to a server of the far side.
func isolateBehindWire(t *testing.T, serve func(net.Listener)) *wire {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		testbed.Missing(t, "/dev/net/tun: %v", err)
	}
	isolate(t, "")
	near, err := tun(lossyNear, lossyFar)
	if err != nil {
		testbed.Missing(t, "an interface of kind tun: %v", err)
	}
	type made struct {
		file *os.File
		l    net.Listener
		err  error
	}
	far := make(chan made)
	go func() {
		// The thread ends with this goroutine: it is not unlocked.
		runtime.LockOSThread()
		var m made
		if m.err = unix.Unshare(unix.CLONE_NEWNET); m.err == nil {
			m.file, m.err = tun(lossyFar, lossyNear)
		}
		if m.err == nil {
			m.l, m.err = net.Listen("tcp", lossyFar+":80")
		}
		far <- m
	}()
	m := <-far
	if m.err != nil {
		t.Fatal(m.err)
	}
	w := &wire{}
	go w.carry(near, m.file, 0)
	go w.carry(m.file, near, 1)
	go serve(m.l)
	t.Cleanup(func() {
		m.l.Close()
		near.Close()
		m.file.Close()
	})
	return w
}

// carry carries packets one way, but for those that are lost.
func (w *wire) carry(from, to *os.File, way int) {
	chance := rand.New(rand.NewPCG(1, uint64(way)))
	buf := make([]byte, 65536)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if w.cut.Load() || chance.IntN(100) < lossPercent {
			w.lost.Add(1)
			continue
		}
		w.carried[way].Add(1)
		_, _ = to.Write(buf[:n])
	}
}

// TestLossyNetwork transfers both ways where packets are lost, and through an
// interruption: nothing is missing in the end.
func TestLossyNetwork(t *testing.T) {
	size := int64(4 << 20)
	digest := sha256.New()
	_, _ = io.CopyN(digest, &pattern{}, size)
	want := fmt.Sprintf("%x", digest.Sum(nil))
	var w *wire
	half := make(chan struct{}, 2)
	w = isolateBehindWire(t, func(l net.Listener) {
		srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				rw.Header().Set("Content-Length", strconv.FormatInt(size, 10))
				p := &pattern{}
				_, _ = io.CopyN(rw, p, size/2)
				half <- struct{}{}
				_, _ = io.CopyN(rw, p, size/2)
				return
			}
			h := sha256.New()
			_, _ = io.Copy(h, r.Body)
			fmt.Fprintf(rw, "%x", h.Sum(nil))
		})}
		_ = srv.Serve(l)
	})
	go func() {
		<-half
		w.cut.Store(true)
		time.Sleep(2 * time.Second)
		w.cut.Store(false)
	}()
	expect(t, want+"\n"+want, `set -e
curl -sSf -m 150 -o /file http://`+lossyFar+`/
sha256sum /file | cut -d' ' -f1
curl -sSf -m 150 -T /file http://`+lossyFar+`/ -H Expect:`)
	t.Logf("%d and %d packets carried, %d lost", w.carried[0].Load(), w.carried[1].Load(), w.lost.Load())
	if w.lost.Load() == 0 {
		t.Error("no packet was lost: this has shown nothing")
	}
}

// TestResetOnTheWay: a peer that resets in the middle is seen to have done so,
// by a guest that reads and by one that writes.
func TestResetOnTheWay(t *testing.T) {
	isolateBehindWire(t, func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(c, &pattern{}, 100000)
				_, _ = io.ReadFull(c, make([]byte, 1))
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}()
		}
	})
	expect(t, "ConnectionResetError\nConnectionResetError", `python3 - <<'END'
import socket
def run(then):
    s = socket.create_connection(("`+lossyFar+`", 80), timeout=120)
    got = 0
    while got < 100000:
        got += len(s.recv(65536))
    s.sendall(b"x")
    try:
        then(s)
    except OSError as e:
        print(type(e).__name__ if not isinstance(e, BrokenPipeError) else "ConnectionResetError")
run(lambda s: s.recv(1))
def write(s):
    while True:
        s.sendall(b"y" * 65536)
run(write)
END`)
}

// TestNobodyThere: a destination that never answers is a timeout for the guest,
// and the launcher gives up too.
func TestNobodyThere(t *testing.T) {
	w := isolateBehindWire(t, func(net.Listener) {})
	w.cut.Store(true)
	out := sh(t, "nc -v -w 3 "+lossyFar+" 80 2>&1")
	if !strings.Contains(out.Stdout, "timed out") || out.Took > commandTimeout {
		t.Errorf("%v", out)
	}
}
