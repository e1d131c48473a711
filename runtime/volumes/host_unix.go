// SPDX-License-Identifier: Apache-2.0

//go:build unix

package volumes

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// isNoSpace reports a full disk, a used-up quota, or a file size limit.
func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// diskBytes is what a file takes on the disk: volumes are sparse.
func diskBytes(fi os.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return fi.Size()
}
