// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/state"
)

// TestTheRecordNamesACgroupBeforeItIsMade: a process that is killed right then leaves
// a cgroup that whoever deletes its container finds.
func TestTheRecordNamesACgroupBeforeItIsMade(t *testing.T) {
	const path = "/gvx-test-never-made"
	if os.Geteuid() != 0 || len(hostcgroup.Planned(hostcgroup.Placement{ID: "c", Path: path})) == 0 {
		t.Skip("no cgroups for this user on this host")
	}
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	handle, err := store.Create(state.Record{Task: &state.Task{}}, "c")
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	// Limits that make the making fail as late as can be told without a group.
	spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: path, Resources: &specs.LinuxResources{Unified: map[string]string{"cgroup.procs": "1"}}}}
	task := &Task{r: &Runner{State: store}, o: TaskOptions{ID: "c"}, spec: spec, handle: handle}
	if err := task.makeCgroup(); err == nil {
		t.Fatal("a cgroup was made of limits that are none")
	}
	rec, err := store.Get("c")
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.Task.Cgroup) == 0 {
		t.Fatal("the record names no cgroup")
	}
	for controller, dir := range rec.Task.Cgroup {
		if !strings.HasSuffix(dir, path) {
			t.Errorf("%s at %s", controller, dir)
		}
	}
}
