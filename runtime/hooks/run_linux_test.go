// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// sh is a hook that runs a script; $0 is the directory for what it leaves.
func sh(dir, script string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script, dir}, Env: []string{"PATH=" + os.Getenv("PATH")}}
}

func testOptions(dir string) Options {
	return Options{State: specs.State{Version: "1.3.0", ID: "c1", Pid: 4711, Bundle: dir, Annotations: map[string]string{"a": "b"}}}
}

func contents(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestStateOfEachKind: a hook reads from standard input where its container is.
func TestStateOfEachKind(t *testing.T) {
	want := map[Kind]specs.ContainerState{
		Prestart: specs.StateCreating, CreateRuntime: specs.StateCreating, CreateContainer: specs.StateCreating,
		StartContainer: specs.StateCreated, Poststart: specs.StateRunning, Poststop: specs.StateStopped,
	}
	for _, k := range Kinds() {
		dir := t.TempDir()
		if err := Run(t.Context(), k, []specs.Hook{sh(dir, `cat > "$0/state"; pwd > "$0/cwd"`)}, testOptions(dir)); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		var got specs.State
		if err := json.Unmarshal([]byte(contents(t, dir+"/state")), &got); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		pid := 4711
		if k == Poststop {
			pid = 0
		}
		if got.Status != want[k] || got.ID != "c1" || got.Pid != pid || got.Bundle != dir || got.Annotations["a"] != "b" || got.Version != "1.3.0" {
			t.Errorf("%s: got %+v", k, got)
		}
		if cwd := contents(t, dir+"/cwd"); cwd != dir+"\n" {
			t.Errorf("%s: runs in %q, want the bundle", k, cwd)
		}
	}
}

// TestArgumentsAndEnvironment: they are the bundle's and nothing else.
func TestArgumentsAndEnvironment(t *testing.T) {
	t.Setenv("GVX_SECRET", "ours")
	dir := t.TempDir()
	h := specs.Hook{Path: "/bin/sh", Args: []string{"some name", "-c", `tr '\0' '\n' < /proc/$$/environ > out`}, Env: []string{"A=1", "B=two words"}}
	if err := Run(t.Context(), CreateRuntime, []specs.Hook{h}, testOptions(dir)); err != nil {
		t.Fatal(err)
	}
	// The shell itself adds PWD and the like to what it passes on, so /proc is asked.
	if got := contents(t, dir+"/out"); got != "A=1\nB=two words\n" {
		t.Errorf("environment %q", got)
	}
	h = specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", `test -z "$(tr '\0' '\n' < /proc/$$/environ)"`}}
	if err := Run(t.Context(), CreateRuntime, []specs.Hook{h}, testOptions(dir)); err != nil {
		t.Errorf("no environment given: %v", err)
	}
	if err := Run(t.Context(), CreateRuntime, []specs.Hook{{Path: "/bin/true"}}, testOptions(dir)); err != nil {
		t.Errorf("no arguments given: %v", err)
	}
}

// TestOrderAndFailure: in order, and not beyond one that fails.
func TestOrderAndFailure(t *testing.T) {
	dir := t.TempDir()
	list := []specs.Hook{
		sh(dir, `echo one >> "$0/log"`),
		sh(dir, `echo two >> "$0/log"; echo told; echo complained >&2; exit 3`),
		sh(dir, `echo three >> "$0/log"`),
	}
	err := Run(t.Context(), CreateRuntime, list, testOptions(dir))
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"createRuntime hook #1", "/bin/sh", "exit status 3", "stdout: told", "stderr: complained"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: lacks %q", err, part)
		}
	}
	if got := contents(t, dir+"/log"); got != "one\ntwo\n" {
		t.Errorf("ran %q", got)
	}

	// After poststop there is nothing to be saved: all run.
	os.Remove(dir + "/log")
	o := testOptions(dir)
	var warned []string
	o.Warn = func(format string, args ...any) { warned = append(warned, fmt.Sprintf(format, args...)) }
	if err := Run(t.Context(), Poststop, list, o); err != nil {
		t.Errorf("poststop: %v", err)
	}
	if got := contents(t, dir+"/log"); got != "one\ntwo\nthree\n" {
		t.Errorf("poststop ran %q", got)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "poststop hook #1") {
		t.Errorf("warnings %q", warned)
	}
}

func TestFailureToStart(t *testing.T) {
	for _, path := range []string{"/no/such/hook", "/etc/passwd"} {
		err := Run(t.Context(), Prestart, []specs.Hook{{Path: path}}, testOptions(t.TempDir()))
		if err == nil || !strings.Contains(err.Error(), "error running prestart hook #0: "+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, ok := parseStat(pid, stat)
	return ok
}

// TestTimeLimitEndsTheChildrenToo: those in the background, in process groups and
// in sessions of their own.
func TestTimeLimitEndsTheChildrenToo(t *testing.T) {
	dir := t.TempDir()
	one := 1
	h := sh(dir, `(sh -c 'echo $$ > "$0/a"; sleep 100' "$0" &)
setsid sh -c 'echo $$ > "$0/b"; sleep 100' "$0" &
echo $$ > "$0/c"
while :; do sleep 0.01; done`)
	h.Timeout = &one
	err := Run(t.Context(), CreateRuntime, []specs.Hook{h}, testOptions(dir))
	if !errors.Is(err, ErrTimeout) {
		t.Fatalf("got %v, want %v", err, ErrTimeout)
	}
	for _, name := range []string{"a", "b", "c"} {
		pid, err := strconv.Atoi(strings.TrimSpace(contents(t, dir+"/"+name)))
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if !alive(pid) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if alive(pid) {
			t.Errorf("process %s (%d) has survived", name, pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(dir + "/up"); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	err := Run(ctx, CreateRuntime, []specs.Hook{sh(dir, `touch "$0/up"; sleep 100`)}, testOptions(dir))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestDaemonLeftBehind: a hook may leave a process that goes on to write; its end
// is the hook's, not the daemon's.
func TestDaemonLeftBehind(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), CreateRuntime, []specs.Hook{
		sh(dir, `(while :; do echo still here || exit; sleep 0.01; test -e "$0/stop" && touch "$0/stopped" && exit; done) & exit 0`),
	}, testOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if err := os.WriteFile(dir+"/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if _, err = os.Stat(dir + "/stopped"); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the daemon died of what it wrote")
}

// TestMuchOutput: a hook that says a lot neither blocks nor fills our memory.
func TestMuchOutput(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), CreateRuntime, []specs.Hook{sh(dir, `head -c 10000000 /dev/zero | tr '\0' x; echo END; exit 1`)}, testOptions(dir))
	if err == nil || !strings.Contains(err.Error(), "xEND") || len(err.Error()) > 2*maxOutputBytes {
		t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
	}
}

// TestNamespaces: createContainer hooks, and no others, start in the container's;
// those of the runtime in the runtime's.
func TestNamespaces(t *testing.T) {
	for _, k := range Kinds() {
		o, entered, left := testOptions(t.TempDir()), 0, 0
		o.Enter = func(start func() error) error {
			entered++
			return start()
		}
		o.Leave = func(start func() error) error {
			left++
			return start()
		}
		if err := Run(t.Context(), k, []specs.Hook{{Path: "/bin/true"}}, o); err != nil {
			t.Fatal(err)
		}
		want := [2]int{0, 1}
		switch k {
		case CreateContainer:
			want = [2]int{1, 0}
		case StartContainer: // Of a process that is in the guest.
			want = [2]int{0, 0}
		}
		if got := [2]int{entered, left}; got != want {
			t.Errorf("%s: entered and left %v times, want %v", k, got, want)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Error(err)
				return
			}
			if err := Run(t.Context(), CreateRuntime, []specs.Hook{sh(dir, `cat > "$0/state"`), sh(dir, `test -s "$0/state"`)}, testOptions(dir)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestRunArgument(t *testing.T) {
	dir := t.TempDir()
	arg, err := Argument(specs.State{ID: "c1", Pid: 99}, []specs.Hook{sh(dir, `cat > "$0/state"`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := RunArgument(arg); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, dir+"/state"); !strings.Contains(got, `"created"`) || !strings.Contains(got, fmt.Sprintf(`"pid":%d`, os.Getpid())) {
		t.Errorf("state %s", got)
	}
	for _, bad := range []string{"", "--", argumentPrefix + "{"} {
		if err := RunArgument(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestParseStat(t *testing.T) {
	p, ok := parseStat(7, []byte("7 (a) b) S 1 2 3 4"))
	if !ok || p != (process{7, 1, 3}) {
		t.Errorf("got %+v, %v", p, ok)
	}
	for _, bad := range []string{"", "7 (x) Z 1 2 3", "7 (x) S 1", "7 (x) S a b c"} {
		if _, ok := parseStat(7, []byte(bad)); ok {
			t.Errorf("%q: taken", bad)
		}
	}
}
