// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// Table returns the entries for an architecture. It is made anew on each call:
// the caller may change it (a test that removes one entry does).
func Table(arch Arch) []Entry {
	return join(arch, runtimeEntries(), systrapEntries(), memoryEntries(), guestMemoryEntries(), fileEntries(), stdioEntries(), controlEntries(),
		networkEntries(), stubEntries(), traceEntries())
}

// TreesTable returns the entries for a sandbox that a gofer serves.
func TreesTable(arch Arch) []Entry {
	return append(Table(arch), join(arch, treesEntries())...)
}

// join puts together what is for an architecture.
func join(arch Arch, groups ...[]Entry) []Entry {
	var all []Entry
	for _, group := range groups {
		for _, e := range group {
			if e.Only == "" || e.Only == arch {
				all = append(all, e)
			}
		}
	}
	return all
}

// Thread flags of the Go runtime's clone. Only threads of this process can be
// made with them: CLONE_THREAD demands CLONE_SIGHAND, which demands CLONE_VM.
const threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD

// runtimeEntries are what the Go runtime (1.26, CGO off, GOMAXPROCS set) asks
// of the kernel whatever the program does.
func runtimeEntries() []Entry {
	return []Entry{
		{"futex", args(within(1, linux.FUTEX_WAIT|linux.FUTEX_WAKE|linux.FUTEX_PRIVATE_FLAG)),
			"Go: parks and wakes threads (private); systrap: wakes and awaits stubs in shared memory", ""},
		{"nanosleep", nil, "Go: sysmon's pause, back-off of spinning threads", ""},
		{"sched_yield", nil, "Go: contended locks", ""},
		{"restart_syscall", nil, "kernel: resumes a sleep or poll after the process was stopped and continued", ""},
		{"clock_gettime", nil, "Go and Sentry: processor-time clocks, which the vDSO does not serve", ""},
		{"getrandom", args(is(2, 0)), "Go: random numbers where the vDSO does not serve them", ""},
		{"gettid", nil, "Go: a signal handler finds its thread", ""},
		{"getpid", nil, "Go: target of its own tgkill; Sentry: credentials of a host socket", ""},
		only(AMD64, Entry{"clone", args(is(0, threadFlags|unix.CLONE_SETTLS), is(2, 0), is(3, 0)),
			"Go: new thread. Never a process: stubs are cloned by a stub, under its own filter", ""}),
		only(ARM64, Entry{"clone", args(is(0, threadFlags)),
			"Go: new thread. The runtime leaves the unused arguments undefined here", ""}),
		{"exit", nil, "Go: a thread ends with its locked goroutine", ""},
		{"exit_group", nil, "the sandbox ends", ""},
		{"rt_sigaction", nil, "Go: signal.Notify, and the default action before dying of a signal", ""},
		{"rt_sigprocmask", nil, "Go: masks signals around clone and in new threads", ""},
		{"rt_sigreturn", nil, "kernel: end of every signal handler (preemption is one)", ""},
		{"sigaltstack", nil, "Go: signal stack of a new thread", ""},
		{"tgkill", args(variable(0, SelfPID)), "Go: preempts its own threads, raises a fatal signal in itself", ""},
		{"epoll_ctl", nil, "Go and Sentry: register descriptors for polling", ""},
		{"epoll_pwait", args(is(4, 0)), "Go and Sentry: await events; no signal mask", ""},
		{"prctl", args(is(0, unix.PR_SET_VMA), is(1, unix.PR_SET_VMA_ANON_NAME)), "Go: names its heap areas in /proc/PID/maps", ""},
		{"prctl", args(is(0, unix.PR_GET_SECCOMP)), "lockdown: reads back that the filter is in force", ""},
	}
}

// systrapEntries are the Sentry's own part of the same.
func systrapEntries() []Entry {
	return []Entry{
		{"rt_tgsigqueueinfo", args(variable(0, SelfPID), is(2, uint64(unix.SIGKILL))),
			"systrap: ends the sandbox when a stub was killed; the one way that works for process 1 of a namespace", ""},
		only(ARM64, Entry{"getcpu", args(is(1, 0), is(2, 0)), "Sentry: current processor, for rseq; no vDSO call there", ""}),
	}
}

// memoryEntries never grant PROT_EXEC: code of the process is what was mapped
// before the filter. Guests' executable pages are mapped by stubs, in stubs.
func memoryEntries() []Entry {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	const anon = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	return []Entry{
		{"mmap", args(within(2, rw), is(3, unix.MAP_SHARED)), "Sentry: windows on guest memory, image layers, volumes; stub stacks; both: a gofer's channels", ""},
		{"mmap", args(within(2, rw), is(3, anon)), "Go: reserves heap and stacks", ""},
		{"mmap", args(within(2, rw), is(3, anon|unix.MAP_FIXED)), "Go: makes reserved heap usable", ""},
		{"mmap", args(is(2, rw), is(3, linux.MAP_DROPPABLE|unix.MAP_ANONYMOUS)), "Go: state of the vDSO's random numbers (Linux 6.11)", ""},
		{"munmap", nil, "Go and Sentry: give mappings back", ""},
		{"madvise", args(is(2, unix.MADV_DONTNEED)), "Go: returns free heap to the host", ""},
		{"madvise", args(anyOf(2, unix.MADV_HUGEPAGE, unix.MADV_NOHUGEPAGE, unix.MADV_COLLAPSE)), "Go heap and guest memory: huge page policy", ""},
	}
}

// guestMemoryEntries are for the memory of guests.
func guestMemoryEntries() []Entry {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	return []Entry{
		{"mmap", args(within(2, rw), is(3, unix.MAP_SHARED|unix.MAP_FIXED)), "Sentry: renews a window after the file under it changed", ""},
		{"madvise", args(is(2, unix.MADV_POPULATE_WRITE)), "Sentry: populates guest memory it is about to fill", ""},
		{"mincore", nil, "Sentry: counts what guests really use (meminfo, Stats)", ""},
		{"mlock", nil, "Sentry: populates guest memory on kernels before 5.14", ""},
		{"munlock", nil, "Sentry: second half of the above", ""},
		{"membarrier", args(is(0, linux.MEMBARRIER_CMD_GLOBAL), is(1, 0)), "Sentry: a guest's membarrier(2)", ""},
	}
}

// fileEntries work on donated descriptors; none of them takes a path.
func fileEntries() []Entry {
	return []Entry{
		{"read", nil, "pipes, terminals, sockets, event descriptors", ""},
		{"write", nil, "pipes, terminals, sockets, the log", ""},
		{"pread64", nil, "image layers, volumes, the rootfs' upper", ""},
		{"pwrite64", nil, "the rootfs' upper, volumes, a guest's pipe: writes of one piece", ""},
		{"preadv2", nil, "scattered reads of the same", ""},
		{"pwritev2", nil, "gathered writes of the same", ""},
		{"close", nil, "everything donated and made", ""},
		{"fstat", nil, "size and kind of a donated descriptor", ""},
		{"statx", args(descriptor(0), has(2, unix.AT_EMPTY_PATH)), "a guest's stat of its standard streams: the descriptor itself, never a path", ""},
		{"ftruncate", nil, "guest memory file and volumes grow", ""},
		{"fallocate", args(anyOf(1, 0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)), "frees guest memory and discarded volume blocks; commits memory and a volume's journal", ""},
		{"fsync", nil, "a guest's fsync reaches the volume's file", ""},
		{"fdatasync", nil, "volume commit", ""},
		{"sync_file_range", args(anyOf(3, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER, unix.SYNC_FILE_RANGE_WRITE)),
			"volume commit: waits for the data of one transaction, not for all that guests have written; has the host begin with much of it early", ""},
	}
}

// stdioEntries serve guests' standard streams: a guest that uses its terminal
// must never be able to end the sandbox with an unusual ioctl.
func stdioEntries() []Entry {
	return []Entry{
		{"ioctl", args(descriptor(0), anyOf(1, linux.TCGETS, linux.TCGETS2, linux.TIOCGWINSZ)), "a guest reads its terminal's modes and size", ""},
		{"ioctl", args(descriptor(0), anyOf(1, linux.TCSETS, linux.TCSETSW, linux.TCSETSF, linux.TCSETS2, linux.TCSETSW2, linux.TCSETSF2)), "a guest sets its terminal's modes; TIOCSTI is not among them", ""},
		{"ioctl", args(descriptor(0), is(1, linux.TIOCSWINSZ)), "the client resizes the terminal", ""},
		{"ioctl", args(descriptor(0), is(1, linux.FIONREAD)), "a guest asks how much its stream holds", ""},
		{"ppoll", nil, "Sentry: state of a stream without waiting", ""},
		{"utimensat", args(descriptor(0), is(1, 0), is(3, 0)), "a guest's futimens on a stream: the descriptor itself, never a path", ""},
		{"fcntl", args(anyOf(1, unix.F_GETFD, unix.F_GETFL)), "Sentry: imports a donated descriptor", ""},
	}
}

// controlEntries serve the control channel, whose connections are read and
// written like any stream.
func controlEntries() []Entry {
	return []Entry{
		{"recvmsg", args(variable(0, StreamsFD), is(2, unix.MSG_CMSG_CLOEXEC)), "exec: a client hands over the pipes or the terminal of a new process", ""},
		{"epoll_create1", args(is(0, 0)), "exec: Sentry asks of a new stream whether it can be polled", ""},
		{"lseek", args(descriptor(0), is(1, 0), is(2, unix.SEEK_CUR)), "exec: Sentry asks of a new stream whether it can seek", ""},
		{"accept4", args(variable(0, ListenFD), is(3, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)), "control: a client connects to the donated listener, and to no other", ""},
	}
}

// networkEntries serve connections that the broker has opened: they are read
// and written like any stream. sendmsg and sendto must stay absent: on a
// connected UDP socket they could name another address and so walk round the
// broker's policy.
func networkEntries() []Entry {
	return []Entry{
		{"recvmsg", args(variable(0, BrokerFD), is(2, unix.MSG_CMSG_CLOEXEC)), "network: receives the broker's connections, and from nobody else", ""},
		{"shutdown", args(descriptor(0), is(1, unix.SHUT_WR)), "network: a guest's end of sending reaches its peer; a broker that is not heard any more learns of it", ""},
		{"setsockopt", args(descriptor(0), is(1, unix.SOL_SOCKET), is(2, unix.SO_LINGER)), "network: a guest's reset reaches its peer, by a close that does not linger", ""},
	}
}

// stubEntries are systrap's dealings with its stub processes. The stubs' ids
// are not known in advance, so these cannot be tied to one target: the pid
// namespace, the sandbox's own uid and Landlock's scopes do that.
func stubEntries() []Entry {
	return []Entry{
		{"tgkill", args(anyOf(2, uint64(unix.SIGKILL), uint64(unix.SIGSTOP), uint64(unix.SIGCONT), uint64(unix.SIGCHLD), uint64(unix.SIGSEGV))),
			"systrap: stops, continues, interrupts, starts and ends stub threads", ""},
		{"wait4", args(anyOf(2, unix.WALL|unix.WUNTRACED, unix.WNOHANG)), "systrap: awaits a stub's stop, collects a dead one", ""},
		{"waitid", args(is(0, unix.P_PID), is(3, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)), "systrap: asks whether a stub lives", ""},
		{"setpriority", args(is(0, unix.PRIO_PROCESS), variable(2, ThreadPriority)), "systrap: stub threads yield to the Sentry", ""},
		{"ioctl", args(descriptor(0), anyOf(1, linux.SECCOMP_IOCTL_NOTIF_RECV, linux.SECCOMP_IOCTL_NOTIF_SEND)), "systrap: hands system calls to a stub through seccomp-notify", ""},
		{"ioctl", args(descriptor(0), is(1, linux.SECCOMP_IOCTL_NOTIF_SET_FLAGS), is(2, linux.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)), "systrap: the stub runs on the Sentry's processor", ""},
	}
}

// traceEntries set up stub threads. PEEK, POKE, SEIZE and all else of ptrace
// are absent: the Sentry never reads or writes a stub's memory this way.
func traceEntries() []Entry {
	const nothing = 0
	options := uint64(unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXIT | unix.PTRACE_O_EXITKILL)
	return []Entry{
		{"ptrace", args(is(0, unix.PTRACE_ATTACH)), "systrap: takes hold of a new stub thread", ""},
		{"ptrace", args(is(0, unix.PTRACE_SETOPTIONS), is(2, nothing), is(3, options)), "systrap: stubs die with the sandbox", ""},
		{"ptrace", args(is(0, unix.PTRACE_CONT), is(2, nothing), is(3, nothing)), "systrap: runs a stub to its trap", ""},
		{"ptrace", args(is(0, unix.PTRACE_GETREGSET), is(2, linux.NT_PRSTATUS)), "systrap: result of an injected call", ""},
		{"ptrace", args(is(0, unix.PTRACE_SETREGSET), is(2, linux.NT_PRSTATUS)), "systrap: injects a call", ""},
		{"ptrace", args(is(0, linux.PTRACE_SETSIGMASK), is(2, 8)), "systrap: which signals reach a stub thread", ""},
		{"ptrace", args(is(0, unix.PTRACE_DETACH), is(2, nothing), anyOf(3, nothing, uint64(unix.SIGSTOP))), "systrap: lets a stub thread run on its own filter", ""},
		{"ptrace", args(is(0, unix.PTRACE_GETEVENTMSG)), "systrap: says why a stub died", ""},
		only(ARM64, Entry{"ptrace", args(is(0, unix.PTRACE_SYSEMU), is(2, nothing), is(3, nothing)), "systrap: gets round a register that arm64 hides at a stop", ""}),
		only(ARM64, Entry{"ptrace", args(anyOf(0, unix.PTRACE_GETREGSET, unix.PTRACE_SETREGSET), is(2, linux.NT_ARM_TLS)), "systrap: thread pointer of a stub", ""}),
	}
}
