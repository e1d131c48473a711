// SPDX-License-Identifier: Apache-2.0

// The way of a delta back into its base.
//
// A commit goes through states that the two files tell, so that one that was
// cut short is finished by the next, and no other use is made of either file:
//
//	flag    the delta's header says that a commit has begun
//	mark    a mark stands in the place of the base's superblock
//	blocks  the delta's blocks are in the base, but for the first
//	super   the first block is there, the sector with the mark last
//	gone    the delta is removed
//
// What is in the base is durable before each step. A delta that asks for a
// commit to be finished is believed only if the base bears its mark: its header
// is whatever somebody wrote, and names any file.

package delta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// ErrCommitCut refuses volumes some of whose blocks are in their base already,
// and such bases.
var ErrCommitCut = disk.ErrCommitCut

// Commit writes a delta's blocks into its base, which must be a plain file
// that nobody has open, and removes the delta. The caller knows that no other
// delta was made on the base: those become useless. A commit that is cut short
// is finished by calling it again.
func Commit(path string, report Progress) error {
	f, err := device.OpenFile(path, device.ReadWrite)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	defer f.Close()
	basePath, err := BaseOf(f, path)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	base, err := device.OpenFile(basePath, device.ReadWrite)
	if err != nil {
		return fmt.Errorf("commit into %s: %w", basePath, err)
	}
	defer base.Close()
	return CommitOpen(f, base, path, report)
}

// CommitOpen is Commit for files that are open and locked alone, and stay the
// caller's.
func CommitOpen(f, base *device.File, path string, report Progress) error {
	c := &commit{base: base, report: report}
	err := c.begin(f, path)
	if err == nil {
		err = c.merge(f)
	}
	if err != nil {
		return fmt.Errorf("commit %s into %s: %w", path, base.Name(), err)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	// A delta that comes back after a power cut would be committed again.
	return device.SyncDir(filepath.Dir(path))
}

type commit struct {
	d      *Delta
	base   *device.File
	report Progress
	done   bool // the base has all of it
}

// begin brings the files into the state "mark", from that of none, "flag" or
// "mark"; it notices "super".
func (c *commit) begin(f *device.File, path string) error {
	h, err := readHeader(f)
	if err != nil {
		return err
	}
	if IsDelta(c.base) {
		return fmt.Errorf("it is a delta itself: flatten instead: %w", errno.EOPNOTSUPP)
	}
	if c.base.Size() != h.baseSize {
		return errChanged
	}
	if c.d, err = assemble(f.Host(), h, c.base, device.ReadWrite); err != nil {
		return err
	}
	if h.flags&flagMerging == 0 {
		if err := h.matches(c.base); err != nil {
			return err
		}
		return c.start(h, path)
	}
	first, err := c.d.has(0)
	if err != nil {
		return err
	}
	if !first {
		return disk.Corrupt("delta", "a commit has begun, but it has no superblock")
	}
	p := make([]byte, disk.MarkSize)
	if _, err := c.base.ReadAt(p, disk.SuperOffset); err != nil {
		return err
	}
	if m, ok := disk.DecodeCommitMark(p); ok && m.BaseID == h.baseID {
		return nil
	}
	if h.matches(c.base) == nil {
		return c.mark(path)
	}
	is, err := identity(c.base)
	if err == nil {
		var want [32]byte
		if want, err = identity(c.d); err == nil && is == want {
			c.done = true
			return nil
		}
	}
	return errors.Join(fmt.Errorf("it is not as a commit that was cut short leaves it: if one was finished, remove the delta: %w", errno.ESTALE), err)
}

// start makes the delta ready, and marks both files.
func (c *commit) start(h header, path string) error {
	if _, err := identity(c.d); err != nil {
		return err
	}
	// The base's own superblock gives way to the mark: the delta must hold one.
	if err := c.d.writePart(nil, 0); err != nil {
		return err
	}
	if err := c.d.Sync(); err != nil {
		return err
	}
	h.flags |= flagMerging
	if err := c.d.writeHeader(h); err != nil {
		return err
	}
	return c.mark(path)
}

func (c *commit) mark(path string) error {
	m := disk.CommitMark{BaseID: c.d.h.baseID, Clone: filepath.Base(path)}
	if _, err := c.base.WriteAt(m.Encode(), disk.SuperOffset); err != nil {
		return err
	}
	return c.base.Sync()
}

// merge brings the delta's blocks into the base, the first one last.
func (c *commit) merge(f *device.File) error {
	if c.done {
		return nil
	}
	buf := make([]byte, copyChunk)
	size := c.d.h.size
	err := c.d.split(BlockSize, size-BlockSize, func(here bool, off, n int64) error {
		for end := off + n; here && off < end; {
			k, err := mergeChunk(c.d, f, c.base, off, end, buf)
			if err != nil {
				return err
			}
			off += k
		}
		if c.report != nil {
			c.report(min(off, size), size)
		}
		return nil
	})
	if err == nil {
		err = c.base.Sync()
	}
	if err != nil {
		return err
	}
	p := buf[:BlockSize]
	if _, err := c.d.ReadAt(p, 0); err != nil {
		return err
	}
	const mark, behind = disk.SuperOffset, disk.SuperOffset + disk.MarkSize
	for _, part := range [][2]int{{0, mark}, {behind, BlockSize}} {
		if _, err := c.base.WriteAt(p[part[0]:part[1]], int64(part[0])); err != nil {
			return err
		}
	}
	if err := c.base.Sync(); err != nil {
		return err
	}
	if _, err := c.base.WriteAt(p[mark:behind], mark); err != nil {
		return err
	}
	return c.base.Sync()
}

// mergeChunk takes a part of what the delta holds into the base, and tells how
// much. What is a hole in the delta, since it was freed, becomes one of the base.
func mergeChunk(d *Delta, f, base *device.File, off, end int64, buf []byte) (int64, error) {
	next, err := f.NextData(d.data + off)
	if err != nil {
		return 0, err
	}
	if hole := min(next-d.data, end) - off; hole > 0 {
		return hole, base.Punch(off, hole)
	}
	p := buf[:min(copyChunk, end-off)]
	if _, err := d.f.ReadAt(p, d.data+off); err != nil {
		return 0, err
	}
	_, err = base.WriteAt(p, off)
	return int64(len(p)), err
}
