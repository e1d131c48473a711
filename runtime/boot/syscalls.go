// SPDX-License-Identifier: Apache-2.0

// System calls of the guest that behave differently from gVisor's own: where a
// container engine inside depends on what Linux answers. gVisor's tables of
// system calls are public variables; an entry here wraps one of them.

package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"
)

// syscallOverrides wrap gVisor's functions for the system calls of their names.
func (sb *sandbox) syscallOverrides() map[string]func(kernel.SyscallFn) kernel.SyscallFn {
	return map[string]func(kernel.SyscallFn) kernel.SyscallFn{
		"fallocate": allocateOnVolumes,
		"write":     sb.writes.whole,
		"writev":    sb.writes.wholeVectors,

		"epoll_wait":   goOnWaiting(false, millisOf),
		"epoll_pwait":  goOnWaiting(true, millisOf),
		"epoll_pwait2": goOnWaiting(true, timespecOf),

		"ioctl": bridgeCalls,

		"umount2": umountShared,
		"mount":   sb.mountCall,
		"mq_open": sb.ipc.openQueue,
		"shmget":  sb.ipc.getSegment,
		"bpf":     loadFilters,
		"mkdir":   func(call kernel.SyscallFn) kernel.SyscallFn { return sb.extendCgroup(call, false) },
		"mkdirat": func(call kernel.SyscallFn) kernel.SyscallFn { return sb.extendCgroup(call, true) },
		"open":    func(call kernel.SyscallFn) kernel.SyscallFn { return sb.openFile(call, 0) },
		"openat":  func(call kernel.SyscallFn) kernel.SyscallFn { return sb.openFile(call, 1) },
		"openat2": func(call kernel.SyscallFn) kernel.SyscallFn { return sb.openFile(call, openat2) },
	}
}

// overrideSyscalls puts the overrides into all tables. It must run before the
// first guest task exists.
func (sb *sandbox) overrideSyscalls() error {
	for _, table := range kernel.SyscallTables() {
		for _, overrides := range []map[string]func(kernel.SyscallFn) kernel.SyscallFn{sb.syscallOverrides(), sb.hostCalls()} {
			for name, wrap := range overrides {
				number, err := table.LookupNo(name)
				if err != nil && (name == "mkdir" || name == "open" || name == "epoll_wait") {
					continue // Newer architectures have no such calls.
				}
				if err != nil {
					return fmt.Errorf("override system call %s for %v: %w", name, table.Arch, err)
				}
				call := table.Table[number]
				call.Fn = wrap(call.Fn)
				table.Table[number] = call
			}
		}
		table.Init()
	}
	return nil
}

// umountShared lets a mount go that other namespaces hold copies of.
//
// Where the parent of a mount is shared, umount takes the copies away too that
// propagation made in peers and followers of the parent. gVisor expects one
// reference more on each copy than there is, and so finds all of them busy: on
// a shared root, which is what docker:dind makes, no engine could unmount what
// its running containers have been given a copy of. The mount itself is counted
// right: where nobody else uses it, it goes lazily, and each copy with the last
// of its users.
func umountShared(umount kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		ret, control, err := umount(t, number, args)
		flags := args[1].Uint()
		if !linuxerr.Equals(linuxerr.EBUSY, err) || flags&linux.MNT_DETACH != 0 || mountInUse(t, &args) {
			return ret, control, err
		}
		args[1].Value = uintptr(flags | linux.MNT_DETACH)
		return umount(t, number, args)
	}
}

// mountInUse says whether the mount that umount2's arguments name has users:
// submounts, open files, working directories. An error is an answer of yes.
func mountInUse(t *kernel.Task, args *arch.SyscallArguments) bool {
	vd, err := resolve(t, linux.AT_FDCWD, args[0], args[1].Uint()&linux.UMOUNT_NOFOLLOW == 0)
	if err != nil {
		return true
	}
	defer vd.DecRef(t)
	// One reference is the namespace's, one is ours.
	const unused = 2
	return vd.Dentry() != vd.Mount().Root() || mountReferences(vd.Mount()) != unused
}

// mountReferences is how many references there are on a mount. gVisor tells
// nobody but its leak checker; a message that reads otherwise counts as many.
func mountReferences(mnt *vfs.Mount) int64 {
	const many = 1 << 32
	var (
		address string
		count   int64
	)
	if n, _ := fmt.Sscanf(mnt.LeakMessage(), "[vfs.Mount %s reference count of %d", &address, &count); n != 2 {
		return many
	}
	return count
}

// extendCgroup adds to a new cgroup the files that gVisor's lack.
func (sb *sandbox) extendCgroup(mkdir kernel.SyscallFn, at bool) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		ret, control, err := mkdir(t, number, args)
		if err != nil {
			return ret, control, err
		}
		dirFD, name := int32(linux.AT_FDCWD), args[0]
		if at {
			dirFD, name = args[0].Int(), args[1]
		}
		if vd, err := resolve(t, dirFD, name, false); err == nil {
			if vd.Mount().Filesystem() == sb.cgroupMount.Filesystem() {
				sb.cgroups.extend(t, vd.Dentry())
			}
			vd.DecRef(t)
		}
		return ret, control, nil
	}
}

// openat2 stands for a call whose flags are in a structure.
const openat2 = -1

// openFile has our own content read of tables of mounts and where a cgroup is
// frozen or had processes killed, learns of limits about to be set, and lets an interrupted open of a pipe
// keep its partner. path is the number of the argument that names the file.
func (sb *sandbox) openFile(open kernel.SyscallFn, path int) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		ret, control, err := open(t, number, args)
		if path != openat2 && linuxerr.Equals(linuxerr.EINTR, err) {
			ret, control, err = reopenPipe(t, number, args, open, path, err)
		}
		if err == nil {
			sb.replaceOpened(t, int32(ret))
		}
		return ret, control, err
	}
}

// reopenPipe opens a named pipe after a signal has ended the wait for the other
// end, if that has come meanwhile. gVisor looks at the signal alone. Had the other
// end been opened at the same moment, written to and closed, as runc does, then
// whoever opens again waits for ever: `runc start` on a busy machine. Linux looks
// for the partner first, and restarts the call where the signal's handler allows
// it: gVisor's EINTR would reach programs that have asked for that.
func reopenPipe(t *kernel.Task, number uintptr, args arch.SyscallArguments, open kernel.SyscallFn, path int, interrupted error) (uintptr, *kernel.SyscallControl, error) {
	dirFD := int32(linux.AT_FDCWD)
	if path == 1 {
		dirFD = args[0].Int()
	}
	vd, err := resolve(t, dirFD, args[path], true)
	if err != nil {
		return 0, nil, interrupted
	}
	st, err := t.Kernel().VFS().StatAt(t, t.Credentials(), &vfs.PathOperation{Root: vd, Start: vd}, &vfs.StatOptions{Mask: linux.STATX_TYPE})
	vd.DecRef(t)
	if err != nil || linux.FileMode(st.Mode).FileType() != linux.S_IFIFO {
		return 0, nil, interrupted
	}
	args[path+1].Value |= linux.O_NONBLOCK
	// A writer alone gets an error at once: its partner has not come.
	fd, control, err := open(t, number, args)
	if err != nil {
		return 0, nil, linuxerr.ERESTARTSYS
	}
	file := t.GetFile(int32(fd))
	if file == nil {
		return 0, nil, linuxerr.ERESTARTSYS
	}
	defer file.DecRef(t)
	fifo, ok := file.Impl().(*pipe.VFSPipeFD)
	// A reader alone finds neither data nor a writer.
	if !ok || file.IsReadable() && !fifo.Pipe().HasWriters() && file.Readiness(waiter.ReadableEvents) == 0 {
		if removed := t.FDTable().Remove(t, int32(fd)); removed != nil {
			removed.DecRef(t)
		}
		return 0, nil, linuxerr.ERESTARTSYS
	}
	if err := file.SetStatusFlags(t, t.Credentials(), file.StatusFlags()&^linux.O_NONBLOCK); err != nil {
		return 0, nil, linuxerr.ERESTARTSYS
	}
	return fd, control, nil
}

// resolve finds what a task means by a descriptor of a directory and a path. The
// caller owns a reference to it.
func resolve(t *kernel.Task, dirFD int32, path arch.SyscallArgument, follow bool) (vfs.VirtualDentry, error) {
	name, err := t.CopyInString(path.Pointer(), linux.PATH_MAX)
	if err != nil {
		return vfs.VirtualDentry{}, err
	}
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	start := root
	switch {
	case name == "":
		return vfs.VirtualDentry{}, linuxerr.ENOENT
	case name[0] == '/':
	case dirFD == linux.AT_FDCWD:
		start = t.FSContext().WorkingDirectory()
		defer start.DecRef(t)
	default:
		dir := t.GetFile(dirFD)
		if dir == nil {
			return vfs.VirtualDentry{}, linuxerr.EBADF
		}
		defer dir.DecRef(t)
		start = dir.VirtualDentry()
	}
	return t.Kernel().VFS().GetDentryAt(t, t.Credentials(), &vfs.PathOperation{
		Root: root, Start: start, Path: fspath.Parse(name), FollowFinalSymlink: follow,
	}, &vfs.GetDentryOptions{})
}
