// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// systrap drives its stubs through seccomp-notify where the kernel has it. A
// task may have one notify listener in its chain of filters, so under a parent
// that holds one (a container manager that emulates system calls) systrap's
// own attempt gets EBUSY, for which it has no answer but a panic. EINVAL it
// takes for an old kernel, and uses its futex loop.

// Notify is what [ProbeNotify] found.
type Notify int

const (
	// NotifyFree means that a listener can be installed here.
	NotifyFree Notify = iota
	// NotifyTaken means that a parent holds one.
	NotifyTaken
	// NotifyMissing means that the kernel has no seccomp-notify.
	NotifyMissing
)

// String names the finding for doctor.
func (n Notify) String() string {
	switch n {
	case NotifyFree:
		return "free"
	case NotifyTaken:
		return "taken by a parent"
	default:
		return "missing"
	}
}

// threadEnd bounds the wait for the probing thread's end. It is over in well
// under a millisecond unless the machine is starved of processors.
const threadEnd = 5 * time.Second

// ProbeNotify finds out whether this process could install a seccomp-notify
// listener. A process without any filter can: that is one system call. Else it
// tries, on a thread that ends before ProbeNotify returns.
func ProbeNotify() (Notify, error) {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err == nil && mode == unix.SECCOMP_MODE_DISABLED {
		if !actionAvailable(uint32(linux.SECCOMP_RET_USER_NOTIF)) {
			return NotifyMissing, nil
		}
		return NotifyFree, nil
	}
	type outcome struct {
		tid int
		err error
	}
	ch := make(chan outcome)
	onOwnThread(func() { ch <- outcome{unix.Gettid(), tryListener()} })
	o := <-ch
	// A living thread with a filter of its own would make a later TSYNC fail.
	if err := awaitThreadEnd(o.tid); err != nil {
		return NotifyFree, err
	}
	switch {
	case o.err == nil:
		return NotifyFree, nil
	case errors.Is(o.err, unix.EBUSY):
		return NotifyTaken, nil
	case errors.Is(o.err, unix.EINVAL), errors.Is(o.err, unix.ENOSYS):
		return NotifyMissing, nil
	}
	return NotifyFree, fmt.Errorf("probe seccomp-notify: %w", o.err)
}

// tryListener installs an all-permitting filter with a listener on this thread.
func tryListener() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	allow := []bpf.Instruction{bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_ALLOW))}
	fd, errno := seccompLoad(allow, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func awaitThreadEnd(tid int) error {
	pid := unix.Getpid()
	deadline := time.Now().Add(threadEnd)
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if err := unix.Tgkill(pid, tid, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("probe seccomp-notify: thread %d did not end within %s", tid, threadEnd)
		}
		time.Sleep(pause)
	}
}

// AvoidNotify makes systrap use its futex loop when a parent holds a
// seccomp-notify listener, and does nothing otherwise. It must be called
// before the platform is made.
func AvoidNotify() error {
	n, err := ProbeNotify()
	if err != nil || n != NotifyTaken {
		return err
	}
	if err := setFilter(refuseListener(), unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
		return fmt.Errorf("hide seccomp-notify from the platform: %w", err)
	}
	return nil
}

// refuseListener is the filter that turns the kernel's EBUSY into EINVAL: for
// seccomp(SECCOMP_SET_MODE_FILTER, flags with NEW_LISTENER) and for nothing
// else. Stubs inherit it.
func refuseListener() []bpf.Instruction {
	// Offsets in struct seccomp_data; both architectures are little-endian, so
	// an argument's lower half comes first.
	const nr, arch, arg0, arg1 = 0, 4, 16, 24
	load := func(offset uint32) bpf.Instruction { return bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, offset) }
	equal := func(k uint32, no uint8) bpf.Instruction { return bpf.Jump(bpf.Jmp|bpf.Jeq|bpf.K, k, 0, no) }
	return []bpf.Instruction{
		load(arch),
		equal(auditArch, 7),
		load(nr),
		equal(unix.SYS_SECCOMP, 5),
		load(arg0),
		equal(unix.SECCOMP_SET_MODE_FILTER, 3),
		load(arg1),
		bpf.Jump(bpf.Jmp|bpf.Jset|bpf.K, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0, 1),
		bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_ERRNO)|uint32(unix.EINVAL)),
		bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_ALLOW)),
	}
}
