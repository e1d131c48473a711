// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package state

import "os"

// Identify returns the number alone: only Linux has sandbox processes.
func Identify(pid int) (ProcessID, bool) { return ProcessID{PID: pid}, false }

func self() ProcessID { return ProcessID{PID: os.Getpid()} }

// Alive is false: only Linux has sandbox processes.
func (p ProcessID) Alive() bool { return false }
