// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// maxSymlinkBytes is the longest symlink target followed: a path, without its
// terminating zero, has to fit in PATH_MAX.
const maxSymlinkBytes = linux.PATH_MAX - 1

// maxDirBytes bounds a directory: two million names (the most that one of our
// images holds) of the greatest length. A forged directory can say the same
// block again and again, and overlay reads directories whole.
const maxDirBytes = 512 << 20

// maxKeptXattrs bounds the attribute names kept of an inode.
const maxKeptXattrs = 8

// inode is a file of a volume, in memory while a dentry names it.
type inode struct {
	fs *filesystem
	id uint64

	// node and attr are immutable: the mount is read-only.
	node Node
	attr Attr

	// xattrs are the names of the extended attributes if there are few, as
	// xattrsKnown says; else the volume is asked each time. Nearly all files
	// have none, and an overlay asks for three at each step. Both are
	// immutable.
	xattrs      []string
	xattrsKnown bool

	// acl is the access ACL, or nil if there is none. It is immutable. aclErr
	// is why an ACL that is there cannot be understood: nobody passes then.
	acl    *vfs.PosixACL
	aclErr error

	// names counts the dentries that hold the inode. fs.inodes.mu protects it.
	names int

	// link caches the target of a symbolic link.
	link atomic.Pointer[string]

	watches vfs.Watches

	// open is allocated when the file is first opened.
	open atomic.Pointer[openState]
}

// openState is what only opened files need; most inodes are just walked past.
type openState struct {
	locks vfs.FileLocks

	// pipe is the FIFO behind a named pipe, else nil. It is immutable.
	pipe *pipe.VFSPipe

	// mapsMu protects mappings, the guests' mappings of this file.
	mapsMu   sync.Mutex
	mappings memmap.MappingSet

	// copyMu protects copied, the pages that are not pages of a HostFile.
	copyMu sync.Mutex
	copied fsutil.FileRangeSet

	// tailZero says that the last page was seen to be zero behind the end of
	// the file, so that it can be mapped.
	tailZero atomic.Bool
}

// inodeTable holds the inodes in memory by identity, so that hard links meet.
type inodeTable struct {
	mu sync.Mutex
	m  map[uint64]*inode
}

// get returns the inode with the given identity, counting one more name.
func (fs *filesystem) getInode(id uint64) (*inode, error) {
	t := &fs.inodes
	t.mu.Lock()
	if i, ok := t.m[id]; ok {
		i.names++
		t.mu.Unlock()
		return i, nil
	}
	t.mu.Unlock()

	fresh := &inode{fs: fs, id: id}
	if err := fresh.load(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.m[id]; ok {
		i.names++
		return i, nil
	}
	fresh.names = 1
	t.m[id] = fresh
	return fresh, nil
}

// putInode takes back one name, and forgets an inode that has none left.
func (fs *filesystem) putInode(i *inode) {
	fs.inodes.mu.Lock()
	i.names--
	gone := i.names == 0
	if gone {
		delete(fs.inodes.m, i.id)
	}
	fs.inodes.mu.Unlock()
	if gone {
		i.dropCopied()
	}
}

// load reads the inode from the volume and checks what everything else relies
// upon.
func (i *inode) load() error {
	node, err := i.fs.vol.Node(i.id)
	if err != nil {
		return i.fs.errno("read inode", i.id, err)
	}
	a := node.Attr()
	switch a.Mode.FileType() {
	case linux.S_IFREG, linux.S_IFDIR, linux.S_IFLNK, linux.S_IFCHR, linux.S_IFBLK, linux.S_IFIFO, linux.S_IFSOCK:
	default:
		return i.fs.errno("read inode: unknown file type", i.id, linuxerr.EUCLEAN)
	}
	if a.SizeBytes < 0 {
		return i.fs.errno("read inode: negative size", i.id, linuxerr.EUCLEAN)
	}
	if a.Mode.IsDir() && a.SizeBytes > maxDirBytes {
		return i.fs.errno("read inode: directory larger than any real one", i.id, linuxerr.EUCLEAN)
	}
	i.node, i.attr = node, a
	i.xattrs, err = node.ListXattr()
	i.xattrsKnown = err == nil && len(i.xattrs) <= maxKeptXattrs
	if !i.xattrsKnown {
		i.xattrs = nil
	}
	i.acl, i.aclErr = i.readACL(linux.XATTR_NAME_POSIX_ACL_ACCESS)
	return nil
}

// readACL reads one of the inode's ACLs: nil if there is none.
func (i *inode) readACL(name string) (*vfs.PosixACL, error) {
	if i.isSymlink() {
		return nil, nil
	}
	raw, err := i.xattr(name)
	if linuxerr.Equals(linuxerr.ENODATA, err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	acl, err := vfs.ParsePosixACL(raw, i.fs.rootNS)
	if err != nil {
		return nil, i.fs.errno("read "+name+": malformed", i.id, linuxerr.EUCLEAN)
	}
	return acl, nil
}

func (i *inode) isDir() bool     { return i.attr.Mode.IsDir() }
func (i *inode) isRegular() bool { return i.attr.Mode.FileType() == linux.S_IFREG }
func (i *inode) isSymlink() bool { return i.attr.Mode.FileType() == linux.S_IFLNK }

// readOnly reports whether opening the file for writing is up to the volume,
// which is read-only. Devices, FIFOs and sockets only have their name here.
func (i *inode) readOnly() bool {
	return i.isRegular() || i.isDir() || i.isSymlink()
}

func (i *inode) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	if i.aclErr != nil {
		return i.aclErr
	}
	return vfs.GenericCheckPermissions(creds, ats, i.attr.Mode, i.acl, auth.KUID(i.attr.UID), auth.KGID(i.attr.GID))
}

// statTo fills in st.
func (i *inode) statTo(st *linux.Statx) {
	a := &i.attr
	st.Mask = linux.STATX_BASIC_STATS
	st.Blksize = uint32(i.fs.traits.BlockSizeBytes)
	st.Nlink = a.Nlink
	st.UID = a.UID
	st.GID = a.GID
	st.Mode = uint16(a.Mode)
	st.Ino = i.id
	st.Size = uint64(a.SizeBytes)
	st.Blocks = (st.Size + 511) / 512
	st.Atime, st.Mtime, st.Ctime = a.Atime, a.Mtime, a.Ctime
	st.RdevMajor, st.RdevMinor = a.RdevMajor, a.RdevMinor
	st.DevMajor, st.DevMinor = linux.UNNAMED_MAJOR, i.fs.devMinor
}

// readlink returns the target of a symbolic link.
func (i *inode) readlink() (string, error) {
	if s := i.link.Load(); s != nil {
		return *s, nil
	}
	s, err := i.node.Readlink()
	if err != nil {
		return "", i.fs.errno("read symlink", i.id, err)
	}
	if s == "" || len(s) > maxSymlinkBytes {
		return "", i.fs.errno("read symlink: empty or longer than a path", i.id, linuxerr.EUCLEAN)
	}
	i.link.Store(&s)
	return s, nil
}

// opened returns the state of an opened file, allocating it the first time.
func (i *inode) opened() *openState {
	if o := i.open.Load(); o != nil {
		return o
	}
	o := &openState{}
	if i.attr.Mode.FileType() == linux.S_IFIFO {
		o.pipe = pipe.NewVFSPipe(true /* isNamed */, pipe.DefaultPipeSize)
	}
	if !i.open.CompareAndSwap(nil, o) {
		return i.open.Load()
	}
	return o
}

// notify sends an inotify event for the inode.
func (i *inode) notify(ctx context.Context, name string, events, cookie uint32, et vfs.EventType) {
	i.watches.Notify(ctx, name, events, cookie, et, false /* unlinked */)
}
