// SPDX-License-Identifier: Apache-2.0

package hostcgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestParseHierarchies(t *testing.T) {
	for name, c := range map[string]struct {
		own, mounts []string
		v1          map[string]string
		v2          string
	}{
		"version 1 in a group of its own": {
			own: []string{"4:memory:/service/x", "1:cpu,cpuacct:/", "0::/"},
			mounts: []string{
				"30 20 0:26 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory",
				"31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
				"32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
			},
			v1: map[string]string{
				"memory":  "/sys/fs/cgroup/memory/service/x",
				"cpu":     "/sys/fs/cgroup/cpu,cpuacct",
				"cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
			},
			v2: "/sys/fs/cgroup/unified",
		},
		"a container that sees only its own group": {
			own:    []string{"4:memory:/docker/abc"},
			mounts: []string{"30 20 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"},
			v1:     map[string]string{"memory": "/sys/fs/cgroup/memory"},
		},
		"a group outside the mount": {
			own:    []string{"4:memory:/elsewhere"},
			mounts: []string{"30 20 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"},
			v1:     map[string]string{},
		},
		"version 2": {
			own:    []string{"0::/user.slice"},
			mounts: []string{"30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"},
			v1:     map[string]string{},
			v2:     "/sys/fs/cgroup",
		},
		"garbage": {own: []string{"", "x", "::"}, mounts: []string{"", " - ", "a b c d e - cgroup"}, v1: map[string]string{}},
	} {
		h := parseHierarchies(c.own, c.mounts)
		if h.v2 != c.v2 || len(h.v1) != len(c.v1) {
			t.Errorf("%s: got %+v, want %v and %q", name, h, c.v1, c.v2)
		}
		for k, v := range c.v1 {
			if h.v1[k] != v {
				t.Errorf("%s: %s is %q, want %q", name, k, h.v1[k], v)
			}
		}
	}
}

func TestPlanPrefersVersion1(t *testing.T) {
	h := &hierarchies{v1: map[string]string{"memory": "/m"}, v2: "/u"}
	plan := h.plan(Limits{MemoryBytes: 1 << 30, CPUMillis: 1500})
	if len(plan) != 2 {
		t.Fatalf("got %+v", plan)
	}
	if s := plan[0].settings[0]; plan[0].parent != "/m" || s.file != "memory.limit_in_bytes" || s.value != strconv.Itoa(1<<30+64<<20+1<<26) {
		t.Errorf("memory: %+v", plan[0])
	}
	if s := plan[1].settings[0]; plan[1].parent != "/u/gvx" || s != (setting{"cpu.max", "150000 100000"}) || plan[1].enable[0] != "+cpu" {
		t.Errorf("cpu: %+v", plan[1])
	}
}

func TestNoLimitsNoGroup(t *testing.T) {
	g, err := Create("none", Limits{})
	if g != nil || err != nil {
		t.Errorf("got %v, %v", g, err)
	}
	// A group that is none can be used like one.
	if err := g.Add(1); err != nil {
		t.Error(err)
	}
	g.Remove()
}

// TestHoldsAProcess makes a real group, puts a process in and looks at it from
// the process' side.
func TestHoldsAProcess(t *testing.T) {
	id := "test-" + strconv.Itoa(os.Getpid())
	g, err := Create(id, Limits{MemoryBytes: 256 << 20, CPUMillis: 500})
	if errors.Is(err, ErrUnavailable) {
		t.Skipf("this host or user: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(groups), namePrefix+id+"\n"); n != len(g.dirs) {
		t.Errorf("process is in %d groups of ours, want %d:\n%s", n, len(g.dirs), groups)
	}

	// A killed launcher's group goes once it is empty and no longer new.
	h, err := findHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	present := func(when string) {
		t.Helper()
		for _, dir := range g.dirs {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("swept %s: %v", when, err)
			}
		}
	}
	h.sweep(0)
	present("with a process in it")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	h.sweep(debrisAge)
	present("though new")
	h.sweep(0)
	for _, dir := range g.dirs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
