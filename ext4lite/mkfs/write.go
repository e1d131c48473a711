// SPDX-License-Identifier: Apache-2.0

// The second half of making a volume: bitmaps, the first files, descriptors
// and superblocks.

package mkfs

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// writeBitmaps computes what is free in each group and writes the bitmaps of
// groups that hold more than their own superblock copies and tables.
func (v *volume) writeBitmaps() error {
	bitmaps := map[uint32][]byte{}
	own := v.ownBlocks()
	total := make([]uint64, v.g.Groups)
	for gr := range v.g.Groups {
		total[gr] = v.g.GroupOverhead(gr)
	}
	for _, r := range v.used {
		for b := r.start; b < r.start+r.n; {
			gr, i := v.g.GroupOf(b)
			n := min(r.start+r.n-b, v.g.BlocksPerGroup-i)
			m := bitmaps[gr]
			if m == nil {
				m = make([]byte, v.o.BlockSize)
				bitmaps[gr] = m
			}
			setBits(m, i, i+n)
			total[gr] += n
			b += n
		}
	}
	for gr := range v.g.Groups {
		d := &v.desc[gr]
		d.FreeBlocks = uint32(v.g.GroupLen(gr) - total[gr])
		v.s.FreeBlocks += uint64(d.FreeBlocks)
		d.FreeInodes, d.ItableUnused = v.g.InodesPerGroup, v.g.InodesPerGroup
		d.Flags = disk.GroupInodeUninit | disk.GroupInodeZeroed
		last := gr == v.g.Groups-1 // its bitmap pads the volume's end
		if !last && total[gr] == own[gr] {
			d.Flags |= disk.GroupBlockUninit
			continue
		}
		m := bitmaps[gr]
		if m == nil {
			m = make([]byte, v.o.BlockSize)
		}
		setBits(m, 0, v.g.GroupOverhead(gr))
		setBits(m, v.g.GroupLen(gr), uint64(len(m)*8))
		if v.g.Csum {
			d.BlockBitmapCsum = v.g.BlockBitmapSum(m)
		}
		if err := v.write(d.BlockBitmap, m); err != nil {
			return err
		}
	}
	d := &v.desc[0]
	m := make([]byte, v.o.BlockSize)
	used, dirs := uint32(lostFoundIno), uint32(2)
	if v.o.NoLostFound {
		used, dirs = used-1, dirs-1
	}
	setBits(m, 0, uint64(used))
	setBits(m, uint64(v.g.InodesPerGroup), uint64(len(m)*8))
	d.FreeInodes -= used
	d.ItableUnused -= used
	d.UsedDirs = dirs
	d.Flags &^= disk.GroupInodeUninit
	if v.g.Csum {
		d.InodeBitmapCsum = v.g.InodeBitmapSum(m)
	}
	v.s.FreeInodes = v.s.InodesCount - used
	return v.write(d.InodeBitmap, m)
}

// ownBlocks counts, for each group, the used blocks that an uninitialised
// bitmap implies: its superblock copies and its own tables.
func (v *volume) ownBlocks() []uint64 {
	own := make([]uint64, v.g.Groups)
	for gr := range v.g.Groups {
		own[gr] = v.g.GroupOverhead(gr)
		d := &v.desc[gr]
		for _, r := range []run{{d.BlockBitmap, 1}, {d.InodeBitmap, 1}, {d.InodeTable, v.g.ItableBlocks}} {
			for b := r.start; b < r.start+r.n; {
				in, i := v.g.GroupOf(b)
				n := min(r.start+r.n-b, v.g.BlocksPerGroup-i)
				if in == gr {
					own[gr] += n
				}
				b += n
			}
		}
	}
	return own
}

func setBits(m []byte, from, to uint64) {
	for i := from; i < to; {
		if i%8 == 0 && to-i >= 8 {
			m[i/8] = 0xff
			i += 8
			continue
		}
		m[i/8] |= 1 << (i % 8)
		i++
	}
}

// writeFiles writes the first inodes, the two directories and the journal's
// superblock.
func (v *volume) writeFiles() error {
	bs := uint64(v.o.BlockSize)
	table := make([]byte, (lostFoundIno*uint64(v.o.InodeSize)+bs-1)/bs*bs)
	put := func(ino uint32, d disk.Inode, parts []disk.Extent) {
		d.Flags |= disk.FlExtents
		d.Atime, d.Ctime, d.Mtime, d.Crtime = v.now, v.now, v.now, v.now
		d.ExtraIsize = disk.MaxExtraIsize(v.o.InodeSize)
		n := disk.Node(d.Block[:])
		n.Init(0, v.g)
		for i, e := range parts {
			n.Open(i)
			n.SetExtent(i, e)
			d.Blocks += uint64(e.Len) * bs / 512
		}
		d.Encode(table[(int(ino)-1)*v.o.InodeSize:][:v.o.InodeSize], ino, v.g, v.s)
		if ino == disk.JournalIno {
			v.backupJournal(&d)
		}
	}
	dir := disk.Inode{Mode: disk.ModeDir | v.o.RootMode&0o7777, Links: 3, UID: v.o.RootUID, GID: v.o.RootGID, Size: bs}
	if v.o.NoLostFound {
		dir.Links--
	} else {
		put(lostFoundIno, disk.Inode{Mode: disk.ModeDir | 0o700, Links: 2, Size: bs}, []disk.Extent{{Len: 1, Physical: v.lost}})
	}
	put(disk.RootIno, dir, []disk.Extent{{Len: 1, Physical: v.root}})
	jblocks := uint32(uint64(v.o.Journal) / bs)
	put(disk.JournalIno, disk.Inode{Mode: disk.ModeReg | 0o600, Links: 1, Size: uint64(jblocks) * bs}, v.parts)
	if err := v.write(v.desc[0].InodeTable, table); err != nil {
		return err
	}
	name := "lost+found"
	if v.o.NoLostFound {
		name = ""
	} else if err := v.writeDir(v.lost, lostFoundIno, disk.RootIno, "", 0); err != nil {
		return err
	}
	if err := v.writeDir(v.root, disk.RootIno, disk.RootIno, name, lostFoundIno); err != nil {
		return err
	}
	return v.write(v.parts[0].Physical, journal.NewSuper(v.o.BlockSize, jblocks, v.o.UUID, true, v.g.Csum).Encode())
}

// backupJournal keeps the journal's map in the superblock, where e2fsck looks
// when inode 8 is lost.
func (v *volume) backupJournal(d *disk.Inode) {
	v.s.JnlBackupType = 1
	for i := range 15 {
		b := d.Block[4*i:]
		v.s.JnlBlocks[i] = uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	}
	v.s.JnlBlocks[15], v.s.JnlBlocks[16] = uint32(d.Size>>32), uint32(d.Size)
}

func (v *volume) writeDir(block uint64, self, parent uint32, name string, ino uint32) error {
	p := make([]byte, v.o.BlockSize)
	end := v.g.DirEnd()
	disk.PutDirent(p, 0, 12, self, disk.FtDir, ".")
	if name == "" {
		disk.PutDirent(p, 12, end-12, parent, disk.FtDir, "..")
	} else {
		disk.PutDirent(p, 12, 12, parent, disk.FtDir, "..")
		disk.PutDirent(p, 24, end-24, ino, disk.FtDir, name)
	}
	disk.InitDirTail(p, v.g)
	if v.g.Csum {
		disk.SetDirSum(p, v.g.InodeSeed(self, 0), v.g)
	}
	return v.write(block, p)
}

// writeDescriptors writes the descriptors and superblocks, the copies first:
// the primary superblock is what makes the file a volume.
func (v *volume) writeDescriptors() error {
	p := make([]byte, int(v.g.DescBlocks())*v.o.BlockSize)
	for gr := range v.g.Groups {
		at := int(gr/v.g.DescPerBlock)*v.o.BlockSize + int(gr%v.g.DescPerBlock)*v.g.DescSize
		v.desc[gr].Encode(p[at:at+v.g.DescSize], gr, v.g, v.s)
	}
	for i := v.g.Groups; i > 0; i-- {
		gr := i - 1
		if !v.g.HasSuper(gr) {
			continue
		}
		start := v.g.GroupStart(gr)
		for at := 0; at < len(p); at += oneChunk {
			if err := v.write(start+1+uint64(at/v.o.BlockSize), p[at:min(at+oneChunk, len(p))]); err != nil {
				return err
			}
		}
		s := v.s.Clone()
		s.BlockGroupNr = uint16(gr)
		off := int64(start) * int64(v.o.BlockSize)
		if gr == 0 {
			off = disk.SuperOffset
		}
		if _, err := v.dev.WriteAt(s.Encode(), off); err != nil {
			return fmt.Errorf("write superblock of group %d: %w", gr, err)
		}
	}
	return nil
}
