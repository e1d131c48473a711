// SPDX-License-Identifier: Apache-2.0

package images

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// isNoSpace reports a full disk or a used-up quota.
func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

func isReadOnly(err error) bool { return errors.Is(err, windows.ERROR_WRITE_PROTECT) }

// freeBytes is what this user can still write below dir.
func freeBytes(dir string) (int64, error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, nil, nil); err != nil {
		return 0, err
	}
	return int64(free), nil
}

// syncDir has nothing to do: NTFS journals names, and directories have no flush.
func syncDir(string) error { return nil }

// diskBytes is what a file takes on the disk, about.
func diskBytes(fi os.FileInfo) int64 { return fi.Size() }
