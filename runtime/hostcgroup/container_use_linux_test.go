// SPDX-License-Identifier: Apache-2.0

package hostcgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// TestGroupsInUse: a group with processes, or a frozen one, is no container's to have,
// and stays as it is; an empty one is.
func TestGroupsInUse(t *testing.T) {
	p := Placement{Path: fmt.Sprintf("/gvx-test-used-%d", os.Getpid()), ID: "c"}
	c := made(t, p, nil)
	if _, err := CreateContainer(p, nil); err != nil {
		t.Errorf("an empty group: %v", err)
	}
	cmd := sleeper(t)
	if err := c.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateContainer(p, nil); err == nil || !strings.Contains(err.Error(), "container's cgroup is not empty") {
		t.Errorf("a group with a process: %v", err)
	}
	if pids, err := c.Processes(); err != nil || len(pids) != 1 {
		t.Errorf("its processes are %v, %v", pids, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	file, frozen, thawed := filepath.Join(c.Path("freezer"), "freezer.state"), "FROZEN", "THAWED"
	if Unified() {
		file, frozen, thawed = filepath.Join(c.Path(""), "cgroup.freeze"), "1", "0"
	}
	if err := os.WriteFile(file, []byte(frozen), 0); err != nil {
		t.Skipf("no freezer: %v", err)
	}
	_, err := CreateContainer(p, nil)
	if err == nil || !strings.Contains(err.Error(), "container's cgroup unexpectedly frozen") {
		t.Errorf("a frozen group: %v", err)
	}
	if err := os.WriteFile(file, []byte(thawed), 0); err != nil {
		t.Fatal(err)
	}
}

// TestJoin: any process goes into a group that exists, and is told of one that does not.
func TestJoin(t *testing.T) {
	path := fmt.Sprintf("/gvx-test-join-%d", os.Getpid())
	cmd := sleeper(t)
	if err := Join(path, cmd.Process.Pid); api.KindOf(err) != api.KindNotFound {
		t.Errorf("a group that does not exist: %v", err)
	}
	c := made(t, Placement{Path: path, ID: "c"}, nil)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := Join(strings.TrimPrefix(path, "/"), cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, err := c.Processes(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("the group's processes are %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
}

// TestAddBelow: a process goes into the group below that is named, and into none that
// is not below or not there.
func TestAddBelow(t *testing.T) {
	c := made(t, Placement{Path: fmt.Sprintf("/gvx-test-below-%d", os.Getpid()), ID: "c"}, nil)
	controller := ""
	if !Unified() {
		controller = "pids"
	}
	dir := c.Path(controller)
	if dir == "" {
		t.Skipf("no controller %q", controller)
	}
	for _, d := range []string{filepath.Join(dir, "sub"), dir + "-beside"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(d) })
	}
	cmd := sleeper(t)
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := c.AddBelow(cmd.Process.Pid, map[string]string{controller: "sub"}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(dir, "sub"), "cgroup.procs"); got != pid {
		t.Errorf("below are %q, want %s", got, pid)
	}
	if err := c.AddBelow(cmd.Process.Pid, nil); err != nil {
		t.Fatal(err)
	}
	if got := content(t, dir, "cgroup.procs"); got != pid {
		t.Errorf("in the group are %q, want %s", got, pid)
	}
	for _, sub := range []string{"..", "../" + filepath.Base(dir) + "-beside", "missing"} {
		want := "bad sub cgroup path"
		if sub == "missing" {
			want = "no such file or directory"
		}
		err := c.AddBelow(cmd.Process.Pid, map[string]string{controller: sub})
		if err == nil || !strings.Contains(err.Error(), want) || api.KindOf(err) != api.KindInvalid {
			t.Errorf("%s: %v", sub, err)
		}
	}
	if err := c.AddBelow(cmd.Process.Pid, map[string]string{"whaaat": "/"}); err == nil || !strings.Contains(err.Error(), "unknown controller whaaat") {
		t.Errorf("a controller that there is none: %v", err)
	}
	if got := content(t, filepath.Dir(dir+"-beside"), filepath.Base(dir)+"-beside/cgroup.procs"); got != "" {
		t.Errorf("beside the group is %q", got)
	}
}
