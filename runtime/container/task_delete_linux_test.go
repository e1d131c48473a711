// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/state"
)

// TestDeleteAgainWhenTheCgroupWasBusy: what a delete could not remove, the next one
// finds, and removes.
func TestDeleteAgainWhenTheCgroupWasBusy(t *testing.T) {
	task, r := newTestTask(t, &fakePod{})
	task.finish(api.ExitStatus{}, nil)
	paths, free := busyCgroup(t, task)
	deletedOnceFree(t, r, paths, free, func() error { return task.Delete(t.Context()) })
}

// TestDeleteTaskAgainWhenTheCgroupWasBusy: the same for who deletes by the record, as
// `rungv delete` does.
func TestDeleteTaskAgainWhenTheCgroupWasBusy(t *testing.T) {
	task, r := newTestTask(t, &fakePod{})
	task.finish(api.ExitStatus{}, nil)
	paths, free := busyCgroup(t, task)
	if err := task.handle.Close(); err != nil {
		t.Fatal(err)
	}
	deletedOnceFree(t, r, paths, free, func() error { return r.DeleteTask(t.Context(), "c", true) })
}

// busyCgroup gives a container that has ended a cgroup with a process in it, which free
// ends.
func busyCgroup(t *testing.T, task *Task) (paths map[string]string, free func()) {
	name := fmt.Sprintf("gvx-test-busy-%d", os.Getpid())
	group, err := hostcgroup.CreateContainer(hostcgroup.Placement{ID: "c", Path: "/" + name}, nil)
	if errors.Is(err, hostcgroup.ErrUnavailable) {
		t.Skipf("this host or user: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = group.Remove() })
	busy := exec.Command("sleep", "1000")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	free = func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}
	t.Cleanup(free)
	if err := group.Add(busy.Process.Pid); err != nil {
		t.Fatal(err)
	}
	// One of its directories will do: each is tried for a while.
	paths = map[string]string{}
	for _, controller := range slices.Sorted(maps.Keys(group.Paths()))[:1] {
		paths[controller] = group.Path(controller)
	}
	if err := task.handle.Update(func(rec *state.Record) error {
		own := *rec.Task
		own.CgroupPath, own.Cgroup = "/"+name, paths
		rec.Task = &own
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return paths, free
}

// deletedOnceFree: what is left to be found by the next delete, and what by nobody.
func deletedOnceFree(t *testing.T, r *Runner, paths map[string]string, free func(), remove func() error) {
	if err := remove(); err == nil {
		t.Fatal("a cgroup with a process was removed")
	}
	if _, err := r.getTask("c"); err != nil {
		t.Fatalf("the record that names the cgroup: %v", err)
	}
	free()
	for range 2 {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
	}
	for controller, dir := range paths {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("left: %s %s", controller, dir)
		}
	}
	if _, err := r.getTask("c"); api.KindOf(err) != api.KindNotFound {
		t.Errorf("the record: %v", err)
	}
}
