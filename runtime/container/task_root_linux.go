// SPDX-License-Identifier: Apache-2.0

// The mount namespace that a container's process shows to the host. Engines enter
// that of the process in the pid file, and take its root for the container's:
// `podman cp` writes there. So the first thread of that process lives in one where
// this is so, and not in the host's, where they would hit the host's own files.

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// firstThread carries work to the process' first thread, whose namespaces are those
// that the host finds by the process' number. Nobody but main can serve it.
var firstThread chan func()

// StandsForTask says whether these are the arguments of such a process.
func StandsForTask(args []string) bool {
	return len(args) > 0 && args[len(args)-1] == TaskArgument
}

// ServeFirstThread calls run beside, and does meanwhile what has to happen on the
// first thread, which is this goroutine's: main has locked it there in an init
// function. It returns what run does.
func ServeFirstThread(run func() int) int {
	firstThread = make(chan func())
	done := make(chan int, 1)
	go func() { done <- run() }()
	for {
		select {
		case f := <-firstThread:
			f()
		case code := <-done:
			return code
		}
	}
}

// rootView is what the first thread's mount namespace is to hold.
type rootView struct {
	rootfs   string
	readOnly bool
	// binds are the directories and files of the host that the guest has.
	binds []bindView
}

type bindView struct {
	source, target         string
	readOnly, nonRecursive bool
}

// viewOf is what a container has of the host: no more than its guest, and no more
// writable. What would be written below a private layer nobody would find.
func viewOf(rootfs string, oci *convert.OCI) rootView {
	c := oci.Container
	v := rootView{rootfs: rootfs, readOnly: c.Rootfs.ReadOnly || oci.PrivateRoot}
	for i := range c.Mounts {
		if m := &c.Mounts[i]; m.Host != nil {
			v.binds = append(v.binds, bindView{m.Host.Name, m.Target, m.ReadOnly, m.Host.NonRecursive})
		}
	}
	return v
}

// showRoot has the first thread show the container's root. A host that does not let
// this user have mount namespaces shows its own.
func (t *Task) showRoot() error {
	if firstThread == nil || t.view.rootfs == "" {
		return nil
	}
	v := t.view
	result := make(chan error, 1)
	firstThread <- func() { result <- v.enter() }
	err := <-result
	if errors.Is(err, unix.EPERM) {
		t.note("the container's process shows the host's root: %v", err)
		return nil
	}
	return err
}

// enter moves the calling thread into a new mount namespace, and changes its root.
func (v *rootView) enter() error {
	fail := func(what string, err error) error {
		return api.Errorf(api.KindInternal, "show the container's root %s to the host: %s: %w", v.rootfs, what, err)
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fail("make a mount namespace", err)
	}
	// What the host unmounts goes here too; nothing goes back.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fail("part its mounts from the host's", err)
	}
	if err := unix.Mount(v.rootfs, v.rootfs, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fail("bind it", err)
	}
	root, err := unix.Open(v.rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open it", err)
	}
	defer unix.Close(root)
	for _, b := range v.binds {
		// A place that is not there, or leads nowhere, is shown as it is.
		_ = b.mount(root)
	}
	if v.readOnly {
		if err := protect(root, 0); err != nil {
			return fail("make it read-only", err)
		}
	}
	if err := unix.Fchdir(root); err != nil {
		return fail("enter it", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fail("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fail("leave the host's root", err)
	}
	return os.NewSyscallError("chdir", unix.Chdir("/"))
}

// mount binds the source at its place below root, whose links lead nowhere outside.
func (b *bindView) mount(root int) error {
	fd, err := b.open(root)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if b.nonRecursive {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(b.source, threadFD(fd), "", flags, ""); err != nil {
		return fmt.Errorf("bind %s: %w", b.source, err)
	}
	if !b.readOnly {
		return nil
	}
	mounted, err := b.open(root)
	if err != nil {
		return err
	}
	defer unix.Close(mounted)
	if err := protect(mounted, unix.AT_RECURSIVE); err != nil {
		_ = unix.Unmount(threadFD(mounted), unix.MNT_DETACH)
		return fmt.Errorf("make %s read-only: %w", b.target, err)
	}
	return nil
}

// open opens what is at the place now.
func (b *bindView) open(root int) (int, error) {
	return unix.Openat2(root, strings.TrimPrefix(filepath.Clean(b.target), "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// protect makes a mount read-only, whose root fd is.
func protect(fd int, flags uint) error {
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) { // Before Linux 5.12.
		err = unix.Mount("", threadFD(fd), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return err
}

func threadFD(fd int) string { return "/proc/thread-self/fd/" + strconv.Itoa(fd) }
