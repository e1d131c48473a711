// SPDX-License-Identifier: Apache-2.0

//go:build compromised

package compromised

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// attack is one attempt. try returns nil if it succeeded.
type attack struct {
	name string
	// permitted attacks use only calls that the allow-list contains, for a
	// purpose it does not: something else must refuse them.
	permitted bool
	// final attacks are not made where nothing would refuse them.
	final bool
	try   func() error
}

func attacks() []attack {
	var all []attack
	for _, group := range [][]attack{fileAttacks(), networkAttacks(), processAttacks(), neighbourAttacks(), kernelAttacks(), privilegeAttacks(), memoryAttacks(), permittedAttacks()} {
		all = append(all, group...)
	}
	return all
}

// call makes a system call; pointers are given as uintptr and kept alive by
// their owners, which are package variables.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	if (nr == unix.SYS_CLONE || nr == unix.SYS_CLONE3) && r == 0 {
		// The attack succeeded and this is its child: do no more harm.
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

func simply(name string, nr uintptr, args ...uintptr) attack {
	return attack{name: name, try: func() error { return call(nr, args...) }}
}

func finally(name string, nr uintptr, args ...uintptr) attack {
	a := simply(name, nr, args...)
	a.final = true
	return a
}

// Strings and buffers of the attacks, at addresses that stay.
var (
	pathPasswd = str("/etc/passwd")
	pathTmp    = str("/tmp")
	pathNew    = str("/tmp/gvx-attack")
	pathRoot   = str("/")
	pathShell  = str("/bin/sh")
	pathProc   = str("/proc/1/mem")
	word       = str("gvx")
	tmpfs      = str("tmpfs")
	argv       = [2]uintptr{uintptr(unsafe.Pointer(&[]byte("/bin/sh\x00")[0])), 0}
	buf        [4096]byte
	pointer    = uintptr(unsafe.Pointer(&buf[0]))
)

func str(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// kept keeps what str made.
var kept [][]byte

const atCWD = ^uintptr(99) // AT_FDCWD, -100

func fileAttacks() []attack {
	return []attack{
		simply("open", unix.SYS_OPENAT, atCWD, pathPasswd, unix.O_RDONLY),
		simply("open for writing", unix.SYS_OPENAT, atCWD, pathNew, unix.O_WRONLY|unix.O_CREAT, 0o600),
		simply("openat2", unix.SYS_OPENAT2, atCWD, pathPasswd, pointer, 24),
		simply("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, atCWD, pointer, unix.O_RDONLY),
		simply("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, atCWD, pathRoot, pointer, pointer, 0),
		simply("open_tree", unix.SYS_OPEN_TREE, atCWD, pathRoot, 1),
		simply("stat by path", unix.SYS_STATX, atCWD, pathPasswd, 0, 0x7ff, pointer),
		simply("readlink", unix.SYS_READLINKAT, atCWD, pathProc, pointer, 100),
		simply("getdents", unix.SYS_GETDENTS64, 0, pointer, 4096),
		simply("mkdir", unix.SYS_MKDIRAT, atCWD, pathNew, 0o700),
		simply("unlink", unix.SYS_UNLINKAT, atCWD, pathNew, 0),
		simply("rename", unix.SYS_RENAMEAT2, atCWD, pathTmp, atCWD, pathNew, 0),
		simply("link", unix.SYS_LINKAT, atCWD, pathPasswd, atCWD, pathNew, 0),
		simply("symlink", unix.SYS_SYMLINKAT, pathPasswd, atCWD, pathNew),
		simply("mknod", unix.SYS_MKNODAT, atCWD, pathNew, unix.S_IFCHR, 0x103),
		simply("chmod by descriptor", unix.SYS_FCHMOD, 0, 0o777),
		simply("chown by descriptor", unix.SYS_FCHOWN, 0, 0, 0),
		simply("set times by path", unix.SYS_UTIMENSAT, atCWD, pathPasswd, 0, 0),
		simply("setxattr by descriptor", unix.SYS_FSETXATTR, 0, word, pointer, 1, 0),
		simply("memory file", unix.SYS_MEMFD_CREATE, word, 0),
		simply("inotify", unix.SYS_INOTIFY_INIT1, 0),
		simply("fanotify", unix.SYS_FANOTIFY_INIT, 0, 0),
		simply("copy_file_range", unix.SYS_COPY_FILE_RANGE, 0, 0, 1, 0, 1, 0),
		simply("splice", unix.SYS_SPLICE, 0, 0, 1, 0, 1, 0),
		simply("allocate with an odd mode", unix.SYS_FALLOCATE, 0, 0x08, 0, 4096),
	}
}

func networkAttacks() []attack {
	return []attack{
		simply("TCP socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
		simply("TCP6 socket", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0),
		simply("UDP socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0),
		simply("unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
		simply("netlink socket", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, 0),
		simply("packet socket", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0),
		simply("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		simply("kernel crypto socket", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		simply("socketpair", unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, pointer),
		simply("connect", unix.SYS_CONNECT, 0, pointer, 16),
		simply("bind", unix.SYS_BIND, 0, pointer, 16),
		simply("listen", unix.SYS_LISTEN, 0, 1),
		simply("sendto", unix.SYS_SENDTO, 0, pointer, 1, 0, pointer, 16),
		simply("sendmsg", unix.SYS_SENDMSG, 0, pointer, 0),
		simply("setsockopt", unix.SYS_SETSOCKOPT, 0, unix.SOL_SOCKET, unix.SO_REUSEADDR, pointer, 4),
		simply("accept on another descriptor", unix.SYS_ACCEPT4, 0, 0, 0, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK),
		simply("packet filter on a socket", unix.SYS_SETSOCKOPT, 0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, pointer, 16),
		simply("netfilter tables", unix.SYS_SETSOCKOPT, 0, unix.IPPROTO_IP, 64, pointer, 64),
		{name: "send to an abstract socket", try: func() error {
			return byAny(func(fd uintptr) error { return call(unix.SYS_SENDTO, fd, pointer, 1, 0, abstract, abstractLength) })
		}},
		{name: "connect to an abstract socket", try: func() error {
			return byAny(func(fd uintptr) error { return call(unix.SYS_CONNECT, fd, abstract, abstractLength) })
		}},
	}
}

// abstractSocket is the name of the abstract unix socket that attacks go for.
const abstractSocket = "gvx-attack"

// abstract is its address.
var (
	abstract       = str(string([]byte{unix.AF_UNIX, 0, 0}) + abstractSocket)
	abstractLength = uintptr(3 + len(abstractSocket))
)

// byAny tries an attack on every descriptor that the process may have, all of them,
// and returns nil if one let it.
func byAny(f func(fd uintptr) error) error {
	err := error(unix.EBADF)
	for fd := range uintptr(512) {
		if e := f(fd); e != unix.EBADF && err != nil {
			err = e
		}
	}
	return err
}

func processAttacks() []attack {
	return []attack{
		finally("exec", unix.SYS_EXECVE, pathShell, uintptr(unsafe.Pointer(&argv[0])), 0),
		finally("exec by descriptor", unix.SYS_EXECVEAT, 0, word+3, uintptr(unsafe.Pointer(&argv[0])), 0, unix.AT_EMPTY_PATH),
		simply("fork", unix.SYS_CLONE, uintptr(unix.SIGCHLD)),
		simply("clone into a user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
		simply("clone3", unix.SYS_CLONE3, pointer, 88),
		simply("unshare user namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		simply("unshare network", unix.SYS_UNSHARE, unix.CLONE_NEWNET),
		simply("setns", unix.SYS_SETNS, 0, 0),
		simply("setsid", unix.SYS_SETSID),
		simply("chdir", unix.SYS_CHDIR, pathTmp),
		simply("chroot", unix.SYS_CHROOT, pathTmp),
		simply("pidfd", unix.SYS_PIDFD_OPEN, 1, 0),
		simply("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, pointer),
		simply("dumpable again", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1),
		simply("no_new_privs off", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 0),
		simply("parent-death signal off", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0),
		simply("survive signals of a dead parent", unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1),
		simply("pin to a processor", unix.SYS_SCHED_SETAFFINITY, 0, 8, pointer),
		simply("real-time priority", unix.SYS_SCHED_SETSCHEDULER, 0, 1, pointer),
		simply("raise priority", unix.SYS_SETPRIORITY, 0, 0, ^uintptr(19)),
		simply("timer signals", unix.SYS_TIMER_CREATE, 0, 0, pointer),
	}
}

// neighbourAttacks go for the process that the mode file names, and for the
// one that always exists.
func neighbourAttacks() []attack {
	them := func() uintptr { return uintptr(max(chosen.Neighbour, 1)) }
	at := func(name string, f func() error) attack { return attack{name: name, try: f} }
	var iov = [2]uintptr{pointer, 8}
	vector := uintptr(unsafe.Pointer(&iov[0]))
	return []attack{
		at("kill a neighbour", func() error { return call(unix.SYS_KILL, them(), uintptr(unix.SIGTERM)) }),
		at("queue a signal", func() error { return call(unix.SYS_RT_SIGQUEUEINFO, them(), uintptr(unix.SIGTERM), pointer) }),
		at("read a neighbour's memory", func() error { return call(unix.SYS_PROCESS_VM_READV, them(), vector, 1, vector, 1, 0) }),
		at("write a neighbour's memory", func() error { return call(unix.SYS_PROCESS_VM_WRITEV, them(), vector, 1, vector, 1, 0) }),
		at("seize a neighbour", func() error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, them(), 0, 0) }),
		at("peek into a neighbour", func() error { return call(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, them(), pointer, pointer) }),
		finally("become traced", unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0),
		at("take a neighbour's descriptor", func() error { return call(unix.SYS_PIDFD_GETFD, 0, 1, 0) }),
		at("limit a neighbour", func() error { return call(unix.SYS_PRLIMIT64, them(), unix.RLIMIT_NOFILE, pointer, 0) }),
		at("compare kernel objects", func() error { return call(unix.SYS_KCMP, them(), 1, 0, 0, 0) }),
		at("move a neighbour's pages", func() error { return call(unix.SYS_MOVE_PAGES, them(), 0, 0, 0, 0, 0) }),
	}
}

func kernelAttacks() []attack {
	return []attack{
		simply("mount", unix.SYS_MOUNT, word, pathTmp, tmpfs, 0, 0),
		simply("bind mount", unix.SYS_MOUNT, pathRoot, pathTmp, 0, unix.MS_BIND, 0),
		simply("umount", unix.SYS_UMOUNT2, pathTmp, unix.MNT_DETACH),
		simply("pivot_root", unix.SYS_PIVOT_ROOT, pathTmp, pathTmp),
		simply("fsopen", unix.SYS_FSOPEN, tmpfs, 0),
		simply("fspick", unix.SYS_FSPICK, atCWD, pathRoot, 0),
		simply("move_mount", unix.SYS_MOVE_MOUNT, atCWD, pathTmp, atCWD, pathRoot, 0),
		simply("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 1),
		simply("add_key", unix.SYS_ADD_KEY, word, word, pointer, 1, ^uintptr(2)),
		simply("request_key", unix.SYS_REQUEST_KEY, word, word, 0, 0),
		simply("io_uring", unix.SYS_IO_URING_SETUP, 1, pointer),
		simply("asynchronous I/O", unix.SYS_IO_SETUP, 1, pointer),
		simply("bpf", unix.SYS_BPF, 0, pointer, 64),
		simply("userfaultfd", unix.SYS_USERFAULTFD, 1),
		simply("perf_event_open", unix.SYS_PERF_EVENT_OPEN, pointer, 0, ^uintptr(0), ^uintptr(0), 0),
		simply("load a module", unix.SYS_FINIT_MODULE, 0, word, 0),
		simply("kexec", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		simply("reboot", unix.SYS_REBOOT, 0, 0, 0, 0), // wrong magic numbers
		simply("swapon", unix.SYS_SWAPON, pathTmp, 0),
		simply("accounting", unix.SYS_ACCT, pathTmp),
		simply("quota", unix.SYS_QUOTACTL, 0, word, 0, pointer),
		simply("kernel log", unix.SYS_SYSLOG, 3, pointer, 4096),
		simply("host name", unix.SYS_SETHOSTNAME, word, 3),
		simply("host clock", unix.SYS_CLOCK_SETTIME, 0, pointer),
		simply("System V shared memory", unix.SYS_SHMGET, 0, 4096, 0o1600),
		simply("System V semaphores", unix.SYS_SEMGET, 0, 1, 0o1600),
		simply("POSIX queue", unix.SYS_MQ_OPEN, word, unix.O_RDWR|unix.O_CREAT, 0o600, 0),
		simply("landlock", unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1),
		simply("a number without a call", 1000),
	}
}

func privilegeAttacks() []attack {
	return []attack{
		simply("setuid", unix.SYS_SETUID, 0),
		simply("setgid", unix.SYS_SETGID, 0),
		simply("setresuid", unix.SYS_SETRESUID, 0, 0, 0),
		simply("setgroups", unix.SYS_SETGROUPS, 0, 0),
		simply("setfsuid", unix.SYS_SETFSUID, 0),
		simply("capset", unix.SYS_CAPSET, pointer, pointer),
		simply("personality", unix.SYS_PERSONALITY, 0x0400000),
		simply("core dumps", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, pointer, 0),
	}
}

func memoryAttacks() []attack {
	const exec = unix.PROT_READ | unix.PROT_EXEC
	return []attack{
		simply("executable anonymous memory", unix.SYS_MMAP, 0, 4096, exec|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0),
		simply("executable file mapping", unix.SYS_MMAP, 0, 4096, exec, unix.MAP_SHARED, 0, 0),
		simply("private file mapping", unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE, 0, 0),
		simply("locked memory", unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_LOCKED, ^uintptr(0), 0),
		simply("make memory executable", unix.SYS_MPROTECT, pointer&^4095, 4096, exec),
		simply("advice for another process", unix.SYS_PROCESS_MADVISE, 0, pointer, 1, 4, 0),
		simply("poison a page", unix.SYS_MADVISE, pointer&^4095, 4096, 100),
		simply("guard against the kernel", unix.SYS_REMAP_FILE_PAGES, pointer&^4095, 4096, 0, 0, 0),
		simply("inject terminal input", unix.SYS_IOCTL, 0, unix.TIOCSTI, pointer),
		simply("take a terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 1),
		simply("Linux terminal subcommands", unix.SYS_IOCTL, 0, 0x541c, pointer),
		simply("descriptor flags", unix.SYS_FCNTL, 0, unix.F_SETFD, 0),
		simply("descriptor owner", unix.SYS_FCNTL, 0, unix.F_SETOWN, 1),
		simply("file lease", unix.SYS_FCNTL, 0, unix.F_SETLEASE, 0),
		simply("futex with priority inheritance", unix.SYS_FUTEX, pointer, 6, 0, 0, 0, 0),
	}
}

// permittedAttacks abuse what the allow-list cannot tell from proper use.
func permittedAttacks() []attack {
	them := func() uintptr { return uintptr(max(chosen.Neighbour, 2)) }
	at := func(name string, f func() error) attack { return attack{name: name, permitted: true, try: f} }
	return []attack{
		at("attach to a neighbour", func() error { return call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, them(), 0, 0) }),
		at("interrupt a neighbour", func() error { return call(unix.SYS_TGKILL, them(), them(), uintptr(unix.SIGCHLD)) }),
		at("wait for a neighbour", func() error { return call(unix.SYS_WAIT4, them(), 0, unix.WNOHANG, 0) }),
		at("lower a neighbour's priority", func() error { return call(unix.SYS_SETPRIORITY, 0, them(), 1) }),
		at("write to a descriptor that was not donated", func() error { return call(unix.SYS_WRITE, 200, pointer, 1) }),
		at("map a descriptor that was not donated", func() error {
			return call(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_SHARED, 200, 0)
		}),
	}
}
