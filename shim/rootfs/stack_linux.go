// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// maxMountData is what mount(2) takes of options: a page, with its zero.
const maxMountData = 4095

// mountStack stacks directories, or EROFS layers (the lowest first) below an upper
// directory, and returns the root of that mount, which is attached nowhere: it is
// made in a mount namespace of a thread's own, which ends with the thread, and
// lives as long as somebody has it open. scratch is an empty directory.
func mountStack(scratch string, layers []string, s *Stack, readOnly bool) (*os.File, error) {
	f, err := onOwnThread(func() (*os.File, error) { return stackHere(scratch, layers, s, readOnly) })
	if err != nil {
		return nil, fmt.Errorf("stack the root file system: %w", err)
	}
	return f, nil
}

// onOwnThread calls do on a thread that ends afterwards, with whatever do has done
// to it. That is not the process' first, which would stay.
func onOwnThread(do func() (*os.File, error)) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f, err = do()
			return
		}
		f, err = onOwnThread(do)
		runtime.UnlockOSThread()
	}()
	<-done
	return f, err
}

// stackHere does the work, on a thread of its own.
func stackHere(scratch string, layers []string, s *Stack, readOnly bool) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	// Unmounts of the host's are seen here, so that nothing is held; mounts here
	// are not seen there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=0700"); err != nil {
		return nil, fmt.Errorf("mount a place for layers: %w", err)
	}
	lowers := s.Lowers
	for i := len(layers) - 1; i >= 0; i-- {
		at := filepath.Join(scratch, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			return nil, err
		}
		m := mount.Mount{Type: "erofs", Source: layers[i], Options: []string{"ro", "loop"}}
		if err := m.Mount(at); err != nil {
			return nil, fmt.Errorf("mount layer %s: %w", layers[i], err)
		}
		lowers = append(lowers, at)
	}
	top := filepath.Join(scratch, "root")
	if err := os.Mkdir(top, 0o700); err != nil {
		return nil, err
	}
	if err := mountOverlay(top, lowers, s, readOnly); err != nil {
		return nil, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, top, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep the mount: %w", os.NewSyscallError("open_tree", err))
	}
	return os.NewFile(uintptr(fd), "root file system"), nil
}

// mountOverlay mounts the overlay itself, or what there is if that is one directory
// to be read.
func mountOverlay(top string, lowers []string, s *Stack, readOnly bool) error {
	var flags uintptr
	if readOnly || s.Upper == "" {
		flags = unix.MS_RDONLY
	}
	if s.Upper == "" && len(lowers) == 1 {
		if err := unix.Mount(lowers[0], top, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", lowers[0], err)
		}
		return unix.Mount("", top, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	// Paths that begin alike are given from there on: a page has to do for all.
	base := commonDirectory(append(append([]string{}, lowers...), s.Upper, s.Work))
	if err := unix.Chdir(base); err != nil {
		return &os.PathError{Op: "chdir", Path: base, Err: err}
	}
	relative := func(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, base), "/") }
	var short []string
	for _, l := range lowers {
		short = append(short, relative(l))
	}
	options := append([]string{"lowerdir=" + strings.Join(short, ":")}, s.Options...)
	if s.Upper != "" {
		options = append(options, "upperdir="+relative(s.Upper), "workdir="+relative(s.Work))
	}
	data := strings.Join(options, ",")
	if len(data) > maxMountData {
		return fmt.Errorf("%d directories to stack: their names take %d bytes, at most %d", len(lowers), len(data), maxMountData)
	}
	if err := unix.Mount("overlay", top, "overlay", flags, data); err != nil {
		return fmt.Errorf("mount overlay of %d directories: %w", len(lowers), err)
	}
	return nil
}

// commonDirectory is the deepest directory above all paths.
func commonDirectory(paths []string) string {
	common := ""
	for i, p := range paths {
		switch {
		case p == "":
		case common == "" && i == 0:
			common = filepath.Dir(p)
		default:
			for common != "/" && !strings.HasPrefix(p, common+"/") {
				common = filepath.Dir(common)
			}
		}
	}
	return common
}
