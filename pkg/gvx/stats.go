// SPDX-License-Identifier: Apache-2.0

// Questions to the sandbox itself, over its control channel.

package gvx

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
)

// maxSocketPathBytes is what fits into a socket address everywhere.
const maxSocketPathBytes = 100

// Stats is what a sandbox uses.
type Stats struct {
	// MemoryBytes is what guest processes hold, MemoryPeakBytes the most so
	// far, MemoryLimitBytes the limit or 0.
	MemoryBytes, MemoryPeakBytes, MemoryLimitBytes uint64
	// CPUUser and CPUSystem are processor time of the guest, CPUThrottled how
	// long its limit held it back.
	CPUUser, CPUSystem, CPUThrottled time.Duration
	// Pids is how many guest tasks there are.
	Pids uint64
	// OOMKills is how many processes the memory limit killed.
	OOMKills uint64
	// KernelHeapBytes is what the guest's kernel itself has allocated.
	KernelHeapBytes uint64
}

// Stats returns what the sandbox uses now.
func (sb *Sandbox) Stats(ctx context.Context) (Stats, error) {
	const op = "ask sandbox for statistics"
	c, err := sb.dial(ctx, op)
	if err != nil {
		return Stats{}, err
	}
	defer c.Close()
	s, err := c.Stats(ctx, sb.id)
	if err != nil {
		return Stats{}, sb.callError(ctx, op, err)
	}
	return Stats{
		MemoryBytes: s.MemoryBytes, MemoryPeakBytes: s.MemoryPeakBytes, MemoryLimitBytes: s.MemoryLimitBytes,
		CPUUser: s.CPUUser, CPUSystem: s.CPUSystem, CPUThrottled: s.CPUThrottled,
		Pids: s.Pids, OOMKills: s.OOMKills, KernelHeapBytes: s.SentryHeapBytes,
	}, nil
}

// GuestProcess is a process in a sandbox.
type GuestProcess struct {
	// PID and PPID are numbers as the guest sees them.
	PID, PPID int
	UID       uint32
	// Command is its name.
	Command       string
	ResidentBytes uint64
	StartedAt     time.Time
	CPU           time.Duration
}

// Processes lists the guest's processes.
func (sb *Sandbox) Processes(ctx context.Context) ([]GuestProcess, error) {
	const op = "list processes of sandbox"
	c, err := sb.dial(ctx, op)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := c.Processes(ctx, sb.id)
	if err != nil {
		return nil, sb.callError(ctx, op, err)
	}
	processes := make([]GuestProcess, 0, len(list))
	for _, p := range list {
		processes = append(processes, GuestProcess{PID: p.PID, PPID: p.PPID, UID: p.UID, Command: p.Command,
			ResidentBytes: p.ResidentBytes, StartedAt: p.StartedAt, CPU: p.CPU})
	}
	return processes, nil
}

// dial connects to the sandbox; the caller closes the client.
func (sb *Sandbox) dial(ctx context.Context, op string) (*control.Client, error) {
	if err := sb.alive(op); err != nil {
		return nil, err
	}
	path := sb.control
	if len(path) > maxSocketPathBytes {
		// The directory by a descriptor, which makes a short name for it.
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, errorf(KindState, op, "%w", err)
		}
		defer dir.Close()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, sb.callError(ctx, op, err)
	}
	return control.NewClient(conn), nil
}

// callError classifies the error of a call to the sandbox.
func (sb *Sandbox) callError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return contextError(op, ctx)
	}
	if dead := sb.alive(op); dead != nil {
		return dead
	}
	kind, ok := kinds[api.KindOf(err)]
	if !ok {
		kind = KindInternal
	}
	return &Error{Kind: kind, Op: op, Err: err}
}
