// SPDX-License-Identifier: Apache-2.0

// Changes of a directory: names that are made, moved and removed.

package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// OpenCreate implements lisafs.ControlFDImpl: a new regular file, opened.
func (f *file) OpenCreate(mode linux.FileMode, uid lisafs.UID, gid lisafs.GID, name string, flags uint32) (*lisafs.ControlFD, lisafs.Statx, *lisafs.OpenFD, int, error) {
	failed := func(err error) (*lisafs.ControlFD, lisafs.Statx, *lisafs.OpenFD, int, error) {
		return nil, lisafs.Statx{}, nil, -1, err
	}
	if f.known.has(name) {
		return failed(unix.EEXIST)
	}
	opened, c, st, err := f.create(int(flags)&unix.O_ACCMODE, name, uid, gid, f.tree.mode(uint32(mode), false))
	if err != nil {
		return failed(err)
	}
	return c.FD(), st, c.open(opened, flags), donation(opened), nil
}

// create makes a regular file and opens it. All that follows is done to the open file,
// and nothing to its name, which may be another's by now.
func (f *file) create(access int, name string, uid lisafs.UID, gid lisafs.GID, perm uint32) (opened int, c *file, st lisafs.Statx, err error) {
	how := access | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if opened, err = unix.Openat(f.fd, name, how, perm); err != nil {
		return -1, nil, st, err
	}
	named, err := pathDescriptor(opened)
	if err == nil {
		err = f.adopt(named, uid, gid, perm)
	}
	if err != nil {
		closeAll(opened, named)
		f.undo(name, 0)
		return -1, nil, st, err
	}
	if c, st, err = f.child(name, named); err != nil {
		unix.Close(opened)
		f.undo(name, 0)
		return -1, nil, st, err
	}
	return opened, c, st, nil
}

// pathDescriptor returns an O_PATH descriptor of an open file.
func pathDescriptor(fd int) (int, error) {
	f := file{fd: fd}
	return unix.Openat(unix.AT_FDCWD, f.self(), unix.O_PATH|unix.O_CLOEXEC, 0)
}

// adopt gives a file just made its owner. That takes set-id bits from it, which
// are given again.
func (f *file) adopt(fd int, uid lisafs.UID, gid lisafs.GID, perm uint32) error {
	u, g := f.tree.owner.forNew(uid, gid)
	if err := chown(fd, u, g); err != nil {
		return err
	}
	if perm&setIDBits == 0 || u == -1 && g == -1 {
		return nil
	}
	made := file{fd: fd}
	return unix.Fchmodat(unix.AT_FDCWD, made.self(), perm, 0)
}

// undo removes a name that was just made and cannot be kept.
func (f *file) undo(name string, flags int) { _ = unix.Unlinkat(f.fd, name, flags) }

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// made finishes a file that is there by its name alone.
func (f *file) made(name string, kind uint32, uid lisafs.UID, gid lisafs.GID, perm uint32) (*lisafs.ControlFD, lisafs.Statx, error) {
	flags := 0
	if kind == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
	}
	fd, err := f.lookUp(name)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	st, err := f.tree.stat(fd)
	if err == nil && uint32(st.Mode)&unix.S_IFMT != kind {
		// What somebody else put into its place meanwhile is neither given away nor
		// removed.
		unix.Close(fd)
		return nil, lisafs.Statx{}, unix.EAGAIN
	}
	if err == nil {
		err = f.adopt(fd, uid, gid, perm)
	}
	if err != nil {
		unix.Close(fd)
		f.undo(name, flags)
		return nil, lisafs.Statx{}, err
	}
	c, st, err := f.child(name, fd)
	if err != nil {
		f.undo(name, flags)
	}
	return c.FD(), st, err
}

// Mkdir implements lisafs.ControlFDImpl.
func (f *file) Mkdir(mode linux.FileMode, uid lisafs.UID, gid lisafs.GID, name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	perm := f.tree.mode(uint32(mode), true)
	if err := unix.Mkdirat(f.fd, name, perm); err != nil {
		return nil, lisafs.Statx{}, err
	}
	return f.made(name, unix.S_IFDIR, uid, gid, perm)
}

// Mknod implements lisafs.ControlFDImpl. A device node of the guest's would be one
// of the host's, for whoever can open it there: the one with number zero is none, but
// an overlay's mark of a name that was removed. Upon EPERM the Sentry makes pipes
// and sockets itself, which work among guests and which the host does not see.
func (f *file) Mknod(mode linux.FileMode, uid lisafs.UID, gid lisafs.GID, name string, minor, major uint32) (*lisafs.ControlFD, lisafs.Statx, error) {
	kind := uint32(mode) & unix.S_IFMT
	if kind == 0 {
		kind = unix.S_IFREG
	}
	whiteout := kind == unix.S_IFCHR && minor == 0 && major == 0
	if kind != unix.S_IFREG && !whiteout {
		return nil, lisafs.Statx{}, unix.EPERM
	}
	perm := f.tree.mode(uint32(mode), false)
	if kind == unix.S_IFREG {
		opened, c, st, err := f.create(unix.O_WRONLY, name, uid, gid, perm)
		closeAll(opened)
		return c.FD(), st, err
	}
	if err := unix.Mknodat(f.fd, name, kind|perm, 0); err != nil {
		return nil, lisafs.Statx{}, err
	}
	return f.made(name, kind, uid, gid, perm)
}

// Symlink implements lisafs.ControlFDImpl.
func (f *file) Symlink(name, target string, uid lisafs.UID, gid lisafs.GID) (*lisafs.ControlFD, lisafs.Statx, error) {
	if err := unix.Symlinkat(target, f.fd, name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	return f.made(name, unix.S_IFLNK, uid, gid, 0)
}

// Link implements lisafs.ControlFDImpl: another name for this file, in dir.
func (f *file) Link(dir lisafs.ControlFDImpl, name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	d := dir.(*file)
	if err := unix.Linkat(unix.AT_FDCWD, f.self(), d.fd, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return nil, lisafs.Statx{}, err
	}
	fd, err := d.lookUp(name)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	c, st, err := d.child(name, fd)
	return c.FD(), st, err
}

// Unlink implements lisafs.ControlFDImpl.
func (f *file) Unlink(name string, flags uint32) error {
	if flags&^unix.AT_REMOVEDIR != 0 {
		return unix.EINVAL
	}
	err := unix.Unlinkat(f.fd, name, int(flags))
	if err == nil {
		f.known.remove(name)
	}
	return err
}

// RenameAt implements lisafs.ControlFDImpl.
func (f *file) RenameAt(from string, dir lisafs.ControlFDImpl, to string) error {
	return f.RenameAt2(from, dir, to, 0)
}

// RenameAt2 implements lisafs.ControlFDImpl. RENAME_WHITEOUT would make a device
// node.
func (f *file) RenameAt2(from string, dir lisafs.ControlFDImpl, to string, flags uint32) error {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return unix.EINVAL
	}
	d := dir.(*file)
	err := unix.Renameat2(f.fd, from, d.fd, to, uint(flags))
	if err == nil && flags&unix.RENAME_EXCHANGE == 0 {
		f.known.remove(from)
		d.known.add(to)
	}
	return err
}

// Connect implements lisafs.ControlFDImpl. It is not among the requests.
func (f *file) Connect(uint32) (int, error) { return -1, unix.ECONNREFUSED }

// ConnectWithCreds implements lisafs.ControlFDImpl. It is not among the requests.
func (f *file) ConnectWithCreds(uint32, lisafs.UID, lisafs.GID) (int, error) {
	return -1, unix.ECONNREFUSED
}

// BindAt implements lisafs.ControlFDImpl: see [file.Mknod] about sockets.
func (f *file) BindAt(string, uint32, linux.FileMode, lisafs.UID, lisafs.GID) (*lisafs.ControlFD, lisafs.Statx, *lisafs.BoundSocketFD, int, error) {
	return nil, lisafs.Statx{}, nil, -1, unix.EPERM
}
