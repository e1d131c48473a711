// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Left lists what tasks have or left: processes beside the tests and the daemon,
// mounts in the tests' mount namespace below containerd's folder, task folders,
// sockets of shims, cgroups.
func (c *Containerd) Left(t testing.TB) []string {
	t.Helper()
	var left []string
	for pid, command := range c.Processes(t) {
		left = append(left, fmt.Sprintf("process %d %s", pid, command))
	}
	for _, mount := range c.mounts(t) {
		left = append(left, "mount "+mount)
	}
	for _, pattern := range []string{
		filepath.Join(c.State, "io.containerd.runtime.v2.task", "*", "*"),
		filepath.Join(c.Root, "io.containerd.runtime.v2.task", "*", "*"),
		filepath.Join(c.State, "io.containerd.sandbox.controller.v1.shim", "*", "*"),
		filepath.Join(c.Root, "io.containerd.sandbox.controller.v1.shim", "*", "*"),
		filepath.Join(c.Dir, "s", "*"),
		filepath.Join(c.Dir, "gvx", "run", "*"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			left = append(left, "file "+path)
		}
	}
	return append(left, c.cgroups(t)...)
}

// Processes returns the command lines of all processes of the namespace but
// process 1, the tests and their own children, and the daemon.
func (c *Containerd) Processes(t testing.TB) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == 1 || pid == os.Getpid() || c.cmd != nil && pid == c.cmd.Process.Pid {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // gone
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if parent, _ := strconv.Atoi(fields[1]); parent == os.Getpid() || fields[0] == "Z" {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		found[pid] = string(bytes.ReplaceAll(bytes.TrimRight(command, "\x00"), []byte{0}, []byte{' '}))
	}
	return found
}

// mounts returns the mount points below the daemon's folder. The network
// namespaces of pods that exist are mounts too.
func (c *Containerd) mounts(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], c.Dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found
}

// topCgroups returns the cgroups of the tests' containerd namespace, one in each
// hierarchy.
func (c *Containerd) topCgroups(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + c.Namespace, "/sys/fs/cgroup/*/" + c.Namespace} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, tops...)
	}
	return found
}

// cgroups returns those of containers.
func (c *Containerd) cgroups(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, top := range c.topCgroups(t) {
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && path != top {
				found = append(found, "cgroup "+path)
			}
			return nil
		})
	}
	return found
}

// endAll ends what a failed test left, so that the next test is judged alone.
func (c *Containerd) endAll(t testing.TB) {
	t.Helper()
	for pid := range c.Processes(t) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	mounts := c.mounts(t)
	for i := len(mounts) - 1; i >= 0; i-- {
		_ = unix.Unmount(mounts[i], unix.MNT_DETACH)
	}
	groups := c.cgroups(t)
	for i := len(groups) - 1; i >= 0; i-- {
		_ = os.Remove(strings.TrimPrefix(groups[i], "cgroup "))
	}
}
