// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/containerd/ttrpc"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// Client calls one sandbox. It is safe for concurrent use.
type Client struct {
	conn    *ttrpc.Client
	sandbox controlv1.SandboxService
	closed  chan struct{}
}

// NewClient speaks over conn and owns it from now on.
func NewClient(conn net.Conn) *Client {
	c := &Client{closed: make(chan struct{})}
	c.conn = ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { close(c.closed) }))
	c.sandbox = controlv1.NewSandboxClient(c.conn)
	return c
}

// Close ends the connection. On the launcher's own channel this ends the
// sandbox.
func (c *Client) Close() error { return c.conn.Close() }

// Closed is closed once the connection has ended, by either side.
func (c *Client) Closed() <-chan struct{} { return c.closed }

// WaitStarted returns once the container's first process runs, or with the
// error that kept it from running.
func (c *Client) WaitStarted(ctx context.Context, container string) (Started, error) {
	r, err := c.sandbox.WaitStarted(ctx, &controlv1.WaitStartedRequest{Container: container})
	if err != nil {
		return Started{}, FromStatus(err)
	}
	s := report(r.GetPhases(), r.GetLockdown())
	s.PID = int(r.GetPid())
	return s, nil
}

// Wait returns when the container's first process has ended.
func (c *Client) Wait(ctx context.Context, container string) (api.ExitStatus, error) {
	return c.wait(ctx, &controlv1.WaitRequest{Container: container})
}

// Own is Wait of who answers for the container: it is killed when this client's
// connection ends before it does.
func (c *Client) Own(ctx context.Context, container string) (api.ExitStatus, error) {
	return c.wait(ctx, &controlv1.WaitRequest{Container: container, Owner: true})
}

func (c *Client) wait(ctx context.Context, req *controlv1.WaitRequest) (api.ExitStatus, error) {
	r, err := c.sandbox.Wait(ctx, req)
	if err != nil {
		return api.ExitStatus{}, FromStatus(err)
	}
	e := api.ExitStatus{
		Code:      int(r.GetCode()),
		Signal:    int(r.GetSignal()),
		OOMKilled: r.GetOomKilled(),
		At:        time.Now().UTC(),
	}
	if at := r.GetAt(); at.IsValid() {
		e.At = at.AsTime()
	}
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
		return api.ExitStatus{}, api.Errorf(api.KindInternal,
			"sandbox: exit status %d, signal %d is none", e.Code, e.Signal)
	}
	return e, nil
}

// Signal sends signal number signal to the target.
func (c *Client) Signal(ctx context.Context, container string, signal int, target Target) error {
	_, err := c.sandbox.Signal(ctx, &controlv1.SignalRequest{
		Container: container,
		Signal:    int32(signal),
		Target:    controlv1.SignalRequest_Target(target),
	})
	return FromStatus(err)
}

// Resize sets the size of the container's terminal and tells its foreground
// process group.
func (c *Client) Resize(ctx context.Context, container string, rows, columns uint16) error {
	_, err := c.sandbox.Resize(ctx, &controlv1.ResizeRequest{
		Container: container,
		Rows:      uint32(rows),
		Columns:   uint32(columns),
	})
	return FromStatus(err)
}

// Stats returns what the sandbox uses now.
func (c *Client) Stats(ctx context.Context, container string) (Stats, error) {
	r, err := c.sandbox.Stats(ctx, &controlv1.StatsRequest{Container: container})
	if err != nil {
		return Stats{}, FromStatus(err)
	}
	return Stats{
		MemoryBytes:      r.GetMemoryBytes(),
		MemoryLimitBytes: r.GetMemoryLimitBytes(),
		MemoryPeakBytes:  r.GetMemoryPeakBytes(),
		CPUUser:          time.Duration(r.GetCpuUserNanos()),
		CPUSystem:        time.Duration(r.GetCpuSystemNanos()),
		CPUThrottled:     time.Duration(r.GetCpuThrottledNanos()),
		Pids:             r.GetPids(),
		PidsLimit:        r.GetPidsLimit(),
		OOMKills:         r.GetOomKills(),
		SentryHeapBytes:  r.GetSentryHeapBytes(),
		NetworkReceived:  r.GetNetworkReceivedBytes(),
		NetworkSent:      r.GetNetworkSentBytes(),
	}, nil
}

// Processes lists the guest's processes by their numbers.
func (c *Client) Processes(ctx context.Context, container string) ([]Process, error) {
	r, err := c.sandbox.Processes(ctx, &controlv1.ProcessesRequest{Container: container})
	if err != nil {
		return nil, FromStatus(err)
	}
	if n := len(r.GetProcesses()); n > maxProcesses {
		return nil, api.Errorf(api.KindLimit, "sandbox: %d processes listed, at most %d are shown", n, maxProcesses)
	}
	list := make([]Process, 0, len(r.GetProcesses()))
	for _, p := range r.GetProcesses() {
		list = append(list, Process{
			PID:              int(p.GetPid()),
			PPID:             int(p.GetPpid()),
			UID:              p.GetUid(),
			Command:          Clean(p.GetCommand(), maxCommandBytes),
			ResidentBytes:    p.GetResidentBytes(),
			ResidentPermille: p.GetResidentPermille(),
			VirtualBytes:     p.GetVirtualBytes(),
			State:            cleanState(p.GetState()),
			StartedAt:        time.Unix(0, p.GetStartedAtNanos()),
			CPU:              time.Duration(p.GetCpuNanos()),
			TTY:              cleanName(p.GetTty()),
			Args:             cleanArgs(p.GetArgs()),
		})
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list, nil
}

// Shutdown ends the sandbox.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.sandbox.Shutdown(ctx, &controlv1.ShutdownRequest{})
	return FromStatus(err)
}

// cleanState is a process' state, if it may be one.
func cleanState(s string) string {
	if len(s) != 1 || !strings.Contains("RSDTtZXI", s) {
		return "?"
	}
	return s
}

// cleanArgs bounds a command line as a whole.
func cleanArgs(args []string) []string {
	var clean []string
	left := maxCommandBytes
	for _, a := range args {
		if left <= 0 {
			break
		}
		a = Clean(a, left)
		left -= len(a) + 1
		clean = append(clean, a)
	}
	return clean
}

func cleanName(s string) string { return Clean(s, maxNameBytes) }
