// SPDX-License-Identifier: Apache-2.0

// A file of a tree by its O_PATH descriptor: finding it and its attributes.

package gofer

import (
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// setIDBits are what a tree without set-id programs does not keep.
const setIDBits = unix.S_ISUID | unix.S_ISGID

// file is a control descriptor. Locks of lisafs order what changes names; nothing
// here relies on a name that was looked up before.
type file struct {
	lisafs.ControlFD
	tree *tree
	// fd was opened with O_PATH: it names the file for good, and can neither be
	// read nor written.
	fd int
	// known are the client's names in a directory.
	known known
}

// self is the working directory's name for the file: the process stands in its
// own /proc/self/fd. The link there leads to the very file, also one without any
// name left, and also to a symbolic link itself.
func (f *file) self() string { return strconv.Itoa(f.fd) }

// FD implements lisafs.ControlFDImpl.
func (f *file) FD() *lisafs.ControlFD {
	if f == nil {
		return nil
	}
	return &f.ControlFD
}

// Close implements lisafs.ControlFDImpl.
func (f *file) Close() { unix.Close(f.fd) }

// Stat implements lisafs.ControlFDImpl.
func (f *file) Stat() (lisafs.Statx, error) { return f.tree.stat(f.fd) }

// Renamed implements lisafs.ControlFDImpl. Names are not remembered.
func (f *file) Renamed() {}

// lookUp opens a name in a directory, whatever it is, and never what it links to.
func (f *file) lookUp(name string) (int, error) {
	return unix.Openat(f.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// init makes the file known to its connection. lisafs keeps a tree of names, by which
// it refuses to touch what was removed: but a file that has lost a name may have
// others, by which the guest goes on using this descriptor. So each is given a name
// of its own, which nobody removes.
func (f *file) init(c *lisafs.Connection, st *lisafs.Statx) {
	node := &lisafs.Node{}
	node.InitLocked("", nil)
	f.ControlFD.Init(c, node, linux.FileMode(st.Mode), f)
}

// child makes the control descriptor of what was found in a directory. It takes over
// fd.
func (f *file) child(name string, fd int) (*file, lisafs.Statx, error) {
	st, err := f.tree.stat(fd)
	if err != nil {
		unix.Close(fd)
		return nil, lisafs.Statx{}, err
	}
	c := &file{tree: f.tree, fd: fd}
	c.init(f.Conn(), &st)
	f.known.add(name)
	return c, st, nil
}

// Walk implements lisafs.ControlFDImpl.
func (f *file) Walk(name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	fd, err := f.lookUp(name)
	if err == unix.ENOENT {
		f.known.remove(name)
	}
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	c, st, err := f.child(name, fd)
	return c.FD(), st, err
}

// WalkStat implements lisafs.ControlFDImpl: the attributes of the names of a
// path, as far as it exists and up to the first that is no directory.
func (f *file) WalkStat(path lisafs.StringArray, record func(lisafs.Statx)) error {
	if len(path) > 0 && path[0] == "" {
		st, err := f.Stat()
		if err != nil {
			return err
		}
		record(st)
		path = path[1:]
	}
	dir := f.fd
	defer func() {
		if dir != f.fd {
			unix.Close(dir)
		}
	}()
	for i, name := range path {
		st, err := f.tree.statAt(dir, name, 0)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		record(st)
		if i == len(path)-1 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return nil // exchanged since
		}
		if err != nil {
			return err
		}
		if dir != f.fd {
			unix.Close(dir)
		}
		dir = next
	}
	return nil
}

// StatFS implements lisafs.ControlFDImpl.
func (f *file) StatFS() (lisafs.StatFS, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &s); err != nil {
		return lisafs.StatFS{}, err
	}
	return lisafs.StatFS{
		Type: uint64(s.Type), BlockSize: int64(s.Bsize), Blocks: s.Blocks, BlocksFree: s.Bfree,
		BlocksAvailable: s.Bavail, Files: s.Files, FilesFree: s.Ffree, NameLength: uint64(s.Namelen),
	}, nil
}

// Readlink implements lisafs.ControlFDImpl.
func (f *file) Readlink(buffer func(uint32) []byte) (uint16, error) {
	// Linux' longest; those of /proc do not say how long they are.
	n, err := unix.Readlinkat(f.fd, "", buffer(unix.PathMax))
	return uint16(max(n, 0)), err
}

// SetStat implements lisafs.ControlFDImpl. It stops at what the host refuses, so that
// the rest of a call that fails has no effect.
func (f *file) SetStat(req lisafs.SetStatReq) (uint32, error) {
	for _, part := range []struct {
		mask uint32
		set  func(*lisafs.SetStatReq) error
	}{
		// The owner first: a change of it takes set-id bits away.
		{unix.STATX_UID | unix.STATX_GID, f.setOwner},
		{unix.STATX_MODE, f.setMode},
		{unix.STATX_SIZE, f.setSize},
		// Times last: what comes before changes them.
		{unix.STATX_ATIME | unix.STATX_MTIME, f.setTimes},
	} {
		if req.Mask&part.mask == 0 {
			continue
		}
		if err := part.set(&req); err != nil {
			return req.Mask & part.mask, err
		}
	}
	return 0, nil
}

func (f *file) setOwner(req *lisafs.SetStatReq) error {
	uid, gid := keepID, keepID
	if req.Mask&unix.STATX_UID != 0 {
		uid = uint32(req.UID)
	}
	if req.Mask&unix.STATX_GID != 0 {
		gid = uint32(req.GID)
	}
	u, g, err := f.tree.owner.toHost(uid, gid)
	if err != nil {
		return err
	}
	return chown(f.fd, u, g)
}

// chown changes the owner of the file that a descriptor names.
func chown(fd, uid, gid int) error {
	if uid == -1 && gid == -1 {
		return nil
	}
	return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
}

// mode is a file's permissions as the tree keeps them. A directory's set-group-id
// bit says who gets its files, not with which rights a program runs.
func (t *tree) mode(mode uint32, directory bool) uint32 {
	mode &= 0o7777
	if t.noSUID && !directory {
		mode &^= setIDBits
	}
	return mode
}

func (f *file) setMode(req *lisafs.SetStatReq) error {
	if f.IsSymlink() {
		return unix.EOPNOTSUPP // Linux' answer
	}
	// Not by the descriptor, for which kernels before 6.6 have no call.
	return unix.Fchmodat(unix.AT_FDCWD, f.self(), f.tree.mode(req.Mode, f.IsDir()), 0)
}

func (f *file) setSize(req *lisafs.SetStatReq) error {
	if !f.IsRegular() {
		return unix.EINVAL
	}
	fd, err := f.reopen(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Ftruncate(fd, int64(req.Size))
}

func (f *file) setTimes(req *lisafs.SetStatReq) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if req.Mask&unix.STATX_ATIME != 0 {
		ts[0] = unix.Timespec{Sec: req.Atime.Sec, Nsec: req.Atime.Nsec}
	}
	if req.Mask&unix.STATX_MTIME != 0 {
		ts[1] = unix.Timespec{Sec: req.Mtime.Sec, Nsec: req.Mtime.Nsec}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, f.self(), ts[:], 0)
}

// reopen opens the file that the descriptor names. Types but these two would be
// something to talk to: a device, a pipe, a socket.
func (f *file) reopen(flags int) (int, error) {
	if !f.IsRegular() && !f.IsDir() {
		return -1, unix.ENXIO
	}
	// O_NONBLOCK: not to wait for who holds a lease on the file.
	return unix.Openat(unix.AT_FDCWD, f.self(), flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
}
