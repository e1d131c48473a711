// SPDX-License-Identifier: Apache-2.0

package posture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/integration/testbed"
)

// mode tells a compromised Sentry what to do: see runtime/lockdown/compromised.
type mode struct {
	Action    string `json:"action"`
	Attack    string `json:"attack"`
	Without   int    `json:"without"`
	Neighbour int    `json:"neighbour"`
}

// attempt is how one attack ended.
type attempt struct {
	Name      string `json:"name"`
	Permitted bool   `json:"permitted"`
	Err       string `json:"err"`
	Errno     int    `json:"errno"`
}

// stage gives a compromised Sentry its mode: a binary with the mode beside it.
// Each has a link of its own, so that tests do not meet.
func (l *launcher) stage(t *testing.T, m mode) string {
	t.Helper()
	dir, err := os.MkdirTemp(l.home.Path("bin"), "mode-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "rungv")
	if err := os.Link(world.compromised, binary); err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	// The sandbox' uid must reach these.
	for path, content := range map[string][]byte{binary + ".mode": doc, binary + ".result": nil} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(binary+".result", 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return binary
}

// compromisedRun runs a script with a compromised Sentry in the given mode, and
// returns how it ended and how its attacks did.
func (l *launcher) compromisedRun(t *testing.T, m mode, script string) (testbed.Result, []attempt) {
	t.Helper()
	return l.compromisedCommand(t, m, runArgs(script)...)
}

// compromisedCommand is the same for any command.
func (l *launcher) compromisedCommand(t *testing.T, m mode, args ...string) (testbed.Result, []attempt) {
	t.Helper()
	binary := l.stage(t, m)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	result := testbed.Run(t, l.command(ctx, binary, args...), strings.NewReader("input\n"))
	raw, err := os.ReadFile(binary + ".result")
	if err != nil {
		t.Fatal(err)
	}
	var attempts []attempt
	for dec := json.NewDecoder(bytes.NewReader(raw)); dec.More(); {
		var a attempt
		if err := dec.Decode(&a); err != nil {
			t.Fatalf("results %q: %v", raw, err)
		}
		attempts = append(attempts, a)
	}
	return result, attempts
}

// minAttacks is how many attacks there are at least: a list that comes out
// empty by mistake must not pass.
const minAttacks = 120

// TestAttacks lets a compromised Sentry try everything in one process, where
// the allow-list answers EPERM instead of killing. The guest still runs after.
func TestAttacks(t *testing.T) {
	for _, l := range launchers(t) {
		t.Run(l.name, func(t *testing.T) {
			neighbour := l.start(t)
			result, attempts := l.compromisedRun(t, mode{Action: "refuse", Attack: "all", Without: -1, Neighbour: neighbour.pid}, "echo alive")
			if result.Code != 0 || result.Stdout != "alive\n" {
				t.Errorf("the guest after the attacks: %v", result)
			}
			if len(attempts) < minAttacks {
				t.Errorf("%d attacks, want at least %d", len(attempts), minAttacks)
			}
			for _, a := range attempts {
				switch {
				case a.Errno == 0:
					t.Errorf("attack succeeded: %s", a.Name)
				case !a.Permitted && a.Errno != int(unix.EPERM):
					t.Errorf("attack %q reached the kernel, which answered: %s", a.Name, a.Err)
				}
			}
			if gone(neighbour.pid) {
				t.Error("the neighbour did not survive")
			}
		})
	}
}

// TestKilled: with the real action, one attack of each family ends the sandbox
// there and then, with a message that says so.
func TestKilled(t *testing.T) {
	attacks := []string{"open", "TCP socket", "exec", "fork", "read a neighbour's memory", "mount", "io_uring", "setuid", "executable anonymous memory"}
	if testing.Short() {
		attacks = attacks[:1]
	}
	l := launchers(t)[0]
	for _, attack := range attacks {
		t.Run(attack, func(t *testing.T) {
			result, attempts := l.compromisedRun(t, mode{Action: "kill", Attack: attack, Without: -1}, "echo alive")
			if len(attempts) != 0 || strings.Contains(result.Stdout, "alive") {
				t.Errorf("the sandbox lived on: %v; %v", attempts, result)
			}
			if !killedBySeccomp(result) {
				t.Errorf("want death by SIGSYS, and a message that says so: %v", result)
			}
		})
	}
}

// killedBySeccomp recognises the launcher's account of a sandbox that made a
// forbidden call.
func killedBySeccomp(r testbed.Result) bool {
	return r.Code != 0 && strings.Contains(r.Stderr, "SIGSYS")
}

// heldByOthers are the attacks that must fail even if the allow-list lets
// everything through, on a host that has namespaces: the layers below it.
var heldByOthers = []string{
	"open", "open for writing", "openat2", "open_by_handle_at", "stat by path", "mkdir", "unlink", "rename", "link", "mknod",
	"chown by descriptor", "fanotify", "packet socket", "unshare network", "setns", "no_new_privs off", "chroot", "real-time priority", "raise priority",
	"kill a neighbour", "queue a signal", "read a neighbour's memory", "write a neighbour's memory", "seize a neighbour",
	"limit a neighbour", "compare kernel objects", "attach to a neighbour", "interrupt a neighbour", "wait for a neighbour",
	"mount", "bind mount", "umount", "pivot_root", "fsopen", "load a module", "kexec", "reboot", "swapon", "accounting",
	"host name", "host clock", "setuid", "setgid", "setresuid", "setgroups", "capset",
	"write to a descriptor that was not donated", "map a descriptor that was not donated",
}

// TestAttacksWithoutFilter takes the allow-list away, to see that it is not the
// only thing between the Sentry and the host. What succeeds is logged: it is
// what the allow-list alone prevents.
func TestAttacksWithoutFilter(t *testing.T) {
	for _, l := range launchers(t) {
		t.Run(l.name, func(t *testing.T) {
			neighbour := l.start(t)
			if ns, _ := os.Readlink(proc(neighbour.pid, "ns", "pid")); ns == ownNamespace(t, "pid") {
				testbed.Missing(t, "namespaces for user %d", l.uid)
			}
			_, attempts := l.compromisedRun(t, mode{Action: "ignore", Attack: "all", Without: -1, Neighbour: neighbour.pid}, "echo alive")
			var succeeded []string
			tried := map[string]attempt{}
			for _, a := range attempts {
				tried[a.Name] = a
				if a.Errno == 0 {
					succeeded = append(succeeded, a.Name)
				}
			}
			for _, name := range heldByOthers {
				if _, ok := tried[name]; !ok {
					t.Errorf("attack %q was not tried", name)
				} else if slices.Contains(succeeded, name) {
					t.Errorf("attack succeeded without the allow-list: %s", name)
				}
			}
			t.Logf("only the allow-list prevents: %s", strings.Join(succeeded, "; "))
		})
	}
}

func ownNamespace(t *testing.T, ns string) string {
	t.Helper()
	link, err := os.Readlink("/proc/self/ns/" + ns)
	if err != nil {
		t.Fatal(fmt.Errorf("read own namespace: %w", err))
	}
	return link
}
