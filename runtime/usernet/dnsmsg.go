// SPDX-License-Identifier: Apache-2.0

// As much of DNS messages (RFC 1035) as it takes to tell what is asked, to
// answer from a list of hosts, and to say no.

package usernet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsHeaderBytes = 12
	maxNameBytes   = 255
	maxLabelBytes  = 63
	// hostsTTL is the life of an answer from the list of hosts, in seconds:
	// the list does not change while the sandbox lives.
	hostsTTL = 60

	typeA, typeAAAA = 1, 28
	classIN         = 1

	rcodeServerFailure = 2
	rcodeRefused       = 5

	flagResponse  = 0x8000
	flagsOpcode   = 0x7800
	flagRecursion = 0x0100 // desired
	flagAvailable = 0x0080 // recursion
)

// question is the one question of a query.
type question struct {
	// name is in lower case, without its final dot, and as zone files write
	// what a host's name does not have: \046 is a dot within a label.
	name        string
	kind, class uint16
	// end is where the question ends in the message.
	end int
}

// parseQuestion reads a query from a guest. One that is none, or that asks
// several things at once, which nobody does, is not ok.
func parseQuestion(msg []byte) (q question, ok bool) {
	if len(msg) < dnsHeaderBytes {
		return q, false
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	if flags&flagResponse != 0 || flags&flagsOpcode != 0 || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return q, false
	}
	at := dnsHeaderBytes
	var name []byte
	for {
		if at >= len(msg) {
			return q, false
		}
		n := int(msg[at])
		at++
		if n == 0 {
			break
		}
		// A pointer, above 63, has nothing to point to yet.
		if n > maxLabelBytes || at+n > len(msg) || at+n+1-dnsHeaderBytes > maxNameBytes {
			return q, false
		}
		if len(name) > 0 {
			name = append(name, '.')
		}
		name = appendLabel(name, msg[at:at+n])
		at += n
	}
	if at+4 > len(msg) {
		return q, false
	}
	q.name = string(name)
	q.kind, q.class = binary.BigEndian.Uint16(msg[at:]), binary.BigEndian.Uint16(msg[at+2:])
	q.end = at + 4
	return q, true
}

// appendLabel appends a label in the form that policies compare. Two names of
// one form would be one name to a policy, and two to the servers: a dot within a
// label is none between two, and only ASCII has cases.
func appendLabel(b, label []byte) []byte {
	for _, c := range label {
		switch {
		case 'A' <= c && c <= 'Z':
			b = append(b, c+'a'-'A')
		case c <= ' ' || c > '~' || c == '.' || c == '\\':
			b = fmt.Appendf(b, "\\%03d", c)
		default:
			b = append(b, c)
		}
	}
	return b
}

// plainName is a name of a message in the form that questions have. What comes
// of the parser has no dots but those between labels.
func plainName(n dnsmessage.Name) string {
	var name []byte
	for label := range bytes.SplitSeq(bytes.TrimSuffix(n.Data[:n.Length], []byte(".")), []byte(".")) {
		if name != nil {
			name = append(name, '.')
		}
		name = appendLabel(name, label)
	}
	return string(name)
}

// refusal answers a query with an error.
func refusal(query []byte, q question, rcode uint16) []byte {
	return reply(query, q, rcode, 0)
}

// reply begins an answer: the header and the question again.
func reply(query []byte, q question, rcode, answers uint16) []byte {
	out := append([]byte(nil), query[:q.end]...)
	flags := binary.BigEndian.Uint16(query[2:])&flagRecursion | flagResponse | flagAvailable | rcode
	binary.BigEndian.PutUint16(out[2:], flags)
	binary.BigEndian.PutUint16(out[6:], answers)
	binary.BigEndian.PutUint16(out[8:], 0)
	binary.BigEndian.PutUint16(out[10:], 0)
	return out
}

// hosts are names that are answered without asking anybody.
type hosts map[string][]netip.Addr

// answer returns the answer to a query for a listed name, or nil.
func (h hosts) answer(query []byte, q question) []byte {
	addrs, known := h[q.name]
	if !known || q.class != classIN {
		return nil
	}
	var matching []netip.Addr
	for _, a := range addrs {
		if q.kind == typeA && a.Is4() || q.kind == typeAAAA && a.Is6() {
			matching = append(matching, a)
		}
	}
	// A name that exists and has no such record is an answer too.
	out := reply(query, q, 0, uint16(len(matching)))
	for _, a := range matching {
		b := a.AsSlice()
		out = binary.BigEndian.AppendUint16(out, 0xc000|dnsHeaderBytes) // the question's name
		out = binary.BigEndian.AppendUint16(out, q.kind)
		out = binary.BigEndian.AppendUint16(out, q.class)
		out = binary.BigEndian.AppendUint32(out, hostsTTL)
		out = binary.BigEndian.AppendUint16(out, uint16(len(b)))
		out = append(out, b...)
	}
	return out
}

// answers says whether msg is the answer to the query: the same id and the
// same question, letter by letter.
func answers(msg, query []byte, q question) bool {
	return len(msg) >= q.end && binary.BigEndian.Uint16(msg[2:])&flagResponse != 0 &&
		msg[0] == query[0] && msg[1] == query[1] &&
		binary.BigEndian.Uint16(msg[4:]) == 1 &&
		string(msg[dnsHeaderBytes:q.end]) == string(query[dnsHeaderBytes:q.end])
}
