// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"slices"

	"golang.org/x/sys/unix"
)

// AddressSpaces leaves one process of each address space: those that a guest's
// process consists of on the host share theirs, and what it holds would be counted
// once for each.
func AddressSpaces(pids []int) []int {
	var distinct []int
	for _, pid := range pids {
		if !slices.ContainsFunc(distinct, func(other int) bool { return sameMemory(pid, other) }) {
			distinct = append(distinct, pid)
		}
	}
	return distinct
}

// sameMemory says whether two processes are in one address space: kcmp(2), KCMP_VM.
func sameMemory(one, other int) bool {
	const vm = 1
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(one), uintptr(other), vm, 0, 0, 0)
	return errno == 0 && r == 0
}
