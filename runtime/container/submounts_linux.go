// SPDX-License-Identifier: Apache-2.0

// What the host has mounted below a directory: a mount that is read-only there is one
// mount, and those below it are as they are. See convert.OCIInput.

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelTypes are file systems in which writing changes the host's kernel, not files:
// a read-only mount of what is above them does not let a guest do that.
var kernelTypes = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "securityfs", "selinuxfs", "smackfs", "apparmorfs", "debugfs",
	"tracefs", "configfs", "bpf", "binfmt_misc", "efivarfs", "pstore", "fusectl", "nfsd", "rpc_pipefs", "resctrl", "nsfs", "autofs",
}

// submount is a mount of the host's.
type submount struct {
	// id is the kernel's number of it, place where it is below a directory.
	id, place string
}

// submounts are the places below a directory where others are mounted, in the order
// in which that was done.
func submounts(dir string) []string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil // Who opens it says so.
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil
	}
	var places []string
	for _, m := range parseSubmounts(string(table), real) {
		place := filepath.Join(dir, m.place)
		// One that another mount hides leads to a directory of that.
		if !slices.Contains(places, place) && mountOf(filepath.Join(real, m.place)) == m.id {
			places = append(places, place)
		}
	}
	return places
}

// parseSubmounts reads proc_pid_mountinfo(5). The directory itself is none below it.
func parseSubmounts(table, dir string) []submount {
	below := strings.TrimSuffix(dir, "/") + "/"
	var list []submount
	for line := range strings.Lines(table) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 1 || slices.Contains(kernelTypes, right[0]) {
			continue
		}
		place := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(left[4])
		if rest, ok := strings.CutPrefix(place, below); ok && rest != "" {
			list = append(list, submount{left[0], rest})
		}
	}
	return list
}

// mountOf is the number of the mount that a path leads to now, "" for none.
func mountOf(path string) string {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	text, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}
