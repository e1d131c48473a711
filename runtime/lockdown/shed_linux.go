// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ShedOptions says what [Shed] leaves in place.
type ShedOptions struct {
	// Keep are the donated descriptors. 0, 1 and 2 are always kept.
	Keep []int
	// EmptyRoot replaces the root directory by an empty one; the process must
	// have been started in a mount namespace of its own, with the capability
	// to use it.
	EmptyRoot bool
	// Descriptors has the empty root show the process' own descriptors, at
	// [OwnDescriptors], in place of what a sandbox needs there.
	Descriptors bool
	// Capabilities are kept, if the process holds them.
	Capabilities []uint
}

// Shed takes from the process what it inherited: privileges, the view of the
// host's files, and descriptors that nobody donated. Call it early, before the
// process reads anything that a guest or an image could have shaped, and in
// any case before the platform exists: stubs inherit what is left here, and a
// process cannot attach to a stub that holds a capability it lacks.
//
// A host that refuses the empty root is not an error, since nothing depends on
// it: [Seal] says whether it holds.
func Shed(o ShedOptions) error {
	if err := noNewPrivs(); err != nil {
		return err
	}
	if err := closeInherited(o.Keep); err != nil {
		return err
	}
	if o.EmptyRoot {
		if err := emptyRoot(o.Descriptors); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			return err
		}
	}
	if err := dropCapabilities(o.Capabilities); err != nil {
		return err
	}
	// A core dump would put guest memory, and the cache of every image page
	// it touched, into a file of the host's choosing.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	os.Clearenv()
	return nil
}

// allThreads makes a system call on every thread: credentials and
// no_new_privs are per thread in Linux.
func allThreads(nr, a1, a2, a3, a4, a5 uintptr) error {
	if _, _, e := syscall.AllThreadsSyscall6(nr, a1, a2, a3, a4, a5, 0); e != 0 {
		if e == syscall.ENOTSUP {
			return errCgo
		}
		return e
	}
	return nil
}

// errCgo: with C code in the process the Go runtime does not know all threads.
var errCgo = errors.New("this binary was built with cgo, which makes threads that cannot be locked down: build it with CGO_ENABLED=0")

// noNewPrivs sets the flag unless the launcher did. What one thread finds is
// true of all: a process starts as one thread, and later ones inherit from it.
func noNewPrivs() error {
	if set, err := prctlIs(unix.PR_GET_NO_NEW_PRIVS, 0, 1); err == nil && set {
		return nil
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// dropCapabilities gives up every capability that the process holds, but for those
// to be kept: first for
// good, from the bounding set, then from the others (ambient ones go with the
// permitted). A call on all threads stops them all and takes 100 µs, so this
// makes as few as possible: capabilities that the process does not hold stay
// in the bounding set, where no_new_privs makes them meaningless, unless the
// launcher took them away ([Outer.Apply] does).
func dropCapabilities(keep []uint) error {
	held, err := capabilities()
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if held.none() {
		return nil
	}
	for c := range uint(64) {
		if !held.permits(c) || slices.Contains(keep, c) {
			continue
		}
		// EPERM: without CAP_SETPCAP nothing can be taken from this set.
		err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EPERM) {
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var left capabilitySets
	for _, c := range keep {
		if held.permits(c) {
			left[c/32].Effective |= 1 << (c % 32)
			left[c/32].Permitted |= 1 << (c % 32)
		}
	}
	if err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&left[0])), 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// closeInherited closes every descriptor that came through exec and was not
// donated. What the process opened since then has close-on-exec set, as
// everything in Go has, and no descriptor with that flag can have come through
// exec: so the flag tells the Go runtime's own descriptors from a stray one.
func closeInherited(keep []int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= 2 || slices.Contains(keep, fd) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close stray descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// anchors are directories that exist on every system, to mount the new root
// on for the moment until it is the root.
var anchors = []string{"/tmp", "/proc", "/sys", "/dev"}

// emptyRoot makes an empty, read-only file system the root of the process. The
// old tree is detached: no path leads to it any more. It must run while the
// process holds CAP_SYS_ADMIN over a mount namespace of its own.
func emptyRoot(descriptors bool) error {
	// Nothing of this may travel to the host's mount table.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	var anchor string
	var err error
	for _, anchor = range anchors {
		if descriptors && anchor == "/proc" {
			continue // it is the source of what is to be seen
		}
		// One page and the few inodes of placeMaps: it stays as it is.
		err = unix.Mount("gvx-empty", anchor, "tmpfs", unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSUID, "mode=0755,size=4k,nr_inodes=8")
		if err == nil || !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mount empty root on %s: %w", anchor, err)
	}
	if err := unix.Chdir(anchor); err != nil {
		return fmt.Errorf("enter empty root: %w", err)
	}
	if descriptors {
		if err := placeDescriptors(); err != nil {
			return err
		}
	}
	// With both arguments the same the old root ends up on top of the new one,
	// and detaching "." uncovers it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot to empty root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's files: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter empty root: %w", err)
	}
	if !descriptors {
		if err := placeMaps(); err != nil {
			return err
		}
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSUID)
	if err := unix.Mount("", "/", "", flags, ""); err != nil {
		return fmt.Errorf("make empty root read-only: %w", err)
	}
	return nil
}

// OwnDescriptors is where an empty root shows the process' descriptors, if it was
// asked to.
const OwnDescriptors = "/fd"

// placeDescriptors mounts the process' own descriptors below the working
// directory: this one directory of /proc, above which there is the empty root.
func placeDescriptors() error {
	place := "." + OwnDescriptors
	if err := unix.Mkdir(place, 0o755); err != nil {
		return fmt.Errorf("make %s in the empty root: %w", OwnDescriptors, err)
	}
	if err := unix.Mount("/proc/self/fd", place, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the descriptors into the empty root: %w", err)
	}
	return nil
}

// emptyMaps is the one file of an empty root, of no bytes.
const emptyMaps = "/proc/self/maps"

// placeMaps puts a file into the empty root for the platform. systrap maps its
// stub at a random address; one time in a few hundred something is mapped
// there already, and it looks into this file for gaps before it tries again.
// Without the file it panics; what it finds in an empty one is that everything
// is free, so that it draws another address, up to 32 times.
func placeMaps() error {
	for _, dir := range []string{"/proc", "/proc/self"} {
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make %s in the empty root: %w", dir, err)
		}
	}
	fd, err := unix.Open(emptyMaps, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("make %s in the empty root: %w", emptyMaps, err)
	}
	return unix.Close(fd)
}
