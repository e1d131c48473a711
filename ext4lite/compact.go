// SPDX-License-Identifier: Apache-2.0

// Compact: what a prepared volume goes through before it is cloned. All that
// holds nothing is given back to the host, and the journal is empty.

package ext4lite

import (
	"errors"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// Compact commits, empties the journal, marks the volume clean, and punches
// what the host's file need not hold: free blocks, the journal's log, and
// blocks of inode tables in which no inode is in use. What the file has behind
// the volume's end is cut off. Inodes and directories stay where they are:
// their numbers and places are known to others. The volume stays open; changes
// meanwhile are safe but may leave something unpunched.
func (fs *FS) Compact() error {
	if why := fs.ReadOnly(); why != nil {
		return fmt.Errorf("compact volume: %w: %w", EROFS, why)
	}
	if err := fs.flush(); err != nil {
		return fmt.Errorf("compact volume: %w", err)
	}
	bs := fs.g.BlockShift
	if end := int64(fs.g.Blocks) << bs; fs.dev.Size() > end {
		if err := fs.dev.Truncate(end); err != nil && !errors.Is(err, EOPNOTSUPP) { // a delta has its base's size
			return fmt.Errorf("compact volume: %w", err)
		}
	}
	for gr := range fs.g.Groups {
		if err := fs.compactGroup(gr); err != nil {
			return fmt.Errorf("compact volume: group %d: %w", gr, err)
		}
	}
	err := fs.m.WithEmptyLog(func(first disk.Range) error {
		return fs.dev.Punch(int64(first.Start)<<bs, int64(first.N)<<bs)
	})
	if err == nil && fs.opt.Durability == Host {
		err = fs.dev.Sync()
	}
	if err != nil {
		return fmt.Errorf("compact volume: %w", err)
	}
	return nil
}

// compactGroup punches a group's free blocks, which are reserved meanwhile,
// and the unused blocks of its inode table.
func (fs *FS) compactGroup(gr uint32) error {
	bs := fs.g.BlockShift
	runs, err := fs.a.ReserveFree(gr)
	for _, r := range runs {
		if err == nil {
			err = fs.dev.Punch(int64(r.Start)<<bs, int64(r.N)<<bs)
		}
		fs.a.Unreserve(r)
	}
	if err != nil {
		return err
	}
	unused, err := fs.a.UnusedTable(gr)
	if err != nil {
		return err
	}
	for _, r := range unused {
		if err := fs.m.PunchClean(r, func() bool { return fs.a.TableUnused(gr, r) }, func() error { return fs.dev.Punch(int64(r.Start)<<bs, int64(r.N)<<bs) }); err != nil {
			return err
		}
	}
	return nil
}
