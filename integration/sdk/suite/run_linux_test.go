// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
	"z.gfire.dev/gvx/pkg/gvx"
)

// TestRunGivesCodeAndOutput with environment, input, user and directory given.
func TestRunGivesCodeAndOutput(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	var out, errs bytes.Buffer
	c := w.config(`echo "$A|$(pwd)|$(id -u)|$(hostname)"; cat; echo oops >&2; exit 3`)
	c.Envv = []string{"A=two\nlines = \x01", "B="}
	c.WorkingDir, c.User, c.Hostname, c.Platform = "/made/here", "1000:1000", "box", gvx.PlatformSystrap
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader("input\n"), &out, &errs
	sb := newSandbox(t, c)
	code, err := sb.Run(t.Context())
	if want := "two\nlines = \x01|/made/here|1000|box\ninput\n"; code != 3 || err != nil || out.String() != want || errs.String() != "oops\n" {
		t.Errorf("code %d, error %v, output %q, errors %q; want 3 and %q", code, err, &out, &errs, want)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	left()
}

// TestRuntimeIsFound by the configuration, the environment and PATH, in this order; one
// of another version is refused with what to do.
func TestRuntimeIsFound(t *testing.T) {
	w := setup(t)
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho '{\"event\":\"hello\",\"protocol\":99,\"version\":\"9.9\"}' >&3; exec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.binary, filepath.Join(dir, "rungv")); err != nil {
		t.Fatal(err)
	}
	try := func(path string) error {
		c := w.config("true")
		c.RuntimePath = path
		sb, err := gvx.New(t.Context(), c)
		if err == nil {
			err = sb.Close()
		}
		return err
	}
	t.Setenv("PATH", "/nothing")
	if err := try(""); !errors.Is(err, gvx.ErrRuntime) {
		t.Errorf("nowhere: %v", err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	if err := try(""); err != nil {
		t.Errorf("by PATH: %v", err)
	}
	t.Setenv("GVX_RUNGV", other)
	if err := try(""); !errors.Is(err, gvx.ErrRuntime) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "update the older") {
		t.Errorf("by the environment, another version: %v", err)
	}
	if err := try(w.binary); err != nil {
		t.Errorf("by the configuration: %v", err)
	}
}

// TestEntrypointIsReplaced by one of several words, or by none.
func TestEntrypointIsReplaced(t *testing.T) {
	w := setup(t)
	for _, test := range []struct {
		entrypoint, cmd []string
		set             bool
		want            string
	}{
		{[]string{"sh", "-c"}, []string{"echo a$0", "b"}, true, "ab\n"},
		{[]string{"echo", "--help-me"}, nil, false, "--help-me\n"},
		{nil, []string{"echo", "x"}, true, "x\n"},
	} {
		var out bytes.Buffer
		c := w.config("")
		c.Entrypoint, c.EntrypointSet, c.Cmd, c.Stdout = test.entrypoint, test.set, test.cmd, &out
		if code, err := newSandbox(t, c).Run(t.Context()); code != 0 || err != nil || out.String() != test.want {
			t.Errorf("%q %q: code %d, error %v, output %q; want %q", test.entrypoint, test.cmd, code, err, &out, test.want)
		}
	}
}

// TestLargeOutputArrivesWhole before Run returns.
func TestLargeOutputArrivesWhole(t *testing.T) {
	w := setup(t)
	var out bytes.Buffer
	c := w.config("head -c 20000000 /dev/zero")
	c.Stdout = &out
	if code, err := newSandbox(t, c).Run(t.Context()); code != 0 || err != nil || out.Len() != 20000000 {
		t.Errorf("code %d, error %v, %d bytes", code, err, out.Len())
	}
}

// TestErrorsAreTyped, each with a message that says what to do.
func TestErrorsAreTyped(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	for name, test := range map[string]struct {
		change func(*gvx.Config)
		want   *gvx.Error
	}{
		"missing image":        {func(c *gvx.Config) { c.OCIImage = "nosuch:1" }, gvx.ErrImage},
		"missing rootfs":       {func(c *gvx.Config) { c.OCIImage = "rootfs:/no/such" }, gvx.ErrImage},
		"no image":             {func(c *gvx.Config) { c.OCIImage = "" }, gvx.ErrInvalid},
		"flag for image":       {func(c *gvx.Config) { c.OCIImage = "--privileged" }, gvx.ErrInvalid},
		"bad environment":      {func(c *gvx.Config) { c.Envv = []string{"NAME"} }, gvx.ErrInvalid},
		"bad user":             {func(c *gvx.Config) { c.User = "no such:user:x" }, gvx.ErrInvalid},
		"relative mount":       {func(c *gvx.Config) { c.Mounts = []gvx.Mount{{Kind: gvx.MountTmpfs, GuestPath: "x"}} }, gvx.ErrInvalid},
		"mount of no kind":     {func(c *gvx.Config) { c.Mounts = []gvx.Mount{{GuestPath: "/x"}} }, gvx.ErrInvalid},
		"negative memory":      {func(c *gvx.Config) { c.Resources.MemoryBytes = -1 }, gvx.ErrInvalid},
		"bad egress rule":      {func(c *gvx.Config) { c.NetworkMode, c.Egress = gvx.NetModeNAT, []string{"maybe"} }, gvx.ErrInvalid},
		"platform of others":   {func(c *gvx.Config) { c.Platform = gvx.PlatformHVF }, gvx.ErrUnsupported},
		"no runtime":           {func(c *gvx.Config) { c.RuntimePath = "/no/such/rungv" }, gvx.ErrRuntime},
		"another program":      {func(c *gvx.Config) { c.RuntimePath = "/bin/true" }, gvx.ErrRuntime},
		"missing command":      {func(c *gvx.Config) { c.Cmd = []string{"nosuch"} }, gvx.ErrStart},
		"not executable":       {func(c *gvx.Config) { c.Cmd = []string{"/etc/passwd"} }, gvx.ErrStart},
		"user that is unknown": {func(c *gvx.Config) { c.User = "nobody-knows" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.config("true")
			test.change(&c)
			sb, err := gvx.New(t.Context(), c)
			if err == nil {
				defer sb.Close()
				_, err = sb.Run(t.Context())
			}
			var typed *gvx.Error
			if !errors.As(err, &typed) || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("want %v, have %v (%+v)", test.want, err, typed)
			}
		})
	}
	left()
}

// TestContextEndsARun with the error that says why.
func TestContextEndsARun(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	sb := newSandbox(t, w.config("sleep 1000"))
	if _, err := sb.Run(short); !errors.Is(err, gvx.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	sb2 := newSandbox(t, w.config("sleep 1000"))
	if _, err := sb2.Run(stopped); !errors.Is(err, gvx.ErrCanceled) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := gvx.New(stopped, w.config("true")); !errors.Is(err, gvx.ErrCanceled) {
		t.Errorf("new with a context that is done: %v", err)
	}
	left()
}

// TestWaitGivesUpAlone: its context does not end the guest.
func TestWaitGivesUpAlone(t *testing.T) {
	w := setup(t)
	sb := startSandbox(t, w.config("echo ready; sleep 1; exit 7"))
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := sb.Wait(short); !errors.Is(err, gvx.ErrTimeout) {
		t.Errorf("wait with a deadline: %v", err)
	}
	if exit, err := sb.Wait(t.Context()); err != nil || exit.Code != 7 {
		t.Errorf("wait: %+v, %v", exit, err)
	}
}

// TestMemoryLimitIsToldFromAKill.
func TestMemoryLimitIsToldFromAKill(t *testing.T) {
	w := setup(t)
	c := w.config("exec python3 -c 'b = bytearray(512 << 20); print(len(b))'")
	c.Resources.MemoryBytes = 128 << 20
	sb := newSandbox(t, c)
	code, err := sb.Run(t.Context())
	if code != 137 || !errors.Is(err, gvx.ErrOOM) {
		t.Errorf("code %d, error %v; want 137 and ErrOOM", code, err)
	}
	var typed *gvx.Error
	if errors.As(err, &typed) && (typed.Exit == nil || !typed.Exit.OOMKilled) {
		t.Errorf("the error has no exit status: %+v", typed)
	}
	killed := startSandbox(t, w.config("echo ready; sleep 1000"))
	if err := killed.Signal(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit, err := killed.Wait(t.Context()); err != nil || exit.Code != 137 || exit.Signal != syscall.SIGKILL || exit.OOMKilled {
		t.Errorf("killed: %+v, %v", exit, err)
	}
}

// TestStatesAreKept: every method says when it is not its time.
func TestStatesAreKept(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	sb := newSandbox(t, w.config("true"))
	if _, err := sb.Wait(t.Context()); !errors.Is(err, gvx.ErrState) {
		t.Errorf("wait before start: %v", err)
	}
	if _, err := sb.Stats(t.Context()); !errors.Is(err, gvx.ErrState) {
		t.Errorf("stats before start: %v", err)
	}
	if _, err := sb.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(t.Context()); !errors.Is(err, gvx.ErrState) {
		t.Errorf("second start: %v", err)
	}
	if err := sb.Signal(t.Context(), syscall.SIGTERM); !errors.Is(err, gvx.ErrState) {
		t.Errorf("signal after the end: %v", err)
	}
	for range 2 {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	never := newSandbox(t, w.config("echo never"))
	if err := never.Close(); err != nil {
		t.Errorf("close before start: %v", err)
	}
	if err := never.Start(t.Context()); !errors.Is(err, gvx.ErrState) {
		t.Errorf("start after close: %v", err)
	}
	left()
}

// TestCloseEndsAGuestThatIgnoresSignals.
func TestCloseEndsAGuestThatIgnoresSignals(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	sb := startSandbox(t, w.config("trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"))
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if _, err := sb.Wait(t.Context()); err == nil {
		t.Error("wait after close told no error")
	}
	left()
}

// TestEveryCloseWaitsForTheEnd, not only the first of several at once.
func TestEveryCloseWaitsForTheEnd(t *testing.T) {
	w := setup(t)
	before := w.traces(t)
	sb := startSandbox(t, w.config("echo ready; sleep 1000"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
			if left := slices.DeleteFunc(w.traces(t), func(s string) bool { return slices.Contains(before, s) }); len(left) > 0 {
				t.Errorf("after Close there are still %q", left)
			}
		})
	}
	wg.Wait()
}

// TestInputThatNeverEndsHoldsNothing up.
func TestInputThatNeverEndsHoldsNothing(t *testing.T) {
	w := setup(t)
	r, wr := io.Pipe()
	defer wr.Close()
	c := w.config("exit 4")
	c.Stdin = r
	if code, err := newSandbox(t, c).Run(t.Context()); code != 4 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// TestTerminal has the size that was set, and echoes.
func TestTerminal(t *testing.T) {
	w := setup(t)
	out := &watched{}
	in, typed := io.Pipe()
	// The size travels on its own: what is typed behind it may overtake.
	c := w.config("tty; echo ready; read x; until stty size | grep '33 101'; do sleep 0.01; done; test -t 2")
	c.TTY, c.Stdin, c.Stdout = true, in, out
	sb := newSandbox(t, c)
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	if err := sb.Resize(33, 101); err != nil {
		t.Fatal(err)
	}
	if _, err := typed.Write([]byte("word\n")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err := sb.Wait(ctx)
	if err != nil || exit.Code != 0 || !strings.Contains(out.String(), "/dev/console") || !strings.Contains(out.String(), "33 101") {
		t.Errorf("%+v, %v: %q", exit, err, out)
	}
}

// TestStatsAndProcesses tell of a running guest.
func TestStatsAndProcesses(t *testing.T) {
	w := setup(t)
	c := w.config("echo ready; sleep 1000; :")
	c.Resources = gvx.Resources{MemoryBytes: 256 << 20, Pids: 50}
	sb := startSandbox(t, c)
	s, err := sb.Stats(t.Context())
	for end := time.Now().Add(patience); err == nil && s.Pids < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s, err = sb.Stats(t.Context()) // The shell has not come to its sleep yet.
	}
	if err != nil || s.MemoryBytes == 0 || s.MemoryLimitBytes != 256<<20 || s.Pids < 2 {
		t.Errorf("%+v, %v", s, err)
	}
	list, err := sb.Processes(t.Context())
	if err != nil || len(list) != 2 || list[0].PID != 1 {
		t.Errorf("processes: %+v, %v", list, err)
	}
	doc, err := sb.Inspect(t.Context())
	if err != nil || !bytes.Contains(doc, []byte(sb.ID())) {
		t.Errorf("inspect: %.100s, %v", doc, err)
	}
}

// TestPortsReachTheGuest, on an address and on a socket.
func TestPortsReachTheGuest(t *testing.T) {
	w := setup(t)
	dir, err := os.MkdirTemp("/tmp", "sock") // The path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	c := w.config("cd /etc && echo ready && exec python3 -m http.server 80")
	c.NetworkMode = gvx.NetModeNAT
	c.Publish = []gvx.Port{{Guest: 80}, {Guest: 80, Path: socket}}
	sb := startSandbox(t, c)
	ports, err := sb.Ports(t.Context())
	if err != nil || len(ports) != 2 {
		t.Fatalf("%+v, %v", ports, err)
	}
	for _, p := range ports {
		network, address := "unix", p.Path
		if p.Path == "" {
			network, address = "tcp", fmt.Sprintf("%s:%d", p.HostIP, p.HostPort)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		var body []byte
		for end := time.Now().Add(patience); time.Now().Before(end) && len(body) == 0; time.Sleep(20 * time.Millisecond) {
			if answer, err := client.Get("http://guest/passwd"); err == nil {
				body, _ = io.ReadAll(answer.Body)
				answer.Body.Close()
			}
		}
		if !bytes.HasPrefix(body, []byte("root:")) {
			t.Errorf("%+v answered %q", p, body)
		}
	}
	if err := sb.SetEgress(t.Context(), "deny"); err != nil {
		t.Errorf("set egress rules: %v", err)
	}
	if err := sb.SetEgress(t.Context(), "nonsense"); !errors.Is(err, gvx.ErrInvalid) {
		t.Errorf("set a bad egress rule: %v", err)
	}
}

// TestCallerKilledLeavesNothing: a program that is killed takes its sandboxes
// with it.
func TestCallerKilledLeavesNothing(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		out := &watched{}
		caller := exec.Command(self)
		caller.Env = append(os.Environ(), envRole+"=caller", envBinary+"="+w.binary, envRoot+"="+w.root)
		caller.Stdout, caller.Stderr = out, out
		if err := caller.Start(); err != nil {
			t.Fatal(err)
		}
		out.await(t, "ready")
		if err := caller.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = caller.Wait()
	}
	left()
}

// TestManySandboxesAtOnce keep to themselves, while some are closed, cancelled
// or killed in the middle.
func TestManySandboxesAtOnce(t *testing.T) {
	w := setup(t)
	left := w.leavesNothing(t)
	count := 16
	if testbed.Nightly() {
		count = 64
	}
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			var out bytes.Buffer
			c := w.config(fmt.Sprintf("echo %d > /tmp/me; sleep 0.%d; cat /tmp/me; ls /tmp", i, rand.IntN(9)))
			c.Stdout = &out
			sb, err := gvx.New(t.Context(), c)
			if err != nil {
				t.Errorf("sandbox %d: %v", i, err)
				return
			}
			defer sb.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			disturb := i%4 == 3
			if disturb {
				how := []func(){cancel, func() { sb.Close() }, func() { sb.Signal(t.Context(), syscall.SIGKILL) }}[rand.IntN(3)]
				time.AfterFunc(time.Duration(rand.IntN(1000))*time.Millisecond, how)
			}
			code, err := sb.Run(ctx)
			var typed *gvx.Error
			switch {
			case err != nil && !errors.As(err, &typed):
				t.Errorf("sandbox %d: an error of no type: %v", i, err)
			case disturb:
			case err != nil || code != 0 || out.String() != fmt.Sprintf("%d\nme\n", i):
				t.Errorf("sandbox %d: code %d, error %v, output %q", i, code, err, &out)
			}
		})
	}
	wg.Wait()
	left()
}
