// SPDX-License-Identifier: Apache-2.0

// Targets of symbolic links: short ones in the inode, long ones in a block.

package ext4lite

import (
	"bytes"

	"z.gfire.dev/gvx/ext4lite/internal/alloc"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// fillLink stores the target of a new link. A long one goes through the
// journal as metadata: it is written once and must be there with its name.
func (i *Inode) fillLink(h *journal.Handle, target string) error {
	i.d.Size = uint64(len(target))
	if len(target) < disk.MapSize {
		copy(i.d.Block[:], target)
		return nil
	}
	i.d.Flags |= disk.FlExtents
	i.tree.Init()
	r, err := i.fs.a.Reserve(0, i.group(), 1)
	if err != nil {
		return err
	}
	if err := i.mapReserved(h, 0, alloc.Run{Start: r.Start, N: 1}, false); err != nil {
		return err
	}
	b := h.GetNew(r.Start)
	copy(b.Data, target)
	return nil
}

// Readlink gives a symbolic link's target.
func (i *Inode) Readlink() (string, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.d.Type() != disk.ModeLink {
		return "", fail("read link", i.ino, EINVAL)
	}
	n := i.d.Size
	if i.fastLink() {
		return string(i.d.Block[:n]), nil
	}
	if n == 0 || n > uint64(i.fs.g.BlockSize) {
		return "", fail("read link", i.ino, disk.Corrupt("symbolic link", "%d bytes", n))
	}
	e, ok, err := i.find(0)
	if err == nil && !ok {
		err = disk.Corrupt("symbolic link", "no block")
	}
	if err != nil {
		return "", fail("read link", i.ino, err)
	}
	b, err := i.fs.m.Get(e.Physical, nil)
	if err != nil {
		return "", fail("read link", i.ino, err)
	}
	target := b.Data[:n]
	if k := bytes.IndexByte(target, 0); k >= 0 {
		target = target[:k]
	}
	return string(target), nil
}
