// SPDX-License-Identifier: Apache-2.0

package treecopy

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileID names a file with several names.
type fileID struct{ dev, ino uint64 }

func idOf(fi fs.FileInfo) (fileID, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}

func ownerOf(fi fs.FileInfo) (uid, gid uint32) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Uid, st.Gid
	}
	return 0, 0
}

// openFile opens a regular file, not what somebody has put in its place.
func openFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, &fs.PathError{Op: "copy", Path: name, Err: errors.New("changed its type meanwhile")})
	}
	return f, nil
}

// maxXattrBytes bounds the names of a file's attributes, and each value: Linux'
// own limits.
const maxXattrBytes = 64 << 10

// readXattrs adds all attributes of a file that this user may read.
func readXattrs(h *tar.Header, name string) error {
	list := make([]byte, maxXattrBytes)
	n, err := unix.Llistxattr(name, list)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "list attributes of", Path: name, Err: err}
	}
	value := make([]byte, maxXattrBytes)
	for x := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if x == "" || x == "security.selinux" {
			continue // The host's labels mean nothing elsewhere.
		}
		k, err := unix.Lgetxattr(name, x, value)
		if err != nil {
			continue // Not for this user, or gone.
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+x] = string(value[:k])
	}
	return nil
}

func setXattr(f *os.File, name, value string) error {
	return unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
}

func isBusy(err error) bool { return errors.Is(err, unix.EBUSY) }

// makeNode makes a device node or a pipe below root.
func makeNode(root *os.Root, name string, h *tar.Header) error {
	kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, base := int(dir.Fd()), path.Base(name)
	dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	if err := unix.Mknodat(fd, base, kind|0o600, int(dev)); err != nil {
		return &fs.PathError{Op: "mknod", Path: name, Err: err}
	}
	return root.Chmod(name, h.FileInfo().Mode())
}
