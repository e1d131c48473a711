// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// fileHolders lists the processes that have a file open, as far as /proc shows
// them to this user.
func fileHolders(path string) []string {
	file, err := os.Stat(path)
	if err != nil {
		return nil
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var names []string
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if dir := filepath.Join("/proc", p.Name()); hasOpen(filepath.Join(dir, "fd"), file) {
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			names = append(names, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	return names
}

func hasOpen(fds string, file os.FileInfo) bool {
	list, err := os.ReadDir(fds)
	if err != nil {
		return false
	}
	for _, fd := range list {
		if fi, err := os.Stat(filepath.Join(fds, fd.Name())); err == nil && os.SameFile(fi, file) {
			return true
		}
	}
	return false
}
