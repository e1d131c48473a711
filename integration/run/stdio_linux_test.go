// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// bigBytes is what "large output" means here.
const bigBytes = 100 << 20

// TestBigOutput pulls 100 MB out of a guest and compares the hash that the guest
// has computed with the one of what arrived.
func TestBigOutput(t *testing.T) {
	h := getHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, "run", "--rm", "--network", "none", image, "python3", "-c", fmt.Sprintf(`
import hashlib, os, random, sys
r, sum = random.Random(1), hashlib.sha256()
for _ in range(%d):
	chunk = r.randbytes(1 << 20)
	sum.update(chunk)
	sys.stdout.buffer.write(chunk)
sys.stderr.write(sum.hexdigest())
`, bigBytes>>20))
	var (
		sum    = sha256.New()
		stderr bytes.Buffer
		size   countingWriter
	)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(sum, &size), &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != stderr.String() || size != bigBytes {
		t.Errorf("%d bytes arrived with hash %s, the guest sent %d with %s", size, got, bigBytes, stderr.String())
	}
}

// countingWriter counts bytes.
type countingWriter int64

func (w *countingWriter) Write(data []byte) (int, error) {
	*w += countingWriter(len(data))
	return len(data), nil
}

// TestBigInput pushes bytes in and compares what comes back.
func TestBigInput(t *testing.T) {
	h := getHome(t)
	data := make([]byte, 20<<20)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(data); err != nil {
		t.Fatal(err)
	}
	result := h.Rungv(t, bytes.NewReader(data), "run", "--rm", "-i", "--network", "none", image, "cat")
	if result.Code != 0 || result.Stdout != string(data) {
		t.Errorf("%d bytes came back of %d, exit code %d, stderr %q", len(result.Stdout), len(data), result.Code, result.Stderr)
	}
}

// TestHalfClosedInput: the guest sees the end of its input, and can still talk.
func TestHalfClosedInput(t *testing.T) {
	h := getHome(t)
	result := h.Rungv(t, strings.NewReader("one\ntwo\n"), "run", "--rm", "-i", "--network", "none", image,
		"sh", "-c", "wc -l; sleep 0.2; echo still here; echo and here >&2")
	if result.Code != 0 || result.Stdout != "2\nstill here\n" || result.Stderr != "and here\n" {
		t.Error(result)
	}
}

// TestNoInput: without -i the guest's input is empty, whatever rungv's own is.
func TestNoInput(t *testing.T) {
	h := getHome(t)
	result := h.Rungv(t, strings.NewReader("not for the guest\n"), "run", "--rm", "--network", "none", image, "wc", "-c")
	if result.Code != 0 || strings.TrimSpace(result.Stdout) != "0" {
		t.Error(result)
	}
}

// TestLastWords: what a guest writes right before it ends, or is killed, is not
// lost. Races hide here, so it is done many times.
func TestLastWords(t *testing.T) {
	const tail = 64 << 10
	for range 10 {
		result := sh(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; exec sh -c 'echo end >&2; exit 5'", tail))
		if result.Code != 5 || len(result.Stdout) != tail || result.Stderr != "end\n" {
			t.Fatalf("exit code %d, %d bytes of %d, stderr %q", result.Code, len(result.Stdout), tail, result.Stderr)
		}
	}
}

// TestReaderGoesAway: when nobody reads any more, the guest gets the broken pipe
// that it would get anywhere.
func TestReaderGoesAway(t *testing.T) {
	h := getHome(t)
	left := h.NothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := h.CommandAs(ctx, "/bin/sh", "-c", `"$0" run --rm --network none "$1" sh -c 'while echo yyyyyyyyyyyyyyyyyyyyyyyyyy; do :; done' 2>/dev/null | head -n 1`, h.Binary, image)
	result := testbed.Run(t, cmd, nil)
	if result.Stdout != "yyyyyyyyyyyyyyyyyyyyyyyyyy\n" {
		t.Error(result)
	}
	left()
}

// alternate writes to both outputs in turn, by programs of their own.
const alternate = "i=0; while [ $i -lt 25 ]; do printf 'o%d\\n' $i; env printf 'e%d\\n' $i >&2; i=$((i+1)); done"

// TestOneOutputKeepsItsOrder: where both outputs go to one pipe or file, as by 2>&1, what
// the guest wrote first comes first, by run and by exec.
func TestOneOutputKeepsItsOrder(t *testing.T) {
	h := getHome(t)
	var want strings.Builder
	for i := range 25 {
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	box := "order"
	h.MustRungv(t, "run", "-d", "--rm", "--name", box, "--network", "none", image, "sleep", "1000")
	defer h.MustRungv(t, "rm", "-f", box)
	for name, args := range map[string][]string{
		"run":  {"run", "--rm", "--network", "none", image, "sh", "-c", alternate},
		"exec": {"exec", box, "sh", "-c", alternate},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, err := h.Command(ctx, args...).CombinedOutput(); err != nil || string(got) != want.String() {
			t.Errorf("%s, a pipe: %v\n%s", name, err, got)
		}
		file, err := os.Create(filepath.Join(t.TempDir(), "output"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd := h.Command(ctx, args...)
		cmd.Stdout, cmd.Stderr = file, file
		err = cmd.Run()
		if got, _ := os.ReadFile(file.Name()); err != nil || string(got) != want.String() {
			t.Errorf("%s, a file: %v\n%s", name, err, got)
		}
	}
}

// writes are what a program writes at once, and says on its standard error how much of
// it was written.
const writes = `
import os, signal, sys
how, data = sys.argv[1], b"x" * 1000000
if how == "write": n = os.write(1, data)
if how == "vectors": n = os.writev(1, [data[:300000], data[:1], data[:400000]])
if how == "without waiting":
    os.set_blocking(1, False)
    n = os.write(1, data)
if how == "until a signal":
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    n = os.write(1, data)
if how == "to nobody":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    n = os.write(1, data)
sys.stderr.write("%d\n" % n)
`

// TestAWriteIsWhole: a write to a stream that waits writes all it is given, whatever the
// reader's pace, so that no program loses what it prints; else as much as on Linux.
func TestAWriteIsWhole(t *testing.T) {
	h := getHome(t)
	for how, want := range map[string]string{"write": "1000000\n", "vectors": "700001\n", "without waiting": "65536\n", "until a signal": "65536\n", "to nobody": ""} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := h.Command(ctx, "run", "--rm", "--network", "none", image, "python3", "-c", writes, how)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			said, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if how == "to nobody" {
				_, err := io.ReadFull(out, make([]byte, 5))
				out.Close()
				if werr := cmd.Wait(); err != nil || cmd.ProcessState.ExitCode() != 141 {
					t.Errorf("%v, %v: want the end by SIGPIPE", err, werr)
				}
				return
			}
			line := make(chan string, 1)
			go func() {
				text, _ := bufio.NewReader(said).ReadString('\n')
				line <- text
			}()
			text := ""
			if how == "until a signal" {
				text = <-line // Nothing is read before.
			} else {
				time.Sleep(time.Second) // The reader is late.
			}
			got, err := io.Copy(io.Discard, out)
			if text == "" {
				text = <-line
			}
			if werr := cmd.Wait(); err != nil || werr != nil {
				t.Fatalf("%v, %v: %s", err, werr, text)
			}
			wrote, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			// Between the guest's pipe and us there is another one.
			if wrote != got || (text != want && !(want == "65536\n" && wrote > 0 && wrote < 1000000)) {
				t.Errorf("the guest wrote %q, %d bytes arrived; want %q", text, got, want)
			}
		})
	}
}

// throttledWrites writes to its standard output and to a pipe of its own, each read
// slowly, while it is stopped again and again for using more than its processor time,
// and says what is short. Signals do make a write short, and it says by how much.
const throttledWrites = `
import os, signal, sys, threading, time
busy = os.fork()
if not busy:
    while True: pass
for i in range(60): # Their ends are signals that are ignored.
    if not os.fork():
        time.sleep(i / 20)
        os._exit(0)
data = os.urandom(1000) * 1000
def write(fd, name):
    n = os.write(fd, data)
    if n != len(data): sys.stderr.write("%s: %d bytes\n" % (name, n))
out, into = os.pipe()
def read():
    got = b""
    while len(got) < 4 * len(data):
        time.sleep(.02)
        got += os.read(out, 50000)
    if got != 4 * data: sys.stderr.write("the pipe has other bytes\n")
reader = threading.Thread(target=read)
reader.start()
for _ in range(3): write(into, "pipe")
handled = sent = 0
def handle(*_):
    global handled
    handled += 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, .03, .03)
while sent < len(data): sent += os.write(into, data[sent:])
signal.setitimer(signal.ITIMER_REAL, 0)
if not handled: sys.stderr.write("no signal came\n")
reader.join()
for _ in range(3): write(1, "stream")
os.kill(busy, signal.SIGKILL)
sys.stderr.write("mask %s\n" % [sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))])
`

// TestAWriteIsWholeUnderALimit: to be stopped for a moment is no signal, which would
// make a write short.
func TestAWriteIsWholeUnderALimit(t *testing.T) {
	h := getHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := h.Command(ctx, "run", "--rm", "--network", "none", "--cpus", "0.5", image, "python3", "-c", throttledWrites)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got, buf := 0, make([]byte, 50000)
	for {
		n, err := out.Read(buf)
		if got += n; err != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := cmd.Wait(); err != nil || got != 3000000 || said.String() != "mask [[]]\n" {
		t.Errorf("%v, %d bytes came: %s", err, got, said.String())
	}
}
