// SPDX-License-Identifier: Apache-2.0

// What a superblock must say beyond what makes it safe to read, and whether
// the journal it names is one.

package fsck

import (
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

func (c *checker) super() error {
	s := c.s
	for _, t := range []struct {
		bad  bool
		text string
	}{
		{s.State&disk.StateError != 0, "an error was recorded"},
		{s.ReservedBlocks > s.BlocksCount/2, "more than half of the blocks are reserved"},
		{s.FreeBlocks > s.BlocksCount, "more free blocks than blocks"},
		{s.FreeInodes > s.InodesCount, "more free inodes than inodes"},
		{s.ROCompat&disk.ROCompatBigalloc == 0 && (s.LogClusterSize != s.LogBlockSize || s.ClustersPerGrp != s.BlocksPerGroup),
			"clusters differ from blocks, without bigalloc"},
		{s.Compat&disk.CompatHasJournal == 0 && s.JournalInum != 0, "a journal is named, but the volume has none"},
		{s.Compat&disk.CompatHasJournal != 0 && (s.JournalInum != disk.JournalIno || s.OutsideJournal()), "the journal is not inode 8"},
		{s.UnknownROCompat() != "", "features that are not checked: " + s.UnknownROCompat()},
		{s.Compat&disk.CompatResizeInode == 0 && s.ReservedGDT != 0, "descriptor blocks are kept for growth, without resize_inode"},
		{s.Compat&disk.CompatResizeInode != 0 && s.Compat&disk.CompatSparseSuper2 != 0, "resize_inode beside sparse_super2"},
		{s.UnknownCompat() != "", "unknown features: " + s.UnknownCompat()},
		{s.Compat&disk.CompatSparseSuper2 != 0 && (s.BackupBGs[0] >= c.g.Groups || s.BackupBGs[1] >= c.g.Groups), "a copy of the superblock past the end"},
	} {
		if t.bad {
			if err := c.problem(Superblock, 0, 0, "%s", t.text); err != nil {
				return err
			}
		}
	}
	if s.LastOrphan != 0 {
		return c.problem(OrphansLeft, s.LastOrphan, 0, "the list of orphans is not empty")
	}
	return nil
}

// journal checks the superblock of the journal, whose map pass 1 has walked.
func (c *checker) journal(m *mapper, d *disk.Inode) error {
	if c.s.Compat&disk.CompatHasJournal == 0 {
		return nil
	}
	if d.Type() != disk.ModeReg || len(m.extents) == 0 || m.holes {
		return c.problem(JournalBad, disk.JournalIno, 0, "mode %#o, %d extents", d.Mode, len(m.extents))
	}
	p, err := c.read(m.extents[0].Physical)
	if err != nil {
		return err
	}
	s, err := journal.DecodeSuper(p, c.g.BlockSize, m.end)
	if err != nil {
		return c.damage(JournalBad, disk.JournalIno, m.extents[0].Physical, err)
	}
	if s.Users > 1 {
		return c.problem(JournalBad, disk.JournalIno, m.extents[0].Physical, "the journal inside a volume says that %d volumes use it", s.Users)
	}
	if s.Start != 0 {
		return c.problem(JournalBad, disk.JournalIno, m.extents[0].Physical, "holds transactions, but the volume does not say so")
	}
	return nil
}
