// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import "gvisor.dev/gvisor/pkg/abi/linux"

// Volume is a mounted instance of a file-system format: the adapter's view of
// an image. Implementations are safe for concurrent use and keep no locks of
// the Sentry's.
//
// Errors carry the errno a guest should see (EUCLEAN, EIO, …) in their chain,
// or become EIO; the text goes to the log. ENOENT of Lookup and ENODATA of
// Xattr are ordinary answers, and returned as they are.
//
// A format that can be written offers more: its volumes are [WritableVolume]s
// and all their nodes [WritableNode]s. Of others the adapter keeps what it was
// told, as that never changes.
type Volume interface {
	// Traits describes the volume as a whole.
	Traits() Traits

	// Root is the identity of the root directory.
	Root() uint64

	// Node reads the inode with the given identity. Two names with the same
	// identity are hard links to one file.
	Node(id uint64) (Node, error)

	// Files are the donated files that back the volume, all of which Extents
	// may point into.
	Files() []*HostFile

	// Close gives all of them back. No node is used any more.
	Close() error
}

// Traits are the properties of a volume that statfs(2) and a restore need.
type Traits struct {
	// Magic is statfs's f_type.
	Magic uint64
	// BlockSizeBytes is the allocation unit.
	BlockSizeBytes int64
	// Blocks is the size of the volume in such units.
	Blocks uint64
	// NameMaxBytes is the longest name a directory can hold.
	NameMaxBytes uint64
	// Identity is equal for two images only if one may stand in for the other
	// when a checkpoint is restored.
	Identity string
}

// Node is one inode of a Volume. Methods that do not fit its type (Lookup of a
// regular file, Readlink of a directory) are not called.
type Node interface {
	// Attr is the inode's metadata.
	Attr() Attr

	// Lookup returns the identity of the entry called name, or ENOENT.
	Lookup(name string) (uint64, error)

	// ReadDir calls fn for each entry, "." and ".." included where the format
	// stores them, from position pos on (0 is the first), until fn says false.
	// It returns the position behind the last entry that fn accepted.
	// Positions only grow, and survive a save and restore.
	ReadDir(pos int64, fn func(Dirent) bool) (int64, error)

	// Readlink returns the target of a symbolic link.
	Readlink() (string, error)

	// ListXattr returns the full names of all extended attributes.
	ListXattr() ([]string, error)

	// Xattr returns the value of an extended attribute, or ENODATA. POSIX ACLs
	// have the form that getxattr(2) shows, not the one on disk.
	Xattr(name string) ([]byte, error)

	// Extent tells where the byte at off lives. The answer contains off and
	// may be as long as the format can tell cheaply. A WritableNode, whose
	// bytes move, is not asked.
	//
	// Preconditions: 0 <= off < size.
	Extent(off int64) (Extent, error)
}

// Attr is an inode's metadata.
type Attr struct {
	// Mode has the file type and the permission bits.
	Mode linux.FileMode
	UID  uint32
	GID  uint32
	// Nlink is the number of names.
	Nlink uint32
	// SizeBytes is never negative.
	SizeBytes int64
	// Blocks is the space it takes, in units of 512 bytes.
	Blocks uint64
	Atime  linux.StatxTimestamp
	Mtime  linux.StatxTimestamp
	Ctime  linux.StatxTimestamp
	// Btime is when the file was made, zero if that is not recorded.
	Btime linux.StatxTimestamp
	// RdevMajor and RdevMinor are the device a special file stands for.
	RdevMajor uint32
	RdevMinor uint32
}

// Dirent is one directory entry.
type Dirent struct {
	Name string
	// ID is the entry's identity, for [Volume.Node].
	ID uint64
	// Type is a linux.DT_* constant.
	Type uint8
	// Next is the position of the entry behind this one.
	Next int64
}

// Extent is a run of a file's bytes that live in one place.
type Extent struct {
	// Off and Len are the run in the file.
	Off, Len int64
	// File holds the bytes from FileOff on. If it is nil, the run is a hole.
	File    *HostFile
	FileOff int64
}

// end is the offset behind the extent.
func (e Extent) end() int64 { return e.Off + e.Len }
