// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import "gvisor.dev/gvisor/pkg/abi/linux"

// WritableVolume is a Volume whose files can be made, changed and removed. All
// its nodes are WritableNodes.
//
// Like those of Volume, errors carry an errno in their chain. EROFS is the
// answer to every change of a volume that was opened for reading, or has
// stopped taking changes because it is damaged or its host failed.
type WritableVolume interface {
	Volume

	// Failed tells why the volume takes no more changes, or nil.
	Failed() error

	// StatFS tells the volume's size and what is free.
	StatFS() linux.Statfs

	// Rename moves a name from one directory to another, with the flags of
	// renameat2(2).
	Rename(oldDir WritableNode, oldName string, newDir WritableNode, newName string, flags uint32) error

	// Now is the time that changes are stamped with.
	Now() linux.StatxTimestamp

	// Sync returns when all that was done before the call is durable.
	Sync() error

	// ReleaseRun ends the hold of a run of blocks that MapForRead or
	// MapForWrite gave, or of a part of it, by its place in the volume.
	ReleaseRun(volumeOff, n int64)
}

// WritableNode is a Node whose answers change. It is counted: whoever got one
// gives it back with Release, and a file that has no name any more is freed
// with the last reference.
type WritableNode interface {
	Node

	// Release gives the reference back.
	Release()

	// Make makes a file of any type under a new name.
	Make(name string, n *NewNode) (uint64, WritableNode, error)
	// MakeUnnamed makes a regular file without a name in the directory's
	// volume. Link can give it one.
	MakeUnnamed(n *NewNode) (uint64, WritableNode, error)
	// Link gives target another name.
	Link(name string, target WritableNode) error
	// Unlink removes the name of anything but a directory, Rmdir that of an
	// empty directory.
	Unlink(name string) error
	Rmdir(name string) error

	// SetAttr changes attributes, and Ctime to now if it is not among them.
	SetAttr(s *SetAttr) error
	// TouchAtime sets the access time to now.
	TouchAtime() error
	// SetXattr and RemoveXattr change an extended attribute, with the flags of
	// setxattr(2). ACLs have the form that setxattr(2) takes.
	SetXattr(name string, value []byte, flags uint32) error
	RemoveXattr(name string) error

	// View calls fn for each run of [off, off+n), as far as the file goes, with
	// the place where it is, or a nil file for zeros. The node is locked
	// meanwhile. It ends with io.EOF at the end of the file, and is not called
	// for a volume without Files.
	View(off, n int64, fn func(f *HostFile, fileOff, n int64) error) error
	// ReadAt and WriteAt move file data as io.ReaderAt and io.WriterAt do.
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// OpenWrite counts an opening for writing, until CloseWrite.
	OpenWrite()
	CloseWrite()
	Truncate(size int64) error
	Allocate(mode uint32, off, n int64) error
	// SeekData and SeekHole are lseek(2)'s.
	SeekData(off int64) (int64, error)
	SeekHole(off int64) (int64, error)
	// SyncFile makes one file durable.
	SyncFile() error

	// MapForRead tells where the file's bytes from off on are, as far as the
	// file goes. Each run is held: its blocks belong to no other file until
	// ReleaseRun, even if this file is truncated or removed.
	MapForRead(off, n int64) ([]Run, error)
	// MapForWrite gives places that can be written: it allocates what is
	// missing, and takes over what belongs to a base.
	MapForWrite(off, n int64) ([]Run, error)
	// OnMove sets the function that is told before bytes of the file change
	// their place. It is called with the node locked, and must not use it.
	OnMove(fn func(off, n int64))
}

// Run is a run of a file's bytes in one place.
type Run struct {
	Off, Len int64
	// File holds the bytes from FileOff on. If it is nil, the run is a hole,
	// and not held.
	File    *HostFile
	FileOff int64
	// VolumeOff is the place in the volume, for ReleaseRun.
	VolumeOff int64
	// Writable says that stores there are the file's.
	Writable bool
}

// NewNode says what a new file is.
type NewNode struct {
	// Mode has the type and the permission bits.
	Mode     linux.FileMode
	UID, GID uint32
	// RdevMajor and RdevMinor are those of a device.
	RdevMajor, RdevMinor uint32
	// Target is that of a symbolic link.
	Target string
	// AccessACL and DefaultACL have the form that setxattr(2) takes; nil for
	// none.
	AccessACL, DefaultACL []byte
}

// SetAttr says which attributes to change: those that are not nil.
type SetAttr struct {
	Perm                *uint16 // all bits but the type
	UID, GID            *uint32
	Atime, Mtime, Ctime *linux.StatxTimestamp
}
