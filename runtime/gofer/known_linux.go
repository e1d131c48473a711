// SPDX-License-Identifier: Apache-2.0

// What the client knows to be in a directory: a guard for it.

package gofer

import "sync"

// maxKnown bounds what is remembered of one directory: more than the client itself
// remembers of a tree.
const maxKnown = 16384

// known are the names in a directory that the client has found or made, as far as it
// has told. gVisor's client looks whether a file exists before it makes it; when
// another of its threads makes the file in between, and the host removes that at once,
// a second one can be made, which the client takes for its own mistake and dies of.
// It asks for a name before it makes it: so a file that is to be made where the client
// still knows one is that case, and is answered as existing, which it did.
type known struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// add notes that the client has been given a file of this name.
func (k *known) add(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil {
		k.names = map[string]struct{}{}
	}
	if len(k.names) >= maxKnown {
		for other := range k.names {
			delete(k.names, other)
			break
		}
	}
	k.names[name] = struct{}{}
}

// remove notes that the client has been told that there is none.
func (k *known) remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.names, name)
}

// has says whether the client knows a file of this name.
func (k *known) has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.names[name]
	return ok
}
