// SPDX-License-Identifier: Apache-2.0

// Package bind tests directories and files of the host in guests: that both sides
// see the same, what guests may do there and what not, how they are asked for, and
// that the process between is what it promises to be and ends with its sandbox. All
// of it as an ordinary user and as root.
package bind

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// image is the guest: Debian with Python.
const image = "demo"

// home is shared by the tests of this package.
var home testbed.SharedHome

func TestMain(m *testing.M) { os.Exit(home.Main(m)) }

// side is who runs rungv.
type side struct {
	name     string
	home     *testbed.Home
	uid, gid int
	global   []string
	// bare takes namespaces from the user, as hosts do that forbid them.
	bare bool
}

// bareScript, in a user namespace of its own, forbids more of them in there, gives
// up what it was given, and runs its arguments.
const bareScript = `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@"`

// withBare adds an ordinary user on such a host.
func withBare(t *testing.T, test func(*testing.T, *side)) {
	sides(t, test)
	testbed.NeedCommand(t, "unshare")
	testbed.NeedCommand(t, "setpriv")
	h := home.Get(t)
	t.Run("bare", func(t *testing.T) { test(t, &side{name: "bare", home: h, uid: h.UID, gid: h.GID, bare: true}) })
}

var (
	rootOnce sync.Once
	rootErr  error
)

// sides runs a test as the ordinary user and, where the tests are root's, as root.
func sides(t *testing.T, test func(*testing.T, *side)) {
	h := home.Get(t)
	h.Image(t, image)
	all := []*side{{name: "user", home: h, uid: h.UID, gid: h.GID}}
	if os.Geteuid() == 0 {
		root := &side{name: "root", home: h, global: []string{"--root", h.Path("root")}}
		rootOnce.Do(func() { rootErr = root.setUp(t) })
		if rootErr != nil {
			t.Fatal(rootErr)
		}
		all = append(all, root)
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// setUp gives root a store of its own.
func (s *side) setUp(t *testing.T) error {
	if err := os.Mkdir(s.home.Path("root"), 0o700); err != nil {
		return err
	}
	result := s.rungv(t, "image", "import", "--progress", "none", "oci:"+s.home.Layout(t, image)+":latest", image)
	if result.Code != 0 {
		return fmt.Errorf("import: %v", result)
	}
	return nil
}

// command makes a command of this side's.
func (s *side) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := s.home.Command(ctx, append(slices.Clone(s.global), args...)...)
	if s.bare {
		id := []string{"--map-user=" + strconv.Itoa(s.uid), "--map-group=" + strconv.Itoa(s.gid)}
		cmd = s.home.CommandAs(ctx, "unshare", slices.Concat([]string{"-U", "--keep-caps"}, id, []string{"sh", "-c", bareScript, "sh"}, cmd.Args)...)
	}
	if s.uid == 0 {
		cmd.SysProcAttr.Credential = nil
	}
	return cmd
}

// rungv runs rungv to its end.
func (s *side) rungv(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return testbed.Run(t, s.command(ctx, args...), nil)
}

// run runs a container to its end, without a network.
func (s *side) run(t *testing.T, args ...string) testbed.Result {
	t.Helper()
	return s.rungv(t, append([]string{"run", "--rm", "--network", "none"}, args...)...)
}

// must is run for what has to succeed; it returns the output without its end.
func (s *side) must(t *testing.T, args ...string) string {
	t.Helper()
	result := s.run(t, args...)
	if result.Code != 0 {
		t.Fatalf("run %q: %v", args, result)
	}
	return strings.TrimSuffix(result.Stdout, "\n")
}

// dir makes a directory of the side's user.
func (s *side) dir(t *testing.T) string {
	t.Helper()
	// Not where the home looks for what containers leave.
	dir, err := os.MkdirTemp(s.home.Dir, "bind-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.own(t, dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// own gives a file to the side's user.
func (s *side) own(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, s.uid, s.gid); err != nil {
		t.Fatal(err)
	}
}

// write writes a file as the side's user would.
func (s *side) write(t *testing.T, path, text string) {
	t.Helper()
	_, err := os.Lstat(path)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		s.own(t, path)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// program returns the path of a file of testdata where guests can be given it.
func (s *side) program(t *testing.T, name string) string {
	t.Helper()
	text := read(t, filepath.Join("testdata", name))
	path := filepath.Join(s.dir(t), name)
	s.write(t, path, text)
	return path
}

// guest is a container that evaluates Python.
type guest struct {
	t      *testing.T
	side   *side
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *strings.Builder
	ended  bool
}

// names numbers the containers of this process.
var names atomic.Int64

// guest starts a container with these flags.
func (s *side) guest(t *testing.T, flags ...string) *guest {
	t.Helper()
	g := &guest{t: t, side: s, name: fmt.Sprintf("bind-%s-%d", s.name, names.Add(1)), stderr: &strings.Builder{}}
	args := append([]string{"run", "--rm", "-i", "--name", g.name, "--network", "none", "-v", s.program(t, "agent.py") + ":/agent.py:ro"}, flags...)
	g.cmd = s.command(context.Background(), append(args, image, "python3", "/agent.py")...)
	g.cmd.Stderr = g.stderr
	var err error
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	g.out = bufio.NewReader(out)
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.end)
	if line := g.line(); line != "ready" {
		t.Fatalf("the guest said %q; stderr %s", line, g.stderr)
	}
	return g
}

// line reads an answer.
func (g *guest) line() string {
	watch := time.AfterFunc(time.Minute, func() { _ = g.cmd.Process.Kill() })
	defer watch.Stop()
	line, err := g.out.ReadString('\n')
	if err != nil {
		return "no answer: " + err.Error()
	}
	return strings.TrimSuffix(line, "\n")
}

// do evaluates a line.
func (g *guest) do(line string) string {
	g.t.Helper()
	if _, err := io.WriteString(g.in, line+"\n"); err != nil {
		g.t.Fatalf("%s: %v", line, err)
	}
	return g.line()
}

// want evaluates a line whose value is known.
func (g *guest) want(line, value string) {
	g.t.Helper()
	if got := g.do(line); got != value {
		g.t.Errorf("the guest's %s is %s, want %s", line, got, value)
	}
}

// end ends the container.
func (g *guest) end() {
	if g.ended {
		return
	}
	g.ended = true
	g.in.Close()
	kill := time.AfterFunc(30*time.Second, func() { _ = g.cmd.Process.Signal(syscall.SIGKILL) })
	defer kill.Stop()
	if err := g.cmd.Wait(); err != nil {
		g.t.Errorf("the container ended with %v; stderr %s", err, g.stderr)
	}
}

// wait waits for the end of a container that something else has brought about.
func (g *guest) wait() int {
	g.ended = true
	g.in.Close()
	_ = g.cmd.Wait()
	return g.cmd.ProcessState.ExitCode()
}
