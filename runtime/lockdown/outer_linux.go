// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownBinary is how a launcher executes itself: the link works even where the
// path to the binary does not, as for a sandbox uid and a binary below /root.
const ownBinary = "/proc/self/exe"

// namespaceFlags in the order in which they are reported.
var namespaceFlags = []struct {
	name string
	flag uintptr
}{
	{"user", unix.CLONE_NEWUSER},
	{"pid", unix.CLONE_NEWPID},
	{"net", unix.CLONE_NEWNET},
	{"ipc", unix.CLONE_NEWIPC},
	{"mnt", unix.CLONE_NEWNS},
	{"uts", unix.CLONE_NEWUTS},
}

// PlanOuter says what this user may put around a sandbox process on this
// host. It reads a few files of /proc and starts nothing, so it can be wrong
// where a security module has the last word: see [Refused].
//
// uid is the sandbox' own, for a launcher with root's rights: see
// [DefaultUIDBase]. Others ignore it.
func PlanOuter(uid uint32) *Outer {
	o := &Outer{}
	held, err := capabilities()
	if err != nil {
		held = capabilitySets{}
	}
	admin := held.effective(unix.CAP_SYS_ADMIN)
	if unix.Geteuid() == 0 && held.effective(unix.CAP_SETUID) && held.effective(unix.CAP_SETGID) {
		o.UID = uid
	}
	if admin || userNamespacesAllowed() {
		for _, ns := range namespaceFlags {
			if ns.name != "user" || !admin {
				o.Namespaces = append(o.Namespaces, ns.name)
			}
		}
		o.EmptyRoot = true
	}
	o.planLandlock()
	return o
}

// Without returns the plan for a host that refused o's namespaces.
func (o *Outer) Without() *Outer {
	w := &Outer{UID: o.UID, OwnLandlock: o.OwnLandlock, network: o.network, hostNetwork: o.hostNetwork}
	if !slices.Contains(o.Namespaces, "user") {
		w.Capabilities = o.Capabilities
	}
	if !o.OwnLandlock {
		w.planLandlock()
	}
	return w
}

// JoinNetwork has the process live in a network namespace that is there, in place of
// one of its own: one that its guests are given, so that who gets out reaches no more
// than they do. The file stays the caller's.
func (o *Outer) JoinNetwork(namespace *os.File) {
	o.network = namespace
	o.Namespaces = slices.DeleteFunc(slices.Clone(o.Namespaces), func(name string) bool { return name == "net" })
}

// ShareNetwork leaves the process in the launcher's network namespace, and lets it
// bind and connect: for guests that were given the host's network. The allow-list has
// to be [FilterOptions.HostNetwork].
func (o *Outer) ShareNetwork() {
	o.hostNetwork = true
	o.Namespaces = slices.DeleteFunc(slices.Clone(o.Namespaces), func(name string) bool { return name == "net" })
	if o.Landlock > 0 {
		o.planLandlock()
	}
}

// planLandlock asks the kernel for its version, and leaves Landlock out where
// the ruleset would be empty.
func (o *Outer) planLandlock() {
	o.Landlock = LandlockABI()
	if r := o.ruleset(); r.empty() {
		o.Landlock = 0
	}
}

// ruleset is what Landlock is to take away.
func (o *Outer) ruleset() landlockRuleset {
	r := sandboxRuleset(o.Landlock, ownBinary, o.EmptyRoot)
	if o.hostNetwork {
		r.Net = 0
	}
	return r
}

// userNamespacesAllowed reads the three switches that distributions have. They
// are hints: only trying tells.
func userNamespacesAllowed() bool {
	for _, sw := range []struct {
		file, forbids string
	}{
		{"/proc/sys/user/max_user_namespaces", "0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"},
	} {
		if readSwitch(sw.file) == sw.forbids {
			return false
		}
	}
	_, err := os.Stat("/proc/self/ns/user")
	return err == nil
}

// readSwitch returns a kernel setting, or "" where the kernel has none.
func readSwitch(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Apply makes a the recipe for a process inside o's layers, and restricts the
// calling thread where a layer is inherited rather than asked for. Call it on
// the thread that will fork, locked to its goroutine and never unlocked; that
// thread must wait for the process, because the kernel sends the parent-death
// signal when the thread ends, not the launcher.
func (o *Outer) Apply(a *syscall.SysProcAttr) error {
	// The child inherits it: exec of a set-uid file gains nothing from here on.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine sandbox process: set no_new_privs: %w", err)
	}
	if o.Landlock > 0 {
		if err := restrictThread(o.ruleset()); err != nil {
			return fmt.Errorf("confine sandbox process: %w", err)
		}
	}
	if o.network != nil {
		if err := unix.Setns(int(o.network.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("confine sandbox process: enter its network namespace: %w", err)
		}
	}
	a.Setsid = true
	a.Pdeathsig = syscall.SIGKILL
	for _, ns := range namespaceFlags {
		if slices.Contains(o.Namespaces, ns.name) {
			a.Cloneflags |= ns.flag
		}
	}
	if a.Cloneflags&unix.CLONE_NEWUSER != 0 {
		// One id, mapped to itself: files keep their owner, and nobody in
		// there is root.
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	if o.UID != 0 {
		a.Credential = &syscall.Credential{Uid: o.UID, Gid: o.UID}
	}
	keep := slices.Clone(o.Capabilities)
	if o.EmptyRoot {
		// What pivot_root and the bounding set need; Shed gives both up before
		// the process reads anything that is not the launcher's.
		keep = append(keep, rootCaps...)
	}
	for _, c := range keep {
		a.AmbientCaps = append(a.AmbientCaps, uintptr(c))
	}
	return dropBounding(keep)
}

// rootCaps are the capabilities that the process needs for its empty root.
var rootCaps = []uint{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}

// dropBounding takes every capability from the calling thread's bounding set,
// if it may, except those that the process is to take away itself. It is much
// cheaper here, on one thread, than in the process. (In a new user namespace
// the set is full again, and without meaning outside.)
func dropBounding(keep []uint) error {
	for c := range uint(64) {
		if slices.Contains(keep, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return nil // beyond the last one; or not ours to take
		}
		if err != nil {
			return fmt.Errorf("confine sandbox process: drop capability %d: %w", c, err)
		}
	}
	return nil
}

// Refused tells a host that does not grant the namespaces of a plan (they are
// forbidden, not built in, or used up) from other failures to start a process.
// A caller tries again with [Outer.Without].
func Refused(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSYS, unix.ENOSPC, unix.EUSERS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// nowhere is a path at which there is no program.
const nowhere = "/proc/self/gvx-no-such-program"

// granted tries whether the host grants the namespaces of o. The kernel makes
// them before it looks for the program, and there is none: nothing runs.
func (o *Outer) granted() error {
	result := make(chan error, 1)
	onOwnThread(func() {
		a := &syscall.SysProcAttr{}
		if err := o.Apply(a); err != nil {
			result <- err
			return
		}
		_, err := os.StartProcess(nowhere, []string{nowhere}, &os.ProcAttr{Sys: a})
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		result <- err
	})
	return <-result
}
