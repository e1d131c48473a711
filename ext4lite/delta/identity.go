// SPDX-License-Identifier: Apache-2.0

// What a base is recognised by: how it was left when it was last closed.

package delta

import (
	"crypto/sha256"
	"fmt"
	"io"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// identity is what a base is recognised by: its superblock, the first block of
// its group descriptors, and its journal's superblock. The first is written at
// every mount, unmount and fsck, but tells times by the second; the last counts
// every transaction. They move and are copied with the volume, which the host's
// own marks of a file (its number, its times) are not. Of a delta it is what is
// seen through it.
func identity(base device.Device) (id [32]byte, err error) {
	p := make([]byte, disk.SuperSize)
	if _, err := base.ReadAt(p, disk.SuperOffset); err != nil {
		return id, fmt.Errorf("read superblock: not an ext4 volume: %w: %w", err, errno.EINVAL)
	}
	s, err := disk.DecodeSuper(p)
	if err != nil {
		return id, err
	}
	if s.Incompat&disk.IncompatRecover != 0 {
		return id, fmt.Errorf("the volume was not closed: open it once, or run e2fsck, before cloning it: %w", errno.EBUSY)
	}
	sum := sha256.New()
	sum.Write(p)
	r := &reader{base: base, s: s, g: disk.NewGeometry(s)}
	desc, err := r.block(r.g.DescBlock(0))
	if err != nil {
		return id, err
	}
	sum.Write(desc)
	if s.Compat&disk.CompatHasJournal != 0 && s.JournalDev == 0 {
		log, err := r.journal(desc)
		if err != nil {
			return id, fmt.Errorf("find journal: %w", err)
		}
		sum.Write(log[:min(len(log), disk.SuperSize)])
	}
	sum.Sum(id[:0])
	return id, nil
}

// reader reads single blocks of a volume that nobody has open.
type reader struct {
	base device.Device
	s    *disk.Super
	g    *disk.Geometry
}

func (r *reader) block(n uint64) ([]byte, error) {
	if !r.g.ValidRange(n, 1) {
		return nil, disk.Corrupt("volume", "block %d does not exist", n)
	}
	p := make([]byte, r.g.BlockSize)
	if _, err := r.base.ReadAt(p, int64(n)<<r.g.BlockShift); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read block %d: %w", n, err)
	}
	return p, nil
}

// journal reads the first block of the journal's file.
func (r *reader) journal(desc []byte) ([]byte, error) {
	first, err := disk.DecodeGroup(desc, 0, r.g, r.s)
	if err != nil {
		return nil, err
	}
	const index = disk.JournalIno - 1 // in group 0: groups have at least as many
	per := uint64(r.g.BlockSize / r.g.InodeSize)
	table, err := r.block(first.InodeTable + index/per)
	if err != nil {
		return nil, err
	}
	at := int(index%per) * r.g.InodeSize
	d, err := disk.DecodeInode(table[at:at+r.g.InodeSize], disk.JournalIno, r.g, r.s)
	if err != nil {
		return nil, err
	}
	if d.Flags&disk.FlExtents == 0 { // the first pointer is the first block's
		return r.block(uint64(le.Uint32(d.Block[:])))
	}
	node, depth := disk.Node(d.Block[:]), -1
	for {
		if err := node.Check(disk.JournalIno, depth, r.g); err != nil {
			return nil, err
		}
		if node.Entries() == 0 || node.Key(0) != 0 {
			break
		}
		if depth = node.Depth(); depth == 0 {
			return r.block(node.Extent(0).Physical)
		}
		depth-- // at most MaxExtentDepth steps
		if node, err = r.block(node.Child(0)); err != nil {
			return nil, err
		}
	}
	return nil, disk.Corrupt("journal inode", "has no first block")
}
