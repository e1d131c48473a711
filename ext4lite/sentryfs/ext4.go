// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
)

// Ext4Name is the type under which ext4 volumes are mounted.
const Ext4Name = "ext4"

// ext4Magic is what statfs(2) says of ext4 (EXT4_SUPER_MAGIC).
const ext4Magic = 0xef53

// Ext4Options say what volume to mount. They are passed by value, as
// vfs.GetFilesystemOptions.InternalData.
type Ext4Options struct {
	// FDs are the volume's files, the lowest base first, all of them locked by
	// the donor. The last one is open for writing unless ReadOnly is set. The
	// mount owns them from the call on, also when it fails.
	FDs []int
	// ReadOnly opens the volume without changing a byte of it.
	ReadOnly bool
	// ProcessDurability lets a sync return before the host's disk has the
	// data: enough where no more than this process can end.
	ProcessDurability bool
	// WholeSync has a sync write back whole files: for a process that may not ask
	// what the host's file system can do.
	WholeSync bool
	// Discard gives the space of removed files back to the host.
	Discard bool
	// OnReadOnly is told, once, why a volume has stopped taking changes.
	OnReadOnly func(why error)
	// OnOpen is given the volume once it is open: it belongs to the mount.
	OnOpen func(*ext4lite.FS)
	// ID names the volume, in messages too.
	ID checkpoint.ResourceID
}

// ext4Volume implements WritableVolume.
type ext4Volume struct {
	fs    *ext4lite.FS
	files []*HostFile
	// byFile finds the mapping of a file by what ext4lite calls it.
	byFile map[*os.File]*HostFile
}

var _ WritableVolume = (*ext4Volume)(nil)

// openExt4 opens the volume that o describes. It takes over its descriptors.
func openExt4(o *Ext4Options) (*ext4Volume, error) {
	if len(o.FDs) == 0 {
		return nil, fmt.Errorf("open volume: no file was donated: %w", unix.EINVAL)
	}
	files := make([]*os.File, 0, len(o.FDs))
	for n, fd := range slices.Backward(o.FDs) {
		files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("%s, file %d", o.ID.Path, n)))
	}
	access := device.ReadWrite
	if o.ReadOnly {
		access = device.ReadOnly
	}
	dev, err := delta.Donated(access, files...)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	durability := ext4lite.Host
	if o.ProcessDurability {
		durability = ext4lite.Process
	}
	fs, err := ext4lite.Open(dev, ext4lite.Options{
		ReadOnly:   o.ReadOnly,
		Durability: durability,
		Discard:    o.Discard,
		RangeSync:  !o.WholeSync,
		OnReadOnly: o.OnReadOnly,
	})
	if err != nil {
		dev.Close()
		return nil, fmt.Errorf("%w: %w", unix.Errno(ext4lite.ErrnoOf(err)), err)
	}
	v := &ext4Volume{fs: fs, byFile: make(map[*os.File]*HostFile)}
	if err := v.mapFiles(files, o.ReadOnly); err != nil {
		v.Close()
		return nil, err
	}
	if o.OnOpen != nil {
		o.OnOpen(fs)
	}
	return v, nil
}

// mapFiles maps the volume's files, the written one first, if ext4lite can say
// where in them a file's pages are. Holds are of blocks and references are of
// pages, so that the two must be the same.
func (v *ext4Volume) mapFiles(files []*os.File, readOnly bool) error {
	if !v.fs.Mappable() || v.fs.Statfs().BlockSize != hostarch.PageSize {
		return nil
	}
	for n, f := range files {
		h, err := mapVolumeFile(int(f.Fd()), n == 0 && !readOnly, v)
		if err != nil {
			return fmt.Errorf("map volume file %s: %w", f.Name(), err)
		}
		v.files = append(v.files, h)
		v.byFile[f] = h
	}
	return nil
}

// ext4Error gives err the errno that a guest should see. The words are kept
// where they say more than a guest's mistake.
func ext4Error(err error) error {
	if err == nil {
		return nil
	}
	e := ext4lite.ErrnoOf(err)
	if e == ext4lite.EUCLEAN || e == ext4lite.EIO {
		return fmt.Errorf("%w: %w", unix.Errno(e), err)
	}
	return linuxerr.ErrorFromUnix(unix.Errno(e))
}

// Traits implements Volume.
func (v *ext4Volume) Traits() Traits {
	st := v.fs.Statfs()
	return Traits{
		Magic:          ext4Magic,
		BlockSizeBytes: int64(st.BlockSize),
		Blocks:         st.Blocks,
		NameMaxBytes:   uint64(st.NameLen),
		Identity:       fmt.Sprintf("uuid %x", st.UUID),
	}
}

// Root implements Volume.
func (v *ext4Volume) Root() uint64 { return ext4RootIno }

// ext4RootIno is the root directory's inode number in every ext4.
const ext4RootIno = 2

// Files implements Volume.
func (v *ext4Volume) Files() []*HostFile { return v.files }

// Close implements Volume.
func (v *ext4Volume) Close() error {
	for _, f := range v.files {
		f.unmap()
	}
	return ext4Error(v.fs.Close())
}

// Node implements Volume.
func (v *ext4Volume) Node(id uint64) (Node, error) {
	if id > 1<<32-1 {
		return nil, fmt.Errorf("inode number %d: %w", id, unix.EUCLEAN)
	}
	i, err := v.fs.Inode(uint32(id))
	if err != nil {
		return nil, ext4Error(err)
	}
	return &ext4Node{v: v, i: i}, nil
}

// Failed implements WritableVolume.
func (v *ext4Volume) Failed() error { return v.fs.ReadOnly() }

// StatFS implements WritableVolume.
func (v *ext4Volume) StatFS() linux.Statfs {
	st := v.fs.Statfs()
	return linux.Statfs{
		Type:            ext4Magic,
		BlockSize:       int64(st.BlockSize),
		FragmentSize:    int64(st.BlockSize),
		Blocks:          st.Blocks,
		BlocksFree:      st.Free,
		BlocksAvailable: st.Available,
		Files:           st.Inodes,
		FilesFree:       st.FreeInodes,
		NameLength:      uint64(st.NameLen),
		FSID: [2]int32{
			int32(binary.LittleEndian.Uint32(st.UUID[0:]) ^ binary.LittleEndian.Uint32(st.UUID[8:])),
			int32(binary.LittleEndian.Uint32(st.UUID[4:]) ^ binary.LittleEndian.Uint32(st.UUID[12:])),
		},
	}
}

// Rename implements WritableVolume.
func (v *ext4Volume) Rename(oldDir WritableNode, oldName string, newDir WritableNode, newName string, flags uint32) error {
	return ext4Error(v.fs.Rename(oldDir.(*ext4Node).i, oldName, newDir.(*ext4Node).i, newName, int(flags)))
}

// Now implements WritableVolume.
func (v *ext4Volume) Now() linux.StatxTimestamp { return statxTime(time.Now()) }

// Sync implements WritableVolume.
func (v *ext4Volume) Sync() error { return ext4Error(v.fs.Sync()) }

// ReleaseRun implements WritableVolume.
func (v *ext4Volume) ReleaseRun(volumeOff, n int64) {
	v.fs.ReleaseMapping(ext4lite.Mapping{Volume: volumeOff, Len: n})
}

// HoldRun and ReleaseRun count the references of mapped pages: see HostFile.
func (v *ext4Volume) HoldRun(volumeOff, n int64) { v.fs.HoldVolume(volumeOff, n) }

// ext4Node implements WritableNode.
type ext4Node struct {
	v *ext4Volume
	i *ext4lite.Inode
}

var _ WritableNode = (*ext4Node)(nil)

// Release implements WritableNode.
func (n *ext4Node) Release() { n.i.Release() }

// Attr implements Node.
func (n *ext4Node) Attr() Attr {
	a := n.i.Attr()
	return Attr{
		Mode:      linux.FileMode(a.Mode),
		UID:       a.UID,
		GID:       a.GID,
		Nlink:     a.Links,
		SizeBytes: a.Size,
		Blocks:    a.Blocks,
		Atime:     fromExt4Time(a.Atime),
		Mtime:     fromExt4Time(a.Mtime),
		Ctime:     fromExt4Time(a.Ctime),
		Btime:     fromExt4Time(a.Crtime),
		RdevMajor: a.Major,
		RdevMinor: a.Minor,
	}
}

func fromExt4Time(t ext4lite.Time) linux.StatxTimestamp {
	return linux.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

func toExt4Time(t *linux.StatxTimestamp) *ext4lite.Time {
	if t == nil {
		return nil
	}
	return &ext4lite.Time{Sec: t.Sec, Nsec: t.Nsec}
}

// Lookup implements Node.
func (n *ext4Node) Lookup(name string) (uint64, error) {
	ino, err := n.i.LookupIno(name)
	if err != nil {
		return 0, ext4Error(err)
	}
	return uint64(ino), nil
}

// ReadDir implements Node. fn may use the volume: it is called without locks.
func (n *ext4Node) ReadDir(pos int64, fn func(Dirent) bool) (int64, error) {
	batch := make([]ext4lite.DirEntry, 0, dirBatch)
	for {
		batch = batch[:0]
		more := false
		err := n.i.ReadDir(pos, func(e ext4lite.DirEntry) bool {
			// Names of one hash share a position, which is only past all of
			// them behind the last: a batch ends where going on repeats none.
			if more = len(batch) >= dirBatch && e.Next > batch[len(batch)-1].Next; more {
				return false
			}
			batch = append(batch, e)
			return true
		})
		if err != nil {
			return pos, ext4Error(err)
		}
		for _, e := range batch {
			if !fn(Dirent{Name: e.Name, ID: uint64(e.Ino), Type: e.Type, Next: e.Next}) {
				return pos, nil
			}
			pos = e.Next
		}
		if !more {
			return pos, nil
		}
	}
}

// dirBatch is how many names are read at once.
const dirBatch = 128

// Readlink implements Node.
func (n *ext4Node) Readlink() (string, error) {
	target, err := n.i.Readlink()
	return target, ext4Error(err)
}

// ListXattr implements Node.
func (n *ext4Node) ListXattr() ([]string, error) {
	names, err := n.i.ListXattrs()
	return names, ext4Error(err)
}

// Xattr implements Node.
func (n *ext4Node) Xattr(name string) ([]byte, error) {
	value, err := n.i.GetXattr(name)
	return value, ext4Error(err)
}

// Extent implements Node.
func (n *ext4Node) Extent(int64) (Extent, error) { return Extent{}, unix.EOPNOTSUPP }

// View implements WritableNode.
func (n *ext4Node) View(off, length int64, fn func(f *HostFile, fileOff, n int64) error) error {
	err := n.i.View(off, length, func(f *os.File, fileOff, k int64) error {
		if f == nil {
			return fn(nil, 0, k)
		}
		return fn(n.v.byFile[f], fileOff, k)
	})
	if err == io.EOF {
		return err
	}
	return ext4Error(err)
}

// ReadAt implements WritableNode.
func (n *ext4Node) ReadAt(p []byte, off int64) (int, error) {
	k, err := n.i.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		err = ext4Error(err)
	}
	return k, err
}

// WriteAt implements WritableNode.
func (n *ext4Node) WriteAt(p []byte, off int64) (int, error) {
	k, err := n.i.WriteAt(p, off)
	return k, ext4Error(err)
}
