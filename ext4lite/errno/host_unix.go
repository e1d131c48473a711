// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Which of the host's error numbers mean that the host has no more space.

package errno

import "syscall"

func hostOutOfSpace(e syscall.Errno) bool {
	return e == syscall.ENOSPC || e == syscall.EDQUOT || e == syscall.EFBIG
}
