// SPDX-License-Identifier: Apache-2.0

package netwire

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	for _, r := range []Request{
		{Connect, TCP, 7, netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("10.0.2.15:40000"), Process{9, "curl"}},
		{Connect, UDP, 1 << 31, netip.MustParseAddrPort("[2001:db8::1]:53"), netip.MustParseAddrPort("[fd00::15]:1"), Process{}},
		{Connect, Echo, 0, netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("10.0.2.15:9"), Process{1, "sixteen bytes ok"}},
		{Ask: Closed, Protocol: TCP, ID: 7},
	} {
		got, err := ParseRequest(r.Append(nil))
		if err != nil || got != r {
			t.Errorf("%v: got %v, %v", r, got, err)
		}
	}
	for _, m := range []Message{
		{Kind: Answer, Protocol: TCP, ID: 9, Result: Denied},
		{Kind: Inbound, Protocol: UDP, Flags: EndsEmpty, Port: 53},
		{Kind: Ended, Protocol: TCP, ID: 9},
	} {
		got, err := ParseMessage(m.Append(nil))
		if err != nil || got != m {
			t.Errorf("%v: got %v, %v", m, got, err)
		}
	}
}

func TestRefused(t *testing.T) {
	good := (&Request{Connect, TCP, 7, netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("10.0.2.15:40000"), Process{9, "curl"}}).Append(nil)
	for name, change := range map[string]func([]byte) []byte{
		"short":             func(b []byte) []byte { return b[:len(b)-1] },
		"long":              func(b []byte) []byte { return append(b, 0) },
		"version":           func(b []byte) []byte { b[0]++; return b },
		"protocol":          func(b []byte) []byte { b[1] = 132; return b },
		"family":            func(b []byte) []byte { b[2] = 5; return b },
		"behind an address": func(b []byte) []byte { b[12] = 1; return b },
		"mapped": func(b []byte) []byte {
			b[2] = 6
			a := netip.MustParseAddr("::ffff:127.0.0.1").As16()
			copy(b[8:], a[:])
			return b
		},
		"no port":           func(b []byte) []byte { b[40], b[41] = 0, 0; return b },
		"a port of an echo": func(b []byte) []byte { b[1] = byte(Echo); return b },
		"kind":              func(b []byte) []byte { b[3] = 3; return b },
		"closed, and more":  func(b []byte) []byte { b[3] = byte(Closed); return b },
		"behind the name":   func(b []byte) []byte { b[63] = 1; return b },
	} {
		if r, err := ParseRequest(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s: accepted as %v", name, r)
		}
	}
	if _, err := ParseMessage(make([]byte, MessageBytes)); err == nil {
		t.Error("zeros are a message")
	}
}

// FuzzRequest feeds the parser that faces a compromised sandbox. What it
// accepts has one form only.
func FuzzRequest(f *testing.F) {
	f.Add((&Request{Connect, TCP, 7, netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("10.0.2.15:40000"), Process{9, "curl"}}).Append(nil))
	f.Add((&Request{Connect, Echo, 7, netip.MustParseAddrPort("[::1]:0"), netip.MustParseAddrPort("[fd00::15]:1"), Process{}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err != nil {
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x parsed as %v, which is %x", b, r, again)
		}
	})
}

// FuzzMessage feeds the sandbox's parser.
func FuzzMessage(f *testing.F) {
	f.Add((&Message{Kind: Inbound, Protocol: TCP, Port: 80}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err == nil && !bytes.Equal(m.Append(nil), b) {
			t.Errorf("%x parsed as %v", b, m)
		}
	})
}
