// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"z.gfire.dev/gvx/oci/erofs"
)

// EROFSName is the type under which EROFS images are mounted.
const EROFSName = "erofs"

// erofsMagic is what statfs(2) says of EROFS (EROFS_SUPER_MAGIC_V1).
const erofsMagic = 0xe0f5e1e2

// EROFSOptions say what image to mount. They are passed by value, as
// vfs.GetFilesystemOptions.InternalData.
type EROFSOptions struct {
	// FD is the image file, open for reading. The mount owns it from the call
	// on, also when it fails.
	FD int
	// Size is the size of the image, which begins where the file does. 0 is
	// the size of the file.
	Size int64
	// ID finds the descriptor of the same image when a checkpoint is
	// restored, in the map that vfs.CtxRestoreFilesystemFDMap carries.
	ID checkpoint.ResourceID
}

// erofsVolume implements Volume.
type erofsVolume struct {
	im   *erofs.Image
	file *HostFile
	info erofs.StatFS
}

var _ Volume = (*erofsVolume)(nil)

// openEROFS opens the image in f. It does not take over f when it fails.
func openEROFS(f *HostFile) (*erofsVolume, error) {
	im, err := erofs.Open(f, f.SizeBytes())
	if err != nil {
		return nil, erofsError(err)
	}
	return &erofsVolume{im: im, file: f, info: im.StatFS()}, nil
}

// erofsError gives err the errno that a guest should see.
func erofsError(err error) error {
	switch {
	case errors.Is(err, erofs.ErrNotEROFS), errors.Is(err, erofs.ErrInvalid):
		return fmt.Errorf("%w: %w", linuxerr.EINVAL, err)
	case errors.Is(err, erofs.ErrUnsupported):
		return fmt.Errorf("%w: %w", linuxerr.EOPNOTSUPP, err)
	case errors.Is(err, erofs.ErrCorrupt):
		return fmt.Errorf("%w: %w", linuxerr.EUCLEAN, err)
	}
	return err
}

// Traits implements Volume.
func (v *erofsVolume) Traits() Traits {
	return Traits{
		Magic:          erofsMagic,
		BlockSizeBytes: v.info.BlockSize,
		Blocks:         v.info.Blocks,
		NameMaxBytes:   erofs.MaxNameBytes,
		Identity: fmt.Sprintf("uuid %x, %d blocks of %d bytes, %d inodes, built %d",
			v.info.UUID, v.info.Blocks, v.info.BlockSize, v.info.Inodes, v.info.BuildTime.UnixNano()),
	}
}

// Root implements Volume.
func (v *erofsVolume) Root() uint64 { return v.im.Root() }

// Files implements Volume.
func (v *erofsVolume) Files() []*HostFile { return []*HostFile{v.file} }

// Close implements Volume.
func (v *erofsVolume) Close() error {
	v.file.close()
	return nil
}

// Node implements Volume.
func (v *erofsVolume) Node(id uint64) (Node, error) {
	ino, err := v.im.Inode(id)
	if err != nil {
		return nil, erofsError(err)
	}
	return &erofsNode{v: v, ino: ino}, nil
}

// erofsNode implements Node.
type erofsNode struct {
	v   *erofsVolume
	ino erofs.Inode
}

// Attr implements Node. EROFS has one time, for all three.
func (n *erofsNode) Attr() Attr {
	mtime := statxTime(n.ino.Mtime)
	return Attr{
		Mode:      linux.FileMode(n.ino.Mode),
		UID:       n.ino.UID,
		GID:       n.ino.GID,
		Nlink:     n.ino.Nlink,
		SizeBytes: n.ino.Size,
		Blocks:    (uint64(n.ino.Size) + 511) / 512,
		Atime:     mtime,
		Mtime:     mtime,
		Ctime:     mtime,
		RdevMajor: n.ino.Major,
		RdevMinor: n.ino.Minor,
	}
}

func statxTime(t time.Time) linux.StatxTimestamp {
	return linux.StatxTimestamp{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// Lookup implements Node.
func (n *erofsNode) Lookup(name string) (uint64, error) {
	id, _, err := n.v.im.Lookup(&n.ino, name)
	if errors.Is(err, erofs.ErrNotExist) {
		return 0, linuxerr.ENOENT
	}
	return id, erofsError(err)
}

// ReadDir implements Node.
func (n *erofsNode) ReadDir(pos int64, fn func(Dirent) bool) (int64, error) {
	pos, err := n.v.im.ReadDir(&n.ino, pos, func(d erofs.Dirent) bool {
		return fn(Dirent{Name: d.Name, ID: d.NID, Type: d.Type, Next: d.Next})
	})
	return pos, erofsError(err)
}

// Readlink implements Node.
func (n *erofsNode) Readlink() (string, error) {
	target, err := n.v.im.Readlink(&n.ino)
	return target, erofsError(err)
}

// ListXattr implements Node.
func (n *erofsNode) ListXattr() ([]string, error) {
	names, err := n.v.im.ListXattr(&n.ino)
	return names, erofsError(err)
}

// Xattr implements Node. EROFS stores ACLs as getxattr(2) shows them.
func (n *erofsNode) Xattr(name string) ([]byte, error) {
	value, err := n.v.im.GetXattr(&n.ino, name)
	if errors.Is(err, erofs.ErrNoXattr) {
		return nil, linuxerr.ENODATA
	}
	return value, erofsError(err)
}

// Extent implements Node. Tails that share a block with their inode are in the
// image, too, just not page aligned.
func (n *erofsNode) Extent(off int64) (Extent, error) {
	e, err := n.v.im.Extent(&n.ino, off)
	if err != nil {
		return Extent{}, erofsError(err)
	}
	ext := Extent{Off: e.Logical, Len: e.Length}
	if e.Physical >= 0 {
		ext.File, ext.FileOff = n.v.file, e.Physical
	}
	return ext, nil
}
