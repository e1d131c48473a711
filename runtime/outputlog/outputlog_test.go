// SPDX-License-Identifier: Apache-2.0

package outputlog

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newLog(t *testing.T, opt Options) (*Writer, string) {
	t.Helper()
	dir := t.TempDir()
	w, err := New(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, dir
}

func read(t *testing.T, dir string, o ReadOptions) []Entry {
	t.Helper()
	var got []Entry
	if err := Read(t.Context(), dir, o, func(e *Entry) error {
		got = append(got, *e)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

var roomy = Options{MaxSizeBytes: DefaultMaxSizeBytes, MaxFiles: DefaultMaxFiles}

func TestLinesPiecesAndStreams(t *testing.T) {
	w, dir := newLog(t, roomy)
	out, errs := w.Stream(Stdout), w.Stream(Stderr)
	long := strings.Repeat("x", MaxLineBytes+10)
	for _, p := range []string{"one\ntw", "o\n", long + "\n", "\n"} {
		if n, err := io.WriteString(out, p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	io.WriteString(errs, "bad \xff <&>\nno newline")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"one\n", "two\n", long[:MaxLineBytes], long[:10] + "\n", "\n", "bad \ufffd <&>\n", "no newline"}
	got := read(t, dir, ReadOptions{Tail: -1})
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i, e := range got {
		stream := Stdout
		if i >= 5 {
			stream = Stderr
		}
		if e.Log != want[i] || e.Stream != stream || e.Time.IsZero() {
			t.Errorf("entry %d: %.40q on %s at %v", i, e.Log, e.Stream, e.Time)
		}
	}
	if _, err := io.WriteString(out, "late"); err == nil {
		t.Error("written after the end")
	}
}

// TestBoundHolds: however much a guest writes, the files stay within their
// number and size, and hold the latest.
func TestBoundHolds(t *testing.T) {
	w, dir := newLog(t, Options{MaxSizeBytes: MinSizeBytes, MaxFiles: 3})
	out := w.Stream(Stdout)
	const lines = 5000
	for i := range lines {
		fmt.Fprintf(out, "line %d\n", i)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if fi, _ := e.Info(); fi.Size() > MinSizeBytes {
			t.Errorf("%s: %d bytes", e.Name(), fi.Size())
		}
	}
	got := read(t, dir, ReadOptions{Tail: -1})
	for i, e := range got {
		if want := fmt.Sprintf("line %d\n", lines-len(got)+i); e.Log != want {
			t.Fatalf("entry %d of %d: %q, want %q", i, len(got), e.Log, want)
		}
	}
	if tail := read(t, dir, ReadOptions{Tail: 100}); len(tail) != min(100, len(got)) || tail[len(tail)-1].Log != fmt.Sprintf("line %d\n", lines-1) {
		t.Errorf("tail: %d entries", len(tail))
	}
}

func TestSpanOfTime(t *testing.T) {
	w, dir := newLog(t, roomy)
	out := w.Stream(Stdout)
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 10 {
		w.now = func() time.Time { return base.Add(time.Duration(i) * time.Minute) }
		fmt.Fprintln(out, i)
	}
	got := read(t, dir, ReadOptions{Tail: -1, Since: base.Add(3 * time.Minute), Until: base.Add(5 * time.Minute)})
	if len(got) != 3 || got[0].Log != "3\n" || got[2].Log != "5\n" {
		t.Errorf("%v", got)
	}
}

// TestFollowLosesNothing: a reader that follows sees every line once and in
// order while files rotate under it, and the last words behind the end.
func TestFollowLosesNothing(t *testing.T) {
	// The log holds all of it: what was removed nobody could read.
	w, dir := newLog(t, Options{MaxSizeBytes: MinSizeBytes, MaxFiles: MaxFiles})
	out := w.Stream(Stdout)
	const lines = 2000
	ended := make(chan struct{})
	go func() {
		for i := range lines {
			fmt.Fprintf(out, "line %d\n", i)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := 0
	err := Read(ctx, dir, ReadOptions{Tail: -1, Follow: true, Ended: ended}, func(e *Entry) error {
		if want := fmt.Sprintf("line %d\n", next); e.Log != want {
			return fmt.Errorf("%q, want %q", e.Log, want)
		}
		next++
		return nil
	})
	if err != nil || next != lines {
		t.Errorf("%d of %d lines: %v", next, lines, err)
	}
}

// contiguous checks that entries are lines one after the other, and returns the
// number of the last.
func contiguous(t *testing.T, got []Entry) int {
	t.Helper()
	first, last := -1, -1
	for i, e := range got {
		if _, err := fmt.Sscanf(e.Log, "line %d\n", &last); err != nil {
			t.Fatalf("entry %d: %q", i, e.Log)
		}
		if first < 0 {
			first = last
		}
		if last != first+i {
			t.Fatalf("entry %d of %d is line %d, the first was %d", i, len(got), last, first)
		}
	}
	return last
}

// TestKilledInRotation: wherever a launcher is killed while it rotates, what the
// files hold is read, in order.
func TestKilledInRotation(t *testing.T) {
	const files = 4
	for steps := range files + 1 {
		w, dir := newLog(t, Options{MaxSizeBytes: MinSizeBytes, MaxFiles: files})
		out := w.Stream(Stdout)
		const lines = 1000
		for i := range lines {
			fmt.Fprintf(out, "line %d\n", i)
		}
		before := len(read(t, dir, ReadOptions{Tail: -1}))
		oldest, err := os.ReadFile(filepath.Join(dir, name(files-1)))
		if err != nil {
			t.Fatal(err)
		}
		// The first steps of a rotation, which is then cut short.
		if steps > 0 {
			err = os.Remove(filepath.Join(dir, name(files-1)))
			before -= strings.Count(string(oldest), "\n")
		}
		for n := files - 1; err == nil && n > files-steps; n-- {
			err = os.Rename(filepath.Join(dir, name(n-1)), filepath.Join(dir, name(n)))
		}
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, dir, ReadOptions{Tail: -1})
		if last := contiguous(t, got); last != lines-1 || len(got) != before {
			t.Errorf("%d steps: %d entries to line %d, want %d to %d", steps, len(got), last, before, lines-1)
		}
	}
}

// TestReadWhileItRotates: who reads finds neither a gap nor anything twice.
func TestReadWhileItRotates(t *testing.T) {
	w, dir := newLog(t, Options{MaxSizeBytes: MinSizeBytes, MaxFiles: 8})
	stop, stopped := make(chan struct{}), make(chan struct{})
	out := w.Stream(Stdout)
	fmt.Fprintln(out, "line 0")
	go func() {
		defer close(stopped)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				fmt.Fprintf(out, "line %d\n", i)
			}
		}
	}()
	worked := 0
	for tries := 0; worked < 100 && tries < 10000; tries++ {
		var got []Entry
		err := Read(t.Context(), dir, ReadOptions{Tail: -1}, func(e *Entry) error {
			got = append(got, *e)
			return nil
		})
		if err != nil {
			continue // It may be too fast for us.
		}
		if contiguous(t, got) < 0 {
			t.Fatal("an empty log")
		}
		worked++
	}
	close(stop)
	<-stopped
	if worked == 0 {
		t.Error("it could never be read")
	}
}

// TestCutAndHostileFiles: a log that a crash cut, or that is no log, is read as
// far as it goes and never panics.
func TestCutAndHostileFiles(t *testing.T) {
	for _, doc := range []string{"", "{", "\n\n", `{"log":1}` + "\n", strings.Repeat("x", 1<<20)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, newest), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := Read(t.Context(), dir, ReadOptions{Tail: 3}, func(*Entry) error { n++; return nil })
		if n != 0 || (err != nil) != (len(doc) > maxEntryBytes) {
			t.Errorf("%.10q: %d entries, %v", doc, n, err)
		}
	}
	if got := read(t, t.TempDir(), ReadOptions{Tail: -1}); got != nil {
		t.Errorf("no log: %v", got)
	}
}
