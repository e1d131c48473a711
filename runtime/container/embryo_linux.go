// SPDX-License-Identifier: Apache-2.0

// The sandbox process before there is anything to run in it.

package container

import (
	"fmt"
	"math/rand/v2"
	"runtime"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/lockdown"
)

// defaultLogLevel is how much a sandbox logs unless told otherwise.
const defaultLogLevel = "warning"

// fork begins to make the sandbox process, before anything is known of the
// image: it gets ready while the rest of the run is prepared. One that waits for
// a long pull costs its few megabytes and no processor time.
func (u *run) fork() error {
	var err error
	if u.log, err = launch.NewLog(u.Log); err != nil {
		return fmt.Errorf("make the sandbox's log: %w", err)
	}
	level := u.LogLevel
	if level == "" {
		level = defaultLogLevel
	}
	u.embryo = launch.Fork(&launch.ForkConfig{
		HeadStart: api.HeadStart{
			Version: api.SpecVersion, Platform: "systrap", Cores: max(1, min(runtime.NumCPU(), api.MaxCores)),
			LogLevel: level, StartedAt: u.began,
			// Its stubs have to be in the host's cgroup too.
			SpecFirst: hostcgroup.Possible(u.hostLimits()),
		},
		Outer: lockdown.PlanOuter(sandboxUID()),
		Log:   u.log.File(),
	})
	return nil
}

// sandboxUID is a sandbox's own uid when root starts it: a number that nothing else
// has, so that a process that got out could touch nothing, nor a neighbour.
func sandboxUID() uint32 { return lockdown.DefaultUIDBase + rand.Uint32N(lockdown.UIDCount) }

// discard ends a sandbox process that was not started.
func (u *run) discard() {
	u.embryo.Discard()
	u.log.Donated()
}

// hostLimits are the limits that a host cgroup would hold.
func (u *run) hostLimits() hostcgroup.Limits {
	return hostcgroup.Limits{MemoryBytes: u.o.MemoryBytes, CPUMillis: u.o.CPUMillis}
}

// joinHostCgroup makes the host cgroup that backs the sandbox's own limits, where
// there is one to be had, and moves the process there: before it forks.
func (u *run) joinHostCgroup(id string) error {
	var err error
	u.group, err = hostcgroup.Create(id, u.hostLimits())
	if err != nil && u.Debug != nil {
		u.Debug("%v: the sandbox holds its limits by itself", err)
	}
	if u.group == nil {
		return nil
	}
	pid, err := u.embryo.PID()
	if err == nil {
		err = u.group.Add(pid)
	}
	if err == nil && u.gofer != nil {
		err = u.group.Add(u.gofer.PID())
	}
	return err
}
