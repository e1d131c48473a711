// SPDX-License-Identifier: Apache-2.0

// Package netwire is what a sandbox process and its broker say to each other:
// the sandbox asks for connections and gets them as descriptors, the broker
// hands in those that clients made to published ports.
//
// It owns the form of the messages and nothing else: it holds no socket and
// knows no policy. Both ends take the other's bytes for hostile; every
// function here accepts any bytes.
//
// # Transport
//
// One connected unix socket of type SOCK_SEQPACKET: a message is a packet, and
// a packet of another length than its message's is an error. Up to [MaxRequests]
// requests share a packet, one behind the other. Integers are little-endian.
// Reserved bytes are zero.
//
// # Request, sandbox to broker: 64 bytes
//
//	offset size field
//	     0    1 version, 3
//	     1    1 protocol: 1 ICMP echo, 6 TCP, 17 UDP (IANA's numbers)
//	     2    1 family of both addresses: 4 or 6
//	     3    1 kind: 1 connect, 2 closed
//	     4    4 id, which the answer repeats
//	     8   16 destination address; of IPv4 the first 4 bytes
//	    24   16 source address in the guest, for the log
//	    40    2 destination port, 0 for ICMP
//	    42    2 source port
//	    44    4 id of the guest's process, 0 if that is not known, for the log
//	    48   16 its name, filled up with zeros
//
// A connect gets one answer. A closed says that the sandbox has closed the
// connection of an earlier connect with the same id and protocol, and gets
// none; everything behind its id is zero.
//
// # Message, broker to sandbox: 16 bytes, and a descriptor or none
//
//	offset size field
//	     0    1 version, 3
//	     1    1 kind: 1 answer, 2 inbound, 3 ended
//	     2    1 protocol, as above
//	     3    1 flags: 1 an empty read is the end, not an empty datagram;
//	            2 the broker holds the connection too and waits for a closed
//	     4    4 id of the connect that it is about, 0 for inbound
//	     8    1 result: see [Result]
//	     9    1 reserved
//	    10    2 port of the guest, for inbound
//	    12    4 reserved
//
// A descriptor comes with an inbound connection, and with an answer whose
// result is [OK]. It is connected and does not block. An ended says that the
// policy has changed and that the broker has ended the connection.
package netwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Version is the version of the messages. Both ends are the same binary.
const Version = 3

const (
	// RequestBytes is the length of a [Request].
	RequestBytes = 64
	// MaxRequests bounds the requests of a packet: what is given back goes along
	// with what is asked for, and waking the other end costs more than either.
	MaxRequests = 16
	// MessageBytes is the length of a [Message].
	MessageBytes = 16
	// NameBytes is how much of a process' name a request has room for: what
	// Linux keeps of one, without its final zero.
	NameBytes = 16
)

// Protocol is a transport protocol by IANA's number.
type Protocol uint8

const (
	// Echo is ICMP's echo: what is written and read are whole ICMP messages.
	Echo Protocol = 1
	// TCP is a stream.
	TCP Protocol = 6
	// UDP is datagrams.
	UDP Protocol = 17
)

// String names the protocol.
func (p Protocol) String() string {
	switch p {
	case Echo:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Result is how an attempt to connect ended.
type Result uint8

const (
	// OK comes with a descriptor.
	OK Result = iota
	// Refused is an answer from the destination: nobody listens.
	Refused
	// HostUnreachable is a router's answer, or the host's own.
	HostUnreachable
	// NetUnreachable says that the host has no route.
	NetUnreachable
	// TimedOut is no answer at all.
	TimedOut
	// Denied is the policy's word.
	Denied
	// Busy says that too many attempts are under way: try again.
	Busy
	// Failed is a failure of the host: descriptors, memory, no such protocol.
	Failed
	results
)

var resultNames = [results]string{"connected", "refused", "host unreachable", "network unreachable", "timed out", "denied", "busy", "failed"}

// String describes the result.
func (r Result) String() string {
	if r < results {
		return resultNames[r]
	}
	return fmt.Sprintf("result %d", uint8(r))
}

// Kind is the kind of a [Message].
type Kind uint8

const (
	// Answer belongs to a request.
	Answer Kind = 1
	// Inbound is a client of a published port.
	Inbound Kind = 2
	// Ended is the end of a connection that the policy allows no more.
	Ended Kind = 3
)

// Flags of a [Message].
const (
	// EndsEmpty is a descriptor whose end shows as an empty read.
	EndsEmpty = 1
	// Held is a connection that the broker holds too: it is closed for good
	// when the sandbox has said so with [Closed].
	Held = 2
)

// Ask is the kind of a [Request].
type Ask uint8

const (
	// Connect asks for a connection.
	Connect Ask = 1
	// Closed gives one back.
	Closed Ask = 2
)

// ErrMalformed is a packet that is no message.
var ErrMalformed = errors.New("malformed message")

// Process is a guest's process, as the sandbox tells it: good for a log, and
// for nothing that has to be true.
type Process struct {
	PID  uint32
	Name string
}

// String is the form for a log: name[id].
func (p Process) String() string {
	if p.PID == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s[%d]", p.Name, p.PID)
}

// Request asks for a connection to To, or gives one back. From is the guest's
// end, By its process.
type Request struct {
	Ask      Ask
	Protocol Protocol
	ID       uint32
	To, From netip.AddrPort
	By       Process
}

// Append appends the request's form to b. Its addresses must be of one family.
func (r *Request) Append(b []byte) []byte {
	var m [RequestBytes]byte
	m[0], m[1], m[3] = Version, byte(r.Protocol), byte(r.Ask)
	binary.LittleEndian.PutUint32(m[4:], r.ID)
	if r.Ask == Closed {
		return append(b, m[:]...)
	}
	m[2] = 6
	if r.To.Addr().Is4() {
		m[2] = 4
	}
	copy(m[8:24], r.To.Addr().AsSlice())
	copy(m[24:40], r.From.Addr().AsSlice())
	binary.LittleEndian.PutUint16(m[40:], r.To.Port())
	binary.LittleEndian.PutUint16(m[42:], r.From.Port())
	binary.LittleEndian.PutUint32(m[44:], r.By.PID)
	copy(m[48:], r.By.Name)
	return append(b, m[:]...)
}

// ParseRequest reads a request from a hostile sandbox.
func ParseRequest(b []byte) (Request, error) {
	if len(b) != RequestBytes || b[0] != Version {
		return Request{}, ErrMalformed
	}
	r := Request{Ask: Ask(b[3]), Protocol: Protocol(b[1]), ID: binary.LittleEndian.Uint32(b[4:])}
	switch r.Protocol {
	case Echo, TCP, UDP:
	default:
		return Request{}, ErrMalformed
	}
	switch {
	case r.Ask == Closed && b[2] == 0 && allZero(b[8:]):
		return r, nil
	case r.Ask != Connect:
		return Request{}, ErrMalformed
	}
	to, err := address(b[2], b[8:24])
	if err != nil {
		return Request{}, err
	}
	from, err := address(b[2], b[24:40])
	if err != nil {
		return Request{}, err
	}
	r.To = netip.AddrPortFrom(to, binary.LittleEndian.Uint16(b[40:]))
	r.From = netip.AddrPortFrom(from, binary.LittleEndian.Uint16(b[42:]))
	if (r.To.Port() == 0) != (r.Protocol == Echo) {
		return Request{}, ErrMalformed
	}
	name, rest, _ := bytes.Cut(b[48:48+NameBytes], []byte{0})
	if !allZero(rest) {
		return Request{}, ErrMalformed
	}
	r.By = Process{PID: binary.LittleEndian.Uint32(b[44:]), Name: string(name)}
	return r, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// address reads one address. IPv4 in IPv6's clothes is refused: it would be
// another way to write an address, and policies compare addresses.
func address(family byte, b []byte) (netip.Addr, error) {
	switch family {
	case 4:
		if !allZero(b[4:]) {
			return netip.Addr{}, ErrMalformed
		}
		return netip.AddrFrom4([4]byte(b)), nil
	case 6:
		if a := netip.AddrFrom16([16]byte(b)); !a.Is4In6() {
			return a, nil
		}
	}
	return netip.Addr{}, ErrMalformed
}

// Message is what a broker sends.
type Message struct {
	Kind     Kind
	Protocol Protocol
	Flags    uint8
	ID       uint32
	Result   Result
	Port     uint16
}

// Append appends the message's form to b.
func (m *Message) Append(b []byte) []byte {
	var out [MessageBytes]byte
	out[0], out[1], out[2], out[3] = Version, byte(m.Kind), byte(m.Protocol), m.Flags
	binary.LittleEndian.PutUint32(out[4:], m.ID)
	out[8] = byte(m.Result)
	binary.LittleEndian.PutUint16(out[10:], m.Port)
	return append(b, out[:]...)
}

// ParseMessage reads a broker's message.
func ParseMessage(b []byte) (Message, error) {
	if len(b) != MessageBytes || b[0] != Version {
		return Message{}, ErrMalformed
	}
	m := Message{
		Kind: Kind(b[1]), Protocol: Protocol(b[2]), Flags: b[3],
		ID: binary.LittleEndian.Uint32(b[4:]), Result: Result(b[8]), Port: binary.LittleEndian.Uint16(b[10:]),
	}
	if m.Kind < Answer || m.Kind > Ended || m.Result >= results || b[9] != 0 || binary.LittleEndian.Uint32(b[12:]) != 0 {
		return Message{}, ErrMalformed
	}
	return m, nil
}
