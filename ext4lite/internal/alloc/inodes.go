// SPDX-License-Identifier: Apache-2.0

// Inodes: search, take, free.

package alloc

import (
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// crowded is the part of a group's blocks, one in so many, that must be free
// for a new directory to be put there: its files should find room near it.
const crowded = 16

// TakeInode takes a free inode. Files go to their directory's group, a new
// directory too unless that group is crowded. fresh tells that no other inode
// in the same block of the inode table is in use, so the block need not be
// read.
func (a *Allocator) TakeInode(h *journal.Handle, near uint32, dir bool) (ino uint32, fresh bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.freeInodes == 0 {
		return 0, false, noSpace("allocate inode")
	}
	near %= a.g.Groups
	if dir {
		for k := range a.g.Groups {
			gr := (near + k) % a.g.Groups
			p := &a.groups[gr]
			if p.FreeInodes > 0 && uint64(p.FreeBlocks) > a.g.GroupLen(gr)/crowded {
				if ino, fresh, err = a.takeIn(h, gr, dir); ino != 0 || err != nil {
					return ino, fresh, err
				}
			}
		}
	}
	for k := range a.g.Groups {
		gr := (near + k) % a.g.Groups
		if a.groups[gr].FreeInodes > 0 {
			if ino, fresh, err = a.takeIn(h, gr, dir); ino != 0 || err != nil {
				return ino, fresh, err
			}
		}
	}
	return 0, false, noSpace("allocate inode")
}

func (a *Allocator) takeIn(h *journal.Handle, gr uint32, dir bool) (uint32, bool, error) {
	p := &a.groups[gr]
	b, err := a.editInodes(h, gr)
	if err != nil {
		return 0, false, err
	}
	end := uint64(a.g.InodesPerGroup)
	from := uint64(p.nextIno)
	if gr == 0 {
		from = max(from, uint64(a.g.FirstIno-1))
	}
	i := nextClear(b.Data, min(from, end), end)
	if i == end {
		p.nextIno = a.g.InodesPerGroup
		if p.FreeInodes > 0 && gr > 0 {
			return 0, false, disk.Corrupt("inode bitmap", "group %d: %d inodes are said to be free, none is", gr, p.FreeInodes)
		}
		return 0, false, nil
	}
	setBits(b.Data, i, i+1)
	p.nextIno = uint32(i + 1)
	p.FreeInodes--
	a.freeInodes--
	if dir {
		p.UsedDirs++
	}
	if a.s.HasUninit() {
		p.ItableUnused = min(p.ItableUnused, a.g.InodesPerGroup-uint32(i)-1)
	}
	per := uint64(a.g.BlockSize / a.g.InodeSize)
	first := i / per * per
	fresh := nextSet(b.Data, first, i) == i && nextSet(b.Data, i+1, min(first+per, end)) == min(first+per, end)
	return gr*a.g.InodesPerGroup + uint32(i) + 1, fresh, nil
}

// editInodes gives a group's inode bitmap for a change in a handle.
func (a *Allocator) editInodes(h *journal.Handle, gr uint32) (*journal.Buf, error) {
	p := &a.groups[gr]
	if p.inodes != nil {
		return p.inodes, nil
	}
	var b *journal.Buf
	if p.Flags&disk.GroupInodeUninit != 0 {
		b = h.GetNew(p.InodeBitmap)
		setBits(b.Data, uint64(a.g.InodesPerGroup), uint64(len(b.Data)*8))
		p.Flags &^= disk.GroupInodeUninit
	} else {
		var err error
		if b, err = a.inodeBitmap(gr); err != nil {
			return nil, err
		}
	}
	h.Dirty(b)
	p.inodes = b
	a.touch(h, gr)
	return b, nil
}

// inodeBitmap reads an initialised inode bitmap.
func (a *Allocator) inodeBitmap(gr uint32) (*journal.Buf, error) {
	p := &a.groups[gr]
	return a.m.Get(p.InodeBitmap, func(data []byte) error {
		if a.g.Csum && a.g.InodeBitmapSum(data) != p.InodeBitmapCsum {
			return disk.Corrupt("inode bitmap", "group %d: wrong checksum", gr)
		}
		return nil
	})
}

// FreeInode gives an inode up.
func (a *Allocator) FreeInode(h *journal.Handle, ino uint32, dir bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ino < a.g.FirstIno || ino > a.g.Inodes {
		return disk.Corrupt("free inode", "inode %d is reserved or does not exist", ino)
	}
	gr, i := a.g.InodeGroup(ino)
	p := &a.groups[gr]
	b, err := a.editInodes(h, gr)
	if err != nil {
		return err
	}
	if !testBit(b.Data, uint64(i)) || p.FreeInodes >= a.g.InodesPerGroup {
		return disk.Corrupt("inode bitmap", "group %d: freeing inode %d, which is free", gr, ino)
	}
	clearBits(b.Data, uint64(i), uint64(i)+1)
	p.nextIno = min(p.nextIno, i)
	p.FreeInodes++
	a.freeInodes++
	if dir && p.UsedDirs > 0 {
		p.UsedDirs--
	}
	return nil
}

// InodeUsed tells whether the bitmap says that an inode is in use.
func (a *Allocator) InodeUsed(ino uint32) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gr, i := a.g.InodeGroup(ino)
	p := &a.groups[gr]
	if p.inodes != nil {
		return testBit(p.inodes.Data, uint64(i)), nil
	}
	if p.Flags&disk.GroupInodeUninit != 0 {
		return false, nil
	}
	b, err := a.inodeBitmap(gr)
	if err != nil {
		return false, err
	}
	return testBit(b.Data, uint64(i)), nil
}
