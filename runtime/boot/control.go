// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/metrics"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/usage"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// maxSignal is Linux' last real-time signal.
const maxSignal = 64

// serveControl starts the control server on the donated sockets. When the
// launcher's connection ends, so does the process: a sandbox never outlives
// whoever answers for it.
func (sb *sandbox) serveControl() error {
	server, err := control.NewServer(&service{sb})
	if err != nil {
		return err
	}
	conn, err := newFDConn(int(sb.spec.ControlFD))
	if err != nil {
		return err
	}
	if fd := sb.spec.ListenFD; fd != api.NoFD {
		l, err := newFDListener(int(fd))
		if err != nil {
			return err
		}
		go func() {
			if err := server.ServeListener(context.Background(), l); err != nil {
				log.Warningf("control socket: %v", err)
			}
		}()
	}
	go func() {
		if err := server.ServeConn(context.Background(), conn); err != nil {
			log.Warningf("control channel: %v", err)
		}
		os.Exit(0)
	}()
	return nil
}

// service answers the control channel's calls.
type service struct {
	sb *sandbox
}

// running returns a container and its first process once they run.
func (s *service) running(id string) (*container, *kernel.ThreadGroup, error) {
	c, err := s.sb.container(id)
	if err != nil {
		return nil, nil, err
	}
	s.sb.mu.Lock()
	defer s.sb.mu.Unlock()
	if c.init == nil {
		return nil, nil, errNotStarted
	}
	return c, c.init, nil
}

// created returns a container that runs, or could be started.
func (s *service) created(id string) (*container, error) {
	c, err := s.sb.container(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.createdCh:
	default:
		return nil, errNotStarted
	}
	s.sb.mu.Lock()
	defer s.sb.mu.Unlock()
	return c, c.err
}

// joinable returns a container that an additional process can be in, one that could be
// started too, and its first process.
func (s *service) joinable(id string) (*container, *kernel.ThreadGroup, error) {
	c, err := s.created(id)
	if err != nil {
		return nil, nil, err
	}
	first, err := s.sb.makeProcess(c)
	return c, first, err
}

// WaitStarted implements controlv1.SandboxService.
func (s *service) WaitStarted(ctx context.Context, req *controlv1.WaitStartedRequest) (*controlv1.WaitStartedResponse, error) {
	c, err := s.sb.container(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if err := s.sb.await(ctx, c, c.startedCh); err != nil {
		return nil, err
	}
	return &controlv1.WaitStartedResponse{Pid: 1, Lockdown: s.sb.layers, Phases: s.phases()}, nil
}

// phases is the boot report so far.
func (s *service) phases() []*controlv1.BootPhase {
	var list []*controlv1.BootPhase
	s.sb.timeline.each(func(name string, nanos int64) {
		list = append(list, &controlv1.BootPhase{Name: name, AtNanos: nanos})
	})
	return list
}

// Wait implements controlv1.SandboxService.
func (s *service) Wait(ctx context.Context, req *controlv1.WaitRequest) (*controlv1.WaitResponse, error) {
	c, err := s.sb.container(req.GetContainer())
	if err != nil {
		return nil, err
	}
	select {
	case <-c.exitedCh:
	case <-ctx.Done():
		if req.GetOwner() {
			s.abandoned(c)
		}
		return nil, ctx.Err()
	}
	s.sb.mu.Lock()
	exit := c.exit
	s.sb.mu.Unlock()
	return &controlv1.WaitResponse{
		Code:      int32(exit.Code),
		Signal:    int32(exit.Signal),
		OomKilled: exit.OOMKilled,
		At:        timestamppb.New(exit.At),
	}, nil
}

// abandoned ends a further container whose owner has gone: nobody is left to delete
// it for who made it. The first ends with the sandbox, which ends with its launcher.
func (s *service) abandoned(c *container) {
	if c == s.sb.first {
		return
	}
	if s.sb.claim(c) == nil {
		s.sb.discard(c)
		return
	}
	<-c.startedCh
	// It may be on its way out.
	_, _ = s.Signal(context.Background(), &controlv1.SignalRequest{
		Container: c.spec.ID, Signal: int32(linux.SIGKILL), Target: controlv1.SignalRequest_ALL,
	})
}

// Signal implements controlv1.SandboxService.
func (s *service) Signal(_ context.Context, req *controlv1.SignalRequest) (*controlv1.SignalResponse, error) {
	n := req.GetSignal()
	if n < 0 || n > maxSignal {
		return nil, api.Errorf(api.KindInvalid, "signal %d: want 0 to %d", n, maxSignal)
	}
	info := &linux.SignalInfo{Signo: n}
	if id := req.GetExec(); id != "" {
		err := s.sb.execs.with(id, func(e *execution) error { return s.sb.signalExec(e, req.GetTarget(), info) })
		if linuxerr.Equals(linuxerr.ESRCH, err) {
			err = api.Errorf(api.KindState, "send signal %d: the process has ended", n)
		}
		return &controlv1.SignalResponse{}, err
	}
	c, tg, err := s.running(req.GetContainer())
	if err != nil {
		return nil, err
	}
	switch req.GetTarget() {
	case controlv1.SignalRequest_INIT:
		err = s.sb.k.SendExternalSignalThreadGroup(tg, info)
	case controlv1.SignalRequest_FOREGROUND:
		err = s.sb.signalForeground(c.tty, tg, info)
	case controlv1.SignalRequest_ALL:
		if n == int32(linux.SIGKILL) {
			err = s.sb.killAll(c, info)
			break
		}
		// Stopped, no process can fork out of the signal's way.
		var stopped stops
		if serr := s.sb.stopContainer(c, &stopped); serr != nil {
			log.Warningf("signal %d to all: %v", n, serr)
		}
		err = s.sb.k.SendContainerSignal(c.spec.ID, info)
		stopped.release()
	default:
		err = api.Errorf(api.KindInvalid, "unknown signal target %d", req.GetTarget())
	}
	if linuxerr.Equals(linuxerr.ESRCH, err) {
		// It has ended under the call; its end is about to be told.
		return nil, api.Errorf(api.KindState, "send signal %d to container %s: its process has ended", n, c.spec.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("send signal %d to container %s: %w", n, c.spec.ID, err)
	}
	return &controlv1.SignalResponse{}, nil
}

// signalExec signals an additional process, or its terminal's foreground.
func (sb *sandbox) signalExec(e *execution, target controlv1.SignalRequest_Target, info *linux.SignalInfo) error {
	if target != controlv1.SignalRequest_FOREGROUND {
		return sb.k.SendExternalSignalThreadGroup(e.tg, info)
	}
	if pg := e.tg.ProcessGroup(); e.terminal == nil && pg != nil {
		e.ending.Store(true)
		return sb.k.SendExternalSignalProcessGroup(pg, info)
	}
	return sb.signalForeground(e.tty(), e.tg, info)
}

// signalForeground signals the foreground process group of a terminal, or the
// process when there is none.
func (sb *sandbox) signalForeground(tty *host.TTYFileDescription, tg *kernel.ThreadGroup, info *linux.SignalInfo) error {
	if tty != nil {
		if owner := tty.ThreadGroup(); owner != nil {
			if pg, err := owner.ForegroundProcessGroup(tty.TTY()); err == nil && pg != nil {
				return sb.k.SendExternalSignalProcessGroup(pg, info)
			}
		}
	}
	return sb.k.SendExternalSignalThreadGroup(tg, info)
}

// Resize implements controlv1.SandboxService.
func (s *service) Resize(_ context.Context, req *controlv1.ResizeRequest) (*controlv1.ResizeResponse, error) {
	if id := req.GetExec(); id != "" {
		return &controlv1.ResizeResponse{}, s.sb.execs.with(id, func(e *execution) error {
			if err := e.resize(req.GetRows(), req.GetColumns()); err != nil {
				return err
			}
			return s.sb.signalForeground(e.tty(), e.tg, &linux.SignalInfo{Signo: int32(linux.SIGWINCH)})
		})
	}
	c, tg, err := s.running(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if c.tty == nil {
		return nil, api.Errorf(api.KindState, "container %s has no terminal", c.spec.ID)
	}
	if req.GetRows() > 1<<16-1 || req.GetColumns() > 1<<16-1 {
		return nil, api.Errorf(api.KindInvalid, "terminal size %d×%d is out of range", req.GetRows(), req.GetColumns())
	}
	size := unix.Winsize{Row: uint16(req.GetRows()), Col: uint16(req.GetColumns())}
	if err := unix.IoctlSetWinsize(int(c.spec.Process.StdinFD), unix.TIOCSWINSZ, &size); err != nil {
		return nil, fmt.Errorf("resize terminal of container %s: %w", c.spec.ID, err)
	}
	if err := s.sb.signalForeground(c.tty, tg, &linux.SignalInfo{Signo: int32(linux.SIGWINCH)}); err != nil {
		return nil, fmt.Errorf("tell container %s its terminal's size: %w", c.spec.ID, err)
	}
	return &controlv1.ResizeResponse{}, nil
}

// Stats implements controlv1.SandboxService.
func (s *service) Stats(_ context.Context, req *controlv1.StatsRequest) (*controlv1.StatsResponse, error) {
	c, err := s.created(req.GetContainer())
	if err != nil {
		return nil, err
	}
	sb := s.sb
	if c != sb.first {
		return sb.containerStats(c), nil
	}
	used := sb.chargedBytes()
	cpu := sb.k.CPUStats()
	tasks := 0
	for _, tg := range sb.k.RootPIDNamespace().ThreadGroups() {
		tasks += tg.Count()
	}
	received, sent := sb.networkBytes()
	return &controlv1.StatsResponse{
		NetworkReceivedBytes: received, NetworkSentBytes: sent,
		MemoryBytes:       used,
		MemoryLimitBytes:  sb.memory.limit.Load(),
		MemoryPeakBytes:   max(used, sb.memory.peak.Load()),
		CpuUserNanos:      uint64(cpu.UserTime),
		CpuSystemNanos:    uint64(cpu.SysTime),
		CpuThrottledNanos: sb.cpu.throttledNanos.Load(),
		Pids:              uint64(tasks),
		PidsLimit:         sb.pids.Load(),
		OomKills:          sb.memory.kills.Load(),
		SentryHeapBytes:   heapBytes(),
	}, nil
}

// networkBytes is what the guest's network interfaces have carried.
func (sb *sandbox) networkBytes() (received, sent uint64) {
	netns := sb.k.RootNetworkNamespace()
	if netns == nil || netns.Stack() == nil {
		return 0, 0
	}
	for _, i := range netns.Stack().Interfaces() {
		var st inet.StatDev
		if i.Flags&linux.IFF_LOOPBACK != 0 || netns.Stack().Statistics(&st, i.Name) != nil {
			continue
		}
		received += st[0]
		sent += st[8]
	}
	return received, sent
}

// heapBytes is the Sentry's own live and not yet collected heap.
func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// Processes implements controlv1.SandboxService.
func (s *service) Processes(_ context.Context, req *controlv1.ProcessesRequest) (*controlv1.ProcessesResponse, error) {
	if _, err := s.created(req.GetContainer()); err != nil {
		return nil, err
	}
	pidns := s.sb.k.RootPIDNamespace()
	resp := &controlv1.ProcessesResponse{}
	for _, tg := range pidns.ThreadGroups() {
		leader := tg.Leader()
		pid := pidns.IDOfThreadGroup(tg)
		if leader == nil || pid == 0 || leader.ContainerID() != req.GetContainer() {
			continue
		}
		p := &controlv1.Process{
			Pid:            int32(pid),
			Uid:            uint32(leader.Credentials().EffectiveKUID),
			Command:        leader.Name(),
			State:          leader.StateStatus()[:1],
			StartedAtNanos: leader.StartTime().Nanoseconds(),
			Args:           commandLine(leader),
		}
		p.ResidentBytes, p.VirtualBytes = memoryBytes(tg)
		p.ResidentPermille = uint32(min(1000, p.ResidentBytes/max(1, usage.MaximumTotalMemoryBytes/1000)))
		stats := tg.CPUStats()
		p.CpuNanos = uint64(stats.UserTime + stats.SysTime)
		if parent := leader.Parent(); parent != nil {
			p.Ppid = int32(pidns.IDOfThreadGroup(parent.ThreadGroup()))
		}
		if tty := tg.TTY(); tty != nil {
			p.Tty = fmt.Sprintf("pts/%d", tty.Index())
		}
		resp.Processes = append(resp.Processes, p)
	}
	return resp, nil
}

// commandLine is a process' command line, empty where it cannot be read.
func commandLine(t *kernel.Task) []string {
	var m *mm.MemoryManager
	t.WithMuLocked(func(t *kernel.Task) {
		if m = t.MemoryManager(); m != nil && !m.IncUsers() {
			m = nil
		}
	})
	if m == nil {
		return nil
	}
	ctx := t.Kernel().SupervisorContext()
	defer m.DecUsers(ctx)
	var buf bytes.Buffer
	if err := proc.GetMetadata(ctx, m, &buf, proc.Cmdline); err != nil || buf.Len() == 0 {
		return nil
	}
	line := buf.Bytes()[:min(buf.Len(), maxCommandLineBytes)]
	return strings.Split(strings.ToValidUTF8(strings.TrimRight(string(line), "\x00"), "\uFFFD"), "\x00")
}

// maxCommandLineBytes bounds a command line in a list; a guest can make it as
// long as its memory.
const maxCommandLineBytes = 4 << 10

// Shutdown implements controlv1.SandboxService.
func (s *service) Shutdown(context.Context, *controlv1.ShutdownRequest) (*controlv1.ShutdownResponse, error) {
	s.sb.mu.Lock()
	runs := s.sb.first.init != nil
	s.sb.mu.Unlock()
	if runs {
		s.sb.k.Kill(linux.WaitStatusTerminationSignal(linux.SIGKILL))
	}
	return &controlv1.ShutdownResponse{}, nil
}
