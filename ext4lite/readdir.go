// SPDX-License-Identifier: Apache-2.0

// Reading directories, in an order that changes do not disturb.
//
// In a volume with dir_index, names come in the order of their hashes, in
// small directories too, so that a cookie means the same place after a
// directory has grown. Without, they come in the order they are stored in.

package ext4lite

import (
	"cmp"
	"slices"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// DirEntry is a name in a directory.
type DirEntry struct {
	Name string
	Ino  uint32
	Type uint8 // as in getdents(2): DT_REG and so on; 0 where it is not stored
	// Next is the cookie to go on after this entry. Names whose hashes are
	// equal share the cookie of the first until the last: going on from there
	// gives them again, it never loses one.
	Next int64
}

// dtOfFt maps directory file types to those of getdents.
var dtOfFt = [8]uint8{0, 8, 4, 2, 6, 1, 12, 10}

// Cookies below this are "." and ".."; above are hashes.
const firstHashCookie = 2

// maxBucket bounds how many blocks one chain of equal hashes may span.
const maxBucket = 1024

// ReadDir calls fn for the entries from a cookie on, 0 for the first, until it
// answers false. fn must not use the volume.
func (i *Inode) ReadDir(cookie int64, fn func(DirEntry) bool) error {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if err := i.isDir(); err != nil {
		return fail("read directory", i.ino, err)
	}
	if err := i.readDir(cookie, fn); err != nil {
		return fail("read directory", i.ino, err)
	}
	return nil
}

func (i *Inode) readDir(cookie int64, fn func(DirEntry) bool) error {
	if cookie < 0 {
		return EINVAL
	}
	hashed := i.fs.s.Compat&disk.CompatDirIndex != 0 && (i.d.Flags&disk.FlIndex != 0 || i.dirBlocks() == 1)
	if !hashed {
		return i.readLinear(cookie, fn)
	}
	if cookie < firstHashCookie {
		e, _, err := i.lookup("..")
		if err != nil {
			return err
		}
		if cookie == 0 && !fn(DirEntry{Name: ".", Ino: i.ino, Type: dtOfFt[disk.FtDir], Next: 1}) {
			return nil
		}
		if !fn(DirEntry{Name: "..", Ino: e.ino, Type: dtOfFt[disk.FtDir], Next: firstHashCookie}) {
			return nil
		}
		cookie = firstHashCookie
	}
	if i.d.Flags&disk.FlIndex == 0 {
		b, err := i.dirBlock(0, leafBlock)
		if err != nil {
			return err
		}
		var batch []sorted
		if batch, err = i.collect(nil, b.Data, i.fs.hash); err != nil {
			return err
		}
		emit(batch, cookie, fn)
		return nil
	}
	return i.readHashed(cookie, fn)
}

// readLinear walks the blocks in order; a cookie is a byte offset.
func (i *Inode) readLinear(cookie int64, fn func(DirEntry) bool) error {
	bs := int64(i.fs.g.BlockSize)
	for n := uint32(min(cookie/bs, maxDirBlocks)); uint64(n) < i.dirBlocks(); n++ {
		b, err := i.dirBlock(n, i.linearKind())
		if err != nil {
			return err
		}
		if i.d.Flags&disk.FlIndex != 0 && n > 0 && disk.IsDXNode(b.Data, i.fs.g) {
			continue
		}
		more := true
		if err := disk.EachDirent(b.Data, i.fs.g, func(d disk.Dirent) bool {
			if int64(n)*bs+int64(d.Offset) >= cookie {
				more = fn(DirEntry{Name: string(d.Name), Ino: d.Ino, Type: dtOfFt[d.Type&7], Next: int64(n)*bs + int64(d.Offset+d.RecLen)})
			}
			return more
		}); err != nil || !more {
			return err
		}
	}
	return nil
}

// sorted is an entry with its place in hash order.
type sorted struct {
	key int64
	ent DirEntry
}

// hashKey orders entries and doubles as their cookie.
func hashKey(h disk.Hash) int64 { return int64(h.Major>>1)<<32 | int64(h.Minor) + firstHashCookie }

// keyHash is the smallest major hash whose entries a cookie can lie in.
func keyHash(cookie int64) uint32 { return uint32(max(cookie-firstHashCookie, 0)>>32) << 1 }

func (i *Inode) collect(batch []sorted, p []byte, version uint8) ([]sorted, error) {
	err := disk.EachDirent(p, i.fs.g, func(d disk.Dirent) bool {
		name := string(d.Name)
		if dots(name) {
			return true
		}
		key := hashKey(disk.HashName(name, version, i.fs.s.HashSeed))
		batch = append(batch, sorted{key, DirEntry{Name: name, Ino: d.Ino, Type: dtOfFt[d.Type&7]}})
		return true
	})
	return batch, err
}

// emit hands out a batch in order, from a cookie on. It answers false when fn
// does.
func emit(batch []sorted, cookie int64, fn func(DirEntry) bool) bool {
	slices.SortFunc(batch, func(a, b sorted) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.ent.Name, b.ent.Name)) })
	for k, s := range batch {
		if s.key < cookie {
			continue
		}
		s.ent.Next = s.key + 1
		if k+1 < len(batch) && batch[k+1].key == s.key {
			s.ent.Next = s.key
		}
		if !fn(s.ent) {
			return false
		}
	}
	return true
}

// readHashed walks a hash tree from the leaf that a cookie lies in. Leaves that
// share a bucket are read together.
func (i *Inode) readHashed(cookie int64, fn func(DirEntry) bool) error {
	b, n, info, version, err := i.dxRoot()
	if err != nil {
		return err
	}
	frames, err := i.descend(b, n, info.Levels, keyHash(cookie))
	if err != nil {
		return err
	}
	// Every leaf is named once; more steps than blocks are a crafted tree.
	for left := i.dirBlocks(); left > 0; {
		var batch []sorted
		more := true
		for k := 0; ; k++ {
			if k == maxBucket {
				return disk.Corrupt("hash tree", "a bucket of more than %d blocks", maxBucket)
			}
			leaf, err := i.dirBlock(leafOf(frames), leafBlock)
			if err != nil {
				return err
			}
			if batch, err = i.collect(batch, leaf.Data, version); err != nil {
				return err
			}
			var next uint32
			left--
			if next, more, err = i.nextLeaf(frames); err != nil {
				return err
			}
			if !more || next&1 == 0 || left == 0 {
				break
			}
		}
		if !emit(batch, cookie, fn) || !more {
			return nil
		}
	}
	return nil
}
