// SPDX-License-Identifier: Apache-2.0

//go:build compromised

package compromised

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/control/netwire"
)

const (
	// answerTimeout is how long a broker is waited for.
	answerTimeout = 10 * time.Second
	// floodRequests are sent by a flood, without reading an answer.
	floodRequests = 20000
	// floodTime ends a flood whose channel is full.
	floodTime = 3 * time.Second
	// hoardMost bounds a hoard: more than any broker should give.
	hoardMost = 100000
)

// egress says what to do with the broker's channel, before the sandbox's own end
// of it is served.
type egress struct {
	// Kind is "targets", "malformed", "flood", "hoard" or "keep"; empty is none.
	Kind string `json:"kind"`
	// Targets are "tcp 192.0.2.1:80" and the like; the last is one that the
	// policy allows, for all kinds.
	Targets []string `json:"targets"`
}

// locked is closed when the filter is in force.
var locked = sync.OnceValue(func() chan struct{} { return make(chan struct{}) })

// Egress attacks the broker on fd, which does not block. The process is locked
// down by then. It returns when it has done; "keep" goes on until it cannot.
func Egress(fd int) {
	if chosen.Egress.Kind == "" || results == nil {
		return
	}
	<-locked()
	c := &channel{fd: fd, out: json.NewEncoder(results)}
	allowed := chosen.Egress.Targets[len(chosen.Egress.Targets)-1]
	switch chosen.Egress.Kind {
	case "targets":
		for _, target := range chosen.Egress.Targets {
			c.tryTarget(target)
		}
	case "malformed":
		c.malformed(allowed)
	case "flood":
		c.flood(allowed)
	case "hoard":
		c.hoard(allowed)
	case "keep":
		c.keep(allowed)
	}
}

// channel is the broker's channel in hostile hands.
type channel struct {
	fd   int
	next uint32
	out  *json.Encoder
}

func (c *channel) note(name string, err error) {
	r := Result{Name: name}
	if err != nil {
		r.Err = err.Error()
	}
	if err := c.out.Encode(r); err != nil {
		panic(err)
	}
}

// request makes the request for a target. Ids count from a number that an honest
// end will not get to.
func (c *channel) request(target string) []byte {
	protocol, address, _ := strings.Cut(target, " ")
	r := netwire.Request{Ask: netwire.Connect, Protocol: map[string]netwire.Protocol{"tcp": netwire.TCP, "udp": netwire.UDP, "icmp": netwire.Echo}[protocol]}
	c.next++
	r.ID = 1<<31 + c.next
	r.To = netip.MustParseAddrPort(address)
	r.From = netip.AddrPortFrom(r.To.Addr(), 1) // Of the same family.
	r.By = netwire.Process{PID: 1, Name: "\x1b[31minnocent"}
	return r.Append(nil)
}

// send writes a packet, waiting for room.
func (c *channel) send(packet []byte) error {
	for deadline := time.Now().Add(answerTimeout); ; time.Sleep(time.Millisecond) {
		_, err := unix.Write(c.fd, packet)
		if err != unix.EAGAIN || time.Now().After(deadline) {
			return err
		}
	}
}

// receive returns the next message and its descriptor, -1 if there is none.
func (c *channel) receive() (netwire.Message, int, error) {
	packet, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	for deadline := time.Now().Add(answerTimeout); ; time.Sleep(time.Millisecond) {
		n, rightsLen, _, _, err := unix.Recvmsg(c.fd, packet, rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EAGAIN && time.Now().Before(deadline):
			continue
		case err != nil:
			return netwire.Message{}, -1, err
		case n == 0:
			return netwire.Message{}, -1, unix.EPIPE
		}
		m, err := netwire.ParseMessage(packet[:n])
		if err != nil {
			return m, -1, err
		}
		if list, err := unix.ParseSocketControlMessage(rights[:rightsLen]); err == nil && len(list) > 0 {
			if fds, err := unix.ParseUnixRights(&list[0]); err == nil && len(fds) > 0 {
				return m, fds[0], nil
			}
		}
		return m, -1, nil
	}
}

// ask sends a request and returns the descriptor that it brings.
func (c *channel) ask(target string) (int, error) {
	if err := c.send(c.request(target)); err != nil {
		return -1, err
	}
	m, fd, err := c.receive()
	if err == nil && fd < 0 {
		err = fmt.Errorf("%s", m.Result)
	}
	return fd, err
}

// giveBack closes a descriptor and says so.
func (c *channel) giveBack(fd int, id uint32) {
	unix.Close(fd)
	r := netwire.Request{Ask: netwire.Closed, Protocol: netwire.TCP, ID: id}
	_ = c.send(r.Append(nil))
}

func (c *channel) tryTarget(target string) {
	fd, err := c.ask(target)
	if fd >= 0 {
		c.giveBack(fd, 1<<31+c.next)
	}
	c.note(target, err)
}

// malformed sends what no sandbox says: the broker must not speak to it again.
func (c *channel) malformed(allowed string) {
	good := c.request(allowed)
	bad := append([]byte(nil), good...)
	bad[2] = 9
	_ = c.send(bad)
	_, _, err := c.receive()
	c.note("after a malformed request", err)
	_, err = c.ask(allowed)
	c.note("allowed, after a malformed request", err)
}

// flood sends requests as fast as it can, allowed and denied ones, and reads no
// answer meanwhile.
func (c *channel) flood(allowed string) {
	sent := 0
	for begin := time.Now(); sent < floodRequests && time.Since(begin) < floodTime; {
		target := allowed
		if sent%2 == 0 {
			target = "tcp 169.254.169.254:80"
		}
		if _, err := unix.Write(c.fd, c.request(target)); err == nil {
			sent++
		}
	}
	got := 0
	taken := make(map[uint32]int)
	for range sent {
		m, fd, err := c.receive()
		if err != nil {
			break
		}
		got++
		if fd >= 0 {
			taken[m.ID] = fd
		}
	}
	for id, fd := range taken {
		c.giveBack(fd, id)
	}
	c.note("flood", fmt.Errorf("%d requests, %d answers, %d connections", sent, got, len(taken)))
}

// hoard takes all connections that it is given and gives none back.
func (c *channel) hoard(allowed string) {
	var fds []int
	var last error
	for len(fds) < hoardMost {
		fd, err := c.ask(allowed)
		if err != nil {
			last = err
			break
		}
		fds = append(fds, fd)
	}
	c.note("hoard", fmt.Errorf("%d connections, then %v", len(fds), last))
	time.Sleep(time.Second) // So that the test can look at the launcher.
	for _, fd := range fds {
		unix.Close(fd) // And does not even say so.
	}
}

// keep holds on to a connection, whatever the broker says about it.
func (c *channel) keep(allowed string) {
	fd, err := c.ask(allowed)
	c.note("connect", err)
	if err != nil {
		return
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err = unix.Write(fd, []byte("x")); err != nil && err != unix.EAGAIN {
			break
		}
	}
	c.note("write", err)
	n, err := unix.Read(fd, make([]byte, 16))
	c.note(fmt.Sprintf("read %d bytes", n), err)
}
