// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestContainerdByRuncShim: containerd's own runc shim, with rungv as its runc.
func TestContainerdByRuncShim(t *testing.T) {
	home := newHome(t)
	c := testbed.NewContainerd(t, testbed.ContainerdOptions{})
	defer c.Close(t)
	for _, snapshotter := range []string{"overlayfs", "native"} {
		t.Run(snapshotter, func(t *testing.T) {
			image := c.Image(t, snapshotter, "demo")
			run := func(args ...string) string {
				t.Helper()
				return c.MustCtr(t, append([]string{"run", "--runc-binary", home.Path("bin", "rungv"), "--snapshotter", snapshotter}, args...)...)
			}
			output := run("--rm", image, "once", "sh", "-c", "echo hello > /file && cat /file && head -n 1 /etc/os-release && dmesg | head -n 1")
			if !strings.HasPrefix(output, "hello\nPRETTY_NAME=") || !strings.Contains(output, "gVisor") {
				t.Errorf("printed %q", output)
			}
			nothingLeft(t, c)

			name := "box-" + snapshotter
			run("-d", image, name, "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
			t.Run("exec", func(t *testing.T) {
				if got := c.MustCtr(t, "task", "exec", "--exec-id", "one", name, "sh", "-c", "id -u; cat /proc/1/comm"); got != "0\nsh\n" {
					t.Errorf("printed %q", got)
				}
				if r := c.Ctr(t, "task", "exec", "--exec-id", "two", name, "sh", "-c", "exit 9"); r.Code != 9 {
					t.Errorf("%v", r)
				}
				if r := c.Ctr(t, "task", "exec", "--exec-id", "three", name, "nosuch"); r.Code == 0 || !strings.Contains(r.Stderr, "executable file not found in $PATH") {
					t.Errorf("%v", r)
				}
			})
			t.Run("short execs", func(t *testing.T) {
				for i := range 10 { // Whoever starts one must not reap it.
					if got := c.MustCtr(t, "task", "exec", "--exec-id", fmt.Sprint("short", i), name, "true"); got != "" {
						t.Errorf("printed %q", got)
					}
				}
			})
			t.Run("pause", func(t *testing.T) {
				c.MustCtr(t, "task", "pause", name)
				if got := c.MustCtr(t, "task", "ls"); !strings.Contains(got, "PAUSED") {
					t.Errorf("%s", got)
				}
				c.MustCtr(t, "task", "resume", name)
			})
			t.Run("metrics", func(t *testing.T) {
				if got := c.MustCtr(t, "task", "metrics", name); !strings.Contains(got, "memory") {
					t.Errorf("%s", got)
				}
				if got := c.MustCtr(t, "task", "ps", name); len(strings.Fields(got)) < 3 {
					t.Errorf("%s", got)
				}
			})
			c.MustCtr(t, "task", "kill", "-s", "TERM", name)
			eventually(t, "it has stopped", func() bool { return strings.Contains(c.MustCtr(t, "task", "ls"), "STOPPED") })
			if r := c.Ctr(t, "task", "delete", name); !strings.Contains(r.Stderr, "non-zero exit code 7") {
				t.Errorf("%v", r)
			}
			c.MustCtr(t, "container", "delete", name)
			nothingLeft(t, c)
		})
	}
}

// nothingLeft checks that no task has left anything. Things may take a moment.
func nothingLeft(t *testing.T, c *testbed.Containerd) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left behind: %q", left)
		}
	}()
	eventually(t, "nothing is left", func() bool {
		left = c.Left(t)
		return len(left) == 0
	})
}

// patience is more than anything here takes on a busy machine.
const patience = 30 * time.Second

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func newHome(t *testing.T) *testbed.Home {
	t.Helper()
	home, err := testbed.NewHome()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { home.Remove() })
	return home
}
