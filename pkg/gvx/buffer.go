// SPDX-License-Identifier: Apache-2.0

// Memory for what others write, who may write without end. The buffers are not
// embedded: a ReadFrom of theirs would get round the bounds.

package gvx

import (
	"bytes"
	"errors"
	"strings"
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
