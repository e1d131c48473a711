// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package container

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/state"
)

const controlSocket = "control.sock"

// hub carries a detached container's streams, on Linux.
type hub struct{}

// SupervisorCallerFD is where a supervisor finds its caller.
const SupervisorCallerFD = 3

var errNeedsLinux = api.Errorf(api.KindUnsupported, "run a container: sandboxes need Linux: use a Linux host")

// Detach needs Linux.
func Detach(context.Context, []string, RunOptions) (string, int, error) {
	return "", exitOwnFailure, errNeedsLinux
}

// StartDetached needs Linux.
func StartDetached(context.Context, []string, string) (int, error) {
	return exitOwnFailure, errNeedsLinux
}

// Supervise needs Linux.
func (r *Runner) Supervise(context.Context, <-chan struct{}, SupervisorReport, func(*RunOptions) error) (api.ExitStatus, bool, error) {
	return api.ExitStatus{}, false, errNeedsLinux
}

// StartAttached needs Linux.
func (r *Runner) StartAttached(context.Context, string, RunOptions) (api.ExitStatus, error) {
	return api.ExitStatus{}, errNeedsLinux
}

// Create needs Linux.
func (r *Runner) Create(context.Context, RunOptions) (string, error) { return "", errNeedsLinux }

// Run needs Linux.
func (r *Runner) Run(context.Context, RunOptions) (api.ExitStatus, error) {
	return api.ExitStatus{}, api.Errorf(api.KindUnsupported, "run a container: sandboxes need Linux: use a Linux host")
}

func killProcess(int) error {
	return api.Errorf(api.KindUnsupported, "kill a sandbox: sandboxes need Linux")
}

// Attach needs Linux.
func (r *Runner) Attach(context.Context, string, AttachOptions) (api.ExitStatus, bool, error) {
	return api.ExitStatus{}, false, errNeedsLinux
}

// Exec needs Linux.
func (r *Runner) Exec(context.Context, string, ExecOptions) (control.ExecResult, error) {
	return control.ExecResult{}, errNeedsLinux
}

func updateHostCgroup(*state.Record, control.Limits) error { return nil }

// StartTaskSupervisor needs Linux.
func (r *Runner) StartTaskSupervisor(context.Context, []string, TaskCreate) (int, error) {
	return 0, errNeedsLinux
}

// RunTask needs Linux.
func (r *Runner) RunTask(context.Context, []string, TaskCreate, bool) (api.ExitStatus, error) {
	return api.ExitStatus{}, errNeedsLinux
}

// ExecTask needs Linux.
func (r *Runner) ExecTask(context.Context, TaskExec) (api.ExitStatus, error) {
	return api.ExitStatus{}, errNeedsLinux
}

// ExecTaskDetached needs Linux.
func (r *Runner) ExecTaskDetached(context.Context, []string, TaskExec) (int, error) {
	return 0, errNeedsLinux
}

// UpdateTask needs Linux.
func (r *Runner) UpdateTask(context.Context, string, *specs.LinuxResources) error {
	return errNeedsLinux
}

// TaskPIDs needs Linux.
func (r *Runner) TaskPIDs(string) ([]int, error) { return nil, errNeedsLinux }

// TaskEvents needs Linux.
func (r *Runner) TaskEvents(context.Context, string, func()) error { return errNeedsLinux }

func (r *Runner) removeTaskCgroup(*state.Record) error { return nil }

func (r *Runner) poststop(context.Context, *state.Record) error { return nil }

func (r *Runner) leaveTask(context.Context, *state.Record) error { return nil }

func (r *Runner) orderTask(context.Context, *state.Record, *taskOrder) error { return errNeedsLinux }
