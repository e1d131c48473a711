// SPDX-License-Identifier: Apache-2.0

// Hash trees of directories: search, insert, split.

package ext4lite

import (
	"cmp"
	"fmt"
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// frame is an index node on the way to a leaf and the entry that was followed.
type frame struct {
	buf  *journal.Buf
	node disk.DX
	at   int
}

// dxLevels is the deepest tree, the root included.
func (fs *FS) dxLevels() int {
	if fs.s.Incompat&disk.IncompatLargedir != 0 {
		return 3
	}
	return 2
}

// dxRoot reads the root of a hash tree and how its names are hashed.
func (i *Inode) dxRoot() (*journal.Buf, disk.DX, disk.Info, uint8, error) {
	b, err := i.dirBlock(0, rootBlock)
	if err != nil {
		return nil, disk.DX{}, disk.Info{}, 0, err
	}
	n := disk.DXRoot(b.Data)
	info, err := n.Info(i.ino, i.fs.dxLevels())
	if err != nil {
		return nil, n, info, 0, err
	}
	v, _ := disk.HashVersion(info.HashVersion, i.fs.s.UnsignedHash())
	return b, n, info, v, n.CheckCounts(i.ino, i.fs.g)
}

// descend walks from the root to the leaf that covers a hash.
func (i *Inode) descend(b *journal.Buf, n disk.DX, levels int, hash uint32) ([]frame, error) {
	frames := make([]frame, 0, 3)
	for {
		frames = append(frames, frame{b, n, n.Search(hash)})
		if levels == 0 {
			return frames, nil
		}
		levels--
		f := &frames[len(frames)-1]
		var err error
		if b, err = i.dirBlock(f.node.Block(f.at), nodeBlock); err != nil {
			return nil, err
		}
		n = disk.DXNode(b.Data)
		if err := n.CheckCounts(i.ino, i.fs.g); err != nil {
			return nil, err
		}
	}
}

// nextLeaf moves frames to the next leaf and tells the smallest hash in it.
func (i *Inode) nextLeaf(frames []frame) (hash uint32, ok bool, err error) {
	k := len(frames) - 1
	for k >= 0 && frames[k].at+1 >= frames[k].node.Count() {
		k--
	}
	if k < 0 {
		return 0, false, nil
	}
	frames[k].at++
	hash = frames[k].node.Hash(frames[k].at)
	for k++; k < len(frames); k++ {
		b, err := i.dirBlock(frames[k-1].node.Block(frames[k-1].at), nodeBlock)
		if err != nil {
			return 0, false, err
		}
		n := disk.DXNode(b.Data)
		if err := n.CheckCounts(i.ino, i.fs.g); err != nil {
			return 0, false, err
		}
		frames[k] = frame{b, n, 0}
	}
	return hash, true, nil
}

func leafOf(frames []frame) uint32 {
	f := &frames[len(frames)-1]
	return f.node.Block(f.at)
}

// dxFind looks a name up in a hash tree.
func (i *Inode) dxFind(name string) (*journal.Buf, disk.Dirent, bool, error) {
	var none disk.Dirent
	b, n, info, version, err := i.dxRoot()
	if err != nil {
		return nil, none, false, err
	}
	h := disk.HashName(name, version, i.fs.s.HashSeed)
	frames, err := i.descend(b, n, info.Levels, h.Major)
	if err != nil {
		return nil, none, false, err
	}
	// A bucket may go on in the next leaf; a chain cannot be longer than the
	// directory.
	for left := i.dirBlocks(); left > 0; left-- {
		leaf, err := i.dirBlock(leafOf(frames), leafBlock)
		if err != nil {
			return nil, none, false, err
		}
		d, ok, err := disk.FindDirent(leaf.Data, name, i.fs.g)
		if ok || err != nil {
			return leaf, d, ok, err
		}
		next, more, err := i.nextLeaf(frames)
		if err != nil || !more || next != h.Major|1 {
			return nil, none, false, err
		}
	}
	return nil, none, false, disk.Corrupt(fmt.Sprintf("hash tree of directory %d", i.ino), "endless bucket")
}

// dxAdd inserts a name into a hash tree.
func (i *Inode) dxAdd(h *journal.Handle, name string, ino uint32, ft uint8) error {
	for {
		b, n, info, version, err := i.dxRoot()
		if err != nil {
			return err
		}
		hash := disk.HashName(name, version, i.fs.s.HashSeed)
		frames, err := i.descend(b, n, info.Levels, hash.Major)
		if err != nil {
			return err
		}
		leaf, err := i.dirBlock(leafOf(frames), leafBlock)
		if err != nil {
			return err
		}
		ok, err := disk.AddDirent(leaf.Data, ino, ft, name, i.fs.g)
		if err != nil {
			return err
		}
		if ok {
			i.dirtyLeaf(h, leaf)
			return nil
		}
		last := &frames[len(frames)-1]
		if last.node.Count() >= last.node.Limit() {
			if err := i.dxMakeRoom(h, frames); err != nil {
				return err
			}
			continue // the path changed
		}
		done, err := i.splitLeaf(h, leaf, last, version, hash.Major, name, ino, ft)
		if done || err != nil {
			return err
		}
	}
}

// hashed is an entry of a leaf that is being split.
type hashed struct {
	hash disk.Hash
	ent  disk.Dirent
	size int
}

func (i *Inode) hashLeaf(p []byte, version uint8) ([]hashed, error) {
	var list []hashed
	err := disk.EachDirent(p, i.fs.g, func(d disk.Dirent) bool {
		list = append(list, hashed{disk.HashName(string(d.Name), version, i.fs.s.HashSeed), d, disk.DirentLen(len(d.Name))})
		return true
	})
	slices.SortStableFunc(list, func(a, b hashed) int { return cmp.Compare(a.hash.Major, b.hash.Major) })
	return list, err
}

// splitLeaf moves the upper half of a leaf's hashes to a new block and adds
// the name to the half it belongs to.
func (i *Inode) splitLeaf(h *journal.Handle, leaf *journal.Buf, f *frame, version uint8, hash uint32, name string, ino uint32, ft uint8) (bool, error) {
	list, err := i.hashLeaf(leaf.Data, version)
	if err != nil {
		return false, err
	}
	if len(list) < 2 {
		return false, disk.Corrupt(fmt.Sprintf("hash tree of directory %d", i.ino), "full leaf with %d entries", len(list))
	}
	total, half := 0, 0
	for _, e := range list {
		total += e.size
	}
	split := 0
	for split < len(list)-1 && (split == 0 || half+list[split].size <= total/2) {
		half += list[split].size
		split++
	}
	border := list[split].hash.Major
	cont := uint32(0)
	if list[split-1].hash.Major == border {
		cont = 1 // the bucket goes on in the new block
	}
	fresh, block, err := i.appendDirBlock(h)
	if err != nil {
		return false, err
	}
	old := append([]byte(nil), leaf.Data...)
	i.packLeaf(leaf.Data, old, list[:split])
	i.packLeaf(fresh.Data, old, list[split:])
	i.dirtyLeaf(h, leaf)
	i.dirtyLeaf(h, fresh)
	f.node.Insert(f.at, border+cont, block)
	i.dirtyDX(h, f)
	target := leaf
	if hash >= border {
		target = fresh
	}
	return disk.AddDirent(target.Data, ino, ft, name, i.fs.g)
}

func (i *Inode) dirtyDX(h *journal.Handle, f *frame) {
	f.buf.Seal = i.dxSeal(f.node.IsRoot())
	h.Dirty(f.buf)
}

// packLeaf writes entries one behind the other; they point into old.
func (i *Inode) packLeaf(p, old []byte, list []hashed) {
	disk.InitDirBlock(p, i.fs.g)
	off, end := 0, i.fs.g.DirEnd()
	for k, e := range list {
		n := e.size
		if k == len(list)-1 {
			n = end - off
		}
		src := old[e.ent.Offset:]
		disk.PutDirent(p, off, n, e.ent.Ino, e.ent.Type, string(src[8:8+len(e.ent.Name)]))
		off += n
	}
}

// dxMakeRoom splits the lowest full index node whose parent has room, or adds
// a level.
func (i *Inode) dxMakeRoom(h *journal.Handle, frames []frame) error {
	k := len(frames) - 1
	for k > 0 && frames[k-1].node.Count() >= frames[k-1].node.Limit() {
		k--
	}
	full := &frames[k]
	if k == 0 {
		if len(frames) >= i.fs.dxLevels() {
			return fmt.Errorf("directory inode %d: index is full: %w", i.ino, ENOSPC)
		}
		b, block, err := i.appendDirBlock(h)
		if err != nil {
			return err
		}
		n := disk.InitDXNode(b.Data, i.fs.g)
		c := full.node.Count()
		n.SetCount(c)
		for e := range c {
			n.Set(e, full.node.Hash(e), full.node.Block(e))
		}
		full.node.SetCount(1)
		full.node.Set(0, 0, block)
		full.node.SetLevels(len(frames))
		b.Seal = i.dxSeal(false)
		i.dirtyDX(h, full)
		return nil
	}
	b, block, err := i.appendDirBlock(h)
	if err != nil {
		return err
	}
	n := disk.InitDXNode(b.Data, i.fs.g)
	b.Seal = i.dxSeal(false)
	c := full.node.Count()
	keep := c / 2
	border := full.node.Hash(keep)
	n.SetCount(c - keep)
	for e := keep; e < c; e++ {
		n.Set(e-keep, full.node.Hash(e), full.node.Block(e))
	}
	full.node.SetCount(keep)
	up := &frames[k-1]
	up.node.Insert(up.at, border, block)
	i.dirtyDX(h, full)
	i.dirtyDX(h, up)
	return nil
}

// dxMake turns a directory of one block into a hash tree with one leaf.
func (i *Inode) dxMake(h *journal.Handle, first *journal.Buf) error {
	parent, err := i.dotdot(first.Data)
	if err != nil {
		return err
	}
	var list []hashed
	if err := disk.EachDirent(first.Data, i.fs.g, func(d disk.Dirent) bool {
		if n := string(d.Name); n != "." && n != ".." {
			list = append(list, hashed{ent: d, size: disk.DirentLen(len(d.Name))})
		}
		return true
	}); err != nil {
		return err
	}
	leaf, block, err := i.appendDirBlock(h)
	if err != nil {
		return err
	}
	old := append([]byte(nil), first.Data...)
	i.packLeaf(leaf.Data, old, list)
	i.dirtyLeaf(h, leaf)
	disk.InitDXRoot(first.Data, i.ino, parent, i.fs.s.DefHash, block, i.fs.g)
	first.Seal = i.dxSeal(true)
	h.Dirty(first)
	i.d.Flags |= disk.FlIndex
	i.touch(h)
	return nil
}

// dotdot reads ".." from block 0 of a directory.
func (i *Inode) dotdot(p []byte) (uint32, error) {
	d, err := disk.NextDirent(p, 0, i.fs.g.BlockSize, i.fs.g)
	if err == nil {
		d, err = disk.NextDirent(p, d.RecLen, i.fs.g.BlockSize, i.fs.g)
	}
	if err != nil {
		return 0, err
	}
	if string(d.Name) != ".." {
		return 0, disk.Corrupt(fmt.Sprintf("directory inode %d", i.ino), "second entry is %q", d.Name)
	}
	return d.Ino, nil
}
