// SPDX-License-Identifier: Apache-2.0

// Detach keys: docker's syntax, and finding them in a stream of input.

package launch

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// DefaultDetachKeys is docker's sequence.
const DefaultDetachKeys = "ctrl-p,ctrl-q"

// ParseDetachKeys reads docker's form: comma-separated, each a character or
// ctrl- with a letter or one of @ [ \ ] ^ _. The empty string is none.
func ParseDetachKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for _, word := range strings.Split(s, ",") {
		name, ctrl := strings.CutPrefix(word, "ctrl-")
		switch {
		case ctrl && len(name) == 1 && name[0] >= 'a' && name[0] <= 'z':
			keys = append(keys, name[0]-'a'+1)
		case ctrl && len(name) == 1 && (name[0] == '@' || name[0] >= '[' && name[0] <= '_'):
			keys = append(keys, name[0]-'@')
		case !ctrl && len(word) == 1:
			keys = append(keys, word[0])
		default:
			return nil, api.Errorf(api.KindInvalid, "invalid detach keys (%s): %q is neither a character nor ctrl-<a-z, @, [, \\, ], ^, _>", s, word)
		}
	}
	return keys, nil
}

// keyMatcher finds a key sequence in input that arrives in pieces. What may
// become the sequence is held back until it is known.
type keyMatcher struct {
	keys []byte
	held []byte
}

// feed takes a piece of input and returns what to pass on, and whether the
// sequence was completed; input behind it is dropped.
func (m *keyMatcher) feed(in []byte) (out []byte, found bool) {
	if len(m.keys) == 0 || len(m.held) == 0 && bytes.IndexByte(in, m.keys[0]) < 0 {
		return in, false
	}
	for _, b := range in {
		m.held = append(m.held, b)
		for !bytes.HasPrefix(m.keys, m.held) {
			// Not the sequence after all: let go of the oldest.
			out = append(out, m.held[0])
			m.held = m.held[1:]
		}
		if len(m.held) == len(m.keys) {
			m.held = nil
			return out, true
		}
	}
	return out, false
}

// rest returns what is still held back, at the end of the input.
func (m *keyMatcher) rest() []byte {
	held := m.held
	m.held = nil
	return held
}

// ErrDetached is what a [DetachReader] returns once the user has typed the
// detach keys.
var ErrDetached = errors.New("detach keys typed")

// DetachReader passes on what a user types until it is the detach keys.
type DetachReader struct {
	in    io.Reader
	keys  keyMatcher
	ready []byte
	err   error
}

// NewDetachReader reads in; without keys it passes on everything.
func NewDetachReader(in io.Reader, keys []byte) *DetachReader {
	return &DetachReader{in: in, keys: keyMatcher{keys: keys}}
}

// Read implements io.Reader.
func (r *DetachReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil {
		n, err := r.in.Read(p)
		out, found := r.keys.feed(p[:n])
		r.ready = append(r.ready, out...)
		switch {
		case found:
			r.err = ErrDetached
		case err != nil:
			r.ready = append(r.ready, r.keys.rest()...)
			r.err = err
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	if len(r.ready) == 0 && n == 0 {
		return 0, r.err
	}
	return n, nil
}
