// SPDX-License-Identifier: Apache-2.0

// Ending a hook with all that it has started.

package hooks

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// killRounds bounds how often descendants are looked for: a tree that forks
// faster than it can be killed gives up its newest twigs.
const killRounds = 32

// killTree kills a hook's process, which leads a session, and what descends from
// it or is in its session. A process that left both the session and its parent
// has become nobody's: it lives, as a daemon that wants to.
func killTree(leader int) {
	for range killRounds {
		// Those found are stopped first: what cannot run cannot fork.
		_ = unix.Kill(-leader, unix.SIGSTOP)
		found := false
		for _, pid := range tree(leader) {
			found = unix.Kill(pid, unix.SIGKILL) == nil || found
		}
		if !found {
			return
		}
	}
}

// process is a line of the process table.
type process struct {
	pid, parent, session int
}

// tree returns the leader, its session, and all their descendants, but no zombies.
func tree(leader int) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return []int{leader}
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return []int{leader}
	}
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, stat); ok {
			all = append(all, p)
		}
	}
	in := map[int]bool{leader: true}
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if !in[p.pid] && (p.session == leader || in[p.parent]) {
				in[p.pid], grew = true, true
			}
		}
	}
	var members []int
	for _, p := range all {
		if in[p.pid] {
			members = append(members, p.pid)
		}
	}
	return members
}

// parseStat reads proc_pid_stat(5): PID (NAME) STATE PPID PGRP SESSION …, where
// the name may hold anything.
func parseStat(pid int, stat []byte) (process, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	f := bytes.Fields(stat[i+1:])
	if len(f) < 4 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	return process{pid, parent, session}, err1 == nil && err2 == nil
}
