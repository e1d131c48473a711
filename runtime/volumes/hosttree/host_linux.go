// SPDX-License-Identifier: Apache-2.0

// What Linux has beyond files: attributes, devices, several names.

package hosttree

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxXattrBytes bounds the names of a file's attributes, and each value: Linux'
// own limits.
const maxXattrBytes = 64 << 10

// identify names a file, and tells whether it has several names.
func identify(fi os.FileInfo) (fileID, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, st.Nlink > 1
}

// addXattrs adds all attributes that this user may read.
func addXattrs(h *tar.Header, source string, fi os.FileInfo) error {
	list := make([]byte, maxXattrBytes)
	n, err := unix.Llistxattr(source, list)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes of %s: %w", source, err)
	}
	value := make([]byte, maxXattrBytes)
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		// The host's labels mean nothing in a volume.
		if name == "" || name == "security.selinux" {
			continue
		}
		k, err := unix.Lgetxattr(source, name, value)
		if err != nil {
			continue // not for this user, or gone
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+name] = string(value[:k])
	}
	return nil
}

func setXattr(f *os.File, name, value string) error {
	return unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
}

// makeNode makes a device or a pipe.
func makeNode(root *os.Root, h *tar.Header) error {
	typ := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
	if typ != unix.S_IFIFO && os.Geteuid() != 0 {
		return os.ErrPermission
	}
	dir, err := root.Open(path.Dir(h.Name))
	if err != nil {
		return err
	}
	defer dir.Close()
	dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	if err := unix.Mknodat(int(dir.Fd()), path.Base(h.Name), typ|0o600, int(dev)); err != nil {
		return err
	}
	return unix.Fchmodat(int(dir.Fd()), path.Base(h.Name), uint32(h.Mode&0o777), 0)
}
