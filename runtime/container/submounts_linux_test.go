// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParseSubmounts: neither the directory itself nor its neighbours are below it,
// and what is the kernel's is left out.
func TestParseSubmounts(t *testing.T) {
	table := `25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
26 25 0:5 / /proc rw - proc proc rw
27 25 0:6 / /sys rw shared:3 master:4 - sysfs sysfs rw
28 25 8:2 / /srv rw - ext4 /dev/vdb rw
29 28 0:9 / /srv/a\040b rw - tmpfs tmpfs rw
30 25 0:9 / /srvx rw - tmpfs tmpfs rw
31 28 0:9 / /srv/kernel rw - cgroup2 cgroup2 rw
broken
`
	for dir, want := range map[string]string{
		"/":        "[{28 srv} {29 srv/a b} {30 srvx}]",
		"/srv":     "[{29 a b}]",
		"/srv/a b": "[]",
		"/proc":    "[]",
	} {
		if got := fmt.Sprint(parseSubmounts(table, dir)); got != want {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
	if got := submounts("/"); slices.Contains(got, "/") {
		t.Errorf("the root is below itself: %q", got)
	}
}

// TestHiddenSubmounts: a mount that another one hides is no place.
func TestHiddenSubmounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	result := make(chan error, 1)
	var before, after []string
	go func() {
		runtime.LockOSThread() // And never unlocked: the thread ends with its namespace.
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			below := filepath.Join(dir, "below")
			mount := func(target string) error { return unix.Mount("tmpfs", target, "tmpfs", 0, "") }
			if err := os.Mkdir(below, 0o755); err != nil {
				return err
			}
			if err := mount(below); err != nil {
				return err
			}
			before = submounts(dir)
			if err := mount(dir); err != nil {
				return err
			}
			if err := os.Mkdir(below, 0o755); err != nil {
				return err
			}
			after = submounts(dir)
			return nil
		}()
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before, []string{filepath.Join(dir, "below")}) || len(after) > 0 {
		t.Errorf("%q, then %q", before, after)
	}
}
