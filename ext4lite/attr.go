// SPDX-License-Identifier: Apache-2.0

// Attributes of inodes: stat, setattr, flags; and of the volume: statfs.

package ext4lite

import (
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// File types, in the bits of a mode.
const (
	ModeType   = disk.ModeType
	ModeFifo   = disk.ModeFifo
	ModeChar   = disk.ModeChar
	ModeDir    = disk.ModeDir
	ModeBlock  = disk.ModeBlock
	ModeReg    = disk.ModeReg
	ModeLink   = disk.ModeLink
	ModeSocket = disk.ModeSocket
)

// Time is seconds and nanoseconds since 1970.
type Time = disk.Time

// Attr is what stat(2) and statx(2) tell.
type Attr struct {
	Ino        uint32
	Mode       uint16
	Links      uint32
	UID, GID   uint32
	Major      uint32 // of a device
	Minor      uint32
	Size       int64
	Blocks     uint64 // of 512 bytes
	Flags      uint32 // as chattr(1) shows them
	Generation uint32
	Atime      Time
	Mtime      Time
	Ctime      Time
	Crtime     Time
}

// Attr gives the inode's attributes.
func (i *Inode) Attr() Attr {
	i.mu.RLock()
	defer i.mu.RUnlock()
	d := &i.d
	a := Attr{Ino: i.ino, Mode: d.Mode, Links: d.Links, UID: d.UID, GID: d.GID, Size: int64(d.Size), Blocks: d.Blocks,
		Flags: d.Flags, Generation: d.Generation, Atime: d.Atime, Mtime: d.Mtime, Ctime: d.Ctime, Crtime: d.Crtime}
	if t := d.Type(); t == disk.ModeChar || t == disk.ModeBlock {
		a.Major, a.Minor = d.Rdev()
	}
	return a
}

// Mode is the inode's type and permission bits. The type never changes.
func (i *Inode) Mode() uint16 {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.d.Mode
}

// SetAttr says which attributes to change; nil leaves one alone.
type SetAttr struct {
	Mode         *uint16 // permission bits
	UID, GID     *uint32
	Size         *int64
	Atime, Mtime *Time
	Flags        *uint32 // of the user's: append, immutable, nodump, noatime, sync
	// Ctime sets the change time, which is now otherwise, for tools that
	// restore files.
	Ctime *Time
}

// SetAttr changes attributes.
func (i *Inode) SetAttr(s SetAttr) error {
	if s.Size != nil {
		if err := i.Truncate(*s.Size); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.Mode != nil && i.d.Type() == disk.ModeLink { // as Linux has it: nobody looks at a link's mode
		return fail("change mode of link", i.ino, EOPNOTSUPP)
	}
	credits := 2
	if s.Mode != nil {
		credits += xattrCredits
	}
	h, err := i.fs.start(credits)
	if err != nil {
		return fail("change attributes of", i.ino, err)
	}
	defer h.Stop()
	wide := i.fs.g.InodeSize > 128
	if s.Mode != nil {
		i.d.Mode = i.d.Type() | *s.Mode&0o7777
		if err := i.chmodACL(h); err != nil {
			return fail("change mode of", i.ino, i.fs.damaged(err))
		}
	}
	if s.UID != nil {
		i.d.UID = *s.UID
	}
	if s.GID != nil {
		i.d.GID = *s.GID
	}
	if s.Atime != nil {
		i.d.Atime = s.Atime.Clamp(wide)
	}
	if s.Mtime != nil {
		i.d.Mtime = s.Mtime.Clamp(wide)
	}
	if s.Flags != nil {
		i.d.Flags = i.d.Flags&^disk.FlUserModifiable | *s.Flags&disk.FlUserModifiable
	}
	i.d.Ctime = i.fs.now()
	if s.Ctime != nil {
		i.d.Ctime = s.Ctime.Clamp(wide)
	}
	i.touch(h)
	return nil
}

// TouchAtime records an access. It is the caller who decides whether the mount
// wants that.
func (i *Inode) TouchAtime() error {
	now := i.fs.now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if !stale(i.d.Atime, now) || i.fs.readonly.Load() {
		return nil
	}
	h, err := i.fs.start(1)
	if err != nil {
		return fail("touch", i.ino, err)
	}
	defer h.Stop()
	i.d.Atime = now
	i.touch(h)
	return nil
}

// Statfs is what statfs(2) tells.
type Statfs struct {
	BlockSize  int
	Blocks     uint64 // for files: without the volume's own structures
	Free       uint64
	Available  uint64 // Free without what is set aside for root
	Inodes     uint64
	FreeInodes uint64
	NameLen    int
	UUID       [16]byte
	Label      string
}

// Statfs tells the volume's size and what is free.
func (fs *FS) Statfs() Statfs {
	blocks, inodes := fs.a.Counts()
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	st := Statfs{BlockSize: fs.g.BlockSize, Blocks: fs.g.Blocks - min(fs.overhead, fs.g.Blocks), Free: blocks,
		Inodes: uint64(fs.g.Inodes), FreeInodes: uint64(inodes), NameLen: disk.MaxNameLen, UUID: fs.s.UUID, Label: fs.s.Label}
	st.Available = blocks - min(blocks, fs.s.ReservedBlocks)
	return st
}

// Features names the volume's features, as dumpe2fs does.
func (fs *FS) Features() []string {
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	return fs.s.Features()
}

// Info describes a volume to people.
type Info struct {
	Statfs
	Size         int64
	JournalBytes int64
	InodeSize    int
	Features     []string
	Made         Time
	Mounted      Time // the last time it was changed by a mount
	ReadOnly     error
}

// Info describes the volume.
func (fs *FS) Info() Info {
	in := Info{Statfs: fs.Statfs(), Size: int64(fs.g.Blocks) << fs.g.BlockShift, InodeSize: fs.g.InodeSize, Features: fs.Features(), ReadOnly: fs.ReadOnly()}
	for _, r := range fs.journal {
		in.JournalBytes += int64(r.N) << fs.g.BlockShift
	}
	fs.superMu.Lock()
	defer fs.superMu.Unlock()
	in.Made, in.Mounted = Time{Sec: int64(fs.s.MkfsTime)}, Time{Sec: int64(fs.s.MountTime)}
	return in
}
