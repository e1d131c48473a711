// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/mkfs"
)

// EmptyVolume makes a file that is an ext4 volume with nothing in it.
func EmptyVolume(t testing.TB, path string, sizeBytes int64) {
	t.Helper()
	d, err := device.CreateFile(path, sizeBytes)
	if err == nil {
		err = mkfs.Format(d, mkfs.Options{})
	}
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		t.Fatalf("make volume %s: %v", path, err)
	}
}

// MountXFS makes an XFS of sizeBytes, whose files can share blocks, in the file
// image, and mounts it on the directory dir until the test ends. It belongs to
// the home's user.
func (h *Home) MountXFS(t testing.TB, image, dir string, sizeBytes int64) {
	t.Helper()
	NeedRoot(t, "loop mounts")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, sizeBytes); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(NeedCommand(t, "mkfs.xfs"), "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, output)
	}
	if output, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		Missing(t, "a loop mount of an XFS: %v: %s", err, output)
	}
	t.Cleanup(func() { unmount(t, dir) })
	h.Chown(t, dir)
}

// unmountPatience bounds how long the kernel may take for references of its own.
const unmountPatience = 10 * time.Second

// unmount unmounts what no process may have in use any more. The kernel itself may
// have for a moment, on a busy machine, after the last process is gone.
func unmount(t testing.TB, dir string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := syscall.Unmount(dir, 0)
		if err == nil {
			return
		}
		users := usersOf(dir)
		if err != syscall.EBUSY || len(users) > 0 || time.Since(begin) > unmountPatience {
			t.Errorf("umount %s: %v; in use by %q", dir, err, users)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
			return
		}
	}
}

// usersOf are the processes that have something below a directory open, mapped, or as
// their place.
func usersOf(dir string) []string {
	var users []string
	for _, pattern := range []string{"cwd", "root", "exe", "fd/*", "map_files/*"} {
		links, _ := filepath.Glob("/proc/[0-9]*/" + pattern)
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && (to == dir || strings.HasPrefix(to, dir+"/")) {
				users = append(users, link+" -> "+to)
			}
		}
	}
	return users
}
