// SPDX-License-Identifier: Apache-2.0

package outputlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Writer appends to a log. Its streams may be written concurrently.
type Writer struct {
	dir string
	opt Options
	now func() time.Time

	mu      sync.Mutex
	file    *os.File
	size    int64
	streams []*stream
	buf     bytes.Buffer
	encoder *json.Encoder
}

// New makes a log in dir, or goes on with the one there is.
func New(dir string, opt Options) (*Writer, error) {
	w := &Writer{dir: dir, opt: opt, now: time.Now}
	w.encoder = json.NewEncoder(&w.buf)
	w.encoder.SetEscapeHTML(false)
	if err := w.open(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Writer) open() error {
	f, err := os.OpenFile(filepath.Join(w.dir, newest), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the guest's log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the guest's log: %w", err)
	}
	w.file, w.size = f, fi.Size()
	return nil
}

// Stream returns the writer for one stream.
func (w *Writer) Stream(name string) io.Writer {
	s := &stream{w: w, name: name}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams = append(w.streams, s)
	return s
}

// Close writes what has no newline yet and closes the log.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var problems []error
	for _, s := range w.streams {
		if len(s.held) > 0 {
			problems = append(problems, w.append(s.name, s.held))
			s.held = nil
		}
	}
	if w.file != nil {
		problems = append(problems, w.file.Close())
		w.file = nil
	}
	return errors.Join(problems...)
}

// stream cuts what is written to it into entries.
type stream struct {
	w    *Writer
	name string
	// held is the beginning of a line, shorter than MaxLineBytes.
	held []byte
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.file == nil {
		return 0, os.ErrClosed
	}
	for rest := p; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(rest)
		}
		if room := MaxLineBytes - len(s.held); n >= room {
			n, whole = room, true
		}
		if !whole {
			s.held = append(s.held, rest[:n]...)
			return len(p), nil
		}
		line := rest[:n]
		if len(s.held) > 0 {
			line = append(s.held, line...)
			s.held = s.held[:0]
		}
		if err := s.w.append(s.name, line); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// append writes one entry.
//
// Preconditions: w.mu is held.
func (w *Writer) append(stream string, text []byte) error {
	w.buf.Reset()
	if err := w.encoder.Encode(Entry{Log: string(text), Stream: stream, Time: w.now().UTC()}); err != nil {
		return fmt.Errorf("write the guest's log: %w", err)
	}
	if w.size > 0 && w.size+int64(w.buf.Len()) > w.opt.MaxSizeBytes {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n, err := w.file.Write(w.buf.Bytes())
	w.size += int64(n)
	if err != nil {
		return fmt.Errorf("write the guest's log: %w", err)
	}
	return nil
}

// rotate begins a new file.
func (w *Writer) rotate() error {
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("rotate the guest's log: %w", err)
	}
	w.file = nil
	oldest := w.opt.MaxFiles - 1
	if err := os.Remove(filepath.Join(w.dir, name(oldest))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rotate the guest's log: %w", err)
	}
	for n := oldest; n > 0; n-- {
		err := os.Rename(filepath.Join(w.dir, name(n-1)), filepath.Join(w.dir, name(n)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the guest's log: %w", err)
		}
	}
	return w.open()
}
