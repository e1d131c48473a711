// SPDX-License-Identifier: Apache-2.0

// Naming processes for good, from /proc.

package state

import (
	"bytes"
	"os"
	"strconv"
)

// startTicksField is the index of starttime among the fields of
// /proc/PID/stat that follow the command's name (field 22 of all).
const startTicksField = 22 - 3

// Identify returns the identity of a living process.
func Identify(pid int) (ProcessID, bool) {
	return identify("/proc/"+strconv.Itoa(pid)+"/stat", pid)
}

// self is the identity of this process.
func self() ProcessID {
	id, _ := identify("/proc/self/stat", os.Getpid())
	return id
}

func identify(path string, pid int) (ProcessID, bool) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return ProcessID{PID: pid}, false
	}
	// The name, in parentheses, may hold spaces and parentheses itself.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return ProcessID{PID: pid}, false
	}
	fields := bytes.Fields(stat[i+1:])
	if len(fields) <= startTicksField {
		return ProcessID{PID: pid}, false
	}
	ticks, err := strconv.ParseUint(string(fields[startTicksField]), 10, 64)
	return ProcessID{PID: pid, StartTicks: ticks}, err == nil
}

// Alive reports whether the process still exists: its number, held by a
// process that started when it did.
func (p ProcessID) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, ok := Identify(p.PID)
	return ok && now == p
}
