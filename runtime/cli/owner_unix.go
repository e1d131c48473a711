// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"os"
	"syscall"
)

// isOurs reports whether dir is a directory of the present user. A runtime
// directory inherited from another user, by su or sudo, is not.
func isOurs(dir string) bool {
	fi, err := os.Stat(dir)
	if err != nil || !fi.IsDir() {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// keepOwner gives a file the owner that another one has, as far as this user may.
func keepOwner(f *os.File, as os.FileInfo) error {
	st, ok := as.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
