// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

func TestParseDetachKeys(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "ctrl-p,ctrl-q": "\x10\x11", "a": "a", "ctrl-@,x": "\x00x", "ctrl-_,ctrl-[": "\x1f\x1b",
	} {
		if got, err := ParseDetachKeys(in); string(got) != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"ctrl-", "ctrl-P", "ctrl-ab", "ab", "a,,b", ","} {
		if _, err := ParseDetachKeys(in); api.KindOf(err) != api.KindInvalid {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestKeyMatcher(t *testing.T) {
	for _, c := range []struct {
		keys, in, out string
		found         bool
	}{
		{"", "abc", "abc", false},
		{"pq", "apqb", "a", true},
		{"pq", "appq", "ap", true},
		{"pq", "ap", "ap", false},
		{"aab", "aaab", "a", true},
		{"aba", "abaaba", "", true},
		{"p", "xp", "x", true},
	} {
		// Whole, and in pieces of one byte: the same.
		for _, step := range []int{len(c.in), 1} {
			m := keyMatcher{keys: []byte(c.keys)}
			var out []byte
			found := false
			for at := 0; at < len(c.in) && !found; at += step {
				var piece []byte
				piece, found = m.feed([]byte(c.in[at : at+step]))
				out = append(out, piece...)
			}
			out = append(out, m.rest()...)
			if !bytes.Equal(out, []byte(c.out)) || found != c.found {
				t.Errorf("keys %q in %q by %d: %q, %v", c.keys, c.in, step, out, found)
			}
		}
	}
}
