// SPDX-License-Identifier: Apache-2.0

// What the guest's cgroups have beyond gVisor's: files that are not there, and
// files whose content we know better.

package boot

import (
	"bytes"
	gocontext "context"
	"fmt"
	"strings"
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/usermem"
)

// guestCgroups is the freezer and the limits of memory and of processor time of the
// guest's cgroups, which gVisor lacks: a container engine inside needs them for
// `docker pause` and `docker run --memory --cpus`, and the containers of a pod for
// limits of their own. Nothing of it costs anything until a cgroup is frozen or has
// a limit.
//
// Lock order: stopMu, gVisor's locks of tasks. mu is a leaf; no gVisor lock is
// taken under it.
type guestCgroups struct {
	sb *sandbox

	// stopMu makes the stops of tasks and their ends one at a time: the end of
	// a stop that has not begun would end the Sentry.
	stopMu sync.Mutex

	mu     sync.Mutex
	groups map[kernel.Cgroup2]*cgroupState
	// bandwidths are those whose cpu.max may say something.
	bandwidths map[kernel.Cgroup2]*bandwidth
	// watching says that watchFrozen, watchLimits or watchQuotas run.
	watchingFrozen, watchingLimits, watchingQuotas bool
	// lookAtQuotas wakes watchQuotas.
	lookAtQuotas chan struct{}
}

// cgroupState is what we know of one cgroup; guarded by guestCgroups.mu, but
// for stopped, which are the tasks that were stopped and which stopMu guards.
type cgroupState struct {
	frozen  bool
	stopped stops
	kills   uint64
	limited bool
}

// state returns what is known of a group, making it if need be.
// Preconditions: g.mu is held.
func (g *guestCgroups) state(cg kernel.Cgroup2) *cgroupState {
	if g.groups == nil {
		g.groups = make(map[kernel.Cgroup2]*cgroupState)
	}
	s := g.groups[cg]
	if s == nil {
		s = &cgroupState{}
		g.groups[cg] = s
	}
	return s
}

// forget drops groups that are gone, but for frozen ones, which watchFrozen
// thaws first.
// Preconditions: g.mu is held.
func (g *guestCgroups) forget() {
	for cg, s := range g.groups {
		if cg.Deleted() && !s.frozen {
			delete(g.groups, cg)
		}
	}
}

// members returns the tasks in a group and below it.
func (g *guestCgroups) members(cg kernel.Cgroup2) []*kernel.Task {
	var members []*kernel.Task
	path := cg.Path()
	below := strings.TrimSuffix(path, "/") + "/"
	for _, t := range g.sb.k.RootPIDNamespace().Tasks() {
		if of := t.Cgroup2(); of != nil && (of == cg || of.Path() == path || strings.HasPrefix(of.Path(), below)) {
			members = append(members, t)
		}
	}
	return members
}

// cgroupFiles are the files that gVisor's cgroups lack, with those that the root
// has too.
var cgroupFiles = []struct {
	name   string
	atRoot bool
	mode   linux.FileMode
}{
	{"cgroup.freeze", false, 0o644},
	{"cpuset.cpus.effective", true, 0o444},
	{"cpuset.mems.effective", true, 0o444},
	{"memory.stat", true, 0o444},
}

// extend adds the missing files to a new cgroup's directory, or the root.
func (g *guestCgroups) extend(ctx context.Context, dir *vfs.Dentry) {
	root := dir == g.sb.cgroupMount.Root()
	cg, ok := cgroup2fs.CgroupFromDentry(dir)
	if !ok {
		return
	}
	inode := dir.Impl().(*kernfs.Dentry).Inode()
	into, ok := inode.(interface {
		Insert(name string, child kernfs.Inode) error
		DevMajor() uint32
		DevMinor() uint32
		Ino() uint64
	})
	if !ok {
		log.Warningf("cgroup %s: it takes no more files", cg.Path())
		return
	}
	for i, f := range cgroupFiles {
		if root && !f.atRoot {
			continue
		}
		var source vfs.DynamicBytesSource = &cgroupFile{g: g, cg: cg, name: f.name}
		if f.mode&0o200 != 0 {
			source = &writableCgroupFile{cgroupFile{g: g, cg: cg, name: f.name}}
		}
		file := &kernfs.DynamicBytesFile{}
		// Numbers that the file system itself does not come to.
		ino := into.Ino()<<8 | 1<<63 | uint64(i)
		file.InitWithIDs(ctx, inode.UID(), inode.GID(), into.DevMajor(), into.DevMinor(), ino, source, f.mode)
		// A guest that changes the path of its mkdir meanwhile leads here again.
		if err := into.Insert(f.name, file); err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
			log.Warningf("cgroup %s: add %s: %v", cg.Path(), f.name, err)
		}
	}
}

// extendRoot adds them to the hierarchy's root, before any guest code runs.
func (g *guestCgroups) extendRoot() {
	g.extend(g.sb.k.SupervisorContext(), g.sb.cgroupMount.Root())
}

// cgroupFile is one of our files in a cgroup.
type cgroupFile struct {
	g    *guestCgroups
	cg   kernel.Cgroup2
	name string
}

// writableCgroupFile is one that can be written.
type writableCgroupFile struct{ cgroupFile }

// Generate implements vfs.DynamicBytesSource.
func (f *cgroupFile) Generate(ctx context.Context, buf *bytes.Buffer) error {
	if f.cg.Deleted() {
		return linuxerr.ENODEV
	}
	g := f.g
	switch f.name {
	case "cgroup.freeze":
		fmt.Fprintln(buf, number(g.isFrozen(f.cg)))
	case "cgroup.events":
		text, err := f.cg.ReadControl(ctx, f.name)
		if err != nil {
			return err
		}
		if g.isFrozen(f.cg) {
			text = strings.Replace(text, "frozen 0", "frozen 1", 1)
		}
		buf.WriteString(text)
	case "memory.events":
		kills := g.kills(f.cg)
		fmt.Fprintf(buf, "low 0\nhigh 0\nmax %d\noom %d\noom_kill %d\noom_group_kill 0\n", kills, kills, kills)
	case "cpu.stat":
		text, err := g.cpuStat(ctx, f.cg)
		if err != nil {
			return err
		}
		buf.WriteString(text)
	case "memory.stat":
		text, err := f.cg.ReadControl(ctx, "memory.current")
		if err != nil {
			return err
		}
		fmt.Fprintf(buf, "anon %s\nfile 0\nkernel 0\nshmem 0\nfile_mapped 0\ninactive_anon 0\nactive_anon %s\ninactive_file 0\nactive_file 0\nslab 0\npgfault 0\npgmajfault 0\n",
			strings.TrimSpace(text), strings.TrimSpace(text))
	case "cpuset.cpus.effective":
		fmt.Fprintln(buf, processors(int(g.sb.k.ApplicationCores())))
	case "cpuset.mems.effective":
		fmt.Fprintln(buf, 0)
	}
	return nil
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// processors lists all processors as a cpuset does.
func processors(count int) string {
	if count <= 1 {
		return "0"
	}
	return fmt.Sprintf("0-%d", count-1)
}

// Write implements vfs.WritableDynamicBytesSource.
func (f *writableCgroupFile) Write(ctx context.Context, _ *vfs.FileDescription, src usermem.IOSequence, _ int64) (int64, error) {
	const mostBytes = 64
	if src.NumBytes() > mostBytes {
		return 0, linuxerr.EINVAL
	}
	text := make([]byte, src.NumBytes())
	if _, err := src.CopyIn(ctx, text); err != nil {
		return 0, err
	}
	if f.cg.Deleted() {
		return 0, linuxerr.ENODEV
	}
	switch strings.TrimSpace(string(text)) {
	case "1":
		f.g.freeze(f.cg)
	case "0":
		f.g.thaw(f.cg)
	default:
		return 0, linuxerr.ERANGE
	}
	return int64(len(text)), nil
}

// better opens one of ours in place of a cgroup's file where we know better what
// is in it, and notes who may be about to set a limit. nil is what was opened.
func (g *guestCgroups) better(t *kernel.Task, file *vfs.FileDescription) *vfs.FileDescription {
	d, ok := file.Dentry().Impl().(*kernfs.Dentry)
	if !ok || d.Parent() == nil {
		return nil
	}
	cg, ok := cgroup2fs.CgroupFromDentry(d.Parent().VFSDentry())
	if !ok {
		return nil
	}
	name := d.FSLocalPath()
	name = name[strings.LastIndexByte(name, '/')+1:]
	switch {
	case name == "memory.max" && file.IsWritable():
		g.watchLimit(cg)
		return nil
	case name == "cpu.max" && file.IsWritable():
		g.watchQuota(cg)
		return nil
	case name == "cgroup.events" && g.isFrozen(cg), name == "memory.events" && g.kills(cg) > 0, name == "cpu.stat" && g.throttles(cg):
	default:
		return nil
	}
	ours := &kernfs.DynamicBytesFD{}
	err := ours.Init(file.Mount(), d, &cgroupFile{g: g, cg: cg, name: name}, new(vfs.FileLocks), file.StatusFlags(), t.Credentials())
	if err != nil {
		return nil
	}
	return ours.VFSFileDescription()
}

// Checkpoints reach these files through the cgroup file system.

func init() {
	state.Register((*guestCgroups)(nil))
	state.Register((*cgroupFile)(nil))
	state.Register((*writableCgroupFile)(nil))
}

// StateTypeName implements state.Type.
func (*guestCgroups) StateTypeName() string { return "gvx/boot.guestCgroups" }

// StateFields implements state.Type. What is frozen or killed is not saved: a
// sandbox starts again with none.
func (*guestCgroups) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*guestCgroups) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (*guestCgroups) StateLoad(gocontext.Context, state.Source) {}

// StateTypeName implements state.Type.
func (*cgroupFile) StateTypeName() string { return "gvx/boot.cgroupFile" }

// StateFields implements state.Type.
func (*cgroupFile) StateFields() []string { return []string{"g", "cg", "name"} }

// StateSave implements state.SaverLoader.
func (f *cgroupFile) StateSave(s state.Sink) {
	s.Save(0, &f.g)
	s.Save(1, &f.cg)
	s.Save(2, &f.name)
}

// StateLoad implements state.SaverLoader.
func (f *cgroupFile) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &f.g)
	s.Load(1, &f.cg)
	s.Load(2, &f.name)
}

// StateTypeName implements state.Type.
func (*writableCgroupFile) StateTypeName() string { return "gvx/boot.writableCgroupFile" }

// StateFields implements state.Type.
func (*writableCgroupFile) StateFields() []string { return []string{"cgroupFile"} }

// StateSave implements state.SaverLoader.
func (f *writableCgroupFile) StateSave(s state.Sink) { s.Save(0, &f.cgroupFile) }

// StateLoad implements state.SaverLoader.
func (f *writableCgroupFile) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &f.cgroupFile)
}
