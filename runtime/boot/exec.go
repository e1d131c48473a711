// SPDX-License-Identifier: Apache-2.0

// Additional processes of a running container: `rungv exec`.

package boot

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

const (
	// signalBase is what a shell adds to a signal's number to make an exit code.
	signalBase = 128
	// maxExecs bounds additional processes: each that has a client holds
	// descriptors of the sandbox.
	maxExecs = 1024
	// killRounds bounds how often what a dead client's process began is looked
	// for again: between two looks something may have forked.
	killRounds = 20
	killPause  = 5 * time.Millisecond
)

// execution is one additional process.
type execution struct {
	tg      *kernel.ThreadGroup
	session *kernel.Session
	pid     kernel.ThreadID

	// terminal is the process' terminal, nil without one; resize sets its
	// size through replica, which terminal keeps open.
	terminal *vfs.FileDescription
	replica  int
	// primary is the other side, for when the client has left; -1 without.
	primary int

	detachOnce sync.Once
	detached   chan struct{}
	// ending says that the client was told to end, and has passed it on: what
	// is left of the process' session ends with the process.
	ending atomic.Bool
}

// execs are the additional processes that run, by the ids of their clients. One
// that is nil is being made.
type execs struct {
	// mu keeps a process' terminal open for who uses it. It comes before all
	// locks of gVisor's.
	mu   sync.Mutex
	byID map[string]*execution
	// changed is closed, and made anew, when byID changes.
	changed chan struct{}
}

// enter sets what an id stands for, and tells who waits for it.
//
// Preconditions: x.mu is locked.
func (x *execs) enter(id string, e *execution) {
	if x.byID == nil {
		x.byID = make(map[string]*execution)
	}
	x.byID[id] = e
	x.tell()
}

// tell wakes who waits for a change.
//
// Preconditions: x.mu is locked.
func (x *execs) tell() {
	if x.changed != nil {
		close(x.changed)
		x.changed = nil
	}
}

// await waits until the process with an id runs. One that is not known is about
// to be: its client asks while another call of its starts it. One that is being made
// may take its time, as its program does that is read from somewhere slow.
func (x *execs) await(ctx context.Context, id string) (*execution, error) {
	patience := time.NewTimer(streamsPatience)
	defer patience.Stop()
	for {
		x.mu.Lock()
		if e := x.byID[id]; e != nil {
			x.mu.Unlock()
			return e, nil
		}
		if x.changed == nil {
			x.changed = make(chan struct{})
		}
		changed := x.changed
		late := patience.C
		if _, made := x.byID[id]; made {
			late = nil
		}
		x.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return nil, api.Errorf(api.KindState, "exec: no such process runs")
		}
	}
}

// ExecStarted implements controlv1.SandboxService.
func (s *service) ExecStarted(ctx context.Context, req *controlv1.ExecStartedRequest) (*controlv1.ExecStartedResponse, error) {
	e, err := s.sb.execs.await(ctx, req.GetExec())
	if err != nil {
		return nil, err
	}
	return &controlv1.ExecStartedResponse{Pid: int32(e.pid)}, nil
}

// reserve takes an id, and a place, for a process that is about to be made.
func (x *execs) reserve(id string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, taken := x.byID[id]; taken {
		return api.Errorf(api.KindExists, "exec: its id is in use")
	}
	if len(x.byID) >= maxExecs {
		return api.Errorf(api.KindLimit, "exec: %d additional processes already run", len(x.byID))
	}
	x.enter(id, nil)
	return nil
}

// forget gives an id back.
func (x *execs) forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
	x.tell()
}

// with calls f with a running process.
func (x *execs) with(id string, f func(*execution) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil {
		return f(e)
	}
	return api.Errorf(api.KindState, "exec: the process has ended")
}

// Exec implements controlv1.SandboxService.
func (s *service) Exec(ctx context.Context, req *controlv1.ExecRequest) (_ *controlv1.ExecResponse, err error) {
	defer func() {
		if err != nil {
			s.sb.streams.drop(req.GetExec(), time.Time{})
		}
	}()
	c, init, err := s.joinable(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if s.sb.pause.isPaused(c) {
		return nil, api.Errorf(api.KindState, "container %s is paused, unpause the container before exec", req.GetContainer())
	}
	p, err := execProcess(req)
	if err != nil {
		return nil, err
	}
	id := req.GetExec()
	if err := s.sb.execs.reserve(id); err != nil {
		return nil, err
	}
	kills := s.sb.memoryKills(c)
	e, err := s.sb.startExec(ctx, c, init, p, req)
	if err != nil {
		s.sb.execs.forget(id)
		return nil, err
	}
	resp := &controlv1.ExecResponse{Pid: int32(e.pid)}
	exited := make(chan struct{})
	go func() {
		e.tg.WaitExited()
		s.sb.execs.forget(id)
		e.release()
		close(exited)
	}()
	if req.GetDetach() {
		e.detach()
	}
	select {
	case <-exited:
		if e.ending.Load() {
			s.sb.killExec(e)
		}
		status := exitStatus(e.tg)
		resp.Code, resp.Signal = int32(status.Code), int32(status.Signal)
		// A shell tells of what was killed in it by the same code.
		resp.OomKilled = status.Code == signalBase+int(linux.SIGKILL) && s.sb.memoryKills(c) > kills
	case <-e.detached:
		resp.Running = true
	case <-ctx.Done():
		s.sb.killExec(e)
		return nil, ctx.Err()
	}
	return resp, nil
}

// execProcess checks a request.
func execProcess(req *controlv1.ExecRequest) (*api.Process, error) {
	p := &api.Process{}
	if err := json.Unmarshal(req.GetProcess(), p); err != nil {
		return nil, api.Errorf(api.KindInvalid, "exec: decode the process: %w", err)
	}
	p.StdinFD, p.StdoutFD, p.StderrFD = api.NoFD, api.NoFD, api.NoFD
	for i := range p.ExtraFDs {
		p.ExtraFDs[i] = api.NoFD
	}
	if len(req.GetExec()) != control.ExecIDBytes {
		return nil, api.Errorf(api.KindInvalid, "exec: an id of %d bytes, want %d", len(req.GetExec()), control.ExecIDBytes)
	}
	size := 0
	for _, list := range [][]string{p.Args, p.Env} {
		for _, a := range list {
			size += len(a) + 1
		}
	}
	if size > control.MaxExecArgsBytes {
		return nil, api.Errorf(api.KindLimit, "exec: arguments and environment of %d bytes, at most %d", size, control.MaxExecArgsBytes)
	}
	return p, p.Validate()
}

// startExec makes and starts the process.
func (sb *sandbox) startExec(ctx context.Context, c *container, init *kernel.ThreadGroup, p *api.Process, req *controlv1.ExecRequest) (*execution, error) {
	e := &execution{primary: -1, detached: make(chan struct{})}
	x := &container{spec: &api.Container{ID: c.spec.ID, Process: *p, InitFD: api.NoFD, Explicit: c.spec.Explicit, Mounts: c.spec.Mounts}, userns: c.userns}
	program := -1
	if !req.GetDetach() || p.Terminal {
		set, err := sb.streams.takeStreams(ctx, req.GetExec())
		if err != nil {
			set.close()
			return nil, err
		}
		if program, err = assignStreams(&x.spec.Process, set, e, req.GetProgram()); err != nil {
			set.close()
			return nil, err
		}
	}
	e.replica = int(x.spec.Process.StdinFD)
	if err := sb.createExec(x, init, e, program); err != nil {
		e.release()
		return nil, err
	}
	sb.execs.mu.Lock()
	defer sb.execs.mu.Unlock()
	sb.execs.enter(req.GetExec(), e)
	if e.terminal != nil && p.Rows > 0 {
		_ = e.resize(uint32(p.Rows), uint32(p.Columns))
	}
	sb.k.StartProcess(e.tg)
	return e, nil
}

// assignStreams gives a process its descriptors: one terminal and its other
// side, unless somebody else reads that, or three pipes; then the program, if
// there is one; then those that the process has from 3 on.
func assignStreams(p *api.Process, set streamSet, e *execution, withProgram bool) (program int, err error) {
	want := 3
	extra := len(p.ExtraFDs)
	shared := p.Terminal && len(set.fds) == 1+extra
	switch {
	case shared:
		want = 1
	case p.Terminal:
		want = 2
	}
	if withProgram {
		want++
	}
	if len(set.fds) != want+extra {
		return -1, api.Errorf(api.KindInvalid, "exec: %d descriptors arrived, want %d", len(set.fds), want+extra)
	}
	for i := range p.ExtraFDs {
		p.ExtraFDs[i] = api.FD(set.fds[want+i])
	}
	program = -1
	if withProgram {
		program = set.fds[want-1]
	}
	p.StdinFD = api.FD(set.fds[0])
	switch {
	case shared:
		p.StdoutFD, p.StderrFD = p.StdinFD, p.StdinFD
	case p.Terminal:
		p.StdoutFD, p.StderrFD, e.primary = p.StdinFD, p.StdinFD, set.fds[1]
	default:
		p.StdoutFD, p.StderrFD = api.FD(set.fds[1]), api.FD(set.fds[2])
	}
	return program, nil
}

// createExec makes the process, in the namespaces of the container's first one.
// It owns the descriptors of x and program from here on.
func (sb *sandbox) createExec(x *container, init *kernel.ThreadGroup, e *execution, program int) (err error) {
	p := &x.spec.Process
	owned := ownedFDs(p, program)
	defer owned.close()
	leader := init.Leader()
	mns := leader.GetMountNamespace()
	if mns == nil {
		return errNotStarted // It is on its way out.
	}
	creds := containerRoot(x.userns)
	args := sb.processArgs(x.spec, creds)
	args.MountNamespace, args.PIDNamespace = mns, leader.PIDNamespace()
	args.InitialCgroupV2, args.CgroupNamespace = leader.Cgroup2(), leader.CgroupNamespace()
	if uts, ipc := leader.UTSNamespace(), leader.IPCNamespace(); uts != nil && ipc != nil {
		args.UTSNamespace, args.IPCNamespace = uts, ipc
	}
	args.Origin = kernel.OriginExec
	ctx := args.NewContext(sb.k)
	given := false // CreateProcess takes the reference.
	defer func() {
		if !given {
			mns.DecRef(ctx)
		}
	}()
	m := &mounter{sb: sb, spec: x.spec, ctx: ctx, vfs: sb.k.VFS(), creds: creds, root: mns.Root(ctx), userns: x.userns}
	defer m.root.DecRef(ctx)
	x.args = args
	if err := sb.prepareExec(m, x, owned, program); err != nil {
		return err
	}
	defer x.args.FDTable.DecRef(ctx)
	if x.initFile != nil {
		defer x.initFile.DecRef(ctx)
	}
	given = true
	tg, pid, err := sb.k.CreateProcess(x.args)
	if err != nil {
		return startError(x.args.Argv[0], err)
	}
	x.confine(tg)
	e.tg, e.session = tg, tg.Session()
	// As its own namespace counts, which is what the user sees.
	if own := leader.PIDNamespace().IDOfThreadGroup(tg); own != 0 {
		pid = own
	}
	e.pid = pid
	if p.Terminal {
		e.terminal, _ = x.args.FDTable.Get(0)
	}
	return nil
}

// prepareExec resolves user, limits, environment, command and descriptors, and
// unlike the first process' makes no directory.
func (sb *sandbox) prepareExec(m *mounter, x *container, owned *fdOwner, program int) error {
	p := &x.spec.Process
	args := x.args
	acc, err := m.describeProcess(p, &args)
	if err != nil {
		return err
	}
	if x.confine, err = confinement(p); err != nil {
		return err
	}
	st, err := m.vfs.StatAt(m.ctx, m.creds, m.at(args.WorkingDirectory), &vfs.StatOptions{Mask: linux.STATX_TYPE})
	if err == nil && st.Mode&linux.S_IFMT != linux.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return api.Errorf(api.KindCommandNotFound, "exec: chdir to cwd (%q): %w", args.WorkingDirectory, err)
	}
	if program >= 0 {
		file, err := host.NewFD(m.ctx, sb.k.HostMount(), program, &host.NewFDOptions{Readonly: true, VirtualOwner: true})
		if err != nil {
			return fmt.Errorf("exec: import the client's program: %w", err)
		}
		owned.gave(program)
		x.initFile, args.File = file, file
	} else if args.Filename, err = m.resolveCommand(&args); err != nil {
		return err
	}
	x.args = args
	if p.StdinFD == api.NoFD {
		err = sb.nullStdio(m, x)
	} else {
		owned.gave(int(p.StdinFD), int(p.StdoutFD), int(p.StderrFD))
		for _, fd := range p.ExtraFDs {
			owned.gave(int(fd))
		}
		err = sb.importStdio(x, acc)
	}
	if err != nil && x.initFile != nil {
		x.initFile.DecRef(m.ctx)
	}
	return err
}

// nullStdio gives a detached process the guest's /dev/null.
func (sb *sandbox) nullStdio(m *mounter, x *container) error {
	// A guest that put a pipe there must not hold us up.
	null, err := m.vfs.OpenAt(m.ctx, m.creds, m.at("/dev/null"), &vfs.OpenOptions{Flags: linux.O_RDWR | linux.O_NONBLOCK})
	if err != nil {
		return fmt.Errorf("exec: open the container's /dev/null: %w", err)
	}
	defer null.DecRef(m.ctx)
	table := sb.k.NewFDTable()
	for fd := range int32(3) {
		if _, err := table.NewFDAt(m.ctx, fd, null, kernel.FDFlags{}); err != nil {
			table.DecRef(m.ctx)
			return fmt.Errorf("exec: standard streams: %w", err)
		}
	}
	blockingFDs(m.ctx, m.creds, table, firstExtraFD)
	x.args.FDTable = table
	return nil
}

// fdOwner closes descriptors that nobody else has taken over.
type fdOwner map[int]bool

func ownedFDs(p *api.Process, program int) *fdOwner {
	o := fdOwner{}
	for _, fd := range []int{int(p.StdinFD), int(p.StdoutFD), int(p.StderrFD), program} {
		if fd >= 0 {
			o[fd] = true
		}
	}
	for _, fd := range p.ExtraFDs {
		if fd >= 0 {
			o[int(fd)] = true
		}
	}
	return &o
}

func (o *fdOwner) gave(fds ...int) {
	for _, fd := range fds {
		delete(*o, fd)
	}
}

func (o *fdOwner) close() {
	for fd := range *o {
		unix.Close(fd)
	}
}

// exitStatus is how a process ended that has.
func exitStatus(tg *kernel.ThreadGroup) api.ExitStatus {
	status := tg.ExitStatus()
	if status.Signaled() {
		n := int(status.TerminationSignal())
		return api.ExitStatus{Code: signalBase + n, Signal: n}
	}
	return api.ExitStatus{Code: int(status.ExitStatus())}
}

// release closes what the execution holds, once nobody finds it any more.
func (e *execution) release() {
	if e.terminal != nil {
		e.terminal.DecRef(e.tg.Leader().Kernel().SupervisorContext())
	}
	e.detachOnce.Do(func() {
		if e.primary >= 0 {
			unix.Close(e.primary)
		}
	})
}

// detach lets the process go on without its client: what it writes to its
// terminal is thrown away.
func (e *execution) detach() {
	e.detachOnce.Do(func() {
		if e.primary >= 0 {
			f := os.NewFile(uintptr(e.primary), "terminal")
			go func() {
				defer f.Close()
				_, _ = io.Copy(io.Discard, f)
			}()
		}
		close(e.detached)
	})
}

// Detach implements controlv1.SandboxService.
func (s *service) Detach(_ context.Context, req *controlv1.DetachRequest) (*controlv1.DetachResponse, error) {
	return &controlv1.DetachResponse{}, s.sb.execs.with(req.GetExec(), func(e *execution) error {
		e.detach()
		return nil
	})
}

// resize sets the size of the process' terminal.
func (e *execution) resize(rows, columns uint32) error {
	if e.terminal == nil {
		return api.Errorf(api.KindState, "exec: the process has no terminal")
	}
	if rows > 1<<16-1 || columns > 1<<16-1 {
		return api.Errorf(api.KindInvalid, "terminal size %d×%d is out of range", rows, columns)
	}
	return unix.IoctlSetWinsize(e.replica, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)})
}

// tty is the process' terminal, nil without one.
func (e *execution) tty() *host.TTYFileDescription {
	if e.terminal == nil {
		return nil
	}
	tty, _ := e.terminal.Impl().(*host.TTYFileDescription)
	return tty
}

// killExec kills a process and whatever it began that has not parted from it:
// its session, and its descendants. What made itself a session of its own and
// whose parents have ended (a daemon) is left alone.
func (sb *sandbox) killExec(e *execution) {
	info := &linux.SignalInfo{Signo: int32(linux.SIGKILL)}
	for range killRounds {
		found := false
		for _, tg := range sb.k.RootPIDNamespace().ThreadGroups() {
			if e.began(tg) {
				found = true
				_ = sb.k.SendExternalSignalThreadGroup(tg, info)
			}
		}
		if !found {
			return
		}
		time.Sleep(killPause)
	}
}

// began reports whether tg lives and belongs to the execution.
func (e *execution) began(tg *kernel.ThreadGroup) bool {
	leader := tg.Leader()
	if leader == nil || leader.ExitState() != kernel.TaskExitNone && tg != e.tg && tg.Count() <= 1 {
		return false
	}
	if tg == e.tg || tg.Session() == e.session {
		return leader.ExitState() == kernel.TaskExitNone
	}
	for t := leader.Parent(); t != nil; t = t.Parent() {
		if t.ThreadGroup() == e.tg {
			return true
		}
	}
	return false
}
