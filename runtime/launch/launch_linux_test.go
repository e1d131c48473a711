// SPDX-License-Identifier: Apache-2.0

// These tests start real processes: this test binary, which as "gvx-sandbox"
// plays a sandbox that copies its guest's input to its output and reports what
// it was given.

package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/control/handover"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// orphanTest, as the first argument, makes the test binary a launcher that
// prints its sandbox's pid and waits to be killed.
const orphanTest = "orphan"

// exitNoSpec is the fake's exit code when its launcher gives up.
const exitNoSpec = 93

func TestMain(m *testing.M) {
	if os.Args[0] == ProcessName {
		fakeSandbox()
	}
	if len(os.Args) > 1 && os.Args[1] == orphanTest {
		p, streams := startFake(func(err error) { panic(err) }, StreamOptions{Out: io.Discard, Err: io.Discard})
		_ = streams
		fmt.Println(p.PID)
		select {}
	}
	os.Exit(m.Run())
}

// given is what a sandbox process finds.
type given struct {
	Env     []string
	Cwd     string
	Session bool
	FDs     []string
	Spec    api.Sandbox
}

// fakeSandbox serves the control channel until it closes.
func fakeSandbox() {
	var g given
	r := handover.NewReceiver(3)
	if _, err := r.HeadStart(); err != nil {
		os.Exit(90)
	}
	spec, err := r.Spec()
	if err == io.EOF {
		os.Exit(exitNoSpec)
	}
	if err != nil {
		os.Exit(92)
	}
	g.Spec = *spec
	r.Close()
	g.Env = os.Environ()
	g.Cwd, _ = os.Getwd()
	sid, _ := unix.Getsid(0)
	g.Session = sid == os.Getpid()
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.Contains(to, "eventpoll") && !strings.Contains(to, "eventfd") {
			g.FDs = append(g.FDs, e.Name()+" "+to)
		}
	}
	p := g.Spec.Container.Process
	done := make(chan struct{})
	go func() {
		out := os.NewFile(uintptr(p.StdoutFD), "out")
		_, _ = io.Copy(plainWriter{out}, plainReader{os.NewFile(uintptr(p.StdinFD), "in")})
		out.Close()
		close(done)
	}()
	server, _ := control.NewServer(&fakeService{g: g, done: done})
	conn, err := net.FileConn(os.NewFile(uintptr(g.Spec.ControlFD), "control"))
	if err != nil {
		os.Exit(91)
	}
	_ = server.ServeConn(context.Background(), conn)
	os.Exit(0)
}

type fakeService struct {
	controlv1.SandboxService
	g    given
	done chan struct{}
}

func (f *fakeService) WaitStarted(context.Context, *controlv1.WaitStartedRequest) (*controlv1.WaitStartedResponse, error) {
	doc, _ := json.Marshal(f.g)
	return nil, api.Errorf(api.KindState, "%s", doc)
}

func (f *fakeService) Wait(context.Context, *controlv1.WaitRequest) (*controlv1.WaitResponse, error) {
	<-f.done
	return &controlv1.WaitResponse{Code: 7}, nil
}

// fakeEmbryo forks a fake sandbox.
func fakeEmbryo() *Embryo {
	return Fork(&ForkConfig{HeadStart: api.HeadStart{Version: api.SpecVersion, Platform: "systrap", Cores: 1}, Outer: &lockdown.Outer{}})
}

// fakeSpec is what a fake sandbox is started with.
func fakeSpec(terminal bool) *api.Sandbox {
	return &api.Sandbox{
		Version: api.SpecVersion, ID: "fake", Network: api.Network{Mode: api.NetworkNone},
		Container: api.Container{
			ID: "fake", Process: api.Process{Args: []string{"cat"}, Cwd: "/", Terminal: terminal},
			Rootfs: api.Rootfs{Layers: []api.Layer{{Format: "erofs"}}},
		},
	}
}

// startFake starts a fake sandbox with the given streams.
func startFake(fatal func(error), opt StreamOptions) (*Process, *Streams) {
	s, err := NewStreams(opt)
	if err != nil {
		fatal(err)
	}
	layer, err := os.Open(os.DevNull)
	if err != nil {
		fatal(err)
	}
	defer layer.Close()
	p, err := fakeEmbryo().Start(&Config{Spec: fakeSpec(opt.TTY), ContainerFiles: ContainerFiles{
		Layers: []*os.File{layer}, Stdin: s.Stdin(), Stdout: s.Stdout(), Stderr: s.Stderr(),
	}})
	if err != nil {
		fatal(err)
	}
	s.Start()
	return p, s
}

func start(t *testing.T, opt StreamOptions) (*Process, *Streams) {
	t.Helper()
	p, s := startFake(func(err error) { t.Fatal(err) }, opt)
	t.Cleanup(func() {
		p.Kill()
		p.End(time.Minute)
		s.Close()
	})
	return p, s
}

func TestSandboxProcessGetsWhatWasDonatedAndNothingElse(t *testing.T) {
	t.Setenv("SECRET", "1")
	p, _ := start(t, StreamOptions{Out: io.Discard, Err: io.Discard})
	_, err := p.Control.WaitStarted(context.Background(), "fake")
	var g given
	if jerr := json.Unmarshal([]byte(err.Error()), &g); jerr != nil {
		t.Fatalf("%v: %v", err, jerr)
	}
	if len(g.Env) != 0 || g.Cwd != "/" || !g.Session {
		t.Errorf("environment %q, directory %s, own session %v", g.Env, g.Cwd, g.Session)
	}
	s := g.Spec
	want := []int{0, 1, 2, int(s.ControlFD), int(s.Container.Rootfs.Layers[0].FD),
		int(s.Container.Process.StdinFD), int(s.Container.Process.StdoutFD), int(s.Container.Process.StderrFD)}
	var got []int
	for _, line := range g.FDs {
		fd, to, _ := strings.Cut(line, " ")
		if strings.HasPrefix(to, "/sys/fs/cgroup/") {
			continue // The Go runtime watches its processor quota.
		}
		if n, err := strconv.Atoi(fd); err == nil {
			got = append(got, n)
		}
	}
	sort.Ints(got)
	sort.Ints(want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("descriptors %v, want %v: %q", got, want, g.FDs)
	}
	if s.ListenFD != api.NoFD || s.Container.InitFD != api.NoFD || s.Container.Rootfs.Upper != nil {
		t.Errorf("descriptors of files that were not donated: %+v", s)
	}
}

func TestNoTailIsLost(t *testing.T) {
	in, err := os.CreateTemp(t.TempDir(), "in")
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18) // 4 MiB: far more than the pipes hold
	if _, err := in.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, s := start(t, StreamOptions{In: in, Interactive: true, Out: &out, Err: io.Discard})
	exit, err := p.Control.Wait(context.Background(), "fake")
	if err != nil || exit.Code != 7 {
		t.Fatalf("wait: %+v, %v", exit, err)
	}
	if e := p.End(time.Minute); e != (Ending{}) {
		t.Errorf("the sandbox process %v", e)
	}
	if err := s.Drain(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%d bytes came out, want %d", out.Len(), len(want))
	}
}

func TestInputIsEmptyUnlessInteractive(t *testing.T) {
	p, _ := start(t, StreamOptions{In: os.Stdin, Out: io.Discard, Err: io.Discard})
	// The fake ends when its input does.
	if _, err := p.Control.Wait(context.Background(), "fake"); err != nil {
		t.Fatal(err)
	}
}

// brokenWriter fails like a pipe without a reader, or a full disk.
type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestOutputThatCannotBeDelivered(t *testing.T) {
	for _, cause := range []error{syscall.EPIPE, syscall.ENOSPC} {
		in, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, s := start(t, StreamOptions{In: in, Interactive: true, Out: brokenWriter{cause}, Err: io.Discard})
		// The guest's next write fails, so it ends although its input does not.
		go func() {
			for {
				if _, err := feed.WriteString("x\n"); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		if _, err := p.Control.Wait(context.Background(), "fake"); err != nil && !errors.Is(err, control.ErrClosed) {
			t.Fatal(err)
		}
		p.End(time.Minute)
		// A reader that went away is the reader's business; a full disk is not.
		if err := s.Drain(); (err != nil) != (cause == syscall.ENOSPC) {
			t.Errorf("output failed with %v: reported as %v", cause, err)
		}
		feed.Close()
		in.Close()
	}
}

func TestKilledSandboxSaysSo(t *testing.T) {
	p, s := start(t, StreamOptions{Out: io.Discard, Err: io.Discard})
	p.Kill()
	if e := p.Ending(); e.Signal != syscall.SIGKILL || !strings.Contains(e.String(), "SIGKILL") {
		t.Errorf("ending: %v", e)
	}
	if _, err := p.Control.Wait(context.Background(), "fake"); !errors.Is(err, control.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if err := s.Drain(); err != nil {
		t.Error(err)
	}
}

func TestSandboxDiesWithItsLauncher(t *testing.T) {
	cmd := exec.Command(os.Args[0], orphanTest)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	sandbox, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sandbox)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	fds := []unix.PollFd{{Fd: int32(sandbox), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(time.Minute.Milliseconds())); n != 1 || err != nil {
		t.Errorf("the sandbox process outlives its launcher: %d, %v", n, err)
	}
}

func TestRefusedSpecStartsNothing(t *testing.T) {
	e := fakeEmbryo()
	_, err := e.Start(&Config{Spec: &api.Sandbox{Version: api.SpecVersion}})
	if api.KindOf(err) != api.KindInvalid {
		t.Errorf("start: %v", err)
	}
	mustHaveEnded(t, e)
}

// mustHaveEnded wants an embryo's process to be gone and reaped.
func mustHaveEnded(t *testing.T, e *Embryo) {
	t.Helper()
	select {
	case <-e.child.Done():
	default:
		t.Error("the process is still there")
	}
}

func TestDiscardedEmbryoIsGone(t *testing.T) {
	e := fakeEmbryo()
	e.Discard()
	mustHaveEnded(t, e)
	// At any moment of its birth, and more than once.
	e = fakeEmbryo()
	if _, err := e.PID(); err != nil {
		t.Fatal(err)
	}
	e.Discard()
	e.Discard()
	mustHaveEnded(t, e)
}

func TestEmbryoEndsWhenItsLauncherGivesUp(t *testing.T) {
	e := fakeEmbryo()
	p, err := e.process()
	if err != nil {
		t.Fatal(err)
	}
	e.sender.Close()
	if got := p.Ending(); got.Code != exitNoSpec {
		t.Errorf("the process %v, want exit code %d", got, exitNoSpec)
	}
}

func TestEmbryoThatDiedIsNamedAsTheCause(t *testing.T) {
	e := fakeEmbryo()
	p, err := e.process()
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Ending()
	files := ContainerFiles{Layers: []*os.File{os.Stdin}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	_, err = e.Start(&Config{Spec: fakeSpec(false), ContainerFiles: files})
	if api.KindOf(err) != api.KindKilled || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("start: %v, want how the process ended", err)
	}
}

func TestTerminal(t *testing.T) {
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skip("no /dev/ptmx here")
	}
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan syscall.Signal, 8)
	p, s := start(t, StreamOptions{In: in, Interactive: true, Out: out, TTY: true, DetachKeys: []byte("\x10\x11"),
		Signal: func(sig syscall.Signal) { signals <- sig }})
	// ^C is a signal, ^V^C is not, ^\ is.
	if _, err := feed.WriteString("\x03\x16\x03\x1c"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if got := <-signals; got != want {
			t.Errorf("signal %v, want %v", got, want)
		}
	}
	if _, err := feed.WriteString("\x10\x11"); err != nil {
		t.Fatal(err)
	}
	<-s.Detached()
	// Detached or not, input goes on; ^D on an empty line is the end of file.
	if _, err := feed.WriteString("line\n\x04"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Control.Wait(context.Background(), "fake"); err != nil {
		t.Fatal(err)
	}
	p.End(time.Minute)
	if err := s.Drain(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil || strings.Count(string(text), "line\r\n") != 2 { // echoed, then copied
		t.Errorf("terminal output %q, %v", text, err)
	}
	select {
	case sig := <-signals:
		t.Errorf("one signal too many: %v", sig)
	default:
	}
}

func TestLogKeepsTheEnd(t *testing.T) {
	var tee bytes.Buffer
	l, err := NewLog(&tee)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 99) + "\n"
	for range 2 * maxLogTailBytes / len(line) {
		if _, err := l.File().WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.File().WriteString("\x1b[2Jlast words\n"); err != nil {
		t.Fatal(err)
	}
	l.Donated()
	if tail := l.Tail(); len(tail) > maxLogTailBytes+8 || !strings.HasSuffix(tail, "last words") || strings.Contains(tail, "\x1b") {
		t.Errorf("tail of %d bytes ends in %q", len(tail), tail[max(0, len(tail)-40):])
	}
	if tee.Len() < maxLogTailBytes {
		t.Errorf("tee got %d bytes", tee.Len())
	}
}
