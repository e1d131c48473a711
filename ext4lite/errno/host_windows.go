// SPDX-License-Identifier: Apache-2.0

// Which of the host's error numbers mean that the host has no more space.

package errno

import "syscall"

func hostOutOfSpace(e syscall.Errno) bool {
	const handleDiskFull, diskFull = 39, 112 // ERROR_HANDLE_DISK_FULL, ERROR_DISK_FULL
	return e == handleDiskFull || e == diskFull
}
