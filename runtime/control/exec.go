// SPDX-License-Identifier: Apache-2.0

// Additional processes, pauses and limits, as the client sees them.

package control

import (
	"context"
	"encoding/json"
	"fmt"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

const (
	// ExecIDBytes is the length of an exec's id on the streams socket: what
	// nobody guesses, and nobody has to clean up.
	ExecIDBytes = 32
	// MaxExecFiles bounds what is handed over with it: three streams, the
	// terminal's other side, a program, and those beyond the streams.
	MaxExecFiles = 5 + api.MaxExtraFDs
	// MaxExecArgsBytes bounds arguments and environment of an exec, as Linux
	// bounds those of execve.
	MaxExecArgsBytes = 2 << 20
)

// Exec is an additional process.
type Exec struct {
	// ID is ExecIDBytes long; the streams were sent under it.
	ID      string
	Process api.Process
	// Detach returns once the process runs.
	Detach bool
	// Program says that a program follows the streams.
	Program bool
}

// ExecResult is how an additional process ended, or that it goes on.
type ExecResult struct {
	PID     int
	Exit    api.ExitStatus
	Running bool
	// ContainerEnded says that it was not seen to end: its container did.
	ContainerEnded bool
}

// Exec runs an additional process and returns when it has ended or goes on
// alone. When ctx ends first, the process does too.
func (c *Client) Exec(ctx context.Context, container string, e *Exec) (ExecResult, error) {
	doc, err := json.Marshal(&e.Process)
	if err != nil {
		return ExecResult{}, fmt.Errorf("exec: encode the process: %w", err)
	}
	r, err := c.sandbox.Exec(ctx, &controlv1.ExecRequest{
		Container: container, Exec: e.ID, Process: doc, Detach: e.Detach, Program: e.Program,
	})
	if err != nil {
		return ExecResult{}, FromStatus(err)
	}
	res := ExecResult{
		PID: int(r.GetPid()), Running: r.GetRunning(),
		Exit: api.ExitStatus{Code: int(r.GetCode()), Signal: int(r.GetSignal()), OOMKilled: r.GetOomKilled()},
	}
	if res.Exit.Code < 0 || res.Exit.Code > 255 || res.Exit.Signal < 0 || res.Exit.Signal > 64 {
		return ExecResult{}, api.Errorf(api.KindInternal, "sandbox: exit status %d, signal %d is none", res.Exit.Code, res.Exit.Signal)
	}
	return res, nil
}

// ExecStarted returns the id that the guest gives an additional process, once it
// runs. The call that starts it may still be on its way.
func (c *Client) ExecStarted(ctx context.Context, container, exec string) (pid int, err error) {
	r, err := c.sandbox.ExecStarted(ctx, &controlv1.ExecStartedRequest{Container: container, Exec: exec})
	return int(r.GetPid()), FromStatus(err)
}

// SignalExec sends a signal to an additional process, or to the foreground
// process group of its terminal.
func (c *Client) SignalExec(ctx context.Context, container, exec string, signal int, target Target) error {
	_, err := c.sandbox.Signal(ctx, &controlv1.SignalRequest{
		Container: container, Signal: int32(signal), Target: controlv1.SignalRequest_Target(target), Exec: exec,
	})
	return FromStatus(err)
}

// ResizeExec sets the size of an additional process' terminal.
func (c *Client) ResizeExec(ctx context.Context, container, exec string, rows, columns uint16) error {
	_, err := c.sandbox.Resize(ctx, &controlv1.ResizeRequest{Container: container, Rows: uint32(rows), Columns: uint32(columns), Exec: exec})
	return FromStatus(err)
}

// Detach lets an additional process go on alone.
func (c *Client) Detach(ctx context.Context, container, exec string) error {
	_, err := c.sandbox.Detach(ctx, &controlv1.DetachRequest{Container: container, Exec: exec})
	return FromStatus(err)
}

// Pause stops every process of the guest.
func (c *Client) Pause(ctx context.Context, container string) error {
	_, err := c.sandbox.Pause(ctx, &controlv1.PauseRequest{Container: container})
	return FromStatus(err)
}

// Resume lets them go on.
func (c *Client) Resume(ctx context.Context, container string) error {
	_, err := c.sandbox.Resume(ctx, &controlv1.ResumeRequest{Container: container})
	return FromStatus(err)
}

// Limits are new limits; nil leaves one as it is, and zero removes it.
type Limits struct {
	MemoryBytes, CPUMillis, Pids *int64
}

// Update changes the sandbox's limits.
func (c *Client) Update(ctx context.Context, container string, l Limits) error {
	_, err := c.sandbox.Update(ctx, &controlv1.UpdateRequest{Container: container, MemoryBytes: l.MemoryBytes, CpuMillis: l.CPUMillis, Pids: l.Pids})
	return FromStatus(err)
}
