// SPDX-License-Identifier: Apache-2.0

// Extended attributes: in the inode where they fit, else in one block that
// inodes may share.

package ext4lite

import (
	"fmt"
	"slices"
	"strings"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
	"z.gfire.dev/gvx/ext4lite/internal/journal"
)

// Flags of SetXattr, as in setxattr(2).
const (
	XattrCreate  = 1
	XattrReplace = 2
)

// MaxXattrValue is the longest value the interface allows; the volume holds
// less: what fits in a block.
const MaxXattrValue = 65536

var xattrPrefixes = []struct {
	index  uint8
	prefix string
	whole  bool // the prefix is the whole name
}{
	{disk.XattrUser, "user.", false},
	{disk.XattrACLAccess, "system.posix_acl_access", true},
	{disk.XattrACLDefault, "system.posix_acl_default", true},
	{disk.XattrTrusted, "trusted.", false},
	{disk.XattrSecurity, "security.", false},
}

func splitXattr(name string) (uint8, string, error) {
	if len(name) == 0 || len(name) > disk.MaxNameLen {
		return 0, "", ERANGE
	}
	for _, p := range xattrPrefixes {
		if p.whole && name == p.prefix {
			return p.index, "", nil
		}
		if !p.whole && len(name) > len(p.prefix) && strings.HasPrefix(name, p.prefix) {
			return p.index, name[len(p.prefix):], nil
		}
	}
	return 0, "", fmt.Errorf("attribute %q: %w", name, EOPNOTSUPP)
}

func joinXattr(x disk.Xattr) (string, bool) {
	for _, p := range xattrPrefixes {
		if p.index == x.Index {
			return p.prefix + x.Name, true
		}
	}
	return "", false
}

// loadXattrs reads the inode's attributes. The caller holds mu alone, or the
// answer is only looked at.
func (i *Inode) loadXattrs() ([]disk.Xattr, error) {
	if i.xsOK {
		return i.xs, nil
	}
	list, err := disk.DecodeInodeXattrs(i.d.Xattrs, i.ino)
	if err != nil {
		return nil, err
	}
	if i.d.FileACL != 0 {
		more, _, err := i.xattrBlock()
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

func (i *Inode) xattrBlock() ([]disk.Xattr, *journal.Buf, error) {
	b, err := i.fs.m.Get(i.d.FileACL, func(p []byte) error {
		_, _, err := disk.DecodeXattrBlock(p, i.d.FileACL, i.ino, i.fs.g)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	i.fs.sharedEA.Lock()
	defer i.fs.sharedEA.Unlock()
	list, err := disk.ParseXattrBlock(b.Data, i.ino)
	return list, b, err
}

// GetXattr gives an attribute's value; ENODATA where there is none.
func (i *Inode) GetXattr(name string) ([]byte, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	v, err := i.getXattr(name)
	if err != nil {
		return nil, failName("get attribute", name, err)
	}
	return v, nil
}

func (i *Inode) getXattr(name string) ([]byte, error) {
	index, rest, err := splitXattr(name)
	if err != nil {
		return nil, err
	}
	list, err := i.loadXattrs()
	if err != nil {
		return nil, err
	}
	for _, x := range list {
		if x.Index == index && x.Name == rest {
			if isACL(index) {
				return disk.ACLToUser(x.Value)
			}
			return slices.Clone(x.Value), nil
		}
	}
	return nil, ENODATA
}

// ListXattrs gives the names of all attributes.
func (i *Inode) ListXattrs() ([]string, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	list, err := i.loadXattrs()
	if err != nil {
		return nil, fail("list attributes of", i.ino, err)
	}
	var out []string
	for _, x := range list {
		if n, ok := joinXattr(x); ok {
			out = append(out, n)
		}
	}
	return out, nil
}

// SetXattr stores an attribute.
func (i *Inode) SetXattr(name string, value []byte, flags int) error {
	err := i.changeXattr(func(h *journal.Handle) error { return i.putXattr(h, name, value, flags) })
	if err != nil {
		return failName("set attribute", name, err)
	}
	return nil
}

// RemoveXattr takes an attribute away.
func (i *Inode) RemoveXattr(name string) error {
	err := i.changeXattr(func(h *journal.Handle) error { return i.dropXattr(h, name) })
	if err != nil {
		return failName("remove attribute", name, err)
	}
	return nil
}

// xattrCredits is what a change of attributes dirties: the inode, a block
// taken, one given up, their bitmaps and descriptors.
const xattrCredits = 8

func (i *Inode) changeXattr(fn func(*journal.Handle) error) error {
	return i.fs.retry(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		h, err := i.fs.start(xattrCredits)
		if err != nil {
			return err
		}
		defer h.Stop()
		if err := fn(h); err != nil {
			return i.fs.damaged(err)
		}
		i.d.Ctime = i.fs.now()
		i.touch(h)
		return nil
	})
}

func (i *Inode) putXattr(h *journal.Handle, name string, value []byte, flags int) error {
	index, rest, err := splitXattr(name)
	if err != nil {
		return err
	}
	if len(value) > MaxXattrValue {
		return E2BIG
	}
	list, err := i.loadXattrs()
	if err != nil {
		return err
	}
	store := true
	if isACL(index) {
		if value, err = disk.ACLToDisk(value); err != nil {
			return err
		}
		if store, err = i.takeACL(index, value); err != nil {
			return err
		}
	}
	at := slices.IndexFunc(list, func(x disk.Xattr) bool { return x.Index == index && x.Name == rest })
	switch {
	case isACL(index): // as Linux has it: there is always a list, stored or not
	case at >= 0 && flags&XattrCreate != 0:
		return EEXIST
	case at < 0 && flags&XattrReplace != 0:
		return ENODATA
	}
	list = slices.Clone(list)
	if !store {
		if at < 0 {
			return nil
		}
		return i.storeXattrs(h, slices.Delete(list, at, at+1))
	}
	x := disk.Xattr{Index: index, Name: rest, Value: slices.Clone(value)}
	if at >= 0 {
		list[at] = x
	} else {
		list = append(list, x)
	}
	return i.storeXattrs(h, list)
}

func (i *Inode) dropXattr(h *journal.Handle, name string) error {
	index, rest, err := splitXattr(name)
	if err != nil {
		return err
	}
	list, err := i.loadXattrs()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, func(x disk.Xattr) bool { return x.Index == index && x.Name == rest })
	switch {
	case at < 0 && isACL(index):
		return nil // as Linux has it: no list is what was wanted
	case at < 0:
		return ENODATA
	}
	return i.storeXattrs(h, slices.Delete(slices.Clone(list), at, at+1))
}

// storeXattrs writes the whole set: as many as fit into the inode, in order,
// the rest into the block.
func (i *Inode) storeXattrs(h *journal.Handle, list []disk.Xattr) error {
	var in, out []disk.Xattr
	for _, x := range list {
		if len(i.d.Xattrs) > 0 && disk.FitInode(append(in, x), len(i.d.Xattrs)) {
			in = append(in, x)
		} else {
			out = append(out, x)
		}
	}
	if len(list) > 0 && !i.fs.attributed.Swap(true) {
		i.fs.touchSuper(h)
	}
	if len(out) > 0 && !disk.FitXattrBlock(out, i.fs.g) {
		return fmt.Errorf("attributes do not fit in a block of %d bytes: %w", i.fs.g.BlockSize, ENOSPC)
	}
	if err := i.storeBlock(h, out); err != nil {
		return err
	}
	if len(i.d.Xattrs) > 0 {
		disk.EncodeInodeXattrs(i.d.Xattrs, in)
	}
	i.xs, i.xsOK = list, true
	i.touch(h)
	return nil
}

// storeBlock makes the attribute block hold a list. A block that others share
// is left to them.
func (i *Inode) storeBlock(h *journal.Handle, list []disk.Xattr) error {
	if len(list) == 0 {
		return i.freeXattrBlock(h)
	}
	if i.d.FileACL != 0 {
		_, b, err := i.xattrBlock()
		if err != nil {
			return err
		}
		i.fs.sharedEA.Lock()
		if disk.XattrRefs(b.Data) == 1 {
			disk.EncodeXattrBlock(b.Data, list)
			i.dirtyXattr(h, b)
			i.fs.sharedEA.Unlock()
			return nil
		}
		i.fs.sharedEA.Unlock()
	}
	block, err := i.fs.a.Take(h, 0, i.group())
	if err != nil {
		return err
	}
	if err := i.freeXattrBlock(h); err != nil {
		return err
	}
	b := h.GetNew(block)
	disk.EncodeXattrBlock(b.Data, list)
	i.dirtyXattr(h, b)
	i.d.FileACL = block
	i.d.Blocks += uint64(i.fs.g.BlockSize / 512)
	return nil
}

func (i *Inode) dirtyXattr(h *journal.Handle, b *journal.Buf) {
	if g, n := i.fs.g, b.Block; g.Csum {
		b.Seal = func(p []byte) { disk.SetXattrSum(p, n, g) }
	}
	h.Dirty(b)
}

// freeXattrBlock gives the inode's share of its attribute block up.
func (i *Inode) freeXattrBlock(h *journal.Handle) error {
	if i.d.FileACL == 0 {
		return nil
	}
	_, b, err := i.xattrBlock()
	if err != nil {
		return err
	}
	i.fs.sharedEA.Lock()
	defer i.fs.sharedEA.Unlock()
	if n := disk.XattrRefs(b.Data); n > 1 {
		disk.SetXattrRefs(b.Data, n-1)
		i.dirtyXattr(h, b)
	} else {
		h.Forget(b.Block)
		if err := i.fs.a.Free(h, b.Block, 1); err != nil {
			return err
		}
	}
	i.d.FileACL = 0
	i.d.Blocks -= min(i.d.Blocks, uint64(i.fs.g.BlockSize/512))
	return nil
}
