// SPDX-License-Identifier: Apache-2.0

// Compact: what a prepared volume goes through before it is cloned. All that
// holds nothing is given back to the host, and the journal is empty.

package ext4lite

import (
	"errors"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// Compact commits, empties the journal, marks the volume clean, and punches
// what the host's file need not hold: free blocks, the journal's log, and
// blocks of inode tables in which no inode is in use. What the file has behind
// the volume's end is cut off. Inodes and directories stay where they are:
// their numbers and places are known to others. The volume stays open; changes
// meanwhile are safe but may leave something unpunched. Where the host has no holes
// nothing is punched.
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
		return fs.giveBack(first)
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
	runs, err := fs.a.ReserveFree(gr)
	for _, r := range runs {
		if err == nil {
			err = fs.giveBack(r)
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
		if err := fs.m.PunchClean(r, func() bool { return fs.a.TableUnused(gr, r) }, func() error { return fs.giveBack(r) }); err != nil {
			return err
		}
	}
	return nil
}

// giveBack frees the host's space for blocks that hold nothing. A host that has no
// holes keeps it: zeros there would take what the volume has never used.
func (fs *FS) giveBack(r disk.Range) error {
	off, n := int64(r.Start)<<fs.g.BlockShift, int64(r.N)<<fs.g.BlockShift
	f, ok := fs.dev.(device.Freer)
	if !ok {
		return fs.dev.Punch(off, n)
	}
	if err := f.Free(off, n); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
