// SPDX-License-Identifier: Apache-2.0

// What an image has at the place of a volume goes into an empty volume, as in
// docker: owner and mode of the directory, and what is in it.

package boot

import (
	"fmt"
	"path"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// populateChunk is what is copied at once; zeros in this measure stay holes.
	populateChunk = 256 << 10
	// maxPopulateLinks bounds how many files with several names are remembered;
	// those beyond become copies.
	maxPopulateLinks = 1 << 20
	// maxXattrList and maxXattrValue are Linux' own limits.
	maxXattrList  = 64 << 10
	maxXattrValue = 64 << 10

	populateMask = linux.STATX_TYPE | linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID | linux.STATX_NLINK |
		linux.STATX_INO | linux.STATX_SIZE | linux.STATX_MTIME
)

// populator copies a tree of the root file system into a volume.
type populator struct {
	*mounter
	from, to vfs.VirtualDentry
	links    map[uint64]string // first name of a file with several
	buf      []byte
}

// populate fills the volume that is about to be mounted at a place, if it is
// empty and the image has anything there.
func (m *mounter) populate(mnt *vfs.Mount, e *api.Mount) error {
	p := &populator{mounter: m, to: vfs.MakeVirtualDentry(mnt, mnt.Root()), links: map[uint64]string{}}
	names, err := p.list(p.to, "/")
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != "lost+found" {
			return nil
		}
	}
	from, err := m.vfs.GetDentryAt(m.ctx, m.creds, m.at(e.Target), &vfs.GetDentryOptions{CheckSearchable: true})
	if linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.ENOTDIR, err) {
		return nil // There is nothing, or what cannot be mounted on: that is said later.
	}
	if err != nil {
		return err
	}
	defer from.DecRef(m.ctx)
	p.from = from
	st, err := m.vfs.StatAt(m.ctx, m.creds, at(p.from, "/"), &vfs.StatOptions{Mask: populateMask})
	if err != nil {
		return err
	}
	if e.UID == 0 && e.GID == 0 {
		if err := p.setAttributes("/", &st); err != nil {
			return err
		}
	}
	p.buf = make([]byte, populateChunk)
	return p.children("/")
}

// at is a path below a directory, the last link of it not followed.
func at(root vfs.VirtualDentry, name string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(name)}
}

// list reads the names in a directory.
func (p *populator) list(root vfs.VirtualDentry, dir string) ([]string, error) {
	fd, err := p.vfs.OpenAt(p.ctx, p.creds, at(root, dir), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	defer fd.DecRef(p.ctx)
	var names []string
	err = fd.IterDirents(p.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		if d.Name != "." && d.Name != ".." {
			names = append(names, d.Name)
		}
		return nil
	}))
	return names, err
}

func (p *populator) children(dir string) error {
	names, err := p.list(p.from, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for _, n := range names {
		name := path.Join(dir, n)
		if len(name) > api.MaxPathBytes {
			return fmt.Errorf("%.64s…: the path is longer than %d bytes", name, api.MaxPathBytes)
		}
		if err := p.file(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// file copies one file, or a tree.
func (p *populator) file(name string) error {
	st, err := p.vfs.StatAt(p.ctx, p.creds, at(p.from, name), &vfs.StatOptions{Mask: populateMask})
	if err != nil {
		return err
	}
	kind := uint32(st.Mode) & linux.S_IFMT
	if first, ok := p.links[st.Ino]; ok && kind != linux.S_IFDIR && st.Nlink > 1 {
		return p.vfs.LinkAt(p.ctx, p.creds, at(p.to, first), at(p.to, name))
	}
	switch kind {
	case linux.S_IFDIR:
		err = p.vfs.MkdirAt(p.ctx, p.creds, at(p.to, name), &vfs.MkdirOptions{Mode: 0o700})
		if err == nil {
			err = p.children(name)
		}
	case linux.S_IFLNK:
		var target string
		if target, err = p.vfs.ReadlinkAt(p.ctx, p.creds, at(p.from, name)); err == nil {
			err = p.vfs.SymlinkAt(p.ctx, p.creds, at(p.to, name), target)
		}
	case linux.S_IFREG:
		err = p.data(name, int64(st.Size))
	default:
		err = p.vfs.MknodAt(p.ctx, p.creds, at(p.to, name), &vfs.MknodOptions{
			Mode: linux.FileMode(st.Mode), DevMajor: st.RdevMajor, DevMinor: st.RdevMinor,
		})
	}
	if err != nil {
		return err
	}
	if st.Nlink > 1 && kind != linux.S_IFDIR && len(p.links) < maxPopulateLinks {
		p.links[st.Ino] = name
	}
	return p.setAttributes(name, &st)
}

// data copies a regular file.
func (p *populator) data(name string, size int64) error {
	from, err := p.vfs.OpenAt(p.ctx, p.creds, at(p.from, name), &vfs.OpenOptions{Flags: linux.O_RDONLY})
	if err != nil {
		return err
	}
	defer from.DecRef(p.ctx)
	to, err := p.vfs.OpenAt(p.ctx, p.creds, at(p.to, name), &vfs.OpenOptions{Flags: linux.O_WRONLY | linux.O_CREAT | linux.O_EXCL, Mode: 0o600})
	if err != nil {
		return err
	}
	defer to.DecRef(p.ctx)
	for off := int64(0); off < size; {
		b := p.buf[:min(populateChunk, size-off)]
		n, err := from.PRead(p.ctx, usermem.BytesIOSequence(b), off, vfs.ReadOptions{})
		if n == 0 {
			if err == nil {
				err = linuxerr.EIO
			}
			return err
		}
		for done := int64(0); done < n && !zeros(b[:n]); {
			k, err := to.PWrite(p.ctx, usermem.BytesIOSequence(b[done:n]), off+done, vfs.WriteOptions{})
			if err != nil {
				return err
			}
			done += k
		}
		off += n
	}
	return to.SetStat(p.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(size)}})
}

// setAttributes gives a file its owner, extended attributes, mode and time, in
// this order: a change of the owner takes from the others.
func (p *populator) setAttributes(name string, st *linux.Statx) error {
	pop := at(p.to, name)
	if err := p.vfs.SetStatAt(p.ctx, p.creds, pop, &vfs.SetStatOptions{
		Stat: linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: st.UID, GID: st.GID},
	}); err != nil {
		return err
	}
	list, err := p.vfs.ListXattrAt(p.ctx, p.creds, at(p.from, name), maxXattrList)
	if err != nil && !linuxerr.Equals(linuxerr.EOPNOTSUPP, err) {
		return err
	}
	for _, x := range list {
		v, err := p.vfs.GetXattrAt(p.ctx, p.creds, at(p.from, name), &vfs.GetXattrOptions{Name: x, Size: maxXattrValue})
		if err == nil {
			err = p.vfs.SetXattrAt(p.ctx, p.creds, pop, &vfs.SetXattrOptions{Name: x, Value: v})
		}
		if err != nil && !linuxerr.Equals(linuxerr.ENODATA, err) && !linuxerr.Equals(linuxerr.EOPNOTSUPP, err) {
			return fmt.Errorf("attribute %s: %w", x, err)
		}
	}
	rest := linux.Statx{Mask: linux.STATX_MODE | linux.STATX_MTIME, Mode: st.Mode & 0o7777, Mtime: st.Mtime}
	if uint32(st.Mode)&linux.S_IFMT == linux.S_IFLNK {
		rest.Mask = linux.STATX_MTIME
	}
	return p.vfs.SetStatAt(p.ctx, p.creds, pop, &vfs.SetStatOptions{Stat: rest})
}

func zeros(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
