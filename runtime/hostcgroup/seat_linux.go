// SPDX-License-Identifier: Apache-2.0

// The way back from a container's cgroup: a group cannot be removed by a process
// that is in it.

package hostcgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
)

// Seat is the groups that this process was in, one in each hierarchy that is
// mounted.
type Seat struct {
	dirs []string
}

// FindSeat remembers the groups that this process is in now.
func FindSeat() (*Seat, error) {
	own, err := readFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find this process' cgroups: %w", err)
	}
	mounts, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find this process' cgroups: %w", err)
	}
	return parseSeat(own, mounts), nil
}

// parseSeat finds the directories as parseHierarchies does, those of hierarchies
// without controllers too.
func parseSeat(own, mounts []string) *Seat {
	paths := map[string]string{}
	for _, line := range own {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			for _, c := range strings.Split(f[1], ",") {
				paths[c] = f[2] // Without controllers it is that of version 2.
			}
		}
	}
	s := &Seat{}
	for _, line := range mounts {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		var names []string
		switch right[0] {
		case "cgroup2":
			names = []string{""}
		case "cgroup":
			names = strings.Split(right[2], ",")
		}
		for _, c := range names {
			path, member := paths[c]
			below, err := filepath.Rel(left[3], path)
			if !member || err != nil || strings.HasPrefix(below, "..") {
				continue
			}
			if dir := filepath.Join(left[4], below); !slices.Contains(s.dirs, dir) {
				s.dirs = append(s.dirs, dir)
			}
		}
	}
	return s
}

// Return moves this process back.
func (s *Seat) Return() error {
	for _, dir := range s.dirs {
		if err := cgroups.WriteCgroupProc(dir, os.Getpid()); err != nil {
			return fmt.Errorf("leave the container's cgroup: %w", err)
		}
	}
	return nil
}
