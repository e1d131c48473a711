// SPDX-License-Identifier: Apache-2.0

// What others write: memory for it, as they may write without end, and what becomes
// of it on the way to the caller. The buffers are not embedded: a ReadFrom of theirs
// would get round the bounds.

package gvx

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
)

// limitedBuffer keeps the first stderrBytes of what is written to it.
type limitedBuffer struct{ b bytes.Buffer }

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := stderrBytes - b.b.Len(); room > 0 {
		b.b.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// String is what was kept, without white space at its ends.
func (b *limitedBuffer) String() string { return strings.TrimSpace(b.b.String()) }

var errTooLarge = errors.New("the answer is too large")

// boundedBuffer refuses what does not fit.
type boundedBuffer struct {
	b   bytes.Buffer
	max int
	// full, if not nil, is called when something was refused.
	full func()
	over bool
}

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.max-b.b.Len() {
		b.over = true
		if b.full != nil {
			b.full()
		}
		return 0, errTooLarge
	}
	return b.b.Write(p)
}

// errSlowWriter is a writer that has not returned long after the end.
var errSlowWriter = errors.New("a Write has not returned")

// watchedWriter notices what a caller's writer does not take.
type watchedWriter struct {
	w io.Writer
	// from is the pipe that copy reads, and done is closed behind its last Write;
	// both are nil for a terminal.
	from *os.File
	done chan struct{}

	mu      sync.Mutex
	writing bool
	err     error
}

// copy writes what comes through the pipe. A writer that fails closes it: whoever
// writes to it learns of that.
func (w *watchedWriter) copy() {
	defer close(w.done)
	defer w.from.Close()
	_, _ = io.Copy(w, w.from)
}

// sameWriter says whether two writers are one, as the caller wants their output in
// its order then.
func sameWriter(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// Write implements io.Writer.
func (w *watchedWriter) Write(p []byte) (int, error) {
	w.set(true, nil)
	n, err := w.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	w.set(false, err)
	return n, err
}

func (w *watchedWriter) set(writing bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing, w.err = writing, err
}

// lost is what was not taken of the output; nil is a writer that takes all.
func (w *watchedWriter) lost() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing {
		return errSlowWriter
	}
	return w.err
}
