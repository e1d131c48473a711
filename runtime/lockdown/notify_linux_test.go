// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// TestProbeNotifyFree runs where no parent holds a listener, twice, and then
// installs a filter on all threads: the probe must leave nothing behind.
func TestProbeNotifyFree(t *testing.T) {
	for range 2 {
		n, err := ProbeNotify()
		if err != nil {
			t.Fatal(err)
		}
		if n == NotifyTaken {
			t.Skip("a parent of this test holds a seccomp-notify listener")
		}
	}
}

// TestAvoidNotify starts a parent that holds a listener, which executes a
// child, which must see EBUSY before and EINVAL after.
func TestAvoidNotify(t *testing.T) {
	out, err := childCommand(t, "notify-parent").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := strings.TrimSpace(string(out))
	if got == "unsupported" {
		t.Skip("the kernel has no seccomp-notify, or a parent holds the listener")
	}
	if want := "taken by a parent; invalid argument; ok"; got != want {
		t.Errorf("child: %q, want %q", got, want)
	}
}

// childNotifyParent installs a filter that asks about acct(2), which nobody
// calls, keeps the listener, and becomes the child. The listener survives the
// exec, as it would in a container manager that forked.
func childNotifyParent() {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fd, errno := seccompLoad([]bpf.Instruction{
		bpf.Stmt(bpf.Ld|bpf.Abs|bpf.W, 0),
		bpf.Jump(bpf.Jmp|bpf.Jeq|bpf.K, unix.SYS_ACCT, 0, 1),
		bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_USER_NOTIF)),
		bpf.Stmt(bpf.Ret|bpf.K, uint32(linux.SECCOMP_RET_ALLOW)),
	}, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if errno != 0 {
		fmt.Println("unsupported")
		return
	}
	if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, []string{"GVX_LOCKDOWN_CHILD=notify-child"})
	fmt.Println(err)
	os.Exit(1)
}

func childNotifyChild() {
	n, err := ProbeNotify()
	if err == nil {
		err = AvoidNotify()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// The same question again: on this thread, since it is about to end.
	runtime.LockOSThread()
	after := tryListener()
	// The allow-list still goes on top, on all threads.
	p, err := Filter(FilterOptions{ListenFD: -1})
	if err == nil {
		err = Install(p)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Stdout.WriteString(fmt.Sprintf("%s; %v; ok\n", n, after))
}
