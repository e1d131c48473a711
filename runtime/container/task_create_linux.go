// SPDX-License-Identifier: Apache-2.0

// From a bundle to a container whose first process could run.

package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	"z.gfire.dev/gvx/runtime/hooks"
	"z.gfire.dev/gvx/runtime/hostcgroup"
	"z.gfire.dev/gvx/runtime/launch"
	"z.gfire.dev/gvx/runtime/lockdown"
	"z.gfire.dev/gvx/runtime/netns"
	"z.gfire.dev/gvx/runtime/state"
)

// CreateTask makes a container of a bundle, up to the point where its first
// process could run. What fails leaves nothing. The errors are of the kinds that
// [api.KindOf] tells.
func (r *Runner) CreateTask(ctx context.Context, o TaskOptions) (*Task, error) {
	if lockdown.DetectGVisor() {
		return nil, errInsideGVisor
	}
	t := &Task{r: r, o: o, spec: o.Bundle.Spec, ended: make(chan struct{}), began: monotonicNanos()}
	if err := t.create(ctx); err != nil {
		t.undo()
		return nil, err
	}
	go t.watchCreated()
	return t, nil
}

// create is the way to a container that could be started.
func (t *Task) create(ctx context.Context) error {
	if err := hooks.Validate(t.spec.Hooks); err != nil {
		return err
	}
	var err error
	if t.log, err = launch.NewLog(t.r.Log); err != nil {
		return fmt.Errorf("make the sandbox's log: %w", err)
	}
	defer t.log.Donated()
	if err := t.enter(); err != nil {
		return err
	}
	if err := t.makeCgroup(); err != nil {
		return err
	}
	oci, err := t.convert()
	if err != nil {
		return err
	}
	files, err := t.open(oci)
	if err != nil {
		return err
	}
	if t.sandbox != nil {
		return t.join(ctx, oci, files)
	}
	return t.launch(ctx, oci, files)
}

// enter makes the container's record.
func (t *Task) enter() error {
	rec := state.Record{Task: &state.Task{
		Version: t.spec.Version, Bundle: t.o.Bundle.Dir, Annotations: maps.Clone(t.spec.Annotations), Systemd: t.o.Systemd,
		Poststop: hooks.Of(t.spec.Hooks, hooks.Poststop),
	}}
	if l := t.spec.Linux; l != nil {
		rec.Task.CgroupPath = l.CgroupsPath
	}
	if err := t.findSandbox(); err != nil {
		return err
	}
	if t.sandbox != nil {
		rec.Task.Sandbox = t.sandbox.id
	}
	h, err := t.r.State.Create(rec, t.o.ID)
	if api.KindOf(err) == api.KindExists {
		return api.Errorf(api.KindExists, "container with given ID already exists: %s", t.o.ID)
	}
	t.handle = h
	return err
}

// findSandbox finds the sandbox that the container is to join.
func (t *Task) findSandbox() error {
	if t.o.Sandbox != nil {
		t.sandbox = t.o.Sandbox.sandbox
		return nil
	}
	kind, id := convert.PodOf(t.spec)
	if kind != convert.PodContainer {
		return nil
	}
	rec, err := t.r.State.Get(id)
	if err != nil {
		return fmt.Errorf("join sandbox %s: %w", id, err)
	}
	c, err := t.r.Dial(rec)
	if err != nil {
		return fmt.Errorf("join sandbox %s: %w", id, err)
	}
	t.sandbox = &taskSandbox{control: c, id: rec.ID, dir: t.r.State.Dir(rec.ID), pid: rec.Sandbox.PID}
	return nil
}

// makeCgroup makes the host's cgroup and, where this process is the container's,
// moves it there.
func (t *Task) makeCgroup() error {
	var limits *specs.LinuxResources
	place := hostcgroup.Placement{ID: t.o.ID, Systemd: t.o.Systemd}
	if l := t.spec.Linux; l != nil {
		limits, place.Path = hostcgroup.ForSandbox(l.Resources), l.CgroupsPath
	}
	// Before it is made: whoever deletes the container finds it if this process is killed.
	if err := t.noteCgroup(hostcgroup.Planned(place)); err != nil {
		return err
	}
	group, err := hostcgroup.CreateContainer(place, limits)
	switch {
	case errors.Is(err, hostcgroup.ErrUnavailable) && (place.Path == "" || os.Geteuid() != 0):
		t.note("%v: the sandbox holds its limits by itself", err)
		return t.noteCgroup(nil)
	case err != nil:
		return err
	}
	t.group = group
	if t.o.Self {
		if t.seat, err = hostcgroup.FindSeat(); err != nil {
			return err
		}
		if err := group.Add(os.Getpid()); err != nil {
			return err
		}
	}
	return t.noteCgroup(group.Paths())
}

// noteCgroup enters where the host's cgroup is.
func (t *Task) noteCgroup(paths map[string]string) error {
	return t.handle.Update(func(rec *state.Record) error {
		task := *rec.Task
		task.Cgroup = paths
		rec.Task = &task
		return nil
	})
}

// convert finds out what the bundle means.
func (t *Task) convert() (*convert.OCI, error) {
	in := convert.OCIInput{
		ID: t.handle.ID(), Spec: t.spec, Dir: t.o.Bundle.Dir, ContainerOf: t.containerOf, SizeOf: sizeOf, Submounts: submounts,
		HostNetwork: t.o.HostNetwork,
	}
	in.HostName, _ = os.Hostname()
	err := t.o.Bundle.CheckNamespaces()
	if err != nil {
		return nil, err
	}
	if t.o.Rootfs == nil && !t.o.Idle {
		if in.Rootfs, err = t.o.Bundle.Rootfs(); err != nil {
			return nil, err
		}
	}
	if t.sandbox != nil {
		in.Joins = t.sandbox.id
	}
	oci, err := convert.FromOCI(in)
	if err != nil {
		return nil, err
	}
	oci.Container.Idle = t.o.Idle
	if in.Rootfs != "" {
		keepOptions(&oci.Container.Rootfs, in.Rootfs)
	}
	for _, w := range oci.Warnings {
		t.r.warnf("%s", w)
	}
	for _, n := range oci.Notes {
		t.note("%s", n)
	}
	t.view = viewOf(in.Rootfs, oci)
	return oci, t.handle.Update(func(rec *state.Record) error {
		task := *rec.Task
		task.Rootfs = in.Rootfs
		rec.Task, rec.Process, rec.Hostname = &task, oci.Container.Process, oci.Container.Hostname
		return nil
	})
}

// keepOptions gives a root the options of the host's mount that it is on, as a bind mount
// of runc's has them.
func keepOptions(root *api.Rootfs, dir string) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return // To open it tells why.
	}
	root.NoSUID, root.NoDev, root.NoExec = st.Flags&unix.ST_NOSUID != 0, st.Flags&unix.ST_NODEV != 0, st.Flags&unix.ST_NOEXEC != 0
}

// containerOf says which container of the sandbox has the namespace at a path: a
// path below /proc names the process that stands for a container. That of the sandbox
// stands for all that have none of their own, and its namespaces are the first one's:
// those of another may be gone with it.
func (t *Task) containerOf(kind specs.LinuxNamespaceType, path string) (string, bool) {
	var pid int
	var name string
	if n, err := fmt.Sscanf(path, "/proc/%d/ns/%s", &pid, &name); err != nil || n != 2 {
		return "", false
	}
	if t.sandbox != nil && pid == t.sandbox.pid {
		return t.sandbox.id, true
	}
	records, _ := t.r.State.List()
	for _, rec := range records {
		if rec.Launcher.PID == pid || rec.Sandbox.PID == pid {
			return rec.ID, t.sandbox != nil && (rec.ID == t.sandbox.id || rec.Task != nil && rec.Task.Sandbox == t.sandbox.id)
		}
	}
	return "", false
}

// sizeOf is the size of the file system that holds a path.
func sizeOf(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Blocks) * int64(st.Bsize)
}

// launch makes a sandbox for the container.
func (t *Task) launch(ctx context.Context, oci *convert.OCI, files *launch.ContainerFiles) error {
	t.own = true
	sb := &taskSandbox{id: t.handle.ID(), dir: t.handle.Dir(), log: t.log}
	t.sandbox = sb
	var err error
	if sb.netns, err = t.openNetns(oci.Network); err != nil {
		return err
	}
	if err := t.hooks(ctx, hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer); err != nil {
		return err
	}
	level := t.r.LogLevel
	if level == "" {
		level = defaultLogLevel
	}
	cores := max(1, min(runtime.NumCPU(), api.MaxCores))
	if oci.Cores > 0 {
		cores = min(cores, oci.Cores)
	}
	outer := lockdown.PlanOuter(sandboxUID())
	if !t.o.Self && sb.netns != nil && oci.Network.Kind == convert.NetworkOfItsOwn {
		// Engines find a new namespace by the number of the process that they are
		// given, and connect it.
		outer.JoinNetwork(sb.netns.File())
	}
	hostNetwork := oci.Network.Kind == convert.NetworkOfHost
	if hostNetwork {
		outer.ShareNetwork()
	}
	embryo := launch.Fork(&launch.ForkConfig{
		HeadStart: api.HeadStart{
			Version: api.SpecVersion, Platform: "systrap", Cores: cores, LogLevel: level, StartedAt: t.began,
			SpecFirst: t.group != nil && !t.o.Self, HostNetwork: hostNetwork,
		},
		Outer: outer, Log: t.log.File(),
	})
	defer embryo.Discard()
	if sb.pid, err = embryo.PID(); err != nil {
		return err
	}
	if t.group != nil && !t.o.Self {
		if err := t.group.Add(sb.pid); err != nil {
			return err
		}
	}
	if err := t.start(embryo, oci.Sandbox, files); err != nil {
		return err
	}
	return t.awaitCreated(ctx)
}

// start hands over the spec and its files.
func (t *Task) start(embryo *launch.Embryo, spec *api.Sandbox, files *launch.ContainerFiles) error {
	spec.Hold, spec.LateTrees = true, true
	cfg := &launch.Config{Spec: spec, ContainerFiles: *files}
	var err error
	if cfg.Listen, err = listenUnix(t.handle.Dir(), controlSocket, unix.SOCK_STREAM); err != nil {
		return err
	}
	defer cfg.Listen.Close()
	if cfg.Streams, err = listenUnix(t.handle.Dir(), streamsSocket, unix.SOCK_DGRAM); err != nil {
		return err
	}
	defer cfg.Streams.Close()
	if t.sandbox.process, err = embryo.Start(cfg); err != nil {
		return err
	}
	t.sandbox.control = t.sandbox.process.Control
	t.donated()
	return nil
}

// awaitCreated waits for the sandbox to be up, and enters that.
func (t *Task) awaitCreated(ctx context.Context) error {
	report, err := t.sandbox.control.WaitCreated(ctx, t.handle.ID())
	if err != nil {
		return t.explain(err)
	}
	return t.noteCreated(report)
}

func (t *Task) noteCreated(report control.Started) error {
	sandbox, _ := state.Identify(t.sandbox.pid)
	return t.handle.Update(func(rec *state.Record) error {
		rec.Phases, rec.Layers, rec.Sandbox = report.Phases, report.Lockdown, sandbox
		return rec.SetState(api.StateCreated)
	})
}

// explain adds a sandbox's last words to the error about its end.
func (t *Task) explain(err error) error {
	if !errors.Is(err, control.ErrClosed) || t.sandbox.process == nil {
		return err
	}
	ending := t.sandbox.process.End(endGrace)
	return lostSandbox(t.sandbox.process.PID, ending, t.sandbox.log)
}

// donated closes what the sandbox has by now. The log is read to its end when the
// sandbox fails.
func (t *Task) donated() {
	t.log.Donated()
	if t.gofer != nil {
		t.gofer.Donated()
	}
	t.closeOpened()
	t.streams.donated()
	t.extras.donated()
}

// undo takes back a container whose creation failed.
func (t *Task) undo() {
	t.mu.Lock()
	t.started = true // Its end is nothing to be noted any more.
	t.mu.Unlock()
	if t.sandbox != nil && t.own {
		if t.sandbox.process != nil {
			t.sandbox.process.Kill()
			t.sandbox.process.End(endGrace)
		}
		t.releaseNetwork()
	}
	t.leave()
	if t.gofer != nil {
		t.gofer.End(endGrace)
	}
	t.streams.close()
	t.extras.close()
	t.closeOpened()
	for _, v := range t.volumes {
		v.Close()
	}
	if t.handle == nil {
		return
	}
	if t.group != nil {
		t.removeCgroup()
	}
	rec := t.handle.Record()
	if err := t.handle.Remove(); err != nil {
		t.note("%v", err)
	}
	if err := t.r.poststop(context.Background(), &rec); err != nil {
		t.note("%v", err)
	}
}

// removeCgroup removes the host's cgroup of a container whose creation failed. This
// process may have moved in there.
func (t *Task) removeCgroup() {
	if t.seat != nil {
		if err := t.seat.Return(); err != nil {
			t.note("%v", err)
			return
		}
	}
	if err := t.group.Remove(); err != nil {
		t.note("%v", err)
	}
}

// mayMakeNamespaces says whether this process may make namespaces of the host's
// kernel without one for users.
func mayMakeNamespaces() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// openNetns opens the network namespace that a sandbox is to have. A process that
// is there for the container alone lives in it.
func (t *Task) openNetns(n convert.OCINetwork) (*netns.Namespace, error) {
	switch {
	case n.Kind == convert.NetworkOfHost:
		return nil, nil
	case n.Kind == convert.NetworkOfItsOwn && !mayMakeNamespaces():
		// Then this process is in its caller's: see inNetwork.
		t.note("the container has a loopback interface and no other: to make it a network namespace takes privilege")
		return nil, nil
	case t.o.Self:
		return netns.Open("/proc/self/ns/net")
	case n.Kind == convert.NetworkOfPath:
		return netns.Open(n.Path)
	}
	return netns.New()
}
