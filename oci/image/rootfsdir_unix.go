// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package image

// Owners, links, devices and extended attributes on hosts that have them.

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/oci/layer"
	"z.gfire.dev/gvx/runtime/api"
)

// openNonblock keeps a FIFO that took a file's name from blocking.
const openNonblock = unix.O_NONBLOCK

// hostXattrs are the host's business and mean nothing, or harm, in an image.
var hostXattrs = []string{"security.selinux", "security.ima", "security.evm", "com.apple."}

// statMeta reads what fi does not say of the file called name.
func statMeta(name string, fi fs.FileInfo) (dirMeta, error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return dirMeta{}, api.Errorf(api.KindInternal, "stat %s: no stat_t", name)
	}
	meta := dirMeta{
		uid: int(st.Uid), gid: int(st.Gid),
		dev: uint64(st.Dev), ino: st.Ino, nlink: uint64(st.Nlink),
		major: int64(unix.Major(uint64(st.Rdev))), minor: int64(unix.Minor(uint64(st.Rdev))),
	}
	var err error
	meta.xattrs, err = readXattrs(name)
	return meta, err
}

// readXattrs reads a file's attributes, not following symlinks.
func readXattrs(name string) (map[string]string, error) {
	buf := make([]byte, layer.DefaultXattrBytes)
	n, err := unix.Llistxattr(name, buf)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes of %s: %w", name, err)
	}
	xattrs := map[string]string{}
	for _, key := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if isHostXattr(key) {
			continue
		}
		n, err := unix.Lgetxattr(name, key, buf)
		if err != nil {
			return nil, fmt.Errorf("read extended attribute %s of %s: %w", key, name, err)
		}
		xattrs[key] = string(buf[:n])
	}
	return xattrs, nil
}

func isHostXattr(key string) bool {
	for _, prefix := range hostXattrs {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}
