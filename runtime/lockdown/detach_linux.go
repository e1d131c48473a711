// SPDX-License-Identifier: Apache-2.0

package lockdown

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// DetachOptions say what a mount of its own is to be like.
type DetachOptions struct {
	// Submounts takes along what is mounted below.
	Submounts bool
	// ReadOnly refuses all changes, below too.
	ReadOnly bool
}

// Detach makes a mount of a directory or a file that is attached nowhere, and
// returns an O_PATH descriptor of its root: nothing lies above it, whatever is
// asked of the descriptor. Devices on it cannot be opened, and its links lead
// nowhere. Programs on it may still be mapped to run in the guest.
//
// It needs CAP_SYS_ADMIN over the mount namespace in which the file is; the error
// is then EPERM, or EINVAL for a file of another namespace, or where there are
// submounts that may not be left out.
func Detach(at int, path string, o DetachOptions) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if o.Submounts {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(at, path, flags)
	if err != nil {
		return -1, fmt.Errorf("clone the mount: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSYMFOLLOW, Propagation: unix.MS_PRIVATE}
	if o.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.EINVAL) {
		// Links came to this call later than the rest (Linux 5.14).
		attr.Attr_set &^= unix.MOUNT_ATTR_NOSYMFOLLOW
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	}
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		unix.Close(fd)
		return -1, fmt.Errorf("set the mount's attributes: %w", err)
	}
	return fd, nil
}
