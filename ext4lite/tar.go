// SPDX-License-Identifier: Apache-2.0

// Archives: a volume's files out as tar and in again, with owners, times in
// nanoseconds, hard links, devices and attributes.

package ext4lite

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

const (
	// paxXattr is the prefix GNU tar and others keep attributes under.
	paxXattr  = "SCHILY.xattr."
	tarBuffer = 1 << 20
	// maxTarNames bounds, in bytes, what is remembered of files with several
	// names. Those that come later are written once for each.
	maxTarNames = 256 << 20
)

// Export writes the file or tree at a path to w as a tar archive. Names in it
// are relative to the path; a single file is named by its last element.
func (fs *FS) Export(w io.Writer, root string) error {
	i, err := fs.Walk(root)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer i.Release()
	name := "."
	if i.Mode()&ModeType != disk.ModeDir {
		name = path.Base(root)
	}
	if err := fs.ExportInode(w, i, name); err != nil {
		return fmt.Errorf("export %q: %w", root, err)
	}
	return nil
}

// ExportInode writes a file or a tree as a tar archive, under a name.
func (fs *FS) ExportInode(w io.Writer, i *Inode, name string) error {
	e := &exporter{w: tar.NewWriter(w), seen: map[uint32]string{}, dirs: map[uint32]struct{}{}, buf: make([]byte, tarBuffer)}
	if err := e.file(i, name, 0); err != nil {
		return err
	}
	return e.w.Close()
}

type exporter struct {
	w    *tar.Writer
	seen map[uint32]string // first name of a file with several
	kept int               // bytes of them
	dirs map[uint32]struct{}
	buf  []byte
}

var tarType = map[uint16]byte{
	disk.ModeReg: tar.TypeReg, disk.ModeDir: tar.TypeDir, disk.ModeLink: tar.TypeSymlink,
	disk.ModeChar: tar.TypeChar, disk.ModeBlock: tar.TypeBlock, disk.ModeFifo: tar.TypeFifo,
}

func (e *exporter) file(i *Inode, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%q: directories are nested too deep: %w", name, ELOOP)
	}
	a := i.Attr()
	typ, ok := tarType[a.Mode&ModeType]
	if !ok {
		return nil // sockets mean nothing elsewhere
	}
	h := &tar.Header{Typeflag: typ, Name: name, Mode: int64(a.Mode & 0o7777), Uid: int(a.UID), Gid: int(a.GID), ModTime: a.Mtime.Std(),
		Devmajor: int64(a.Major), Devminor: int64(a.Minor), Format: tar.FormatPAX, PAXRecords: map[string]string{}}
	if first := e.seen[a.Ino]; first != "" {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return e.w.WriteHeader(h)
	}
	if _, again := e.dirs[a.Ino]; again {
		return disk.Corrupt(fmt.Sprintf("directory %q", name), "it has several names")
	}
	if typ == tar.TypeDir {
		e.dirs[a.Ino] = struct{}{} // else one that is in itself would have no end
	} else if a.Links > 1 && e.kept+len(name) <= maxTarNames {
		e.seen[a.Ino], e.kept = name, e.kept+len(name)
	}
	names, err := i.ListXattrs()
	if err != nil {
		return err
	}
	for _, x := range names {
		v, err := i.GetXattr(x)
		if err != nil {
			return err
		}
		h.PAXRecords[paxXattr+x] = string(v)
	}
	switch typ {
	case tar.TypeReg:
		h.Size = a.Size
	case tar.TypeSymlink:
		if h.Linkname, err = i.Readlink(); err != nil {
			return err
		}
	case tar.TypeDir:
		h.Name += "/"
	}
	if err := e.w.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	switch typ {
	case tar.TypeReg:
		if _, err := io.CopyBuffer(struct{ io.Writer }{e.w}, io.NewSectionReader(i, 0, a.Size), e.buf); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	case tar.TypeDir:
		return e.children(i, name, depth)
	}
	return nil
}

func (e *exporter) children(i *Inode, name string, depth int) error {
	names, err := i.Names()
	if err != nil {
		return err
	}
	for _, n := range names {
		k, err := i.Lookup(n)
		if err != nil {
			return err
		}
		err = e.file(k, path.Join(name, n), depth+1)
		k.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// ImportOptions say how an archive is taken in.
type ImportOptions struct {
	// Own replaces the owners in the archive.
	Own      bool
	UID, GID uint32
	// Progress is told how many bytes of files were written.
	Progress func(bytes int64)
}

// Import unpacks a tar archive below a directory that exists. Names cannot
// lead out of it: links on the way are not followed, ".." is refused.
func (fs *FS) Import(r io.Reader, dir string, o ImportOptions) error {
	root, err := fs.Walk(dir)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	defer root.Release()
	return fs.ImportInode(r, root, o)
}

// ImportInode is Import for a directory's inode, which stays the caller's.
func (fs *FS) ImportInode(r io.Reader, root *Inode, o ImportOptions) error {
	m := &importer{fs: fs, root: root, o: o, buf: make([]byte, tarBuffer), times: map[uint32]time.Time{}}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return m.finish()
		}
		if err == nil {
			err = m.entry(h, t)
		}
		if err != nil {
			name := ""
			if h != nil {
				name = h.Name
			}
			return fmt.Errorf("import %q: %w", name, err)
		}
	}
}

type importer struct {
	fs    *FS
	root  *Inode
	o     ImportOptions
	buf   []byte
	times map[uint32]time.Time // of directories, set last
	done  int64
}

// parent finds the directory a name goes into, making those that are missing.
func (m *importer) parent(name string) (*Inode, string, error) {
	var parts []string
	for p := range strings.SplitSeq(name, "/") {
		switch p {
		case "", ".":
		case "..":
			return nil, "", fmt.Errorf("name leads out of the directory: %w", EINVAL)
		default:
			parts = append(parts, p)
		}
	}
	cur := m.root
	cur.Retain()
	if len(parts) == 0 {
		return cur, "", nil
	}
	for _, p := range parts[:len(parts)-1] {
		next, err := cur.Lookup(p)
		if errors.Is(err, ENOENT) {
			next, err = cur.Mkdir(p, NewInode{Mode: 0o755, UID: m.o.UID, GID: m.o.GID})
		}
		cur.Release()
		if err != nil {
			return nil, "", err
		}
		cur = next
	}
	return cur, parts[len(parts)-1], nil
}

func (m *importer) entry(h *tar.Header, r io.Reader) error {
	dir, name, err := m.parent(h.Name)
	if err != nil {
		return err
	}
	defer dir.Release()
	if h.Typeflag == tar.TypeLink {
		return m.link(dir, name, h.Linkname)
	}
	n, err := m.describe(h)
	if err != nil {
		return err
	}
	if n.Mode == 0 {
		return nil // a kind of entry that is no file
	}
	var i *Inode
	isDir := n.Mode&ModeType == disk.ModeDir
	if name == "" {
		i = dir
		i.Retain()
	} else if i, err = m.make(dir, name, n, isDir); err != nil {
		return err
	}
	defer i.Release()
	if name == "" || isDir {
		for _, x := range n.Xattrs {
			if err := i.SetXattr(x.Name, x.Value, 0); err != nil {
				return err
			}
		}
	}
	if n.Mode&ModeType == disk.ModeReg {
		if err := m.fill(i, r, h.Size); err != nil {
			return err
		}
	}
	if isDir {
		m.times[i.ino] = h.ModTime
	}
	mode, mtime := n.Mode&0o7777, disk.TimeOf(h.ModTime)
	s := SetAttr{UID: &n.UID, GID: &n.GID, Mtime: &mtime, Atime: &mtime}
	if n.Mode&ModeType != disk.ModeLink {
		s.Mode = &mode
	}
	return i.SetAttr(s)
}

// make makes an entry in place of what has its name. A directory that exists
// is kept.
func (m *importer) make(dir *Inode, name string, n NewInode, isDir bool) (*Inode, error) {
	i, err := dir.Make(name, n)
	if !errors.Is(err, EEXIST) {
		return i, err
	}
	old, err := dir.Lookup(name)
	if err != nil {
		return nil, err
	}
	if isDir && old.Mode()&ModeType == disk.ModeDir {
		return old, nil
	}
	old.Release()
	if err := dir.RemoveAll(name); err != nil {
		return nil, err
	}
	return dir.Make(name, n)
}

func (m *importer) describe(h *tar.Header) (NewInode, error) {
	n := NewInode{UID: uint32(h.Uid), GID: uint32(h.Gid), Target: h.Linkname}
	if m.o.Own {
		n.UID, n.GID = m.o.UID, m.o.GID
	}
	for mode, typ := range tarType {
		if typ == h.Typeflag {
			n.Mode = mode | uint16(h.Mode&0o7777)
		}
	}
	if h.Devmajor < 0 || h.Devminor < 0 || h.Devmajor > 1<<31 || h.Devminor > 1<<31 {
		return n, fmt.Errorf("device %d:%d: %w", h.Devmajor, h.Devminor, EINVAL)
	}
	n.Major, n.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	for k, v := range h.PAXRecords {
		x, ok := strings.CutPrefix(k, paxXattr)
		if !ok {
			continue
		}
		if _, _, err := splitXattr(x); err == nil {
			n.Xattrs = append(n.Xattrs, Xattr{x, []byte(v)})
		}
	}
	slices.SortFunc(n.Xattrs, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return n, nil
}

func (m *importer) link(dir *Inode, name, to string) error {
	tdir, tname, err := m.parent(to)
	if err != nil {
		return err
	}
	defer tdir.Release()
	target, err := tdir.Lookup(tname)
	if err != nil {
		return err
	}
	defer target.Release()
	err = dir.Link(name, target)
	if errors.Is(err, EEXIST) {
		if old, e := dir.Lookup(name); e == nil {
			same := old.ino == target.ino
			old.Release()
			if same {
				return nil
			}
		}
		if err = dir.RemoveAll(name); err == nil {
			err = dir.Link(name, target)
		}
	}
	return err
}

// fill copies a file's data. Blocks of zeros stay holes.
func (m *importer) fill(i *Inode, r io.Reader, size int64) error {
	i.OpenWrite()
	defer i.CloseWrite()
	for off := int64(0); off < size; {
		p := m.buf[:min(int64(len(m.buf)), size-off)]
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		if !allZero(p) {
			if _, err := i.WriteAt(p, off); err != nil {
				return err
			}
		}
		off += int64(len(p))
		if m.done += int64(len(p)); m.o.Progress != nil {
			m.o.Progress(m.done)
		}
	}
	if i.Attr().Size != size {
		return i.Truncate(size)
	}
	return nil
}

// finish sets the times of directories, which adding files has changed.
func (m *importer) finish() error {
	for ino, at := range m.times {
		i, err := m.fs.Inode(ino)
		if errors.Is(err, ESTALE) {
			continue // replaced by a later entry
		}
		if err != nil {
			return err
		}
		t := disk.TimeOf(at)
		err = i.SetAttr(SetAttr{Mtime: &t, Atime: &t})
		i.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
