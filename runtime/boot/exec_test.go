// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// execID is an id of the right length.
func execID(n int) string { return fmt.Sprintf("%0*d", control.ExecIDBytes, n) }

// handedPipe makes a pipe, of which one end is handed over, and returns the other.
func handedPipe(t *testing.T, flags int) (given int, ours *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|flags); err != nil {
		t.Fatal(err)
	}
	ours = os.NewFile(uintptr(fds[0]), "pipe")
	t.Cleanup(func() { ours.Close() })
	return fds[1], ours
}

// closed fails unless all writers of a pipe are gone.
func closed(t *testing.T, what string, f *os.File) {
	t.Helper()
	if _, err := f.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%s: its descriptor is still open: %v", what, err)
	}
}

// streamsClient is a sandbox with nothing but a streams socket, and a client that
// sends it copies of a descriptor.
func streamsClient(t *testing.T) (*sandbox, func(id string, copies int) *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]) })
	sb := &sandbox{spec: &api.Sandbox{StreamsFD: api.FD(fds[1])}}
	if err := sb.receiveStreams(); err != nil {
		t.Fatal(err)
	}
	return sb, func(id string, copies int) *os.File {
		given, ours := handedPipe(t, 0)
		defer unix.Close(given)
		list := make([]int, copies)
		for i := range list {
			list[i] = given
		}
		if err := unix.Sendmsg(fds[0], []byte(id), unix.UnixRights(list...), nil, 0); err != nil {
			t.Fatal(err)
		}
		return ours
	}
}

// TestFilesThatNobodyAsksFor: however they are spread over sets, no more are kept
// than the limit.
func TestFilesThatNobodyAsksFor(t *testing.T) {
	_, send := streamsClient(t)
	for i := range maxPendingFiles / control.MaxFiles {
		send(execID(i), control.MaxFiles)
	}
	closed(t, "one more than are kept", send(execID(100), maxPendingFiles%control.MaxFiles+1))
}

// TestStreamsThatNobodyAsksFor: whatever a client sends, no more is kept than the
// limit, and what is not kept is closed.
func TestStreamsThatNobodyAsksFor(t *testing.T) {
	sb, send := streamsClient(t)
	closed(t, "a short id", send("short", 1))
	closed(t, "a long id", send(strings.Repeat("x", 2*control.ExecIDBytes), 1))
	first := send(execID(1), 3)
	second := send(execID(1), 3)
	closed(t, "replaced by its own client", first)
	for i := range maxPendingStreams - 1 {
		send(execID(2+i), 1)
	}
	closed(t, "one more than are kept", send(execID(1000), 1))

	set, err := sb.streams.takeStreams(t.Context(), execID(1))
	if api.KindOf(err) != api.KindInvalid || len(set.fds) != 3 {
		t.Errorf("in blocking mode: %d descriptors, %v", len(set.fds), err)
	}
	set.close()
	closed(t, "given up", second)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.streams.take(gone, execID(1)); err == nil {
		t.Error("taken twice")
	}
	many := send(execID(1), control.MaxExecFiles+1)
	set, err = sb.streams.takeStreams(t.Context(), execID(1))
	if api.KindOf(err) != api.KindLimit {
		t.Errorf("more than a process has: %v", err)
	}
	set.close()
	closed(t, "more than a process has", many)
}

// TestStreamsOfARefusedExec: a process that is not made leaves no stream open, for whose
// end somebody may wait: at once if they are here, else when their time is up.
func TestStreamsOfARefusedExec(t *testing.T) {
	sb, send := streamsClient(t)
	streams := send(execID(1), 3)
	for arrived := false; !arrived; time.Sleep(time.Millisecond) {
		sb.streams.mu.Lock()
		_, arrived = sb.streams.arrived[execID(1)]
		sb.streams.mu.Unlock()
	}
	if _, err := (&service{sb}).Exec(t.Context(), &controlv1.ExecRequest{Container: "none", Exec: execID(1)}); api.KindOf(err) != api.KindNotFound {
		t.Errorf("exec in a container that there is none of: %v", err)
	}
	closed(t, "of a refused exec", streams)

	synctest.Test(t, func(t *testing.T) {
		sets := &streamSets{arrived: make(map[string]streamSet), changed: make(chan struct{})}
		var ends []*os.File
		put := func() {
			given, ours := handedPipe(t, unix.O_NONBLOCK)
			sets.put(execID(1), streamSet{fds: []int{given}, at: time.Now()})
			ends = append(ends, ours)
		}
		kept := func() int {
			sets.mu.Lock()
			defer sets.mu.Unlock()
			return len(sets.arrived)
		}
		put()
		time.Sleep(streamsStay - time.Second)
		put() // Again, under the same id: its time is its own.
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := kept(); n != 1 {
			t.Errorf("%d sets are kept, want the second", n)
		}
		time.Sleep(streamsStay)
		synctest.Wait()
		if kept() != 0 {
			t.Error("a set is kept for ever")
		}
		for _, f := range ends {
			closed(t, "that nobody asked for", f)
		}
	})
}

// TestStreamsOfOtherKinds: what the Sentry would treat as something else than a
// stream never reaches it.
func TestStreamsOfOtherKinds(t *testing.T) {
	pipe, _ := handedPipe(t, unix.O_NONBLOCK)
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	good := streamSet{fds: []int{pipe, int(file.Fd())}}
	if err := good.check(); err != nil {
		t.Errorf("a pipe and a file: %v", err)
	}
	unix.Close(pipe)
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	for _, fd := range []int{socket, event} {
		bad := streamSet{fds: []int{fd}}
		if err := bad.check(); api.KindOf(err) != api.KindInvalid {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// TestDescriptorsBeyondTheStreams: each has a place after the streams and the program,
// and no more or fewer arrive than the process has.
func TestDescriptorsBeyondTheStreams(t *testing.T) {
	for _, c := range []struct {
		terminal, program bool
		fds, extra        int
		want              api.FD // The first of them.
	}{
		{fds: 5, extra: 2, want: 3},
		{program: true, fds: 6, extra: 2, want: 4},
		{terminal: true, fds: 2, extra: 1, want: 1},
		{terminal: true, fds: 3, extra: 1, want: 2},
		{fds: 3, extra: 1, want: api.NoFD},
		{fds: 5, extra: 1, want: api.NoFD},
		{terminal: true, fds: 1, extra: 1, want: api.NoFD},
	} {
		p := &api.Process{Terminal: c.terminal, ExtraFDs: make([]api.FD, c.extra)}
		var set streamSet
		for i := range c.fds {
			set.fds = append(set.fds, i)
		}
		_, err := assignStreams(p, set, &execution{}, c.program)
		if (err != nil) != (c.want == api.NoFD) || err == nil && p.ExtraFDs[0] != c.want {
			t.Errorf("%+v: %v, %v", c, p.ExtraFDs, err)
		}
	}
	// Of a container that joins, they are held to the same as its streams.
	var fds []int
	for range 3 {
		pipe, _ := handedPipe(t, unix.O_NONBLOCK)
		defer unix.Close(pipe)
		fds = append(fds, pipe)
	}
	blocking, _ := handedPipe(t, 0)
	defer unix.Close(blocking)
	for _, extra := range []int{blocking, fds[0]} {
		spec := &api.Container{InitFD: api.NoFD, Process: api.Process{StdinFD: 0, StdoutFD: 1, StderrFD: 2, ExtraFDs: []api.FD{3}}}
		set := streamSet{fds: append(fds[:3:3], extra)}
		if err := set.number(spec); (err == nil) != (extra != blocking) || spec.Process.ExtraFDs[0] != api.FD(extra) {
			t.Errorf("%d: %v, %v", extra, spec.Process.ExtraFDs, err)
		}
	}
}

// TestExecIDsAreReserved: before a process is made its id and its place are taken,
// so that none is made that cannot run.
func TestExecIDsAreReserved(t *testing.T) {
	var x execs
	for i := range maxExecs {
		if err := x.reserve(execID(i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := x.reserve(execID(0)); api.KindOf(err) != api.KindExists {
		t.Errorf("the same again: %v", err)
	}
	if err := x.reserve(execID(maxExecs)); api.KindOf(err) != api.KindLimit {
		t.Errorf("one more: %v", err)
	}
	found := func(*execution) error { return nil }
	if err := x.with(execID(0), found); api.KindOf(err) != api.KindState {
		t.Errorf("one that is being made: %v", err)
	}
	x.byID[execID(0)] = &execution{}
	if err := x.with(execID(0), found); err != nil {
		t.Errorf("one that runs: %v", err)
	}
	x.forget(execID(0))
	if err := x.reserve(execID(0)); err != nil {
		t.Errorf("one that has ended: %v", err)
	}
}

// TestSlowExecIsWaitedFor: a process that is being made is waited for however long
// that takes, and no longer once that has failed.
func TestSlowExecIsWaitedFor(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %t", fails), func(t *testing.T) {
			t.Parallel()
			var x execs
			if err := x.reserve("id"); err != nil {
				t.Fatal(err)
			}
			made := &execution{}
			time.AfterFunc(streamsPatience+100*time.Millisecond, func() {
				if fails {
					x.forget("id")
					return
				}
				x.mu.Lock()
				defer x.mu.Unlock()
				x.enter("id", made)
			})
			got, err := x.await(t.Context(), "id")
			if fails && api.KindOf(err) != api.KindState || !fails && (got != made || err != nil) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
