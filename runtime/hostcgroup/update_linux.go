// SPDX-License-Identifier: Apache-2.0

package hostcgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Change is new limits for a group that exists; nil leaves one as it is, zero
// removes it.
type Change struct {
	MemoryBytes, CPUMillis *int64
}

// Update changes the limits of the group that backs the sandbox id, whose
// process is pid. One that has no group is not limited by it: no error.
func Update(pid int, id string, change Change) error {
	if os.Geteuid() != 0 {
		return nil
	}
	own, err := readFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return fmt.Errorf("find the cgroup of sandbox process %d: %w", pid, err)
	}
	mounts, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find the host's cgroups: %w", err)
	}
	h := parseHierarchies(own, mounts)
	name := namePrefix + id
	write := func(controller, v1File, v1None, v2File, value string) error {
		dir, file := filepath.Join(h.v2, parentV2, name), v2File
		if v1, ok := h.v1[controller]; ok {
			if dir, file = v1, v1File; filepath.Base(dir) != name {
				return nil
			}
			if value == "max" {
				value = v1None
			}
		}
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			return nil
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return fmt.Errorf("change the host cgroup of sandbox %s: %w", id, err)
		}
		return nil
	}
	if n := change.MemoryBytes; n != nil {
		value := "max"
		if *n > 0 {
			value = strconv.FormatInt(*n+overheadBytes+*n/overheadDivisor, 10)
		}
		if err := write("memory", "memory.limit_in_bytes", "-1", "memory.max", value); err != nil {
			return err
		}
	}
	if n := change.CPUMillis; n != nil {
		v1, v2 := "-1", "max "+strconv.Itoa(periodMicros)
		if *n > 0 {
			v1 = strconv.FormatInt(*n*periodMicros/1000, 10)
			v2 = v1 + " " + strconv.Itoa(periodMicros)
		}
		value := v2
		if _, ok := h.v1["cpu"]; ok {
			value = v1
		}
		return write("cpu", "cpu.cfs_quota_us", "-1", "cpu.max", value)
	}
	return nil
}
