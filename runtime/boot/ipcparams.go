// SPDX-License-Identifier: Apache-2.0

// Kernel parameters of IPC namespaces that gVisor lacks: the limits of message
// queues, and shared memory that goes with its last user. Kubernetes lets pods set
// them.

package boot

import (
	"bytes"
	gocontext "context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/proc"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/kernel/ipc"
	"gvisor.dev/gvisor/pkg/sentry/kernel/mq"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/usermem"
)

const (
	// maxIPCNamespaces bounds those with parameters of their own: they are kept,
	// as nobody tells when one is gone.
	maxIPCNamespaces = 1024
	// maxSharedSegments is Linux' default limit (SHMMNI) of a namespace's segments, of
	// which as many are watched.
	maxSharedSegments = 4096
	// sweepPause is how long a segment without users may outlive its last one.
	sweepPause = 100 * time.Millisecond
)

// ipcParam is one parameter.
type ipcParam struct {
	// dir and name are below /proc/sys.
	dir, name string
	// usual is the value that it has unless it is set; least and most bound what
	// it can be set to. most 0 says that it cannot.
	usual, least, most int64
}

var ipcParams = []ipcParam{
	{"kernel", "shm_rmid_forced", 0, 0, 1},
	{"fs/mqueue", "msg_max", linux.DFLT_MSGMAX, linux.MIN_MSGMAX, linux.HARD_MSGMAX},
	{"fs/mqueue", "msgsize_max", linux.DFLT_MSGSIZEMAX, linux.MIN_MSGSIZEMAX, linux.HARD_MSGSIZEMAX},
	{"fs/mqueue", "msg_default", int64(linux.DFLT_MSG), 0, 0},
	{"fs/mqueue", "msgsize_default", int64(linux.DFLT_MSGSIZE), 0, 0},
	{"fs/mqueue", "queues_max", linux.DFLT_QUEUESMAX, 0, 0},
}

// ipcNamespace is what we know of one namespace; guarded by guestIPC.mu.
type ipcNamespace struct {
	values map[string]int64
	// segments are those of shared memory, by the process that asked for each.
	segments map[ipc.ID]*kernel.ThreadGroup
	sweeping bool
}

// guestIPC are the parameters of the guest's IPC namespaces. mu is a leaf: no lock
// of gVisor's is taken under it.
type guestIPC struct {
	sb *sandbox

	mu sync.Mutex
	of map[*kernel.IPCNamespace]*ipcNamespace
}

// namespace returns what is known of a namespace, nil if there is no room to know
// more.
// Preconditions: g.mu is held.
func (g *guestIPC) namespace(ns *kernel.IPCNamespace) *ipcNamespace {
	n := g.of[ns]
	if n == nil && len(g.of) < maxIPCNamespaces {
		n = &ipcNamespace{values: make(map[string]int64), segments: make(map[ipc.ID]*kernel.ThreadGroup)}
		if g.of == nil {
			g.of = make(map[*kernel.IPCNamespace]*ipcNamespace)
		}
		g.of[ns] = n
	}
	return n
}

// value is that of a parameter in a namespace.
func (g *guestIPC) value(ns *kernel.IPCNamespace, p *ipcParam) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.of[ns]; n != nil {
		if v, ok := n.values[p.name]; ok {
			return v
		}
	}
	return p.usual
}

// set sets a parameter.
func (g *guestIPC) set(ns *kernel.IPCNamespace, p *ipcParam, v int64) error {
	if v < p.least || v > p.most {
		return linuxerr.EINVAL
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.namespace(ns)
	if n == nil {
		return linuxerr.ENOSPC
	}
	n.values[p.name] = v
	g.sweepLater(ns, n)
	return nil
}

// param finds a parameter by its name.
func param(name string) *ipcParam {
	for i := range ipcParams {
		if ipcParams[i].name == name {
			return &ipcParams[i]
		}
	}
	panic("boot: no parameter " + name)
}

// openQueue is mq_open with the namespace's limits in place of gVisor's constants.
func (g *guestIPC) openQueue(open kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		flags := args[1].Int()
		if flags&linux.O_CREAT == 0 || args[3].Pointer() == 0 {
			return open(t, number, args)
		}
		// Read once: the guest may change it meanwhile.
		var attr linux.MqAttr
		name, err := t.CopyInString(args[0].Pointer(), mq.MaxName)
		if err == nil {
			_, err = attr.CopyIn(t, args[3].Pointer())
		}
		if err != nil {
			return 0, nil, err
		}
		ns := t.IPCNamespace()
		admin := t.Credentials().HasCapabilityIn(linux.CAP_SYS_RESOURCE, ns.UserNamespace())
		if !admin && (attr.MqMaxmsg > g.value(ns, param("msg_max")) || attr.MqMsgsize > g.value(ns, param("msgsize_max"))) ||
			attr.MqMsgsize > linux.HARD_MSGSIZEMAX {
			return 0, nil, linuxerr.EINVAL
		}
		opts := mq.OpenOpts{Name: name, Create: true, Exclusive: flags&linux.O_EXCL != 0, Block: flags&linux.O_NONBLOCK == 0}
		switch flags & linux.O_ACCMODE {
		case linux.O_RDWR:
			opts.Access = mq.ReadWrite
		case linux.O_WRONLY:
			opts.Access = mq.WriteOnly
		}
		// The limits have been held: what is left of gVisor's own is not.
		creds := t.Credentials().Fork()
		creds.EffectiveCaps |= auth.CapabilitySetOf(linux.CAP_SYS_RESOURCE)
		queue, err := ns.PosixQueues().FindOrCreate(auth.ContextWithCredentials(t, creds), opts, linux.FileMode(args[2].ModeT()), &attr)
		if err != nil {
			return 0, nil, err
		}
		defer queue.DecRef(t)
		fd, err := t.NewFDFrom(0, queue, kernel.FDFlags{CloseOnExec: flags&linux.O_CLOEXEC != 0})
		return uintptr(fd), nil, err
	}
}

// getSegment notes segments of shared memory as they are made.
func (g *guestIPC) getSegment(get kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		id, control, err := get(t, number, args)
		if err == nil {
			ns := t.IPCNamespace()
			g.mu.Lock()
			if n := g.namespace(ns); n != nil && len(n.segments) < maxSharedSegments {
				if _, known := n.segments[ipc.ID(id)]; !known {
					n.segments[ipc.ID(id)] = t.ThreadGroup()
				}
				g.sweepLater(ns, n)
			}
			g.mu.Unlock()
		}
		return id, control, err
	}
}

// sweepLater has segments without users removed, where that is wanted.
// Preconditions: g.mu is held.
func (g *guestIPC) sweepLater(ns *kernel.IPCNamespace, n *ipcNamespace) {
	if n.sweeping || len(n.segments) == 0 || n.values["shm_rmid_forced"] == 0 {
		return
	}
	n.sweeping = true
	go func() {
		for g.sweep(ns, n) {
			time.Sleep(sweepPause)
		}
	}()
}

// sweep removes segments that nobody has attached any more, and those that nobody
// ever has and whose maker is gone. It says whether there is more to come.
func (g *guestIPC) sweep(ns *kernel.IPCNamespace, n *ipcNamespace) bool {
	g.mu.Lock()
	segments := make(map[ipc.ID]*kernel.ThreadGroup, len(n.segments))
	for id, maker := range n.segments {
		segments[id] = maker
	}
	g.mu.Unlock()
	ctx := g.sb.k.SupervisorContext()
	var gone []ipc.ID
	for id, maker := range segments {
		s := ns.ShmRegistry().FindByID(id)
		if s == nil {
			gone = append(gone, id)
			continue
		}
		stat, err := s.IPCStat(ctx)
		switch {
		case err != nil:
			log.Warningf("shared memory %d: %v", id, err)
		case stat.ShmNattach == 0 && (stat.ShmAtime != 0 || ended(maker)):
			s.MarkDestroyed(ctx)
			gone = append(gone, id)
		}
		s.DecRef(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range gone {
		delete(n.segments, id)
	}
	n.sweeping = len(n.segments) > 0 && n.values["shm_rmid_forced"] != 0
	return n.sweeping
}

// ended says whether a process has ended, all of its threads.
func ended(tg *kernel.ThreadGroup) bool {
	leader := tg.Leader()
	return leader == nil || leader.ExitState() != kernel.TaskExitNone && tg.Count() <= 1
}

// procType is gVisor's procfs with these parameters.
type procType struct {
	proc.FilesystemType
	ipc *guestIPC
}

// GetFilesystem implements vfs.FilesystemType.
func (p *procType) GetFilesystem(ctx context.Context, v *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	fs, root, err := p.FilesystemType.GetFilesystem(ctx, v, creds, source, opts)
	if err == nil {
		if err := p.ipc.extend(ctx, root); err != nil {
			log.Warningf("parameters of IPC namespaces are missing: %v", err)
		}
	}
	return fs, root, err
}

// growing is a directory that takes more entries.
type growing interface {
	kernfs.Inode
	Insert(name string, child kernfs.Inode) error
	DevMajor() uint32
	DevMinor() uint32
	Ino() uint64
}

// extend adds the parameters to a new procfs.
func (g *guestIPC) extend(ctx context.Context, root *vfs.Dentry) error {
	top, ok := root.Impl().(*kernfs.Dentry)
	if !ok {
		return fmt.Errorf("procfs is another one")
	}
	admin := auth.NewRootCredentials(g.sb.userns)
	for i := range ipcParams {
		p := &ipcParams[i]
		dir := top.Inode()
		for name := range strings.SplitSeq("sys/"+p.dir, "/") {
			below, err := dir.Lookup(ctx, name)
			if linuxerr.Equals(linuxerr.ENOENT, err) {
				below, err = makeParamDir(ctx, admin, dir, name)
			}
			if err != nil {
				return fmt.Errorf("%s/%s: %w", p.dir, p.name, err)
			}
			if dir != top.Inode() {
				dir.DecRef(ctx)
			}
			dir = below
		}
		into, ok := dir.(growing)
		if !ok {
			return fmt.Errorf("%s takes no more files", p.dir)
		}
		mode := linux.FileMode(0o444)
		var source vfs.DynamicBytesSource = &ipcFile{g: g, name: p.name}
		if p.most > 0 {
			mode, source = 0o644, &writableIPCFile{ipcFile{g: g, name: p.name}}
		}
		file := &kernfs.DynamicBytesFile{}
		// Numbers that the file system itself does not come to.
		file.Init(ctx, admin, into.DevMajor(), into.DevMinor(), into.Ino()<<8|1<<63|uint64(i), source, mode)
		err := into.Insert(p.name, file)
		dir.DecRef(ctx)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", p.dir, p.name, err)
		}
	}
	return nil
}

// makeParamDir makes a directory, and returns it with a reference.
func makeParamDir(ctx context.Context, creds *auth.Credentials, in kernfs.Inode, name string) (kernfs.Inode, error) {
	parent, ok := in.(growing)
	if !ok {
		return nil, fmt.Errorf("the directory takes no more entries")
	}
	const offset = 200 // Beyond the numbers of parameters.
	dir := kernfs.NewStaticDir(ctx, creds, parent.DevMajor(), parent.DevMinor(), parent.Ino()<<8|1<<63|offset, 0o555, nil,
		kernfs.GenericDirectoryFDOptions{SeekEnd: kernfs.SeekEndZero})
	if err := parent.Insert(name, dir); err != nil {
		return nil, err
	}
	dir.IncRef()
	return dir, nil
}

// ipcFile shows a parameter of the reader's namespace.
type ipcFile struct {
	g    *guestIPC
	name string
}

// writableIPCFile is one that can be set.
type writableIPCFile struct{ ipcFile }

// Generate implements vfs.DynamicBytesSource.
func (f *ipcFile) Generate(ctx context.Context, buf *bytes.Buffer) error {
	ns := kernel.IPCNamespaceFromContext(ctx)
	if ns == nil {
		return linuxerr.EIO
	}
	defer ns.DecRef(ctx)
	fmt.Fprintln(buf, f.g.value(ns, param(f.name)))
	return nil
}

// Write implements vfs.WritableDynamicBytesSource.
func (f *writableIPCFile) Write(ctx context.Context, _ *vfs.FileDescription, src usermem.IOSequence, _ int64) (int64, error) {
	const mostBytes = 32
	if src.NumBytes() > mostBytes {
		return 0, linuxerr.EINVAL
	}
	text := make([]byte, src.NumBytes())
	if _, err := src.CopyIn(ctx, text); err != nil {
		return 0, err
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, linuxerr.EINVAL
	}
	ns := kernel.IPCNamespaceFromContext(ctx)
	if ns == nil {
		return 0, linuxerr.EIO
	}
	defer ns.DecRef(ctx)
	return int64(len(text)), f.g.set(ns, param(f.name), v)
}

// Checkpoints reach these files through procfs. What was set is not saved: a
// sandbox starts again with the usual values.

func init() {
	state.Register((*guestIPC)(nil))
	state.Register((*ipcFile)(nil))
	state.Register((*writableIPCFile)(nil))
}

// StateTypeName implements state.Type.
func (*guestIPC) StateTypeName() string { return "gvx/boot.guestIPC" }

// StateFields implements state.Type.
func (*guestIPC) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*guestIPC) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (*guestIPC) StateLoad(gocontext.Context, state.Source) {}

// StateTypeName implements state.Type.
func (*ipcFile) StateTypeName() string { return "gvx/boot.ipcFile" }

// StateFields implements state.Type.
func (*ipcFile) StateFields() []string { return []string{"g", "name"} }

// StateSave implements state.SaverLoader.
func (f *ipcFile) StateSave(s state.Sink) {
	s.Save(0, &f.g)
	s.Save(1, &f.name)
}

// StateLoad implements state.SaverLoader.
func (f *ipcFile) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &f.g)
	s.Load(1, &f.name)
}

// StateTypeName implements state.Type.
func (*writableIPCFile) StateTypeName() string { return "gvx/boot.writableIPCFile" }

// StateFields implements state.Type.
func (*writableIPCFile) StateFields() []string { return []string{"ipcFile"} }

// StateSave implements state.SaverLoader.
func (f *writableIPCFile) StateSave(s state.Sink) { s.Save(0, &f.ipcFile) }

// StateLoad implements state.SaverLoader.
func (f *writableIPCFile) StateLoad(_ gocontext.Context, s state.Source) { s.Load(0, &f.ipcFile) }
