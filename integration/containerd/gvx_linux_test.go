// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// newGVX starts a containerd that has gvx's shim.
func newGVX(t *testing.T, o testbed.ContainerdOptions) *testbed.Containerd {
	t.Helper()
	o.Programs = map[string]string{testbed.ShimName: shim.Get(t)}
	c := testbed.NewContainerd(t, o)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd: %s", c.Log())
		}
		c.Close(t)
	})
	return c
}

// gvx makes the arguments of ctr run.
func gvx(snapshotter string, args ...string) []string {
	return append([]string{"run", "--runtime", testbed.Runtime, "--snapshotter", snapshotter}, args...)
}

// TestSnapshotters runs a container of each, which sees its image, writes, ends
// with its own exit code, and leaves nothing.
func TestSnapshotters(t *testing.T) {
	for _, size := range []string{"", "1GiB"} {
		c := newGVX(t, testbed.ContainerdOptions{ErofsSize: size})
		list := snapshotters
		if size != "" {
			list = []string{"erofs"}
		}
		for _, snapshotter := range list {
			t.Run(snapshotter+size, func(t *testing.T) {
				image := c.Image(t, snapshotter, "demo")
				mounts := mountTable(t)
				result := c.Ctr(t, gvx(snapshotter, "--rm", image, "once", "sh", "-c",
					"echo hello > /file && cat /file && head -n 1 /etc/os-release && exit 7")...)
				if result.Code != 7 || !strings.HasPrefix(result.Stdout, "hello\nPRETTY_NAME=") {
					t.Errorf("%v", result)
				}
				if got := mountTable(t); got != mounts {
					t.Errorf("the host's mounts were\n%s, and are\n%s", mounts, got)
				}
				nothingLeft(t, c)
			})
		}
	}
}

// mountTable are the tests' mounts.
func mountTable(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestRounds: containers come and go, and nothing adds up.
func TestRounds(t *testing.T) {
	rounds := 50
	if testbed.Nightly() {
		rounds = 500
	}
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB"})
	image := c.Image(t, "erofs", "demo")
	for i := range rounds {
		name := fmt.Sprintf("round-%d", i)
		if out := c.MustCtr(t, gvx("erofs", "--rm", image, name, "echo", name)...); out != name+"\n" {
			t.Fatalf("printed %q", out)
		}
	}
	nothingLeft(t, c)
	if testbed.Nightly() {
		testbed.Record(t, "containerd: rounds", fmt.Sprintf("%d containers by `ctr run --rm`, one after another, on erofs with writable layers in files. "+
			"Nothing is left: no process, mount, network namespace, cgroup, folder or socket.", rounds))
	}
}

// TestOptions come from a file: an overlay on the host, no network, a log.
func TestOptions(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{})
	image := c.Image(t, "erofs", "demo")
	config := filepath.Join(c.Dir, "gvx.toml")
	text := fmt.Sprintf("overlay = 'host'\nnetwork = 'none'\ndebug = true\ndebug_log = '%s/logs/'\n", c.Dir)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := mountTable(t)
	args := append(gvx("erofs", "--runtime-config-path", config), image, "a", "sh", "-c", "echo written > /new; rm /etc/debian_version; grep -c : /proc/net/dev")
	if out := c.MustCtr(t, args...); out != "1\n" {
		t.Errorf("%q interfaces", out)
	}
	if got := mountTable(t); got != mounts {
		t.Errorf("the host's mounts were\n%s, and are\n%s", mounts, got)
	}
	upper := filepath.Join(c.Root, "io.containerd.snapshotter.v1.erofs", "snapshots", "*", "fs")
	if found, err := filepath.Glob(filepath.Join(upper, "new")); err != nil || len(found) != 1 {
		t.Errorf("written files: %q, %v", found, err)
	}
	if found, err := filepath.Glob(filepath.Join(upper, "etc", "debian_version")); err != nil || len(found) != 1 {
		t.Errorf("whiteouts: %q, %v", found, err)
	}
	if st, err := os.Stat(filepath.Join(c.Dir, "logs", "a.log")); err != nil || st.Size() == 0 {
		t.Errorf("the sandbox's log: %v, %v", st, err)
	}
	c.MustCtr(t, "containers", "delete", "a")
	if err := os.WriteFile(config, []byte("overlya = 'host'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := c.Ctr(t, args...); r.Code == 0 || !strings.Contains(r.Stderr, `unknown key "overlya"`) {
		t.Errorf("an unknown option: %v", r)
	}
	c.MustCtr(t, "containers", "delete", "a")
	nothingLeft(t, c)
}
