// SPDX-License-Identifier: Apache-2.0

// The Sentry's log: a pipe, of which the launcher keeps the end.

package launch

import (
	"io"
	"os"
	"strings"
	"sync"

	"z.gfire.dev/gvx/runtime/control"
)

// maxLogTailBytes is how much of a sandbox's log is kept: enough for a Go
// panic with its goroutines, and a bound on what a guest can make us hold by
// provoking warnings.
const maxLogTailBytes = 64 << 10

// Log collects the end of what a sandbox logs.
type Log struct {
	read, write *os.File
	done        chan struct{}
	tee         io.Writer

	mu   sync.Mutex
	tail []byte
}

// NewLog makes a log. What arrives is also written to tee, if not nil.
func NewLog(tee io.Writer) (*Log, error) {
	w, r, err := pipe(readEnd)
	if err != nil {
		return nil, err
	}
	l := &Log{read: r, write: w, done: make(chan struct{}), tee: tee}
	go l.collect()
	return l, nil
}

// File is the end to donate.
func (l *Log) File() *os.File { return l.write }

// Donated closes the launcher's copy of the donated end, after the start.
func (l *Log) Donated() { l.write.Close() }

func (l *Log) collect() {
	defer close(l.done)
	defer l.read.Close()
	buf := make([]byte, 4096)
	for {
		n, err := l.read.Read(buf)
		if n > 0 {
			l.mu.Lock()
			l.tail = append(l.tail, buf[:n]...)
			if over := len(l.tail) - maxLogTailBytes; over > 0 {
				l.tail = append(l.tail[:0], l.tail[over:]...)
			}
			l.mu.Unlock()
			if l.tee != nil {
				_, _ = io.WriteString(l.tee, control.Clean(string(buf[:n]), len(buf)))
			}
		}
		if err != nil {
			return
		}
	}
}

// Tail returns the end of the log, once the sandbox process has ended.
func (l *Log) Tail() string {
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(control.Clean(string(l.tail), maxLogTailBytes))
}
