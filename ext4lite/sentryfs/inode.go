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
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
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

	// node is immutable, and so is w: the same node if the volume can change,
	// else nil.
	node Node
	w    WritableNode

	// kind is the file type. It is immutable.
	kind linux.FileMode

	// fixed are the attributes of a file that cannot change, w == nil.
	fixed Attr

	// access and xattrs are what every path walk asks for, read once. Where w
	// is set, attrMu serialises changes of both and of what they were read
	// from; they are replaced, never edited.
	attrMu sync.Mutex
	access atomic.Pointer[access]
	xattrs atomic.Pointer[xattrNames]

	// dirMu is locked by those who change a directory's names, and locked for
	// reading while a name is looked up in the volume.
	dirMu sync.RWMutex

	// names counts the dentries that hold the inode. fs.inodes.mu protects it.
	names int

	// link caches the target of a symbolic link.
	link atomic.Pointer[string]

	// unlinkable says that the file has no name and shall get none.
	unlinkable atomic.Bool

	watches vfs.Watches

	// open is allocated when the file is first opened.
	open atomic.Pointer[openState]
}

// access says who may do what with a file.
type access struct {
	mode     linux.FileMode
	uid, gid uint32
	// acl is the access ACL, or nil if there is none. err is why one that is
	// there cannot be understood: nobody passes then.
	acl *vfs.PosixACL
	err error
}

func (a *access) kuid() auth.KUID { return auth.KUID(a.uid) }
func (a *access) kgid() auth.KGID { return auth.KGID(a.gid) }

// xattrNames are the names of a file's extended attributes if there are few;
// else the volume is asked each time. Nearly all files have none, and an
// overlay asks for three at each step.
type xattrNames struct {
	list  []string
	known bool
}

// openState is what only opened files need; most inodes are just walked past.
type openState struct {
	locks vfs.FileLocks

	// pipe is the FIFO behind a named pipe, else nil. It is immutable.
	pipe *pipe.VFSPipe

	// endpoint is what a socket's name is bound to, else nil. It is immutable.
	endpoint transport.BoundEndpoint

	// writeMu makes writes and changes of the length one at a time.
	writeMu sync.Mutex

	// mapsMu protects mappings, the guests' mappings of this file.
	mapsMu   sync.Mutex
	mappings memmap.MappingSet

	// moving is what mappings of a file that changes need, else nil.
	moving *movable

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

// getInode returns the inode with the given identity, counting one more name.
func (fs *filesystem) getInode(id uint64) (*inode, error) {
	t := &fs.inodes
	t.mu.Lock()
	if i, ok := t.m[id]; ok {
		i.names++
		t.mu.Unlock()
		return i, nil
	}
	t.mu.Unlock()

	node, err := fs.vol.Node(id)
	if err != nil {
		return nil, fs.errno("read inode", id, err)
	}
	return fs.adopt(id, node)
}

// adopt returns the inode of a node, counting one more name. It takes over the
// node, also when it fails.
func (fs *filesystem) adopt(id uint64, node Node) (*inode, error) {
	fresh := &inode{fs: fs, id: id}
	if err := fresh.load(node); err != nil {
		fresh.drop()
		return nil, err
	}
	t := &fs.inodes
	t.mu.Lock()
	if i, ok := t.m[id]; ok {
		i.names++
		t.mu.Unlock()
		fresh.drop()
		return i, nil
	}
	defer t.mu.Unlock()
	fresh.names = 1
	t.m[id] = fresh
	return fresh, nil
}

// addName counts one more name of an inode that has one.
func (fs *filesystem) addName(i *inode) {
	fs.inodes.mu.Lock()
	i.names++
	fs.inodes.mu.Unlock()
}

// putInode takes back one name, and forgets an inode that has none left.
func (fs *filesystem) putInode(ctx context.Context, i *inode) {
	fs.inodes.mu.Lock()
	i.names--
	gone := i.names == 0
	if gone {
		delete(fs.inodes.m, i.id)
	}
	fs.inodes.mu.Unlock()
	if !gone {
		return
	}
	i.dropCopied()
	if i.w != nil && i.watches.Size() > 0 && i.w.Attr().Nlink == 0 {
		i.watches.HandleDeletion(ctx)
	}
	i.drop()
}

// drop gives a node back to a volume that counts them. A file without a name
// ends here.
func (i *inode) drop() {
	if i.w != nil {
		i.w.Release()
	}
}

// load takes a node, checks what everything else relies upon, and reads what is
// kept of it.
func (i *inode) load(node Node) error {
	i.node = node
	i.w, _ = node.(WritableNode)
	attr := node.Attr()
	switch i.kind = attr.Mode.FileType(); i.kind {
	case linux.S_IFREG, linux.S_IFDIR, linux.S_IFLNK, linux.S_IFCHR, linux.S_IFBLK, linux.S_IFIFO, linux.S_IFSOCK:
	default:
		return i.fs.errno("read inode: unknown file type", i.id, linuxerr.EUCLEAN)
	}
	if attr.SizeBytes < 0 {
		return i.fs.errno("read inode: negative size", i.id, linuxerr.EUCLEAN)
	}
	if i.isDir() && attr.SizeBytes > maxDirBytes {
		return i.fs.errno("read inode: directory larger than any real one", i.id, linuxerr.EUCLEAN)
	}
	if i.w == nil {
		i.fixed = attr
	}
	i.readXattrNames()
	i.readAccess(&attr)
	return nil
}

// readXattrNames reads the names of the extended attributes again.
//
// Preconditions: i.attrMu is locked, or nobody else knows the inode.
func (i *inode) readXattrNames() {
	names, err := i.node.ListXattr()
	x := &xattrNames{known: err == nil && len(names) <= maxKeptXattrs}
	if x.known {
		x.list = names
	}
	i.xattrs.Store(x)
}

// readAccess reads the inode's ACL again, and takes the rest from its
// attributes.
//
// Preconditions: those of readXattrNames, which is up to date.
func (i *inode) readAccess(attr *Attr) {
	a := &access{mode: attr.Mode, uid: attr.UID, gid: attr.GID}
	a.acl, a.err = i.readACL(linux.XATTR_NAME_POSIX_ACL_ACCESS)
	i.access.Store(a)
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

func (i *inode) isDir() bool     { return i.kind == linux.S_IFDIR }
func (i *inode) isRegular() bool { return i.kind == linux.S_IFREG }
func (i *inode) isSymlink() bool { return i.kind == linux.S_IFLNK }

// bound reports whether the inode is a socket's name that somebody has bound.
func (i *inode) bound() bool {
	o := i.open.Load()
	return o != nil && o.endpoint != nil
}

// stored reports whether writing the file means writing to the volume. Devices,
// FIFOs and sockets only have their name there.
func (i *inode) stored() bool { return i.isRegular() || i.isDir() || i.isSymlink() }

// attr returns the inode's attributes.
func (i *inode) attr() Attr {
	if i.w == nil {
		return i.fixed
	}
	return i.w.Attr()
}

// size returns the file's length.
func (i *inode) size() int64 {
	if i.w == nil {
		return i.fixed.SizeBytes
	}
	return i.w.Attr().SizeBytes
}

func (i *inode) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	a := i.access.Load()
	if a.err != nil {
		return a.err
	}
	return vfs.GenericCheckPermissions(creds, ats, a.mode, a.acl, a.kuid(), a.kgid())
}

// statTo fills in st.
func (i *inode) statTo(st *linux.Statx) {
	a := i.attr()
	st.Mask = linux.STATX_BASIC_STATS
	st.Blksize = uint32(i.fs.traits.BlockSizeBytes)
	st.Nlink = a.Nlink
	st.UID = a.UID
	st.GID = a.GID
	st.Mode = uint16(a.Mode)
	st.Ino = i.id
	st.Size = uint64(a.SizeBytes)
	st.Blocks = a.Blocks
	st.Atime, st.Mtime, st.Ctime = a.Atime, a.Mtime, a.Ctime
	if a.Btime.Sec != 0 {
		st.Mask |= linux.STATX_BTIME
		st.Btime = a.Btime
	}
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
	if i.kind == linux.S_IFIFO {
		o.pipe = pipe.NewVFSPipe(true /* isNamed */, pipe.DefaultPipeSize)
	}
	if i.w != nil && i.isRegular() {
		o.moving = &movable{}
	}
	if !i.open.CompareAndSwap(nil, o) {
		return i.open.Load()
	}
	return o
}
