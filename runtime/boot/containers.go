// SPDX-License-Identifier: Apache-2.0

// The containers of the sandbox and their life: prepared, started, ended,
// forgotten.

package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/nsfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"z.gfire.dev/gvx/runtime/api"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// container is one container. What boot and prepareContainer set is only read
// afterwards; the rest is sandbox.mu's.
type container struct {
	spec *api.Container
	args kernel.CreateProcessArgs
	// tty is the terminal of the first process, nil without one.
	tty *host.TTYFileDescription
	// initFile is the reaper of --init, nil without one.
	initFile *vfs.FileDescription
	// confine narrows the first process down once it is made, before it runs.
	confine func(*kernel.ThreadGroup)
	// userns is the container's user namespace, most often the sandbox's.
	userns *auth.UserNamespace
	// sources are for the guest's table of mounts.
	sources mountSources
	// mns is the container's mount namespace, held until it has ended: its
	// volumes have to be there to be brought to rest.
	mns     *vfs.MountNamespace
	volumes []*volume
	// cgroup is the container's own in the guest, nil without one; cgroupEntry is
	// a reference on its directory.
	cgroup      kernel.Cgroup2
	cgroupEntry vfs.VirtualDentry

	// stdioTaken, initTaken and treesTaken say which of the spec's descriptors have
	// an owner; see closeUnused.
	stdioTaken, initTaken bool
	treesTaken            map[*api.HostTree]bool

	// createdCh is closed once it could be started, startedCh once it runs, and
	// both when that failed; exitedCh once its first process has ended and its
	// volumes are at rest.
	createdCh, startedCh, exitedCh chan struct{}

	// making is held by who makes or starts the first process, and comes before
	// sandbox.mu. first is that process, once it is made; firstErr says why it was not;
	// begun, that it was started. No more is made of a container that is forgotten.
	making    sync.Mutex
	first     *kernel.ThreadGroup
	firstErr  error
	begun     bool
	forgotten bool
	// sealed says that the guest ends: no first process is made any more.
	sealed bool

	// ns is nil before it is prepared and after its end.
	ns *namespaces
	// starting says that somebody has asked for it to be started, or forgotten.
	starting bool
	// err says why it never ran.
	err error
	// init is its first process, nil before it runs.
	init *kernel.ThreadGroup
	exit api.ExitStatus
}

func newContainer(spec *api.Container) *container {
	return &container{
		spec: spec, createdCh: make(chan struct{}), startedCh: make(chan struct{}), exitedCh: make(chan struct{}),
	}
}

// errNotStarted is the answer to calls that need a running guest.
var errNotStarted = &api.Error{Kind: api.KindState, Err: errors.New("the container has not started")}

// container finds a container by its id.
func (sb *sandbox) container(id string) (*container, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if c := sb.containers[id]; c != nil {
		return c, nil
	}
	return nil, api.Errorf(api.KindNotFound, "no container %q in this sandbox", id)
}

// created tells waiters that a container is prepared.
func (sb *sandbox) created(c *container) { close(c.createdCh) }

// failed tells waiters that a container will never run.
func (sb *sandbox) failed(c *container, err error) {
	sb.mu.Lock()
	c.err = err
	sb.mu.Unlock()
	select {
	case <-c.createdCh:
	default:
		close(c.createdCh)
	}
	close(c.startedCh)
}

// await waits for one of a container's channels, and returns why it failed.
func (sb *sandbox) await(ctx context.Context, c *container, ch <-chan struct{}) error {
	select {
	case <-ch:
	case <-ctx.Done():
		return ctx.Err()
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return c.err
}

// claim makes the caller the one who starts or forgets a container that was
// prepared.
func (sb *sandbox) claim(c *container) error {
	select {
	case <-c.createdCh:
	default:
		return api.Errorf(api.KindState, "container %s is still being created", c.spec.ID)
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if c.starting {
		return api.Errorf(api.KindState, "cannot start container %s: it has been started already", c.spec.ID)
	}
	c.starting = true
	return c.err
}

// startContainer lets a prepared container run.
func (sb *sandbox) startContainer(c *container) error {
	if err := sb.claim(c); err != nil {
		return err
	}
	tg, err := sb.makeProcess(c)
	if err != nil {
		if c != sb.first {
			sb.neverRan(c, err)
		}
		return err
	}
	sb.mu.Lock()
	c.init = tg
	sb.mu.Unlock()
	c.begin(sb.k.StartProcess)
	sb.timeline.reached("guest started")
	close(c.startedCh)
	go sb.waitContainer(c)
	return nil
}

// makeProcess makes a container's first process, unless it is there: an additional one
// that comes before the start needs it, as process 1 and for its namespaces. It runs
// once it is started.
func (sb *sandbox) makeProcess(c *container) (*kernel.ThreadGroup, error) {
	c.making.Lock()
	defer c.making.Unlock()
	if c.forgotten || c.sealed && c.first == nil {
		return nil, errNotStarted
	}
	if c.first == nil && c.firstErr == nil {
		c.first, c.firstErr = sb.createProcess(c)
	}
	return c.first, c.firstErr
}

// begin starts the first process, once, if there is one.
func (c *container) begin(start func(*kernel.ThreadGroup)) {
	c.making.Lock()
	defer c.making.Unlock()
	if c.first != nil && !c.begun {
		c.begun = true
		start(c.first)
	}
}

// seal has no process made of a container any more that has none.
func (c *container) seal() {
	c.making.Lock()
	defer c.making.Unlock()
	c.sealed = true
}

// forget has no process made of a container any more, and returns the first one if
// there is one.
func (c *container) forget() *kernel.ThreadGroup {
	c.making.Lock()
	defer c.making.Unlock()
	c.forgotten = true
	return c.first
}

// exitNeverRan is docker's exit code of a container that could not be run.
const exitNeverRan = 125

// neverRan ends a further container whose first process could not be made: who waits
// for it hears of that, what it had is free, and it can be forgotten.
func (sb *sandbox) neverRan(c *container, err error) {
	sb.release(c)
	sb.mu.Lock()
	c.exit = api.ExitStatus{Code: exitNeverRan, At: time.Now()}
	sb.mu.Unlock()
	sb.failed(c, err)
	close(c.exitedCh)
}

// waitContainer waits for a container's first process, records how it ended, and
// tells waiters. Whatever else still runs in the container is killed with it; with
// the first container, the whole guest.
func (sb *sandbox) waitContainer(c *container) {
	c.init.WaitExited()
	exit := exitStatus(c.init)
	exit.At = time.Now()
	exit.OOMKilled = sb.outOfMemory(c, exit)
	sb.mu.Lock()
	c.exit = exit
	sb.mu.Unlock()
	if c != sb.first {
		sb.endContainer(c)
		close(c.exitedCh)
		return
	}
	kept := sb.keepingVolumes()
	if len(kept) == 0 {
		close(c.exitedCh)
	}
	sb.k.Kill(linux.WaitStatusTerminationSignal(linux.SIGKILL))
	if len(kept) > 0 {
		// Who waits may open the volumes next.
		sb.endUnstarted()
		sb.k.WaitExited()
		for _, k := range kept {
			k.finishVolumes()
		}
		close(c.exitedCh)
	}
}

// endUnstarted has the first processes of containers run that were made for additional
// ones, and killed with the guest: the kernel waits for them, too, and they cannot end
// unstarted. From then on no more are made.
func (sb *sandbox) endUnstarted() {
	sb.mu.Lock()
	sb.ending = true
	all := slices.Collect(maps.Values(sb.containers))
	sb.mu.Unlock()
	for _, c := range all {
		c.seal()
		c.begin(sb.k.StartProcess)
	}
}

// keepingVolumes lists the containers with volumes that somebody will look at.
func (sb *sandbox) keepingVolumes() []*container {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	var list []*container
	for _, c := range sb.containers {
		if c.keepsVolumes() {
			list = append(list, c)
		}
	}
	return list
}

// endContainer kills what is left of a container, waits until it is gone, and
// lets go of its file systems.
func (sb *sandbox) endContainer(c *container) {
	sb.killContainer(c)
	sb.release(c)
}

// killContainer kills what is left of a container, and waits until it is gone.
func (sb *sandbox) killContainer(c *container) {
	info := &linux.SignalInfo{Signo: int32(linux.SIGKILL)}
	for begun := time.Now(); len(sb.threadGroups(c.spec.ID)) > 0; time.Sleep(killPause) {
		_ = sb.k.SendContainerSignal(c.spec.ID, info)
		if time.Since(begun) > endPatience {
			log.Warningf("container %s: some of its processes do not end", c.spec.ID)
			break
		}
	}
}

// endPatience bounds the wait for killed processes: they die in milliseconds,
// unless they hang in the Sentry for good.
const endPatience = 10 * time.Second

// threadGroups lists the living processes of a container.
func (sb *sandbox) threadGroups(id string) []*kernel.ThreadGroup {
	return slices.DeleteFunc(sb.k.RootPIDNamespace().ThreadGroups(), func(tg *kernel.ThreadGroup) bool {
		leader := tg.Leader()
		return leader == nil || leader.ContainerID() != id || leader.ExitState() == kernel.TaskExitDead
	})
}

// namespaces are those of a container, of each of which it has a reference from
// its creation to its end: others may share them meanwhile.
type namespaces struct {
	pid *kernel.PIDNamespace
	ipc *kernel.IPCNamespace
	uts *kernel.UTSNamespace
}

// takeNamespaces gives a container its namespaces: the first one has the
// sandbox's, a further one its own or those of another container.
func (sb *sandbox) takeNamespaces(c *container, args *kernel.CreateProcessArgs) error {
	ns, err := sb.sharedNamespaces(c)
	if err != nil {
		return err
	}
	ctx := sb.k.SupervisorContext()
	if ns.pid == nil {
		ns.pid = sb.k.RootPIDNamespace().NewChild(ctx, sb.k, c.userns)
	}
	if ns.ipc == nil {
		ns.ipc = kernel.NewIPCNamespace(c.userns)
		if err := ns.ipc.InitPosixQueues(ctx, sb.k.VFS(), args.Credentials); err != nil {
			return fmt.Errorf("make the container's message queues: %w", err)
		}
		ns.ipc.SetInode(sb.namespaceInode(ns.ipc))
	}
	if ns.uts == nil {
		ns.uts = kernel.NewUTSNamespace(c.spec.Hostname, c.spec.Domainname, c.userns)
		ns.uts.SetInode(sb.namespaceInode(ns.uts))
	}
	args.PIDNamespace, args.IPCNamespace, args.UTSNamespace = ns.pid, ns.ipc, ns.uts
	sb.mu.Lock()
	c.ns = &ns
	sb.mu.Unlock()
	return nil
}

// namespaceInode makes what counts the references on a namespace.
func (sb *sandbox) namespaceInode(ns vfs.Namespace) *nsfs.Inode {
	inode, ok := sb.k.GetNamespaceInode(sb.k.SupervisorContext(), ns).(*nsfs.Inode)
	if !ok {
		panic("boot: the kernel counts references on namespaces in another way")
	}
	return inode
}

// sharedNamespaces takes references on what a container shares with others.
func (sb *sandbox) sharedNamespaces(c *container) (ns namespaces, err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if c == sb.first {
		ns = namespaces{sb.k.RootPIDNamespace(), sb.k.RootIPCNamespace(), sb.k.RootUTSNamespace()}
		ns.pid.IncRef()
		ns.ipc.IncRef()
		ns.uts.IncRef()
		return ns, nil
	}
	n := &c.spec.Namespaces
	for _, id := range []string{n.PID, n.IPC, n.UTS} {
		if other := sb.containers[id]; id != "" && (other == nil || other.ns == nil) {
			return ns, api.Errorf(api.KindNotFound, "create container %s: no container %q in this sandbox whose namespaces it could share", c.spec.ID, id)
		}
	}
	if n.PID != "" {
		ns.pid = sb.containers[n.PID].ns.pid
		ns.pid.IncRef()
	}
	if n.IPC != "" {
		ns.ipc = sb.containers[n.IPC].ns.ipc
		ns.ipc.IncRef()
	}
	if n.UTS != "" {
		ns.uts = sb.containers[n.UTS].ns.uts
		ns.uts.IncRef()
	}
	return ns, nil
}

// release lets go of what only a container that can run needs: its volumes are
// brought to rest, its mounts and namespaces are gone unless others use them.
func (sb *sandbox) release(c *container) {
	ctx := sb.k.SupervisorContext()
	c.finishVolumes()
	if c.mns != nil {
		c.mns.DecRef(ctx)
	}
	sb.mu.Lock()
	ns := c.ns
	c.ns = nil
	sb.mu.Unlock()
	if ns != nil {
		ns.pid.DecRef(ctx)
		ns.ipc.DecRef(ctx)
		ns.uts.DecRef(ctx)
	}
}

// WaitCreated implements controlv1.SandboxService.
func (s *service) WaitCreated(ctx context.Context, req *controlv1.WaitCreatedRequest) (*controlv1.WaitCreatedResponse, error) {
	c, err := s.sb.container(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if err := s.sb.await(ctx, c, c.createdCh); err != nil {
		return nil, err
	}
	return &controlv1.WaitCreatedResponse{Phases: s.phases(), Lockdown: s.sb.layers}, nil
}

// Create implements controlv1.SandboxService.
func (s *service) Create(ctx context.Context, req *controlv1.CreateRequest) (*controlv1.CreateResponse, error) {
	spec := &api.Container{}
	set, err := s.sb.streams.take(ctx, req.GetFiles())
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(req.GetContainer(), spec)
	if err == nil {
		err = set.number(spec)
	}
	if err == nil {
		err = spec.Validate()
	}
	if err != nil {
		set.close()
		return nil, api.Errorf(api.KindInvalid, "create container: %w", err)
	}
	c := newContainer(spec)
	if err := s.sb.enter(c); err != nil {
		set.close()
		return nil, err
	}
	if err := s.sb.prepareContainer(c); err != nil {
		s.sb.discard(c)
		return nil, err
	}
	s.sb.created(c)
	return &controlv1.CreateResponse{}, nil
}

// enter makes a further container known. Where the first one does not run, there
// is no guest to add to.
func (sb *sandbox) enter(c *container) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	switch {
	case sb.first.init == nil, sb.ending:
		return errNotStarted
	case sb.containers[c.spec.ID] != nil:
		return api.Errorf(api.KindExists, "container %s exists in this sandbox", c.spec.ID)
	case len(sb.containers) >= api.MaxContainers:
		return api.Errorf(api.KindLimit, "create container %s: the sandbox has %d containers", c.spec.ID, len(sb.containers))
	}
	sb.containers[c.spec.ID] = c
	sb.k.RegisterContainerName(c.spec.ID, c.spec.ID)
	return nil
}

// closeUnused closes the descriptors of a further container that nothing has taken
// over: it failed before. Its engine waits for the end of its output.
func (c *container) closeUnused() {
	p := &c.spec.Process
	unused := make(map[api.FD]bool)
	if !c.stdioTaken {
		unused[p.StdinFD], unused[p.StdoutFD], unused[p.StderrFD] = true, true, true
		for _, fd := range p.ExtraFDs {
			unused[fd] = true
		}
	}
	if !c.initTaken {
		unused[c.spec.InitFD] = true
	}
	trees := []*api.HostTree{c.spec.Rootfs.Host}
	for i := range c.spec.Mounts {
		trees = append(trees, c.spec.Mounts[i].Host)
	}
	for _, h := range trees {
		if h != nil && !c.treesTaken[h] {
			unused[h.FD] = true
		}
	}
	for fd := range unused {
		if fd > 2 { // The sandbox's own are never a container's.
			unix.Close(int(fd))
		}
	}
}

// discard forgets a container that never ran, and ends what ran in it before its
// start.
func (sb *sandbox) discard(c *container) {
	if first := c.forget(); first != nil {
		// It sees the signal before its first instruction, and cannot end unstarted.
		_ = sb.k.SendExternalSignalThreadGroup(first, &linux.SignalInfo{Signo: int32(linux.SIGKILL)})
		c.begin(sb.k.StartProcess)
		sb.killContainer(c)
	}
	sb.dropProcess(c)
	c.closeUnused()
	sb.release(c)
	sb.removeCgroup(c)
	sb.mu.Lock()
	delete(sb.containers, c.spec.ID)
	sb.mu.Unlock()
}

// Start implements controlv1.SandboxService.
func (s *service) Start(ctx context.Context, req *controlv1.StartRequest) (*controlv1.StartResponse, error) {
	c, err := s.sb.container(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if doc := req.GetLinks(); len(doc) > 0 {
		if err := s.sb.takeLinks(ctx, req.GetFiles(), doc); err != nil {
			return nil, err
		}
	}
	return &controlv1.StartResponse{}, s.sb.startContainer(c)
}

// Delete implements controlv1.SandboxService.
func (s *service) Delete(_ context.Context, req *controlv1.DeleteRequest) (*controlv1.DeleteResponse, error) {
	c, err := s.sb.container(req.GetContainer())
	if err != nil {
		return nil, err
	}
	if c == s.sb.first {
		return nil, api.Errorf(api.KindState, "container %s is the sandbox's first, and ends with it", c.spec.ID)
	}
	select {
	case <-c.exitedCh:
		s.sb.mu.Lock()
		delete(s.sb.containers, c.spec.ID)
		s.sb.mu.Unlock()
		s.sb.removeCgroup(c)
		return &controlv1.DeleteResponse{}, nil
	default:
	}
	if err := s.sb.claim(c); err != nil {
		return nil, api.Errorf(api.KindState, "cannot delete container %s: it runs", c.spec.ID)
	}
	s.sb.discard(c)
	return &controlv1.DeleteResponse{}, nil
}
