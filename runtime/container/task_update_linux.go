// SPDX-License-Identifier: Apache-2.0

// Changing and measuring what a bundle's container may use.

package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/state"
)

// UpdateTask changes the limits of a container: those that its sandbox holds it to,
// and those of the host's cgroup. What is absent stays.
func (r *Runner) UpdateTask(ctx context.Context, ref string, res *specs.LinuxResources) error {
	rec, err := r.getTask(ref)
	if err != nil {
		return err
	}
	if rec.State != api.StateRunning && rec.State != api.StateCreated {
		return api.Errorf(api.KindState, "cannot update a container that is %s", rec.State)
	}
	if len(rec.Task.Cgroup) > 0 {
		group, err := openTaskCgroup(rec)
		if err == nil {
			err = group.Update(hostcgroup.ForSandbox(res))
		}
		if err != nil {
			return err
		}
	}
	limits := taskLimits(res)
	if limits == (control.Limits{}) {
		return nil
	}
	return r.callBy(ctx, r.dialMade, rec.ID, func(ctx context.Context, c *control.Client, rec *state.Record) error {
		return c.Update(ctx, rec.ID, limits)
	})
}

// taskLimits are the limits that the sandbox itself holds its guests to.
func taskLimits(res *specs.LinuxResources) control.Limits {
	r := convert.OCILimits(res)
	var l control.Limits
	if res.Memory != nil && res.Memory.Limit != nil {
		l.MemoryBytes = &r.MemoryBytes
	}
	if res.CPU != nil && res.CPU.Quota != nil {
		l.CPUMillis = &r.CPUMillis
	}
	if res.Pids != nil && res.Pids.Limit != nil {
		l.Pids = &r.Pids
	}
	return l
}

// TaskPIDs are the host's processes that stand for a container and its additional
// processes: those of its cgroup, or else the one it is known by.
func (r *Runner) TaskPIDs(ref string) ([]int, error) {
	rec, err := r.getTask(ref)
	if err != nil {
		return nil, err
	}
	if rec.State == api.StateStopped {
		return nil, api.Errorf(api.KindState, "container not running")
	}
	if len(rec.Task.Cgroup) > 0 {
		group, err := openTaskCgroup(rec)
		if err != nil {
			return nil, err
		}
		pids, err := group.Processes()
		// The sandbox, its stubs and its gofer stand for nobody.
		return slices.DeleteFunc(pids, func(pid int) bool { return !standsForGuest(pid) }), err
	}
	return []int{rec.Launcher.PID}, nil
}

// standsForGuest says whether a process is one of ours that a guest's process is
// known by: this program under its own name.
func standsForGuest(pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	name, _, _ := strings.Cut(string(line), "\x00")
	return err == nil && name != "" && name != launch.ProcessName && name != api.GoferName
}

// TaskEvents watches a container until it ends or ctx does: oom is called when the
// host's limit has ended something in its cgroup.
func (r *Runner) TaskEvents(ctx context.Context, ref string, oom func()) error {
	rec, err := r.getTask(ref)
	if err != nil {
		return err
	}
	if rec.State == api.StateStopped {
		return api.Errorf(api.KindState, "container with id %s is not running", rec.Name)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(rec.Task.Cgroup) > 0 {
		group, err := openTaskCgroup(rec)
		if err != nil {
			return err
		}
		kills, err := group.WatchOOM(ctx)
		if err != nil {
			return err
		}
		go func() {
			for range kills {
				oom()
			}
		}()
	}
	if err := r.State.WaitReleased(ctx, rec.ID); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
