// SPDX-License-Identifier: Apache-2.0

package outputlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ReadOptions select entries.
type ReadOptions struct {
	// Since and Until, if set, bound the entries' times.
	Since, Until time.Time
	// Tail is how many of the last entries to begin with; negative is all.
	Tail int
	// Follow goes on with what is appended until Ended is closed, or the
	// context ends.
	Follow bool
	Ended  <-chan struct{}
}

// openAttempts bounds how often a log is opened again because it was rotated
// meanwhile.
const openAttempts = 10

// Read calls each with every entry of the log in dir that o selects.
func Read(ctx context.Context, dir string, o ReadOptions, each func(*Entry) error) error {
	files, err := openAll(dir)
	if err != nil {
		return err
	}
	r := &reader{dir: dir, o: o, each: each}
	defer func() { closeAll(files) }()
	if o.Tail >= 0 {
		total := 0
		for _, f := range files {
			n, err := countLines(f)
			if err != nil {
				return err
			}
			total += n
		}
		r.skip = max(0, total-o.Tail)
	}
	for len(files) > 1 {
		if err := r.drain(files[0]); err != nil {
			return stop(err)
		}
		r.rest = nil
		files[0].Close()
		files = files[1:]
	}
	if len(files) == 0 {
		return nil
	}
	file := files[0]
	files = nil
	defer func() { file.Close() }()
	if !o.Follow {
		return stop(r.drain(file))
	}
	return stop(r.follow(ctx, &file))
}

// openAll opens the files of a log, the oldest first. They move up by one, the
// oldest first, when the log is rotated: one that looks from the newest on misses
// none of them, and may see one twice. A place in between is empty during a
// rotation, and stays so when a launcher was killed in the middle of it.
func openAll(dir string) ([]*os.File, error) {
	for range openAttempts {
		before, _ := os.Stat(filepath.Join(dir, newest))
		var files []*os.File
		for n := 0; n < MaxFiles; n++ {
			f, err := os.Open(filepath.Join(dir, name(n)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				closeAll(files)
				return nil, fmt.Errorf("read the guest's log: %w", err)
			}
			files = append(files, f)
		}
		slices.Reverse(files)
		files = slices.CompactFunc(files, func(a, b *os.File) bool {
			twice := sameFile(a, b)
			if twice {
				b.Close()
			}
			return twice
		})
		// A newest file that came meanwhile is the only one that can be missing.
		after, _ := os.Stat(filepath.Join(dir, newest))
		if before == nil && after == nil || before != nil && after != nil && os.SameFile(before, after) {
			return files, nil
		}
		closeAll(files)
	}
	return nil, errors.New("read the guest's log: it is rotated faster than it can be opened: give it a larger max-size")
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func isNewest(dir string, f *os.File) bool {
	have, err := f.Stat()
	now, err2 := os.Stat(filepath.Join(dir, newest))
	return err == nil && err2 == nil && os.SameFile(have, now)
}

// countLines counts a file's whole lines and goes back to its beginning.
func countLines(f *os.File) (int, error) {
	total := 0
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		total += bytes.Count(buf[:n], []byte{'\n'})
		if err == io.EOF {
			_, err = f.Seek(0, io.SeekStart)
			return total, err
		}
		if err != nil {
			return 0, fmt.Errorf("read the guest's log: %w", err)
		}
	}
}

// errStop ends a read early without an error.
var errStop = errors.New("no more entries wanted")

func stop(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// reader turns lines into entries.
type reader struct {
	dir  string
	o    ReadOptions
	each func(*Entry) error
	// skip is how many entries to leave out.
	skip int
	// rest is the beginning of a line that is being written; none goes on in the
	// next file.
	rest []byte
}

// drain reads a file from where it is to its end.
func (r *reader) drain(f *os.File) error {
	b := bufio.NewReaderSize(f, 64<<10)
	for {
		piece, err := b.ReadSlice('\n')
		if len(r.rest)+len(piece) > maxEntryBytes {
			return fmt.Errorf("read the guest's log: an entry longer than %d bytes", maxEntryBytes)
		}
		r.rest = append(r.rest, piece...)
		switch {
		case err == nil:
			if err := r.line(r.rest); err != nil {
				return err
			}
			r.rest = r.rest[:0]
		case err == io.EOF:
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read the guest's log: %w", err)
		}
	}
}

func (r *reader) line(line []byte) error {
	if r.skip > 0 {
		r.skip--
		return nil
	}
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil {
		return nil // A crash cut it.
	}
	if !r.o.Since.IsZero() && e.Time.Before(r.o.Since) {
		return nil
	}
	if !r.o.Until.IsZero() && e.Time.After(r.o.Until) {
		return errStop
	}
	return r.each(&e)
}

// follow reads the newest file and those that take its place.
func (r *reader) follow(ctx context.Context, file **os.File) error {
	w, err := watch(r.dir)
	if err != nil {
		return err
	}
	defer w.close()
	var until <-chan time.Time
	if !r.o.Until.IsZero() {
		until = time.After(time.Until(r.o.Until))
	}
	for ended := false; ; {
		if err := r.drain(*file); err != nil {
			return err
		}
		if next := r.next(*file); next != nil {
			// What was appended before the rename has to be read first.
			err := r.drain(*file)
			(*file).Close()
			*file, r.rest = next, nil
			if err != nil {
				return err
			}
			continue
		}
		if ended {
			return nil
		}
		select {
		case <-w.changed():
		case <-r.o.Ended:
			ended = true // Once more: its last words.
		case <-until:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// next returns the file after f, nil if f is the newest.
func (r *reader) next(f *os.File) *os.File {
	have, err := f.Stat()
	if err != nil || isNewest(r.dir, f) {
		return nil
	}
	files, err := openAll(r.dir)
	if err != nil || len(files) == 0 {
		return nil
	}
	// The one behind it; or, when it has been removed, the oldest there is.
	next := 0
	for i, other := range files {
		if fi, err := other.Stat(); err == nil && os.SameFile(have, fi) {
			next = i + 1
		}
	}
	if next == len(files) {
		closeAll(files)
		return nil // The newest is about to be made.
	}
	closeAll(files[:next])
	closeAll(files[next+1:])
	return files[next]
}
