// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// nameServer is an address of the host's loopback for the test's name server.
const nameServer = "127.77.53.1"

// largeRecords is how many addresses a large answer has: more than fits into a
// datagram.
const largeRecords = 200

// answer makes the answer to a query: one address, or over TCP the many of a
// name whose first letter is l. Over UDP that one is only cut off.
func answer(query []byte, tcp bool) []byte {
	if len(query) < 17 {
		return nil
	}
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	if end += 5; end > len(query) {
		return nil
	}
	out := append([]byte(nil), query[:end]...)
	out[2], out[3] = 0x81, 0x80
	records := 1
	if query[13] == 'l' {
		records = largeRecords
		if !tcp {
			out[2] |= 0x02 // cut off
			records = 0
		}
	}
	if query[end-3] != 1 { // not A
		records = 0
	}
	binary.BigEndian.PutUint16(out[6:], uint16(records))
	copy(out[8:12], []byte{0, 0, 0, 0})
	for i := range records {
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 198, 51, 100, byte(i))
	}
	return out
}

// startNameServer serves on port 53 of the loopback address.
func startNameServer(t *testing.T) {
	t.Helper()
	testbed.NeedRoot(t, "a name server on port 53")
	address := net.JoinHostPort(nameServer, "53")
	pc, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(answer(buf[:n], false), from)
		}
	}()
	testbed.ServeTCP(t, address, func(c *net.TCPConn) {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, query); err == nil {
			out := answer(query, true)
			_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
		}
	})
}

// TestNames resolves names through the guest's name server.
func TestNames(t *testing.T) {
	startNameServer(t)
	dns := []string{"--dns", nameServer, "--add-host", "db.test:192.0.2.44"}
	expect(t, "small.test has address 198.51.100.0", "host -t A small.test.", dns...)
	expect(t, fmt.Sprint(largeRecords), "host -t A large.test. | grep -c 'has address'", dns...)
	expect(t, "small.test has address 198.51.100.0", "host -T -t A small.test.", dns...)
	// The C library, and a name that only the broker knows.
	expect(t, "198.51.100.0 STREAM", "getent ahostsv4 small.test | awk 'NR == 1 {print $1, $2}'", dns...)
	expect(t, "db.test has address 192.0.2.44", "host -t A db.test.", dns...)
	// Who denies all denies names, unless they are allowed; listed ones work.
	expect(t, "REFUSED", "host -t A small.test. | grep -o REFUSED", append(dns, "--egress", "deny")...)
	expect(t, "db.test has address 192.0.2.44", "host -t A db.test.", append(dns, "--egress", "deny")...)
	expect(t, "small.test has address 198.51.100.0", "host -t A small.test.", append(dns, "--egress", "deny", "--egress", "allow=10.0.2.3")...)
}
