// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// birthTime is when a file was made, or last changed where the host does not
// say.
func birthTime(path string, fi os.FileInfo) time.Time {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return fi.ModTime()
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}
