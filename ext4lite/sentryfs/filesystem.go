// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// faultLogEvery limits what a guest that walks a broken image again and again
// can write into the sandbox's log.
const faultLogEvery = time.Second

// fsType is a registered format. It implements vfs.FilesystemType.
type fsType struct {
	// format is the name of the format, and of the file system in
	// /proc/mounts.
	format string
}

// Register makes the formats known to v, so that they can be mounted under
// their names. Guests cannot mount them: they have no descriptor to give.
func Register(v *vfs.VirtualFilesystem) {
	for _, format := range []string{EROFSName, Ext4Name} {
		v.MustRegisterFilesystemType(format, &fsType{format: format}, &vfs.RegisterFilesystemTypeOptions{
			AllowUserList: true,
		})
	}
}

// Name implements vfs.FilesystemType.
func (t *fsType) Name() string { return t.format }

// Release implements vfs.FilesystemType.
func (t *fsType) Release(context.Context) {}

// GetFilesystem implements vfs.FilesystemType. It takes over the descriptors in
// the options, also when it fails.
func (t *fsType) GetFilesystem(ctx context.Context, v *vfs.VirtualFilesystem, _ *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	var id checkpoint.ResourceID
	var size int64
	var vol Volume
	var err error
	switch o := opts.InternalData.(type) {
	case EROFSOptions:
		id, size = o.ID, o.Size
		vol, err = openFormat(t.format, o.FD, o.Size)
	case Ext4Options:
		id = o.ID
		vol, err = openExt4(&o)
	default:
		ctx.Warningf("mount %s: %T among the mount options: only the sandbox itself can mount a volume", t.format, o)
		return nil, nil, linuxerr.EINVAL
	}
	if err != nil {
		ctx.Warningf("mount %s, resource %q: %v", t.format, id.String(), err)
		return nil, nil, err
	}
	fs, err := newFilesystem(ctx, v, t, vol)
	if err != nil {
		vol.Close()
		ctx.Warningf("mount %s, resource %q: %v", t.format, id.String(), err)
		return nil, nil, err
	}
	fs.id, fs.size = id, size
	fs.root.IncRef()
	return &fs.vfsfs, &fs.root.vfsd, nil
}

// openFormat opens a donated file as a read-only volume of the named format. It
// takes over fd, also when it fails.
func openFormat(format string, fd int, size int64) (Volume, error) {
	if format != EROFSName {
		unix.Close(fd)
		return nil, fmt.Errorf("unknown format %q: %w", format, unix.ENODEV)
	}
	f, err := OpenHostFile(fd, size)
	if err != nil {
		return nil, err
	}
	vol, err := openEROFS(f)
	if err != nil {
		f.close()
		return nil, err
	}
	return vol, nil
}

// filesystem is a mounted volume. It implements vfs.FilesystemImpl.
type filesystem struct {
	vfsfs vfs.Filesystem

	// format, id and size find the volume's file again after a restore. They
	// are immutable.
	format string
	id     checkpoint.ResourceID
	size   int64

	// devMinor is the device number that stat(2) shows. It is immutable.
	devMinor uint32

	// vol and traits are set at mount and at restore. w is the same volume if
	// it can change, else nil.
	vol    Volume
	w      WritableVolume
	traits Traits

	// mf has the pages that are not the volume's own; rootNS is what IDs in
	// images mean.
	mf     *pgalloc.MemoryFile
	rootNS *auth.UserNamespace

	// root has one reference of the file system's own. It is immutable.
	root     *dentry
	dentries dentryCache
	inodes   inodeTable

	// lastKey is the dentry key that was given out last.
	lastKey atomic.Uint64

	// renameMu makes renames one at a time: they alone lock two directories.
	renameMu sync.Mutex

	// treeMu protects the names and parents of dentries: renames lock it, and
	// who goes upwards locks it for reading.
	treeMu sync.RWMutex

	uppers uppers
	copies copyPool
	faults log.Logger

	// identity of the volume and the dentries that are held, in a checkpoint
	// only.
	identity string
	held     []*dentry
}

var _ vfs.FilesystemImpl = (*filesystem)(nil)

// newFilesystem makes a file system of a volume, which it owns if it succeeds.
func newFilesystem(ctx context.Context, v *vfs.VirtualFilesystem, t *fsType, vol Volume) (*filesystem, error) {
	fs := &filesystem{format: t.format}
	if err := fs.attach(ctx, vol); err != nil {
		return nil, err
	}
	root, err := fs.getInode(vol.Root())
	if err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	if !root.isDir() {
		return nil, fmt.Errorf("root is a file of mode %#o, not a directory: %w", uint32(root.kind), unix.EUCLEAN)
	}
	if fs.devMinor, err = v.GetAnonBlockDevMinor(); err != nil {
		return nil, fmt.Errorf("device number: %w", err)
	}
	fs.root = fs.newDentry(nil, "", root)
	fs.vfsfs.Init(v, t, fs)
	return fs, nil
}

// attach gives fs its volume and what else does not survive a checkpoint.
func (fs *filesystem) attach(ctx context.Context, vol Volume) error {
	mf := pgalloc.MemoryFileFromContext(ctx)
	if mf == nil {
		return fmt.Errorf("no memory file in the mounting context: %w", unix.EINVAL)
	}
	fs.vol, fs.traits, fs.mf = vol, vol.Traits(), mf
	fs.w, _ = vol.(WritableVolume)
	fs.rootNS = auth.NewRootUserNamespace()
	fs.dentries.init()
	fs.inodes.m = make(map[uint64]*inode)
	fs.faults = log.BasicRateLimitedLogger(faultLogEvery)
	return nil
}

// errno turns a volume's error into one that a guest may see, and tells the log
// what is wrong with the image.
func (fs *filesystem) errno(op string, id uint64, err error) error {
	fs.faults.Warningf("%s volume %q: %s %d: %v", fs.format, fs.id.String(), op, id, err)
	return errnoOf(err)
}

// answer is what a guest gets to see of a change's outcome. Only damage and
// failures of the host are news to the log: all others are the guest's doing.
func (fs *filesystem) answer(op string, id uint64, err error) error {
	if err == nil {
		return nil
	}
	e := errnoOf(err)
	if linuxerr.Equals(linuxerr.EUCLEAN, e) || linuxerr.Equals(linuxerr.EIO, e) {
		return fs.errno(op, id, err)
	}
	return e
}

// errnoOf returns the errno in err's chain, or EIO: the Sentry panics when a
// system call returns any other error.
func errnoOf(err error) error {
	var known *gverrors.Error
	var errno unix.Errno
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &errno):
		return linuxerr.ErrorFromUnix(errno)
	}
	return linuxerr.EIO
}

// Release implements vfs.FilesystemImpl. No reference on a dentry but the file
// system's own is left.
func (fs *filesystem) Release(ctx context.Context) {
	fs.dentries.evictUnused()
	fs.root.DecRef(ctx)
	fs.putInode(ctx, fs.root.inode)
	fs.copies.release(fs.mf)
	if err := fs.vol.Close(); err != nil {
		fs.faults.Warningf("%s volume %q: %v", fs.format, fs.id.String(), err)
	}
	fs.vfsfs.VirtualFilesystem().PutAnonBlockDevMinor(fs.devMinor)
}

// Sync implements vfs.FilesystemImpl.
func (fs *filesystem) Sync(ctx context.Context) error {
	if fs.w == nil {
		return nil
	}
	ctx.UninterruptibleSleepStart()
	defer ctx.UninterruptibleSleepFinish()
	return fs.answer("sync", 0, fs.w.Sync())
}

// MountOptions implements vfs.FilesystemImpl.
func (fs *filesystem) MountOptions() string { return "" }

func (fs *filesystem) statFS() linux.Statfs {
	if fs.w != nil {
		return fs.w.StatFS()
	}
	return linux.Statfs{
		Type:         fs.traits.Magic,
		BlockSize:    fs.traits.BlockSizeBytes,
		FragmentSize: fs.traits.BlockSizeBytes,
		Blocks:       fs.traits.Blocks,
		NameLength:   fs.traits.NameMaxBytes,
	}
}
