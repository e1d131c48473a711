// SPDX-License-Identifier: Apache-2.0

//go:build unix

package container

import (
	"os"
	"syscall"
)

// fileOwner is the user that a file belongs to.
func fileOwner(path string) (uid uint32, ok bool) {
	st, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return sys.Uid, true
}
