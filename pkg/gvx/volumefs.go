// SPDX-License-Identifier: Apache-2.0

// The files of a volume, without a sandbox.

package gvx

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// maxVolumeDirEntries bounds what one ReadDir call holds in memory.
const maxVolumeDirEntries = 4 << 20

// VolumeFS shows what is in a volume, read-only: after an episode, say, whether
// its sandbox ended gracefully or was killed. It is an [fs.FS] that follows
// symbolic links inside the volume, and safe for concurrent use. The volume's
// file is locked: no sandbox can write to it until Close.
type VolumeFS struct{ v *ext4lite.FS }

var (
	_ fs.FS         = (*VolumeFS)(nil)
	_ fs.ReadDirFS  = (*VolumeFS)(nil)
	_ fs.ReadFileFS = (*VolumeFS)(nil)
	_ fs.StatFS     = (*VolumeFS)(nil)
	_ fs.ReadLinkFS = (*VolumeFS)(nil)
)

// OpenVolume opens the volume in a file, plain or a delta with its bases, for
// reading. It works on every system that the package builds on. All bytes of the
// volume may have been a guest's: damage is an error, never more.
func OpenVolume(path string) (*VolumeFS, error) {
	v, err := ext4lite.OpenFile(path, ext4lite.Options{ReadOnly: true})
	if err != nil {
		return nil, &Error{Kind: volumeKind(err), Op: "open volume", Err: err}
	}
	return &VolumeFS{v: v}, nil
}

// volumeKind classifies an error of ext4lite.
func volumeKind(err error) ErrorKind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return KindNotFound
	case errors.Is(err, fs.ErrPermission):
		return KindPermission
	case errors.Is(err, device.ErrLocked), errors.Is(err, ext4lite.EBUSY):
		return KindState
	}
	return KindVolume
}

// Close gives the volume back.
func (v *VolumeFS) Close() error {
	if err := v.v.Close(); err != nil {
		return &Error{Kind: volumeKind(err), Op: "close volume", Err: err}
	}
	return nil
}

// Export writes the file or tree at name to w as a tar archive, with owners,
// times and extended attributes.
func (v *VolumeFS) Export(w io.Writer, name string) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: "export", Path: name, Err: fs.ErrInvalid}
	}
	if err := v.v.Export(w, name); err != nil {
		return &fs.PathError{Op: "export", Path: name, Err: pathCause(err)}
	}
	return nil
}

// find returns the inode at name; the caller releases it.
func (v *VolumeFS) find(op, name string, follow bool) (*ext4lite.Inode, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	walk := v.v.Walk
	if follow {
		walk = v.v.WalkFollow
	}
	i, err := walk(name)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: pathCause(err)}
	}
	return i, nil
}

// pathCause gives the errors that callers compare with their standard values.
func pathCause(err error) error {
	switch {
	case errors.Is(err, ext4lite.ENOENT), errors.Is(err, ext4lite.ENOTDIR):
		return fs.ErrNotExist
	}
	return err
}

// Open implements [fs.FS].
func (v *VolumeFS) Open(name string) (fs.File, error) {
	i, err := v.find("open", name, true)
	if err != nil {
		return nil, err
	}
	f := &volumeFile{name: name, inode: i}
	f.SectionReader = io.NewSectionReader(i, 0, i.Attr().Size)
	if f.info().IsDir() {
		return &volumeDir{volumeFile: f}, nil
	}
	return f, nil
}

// Stat implements [fs.StatFS].
func (v *VolumeFS) Stat(name string) (fs.FileInfo, error) {
	i, err := v.find("stat", name, true)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	return volumeInfo{path.Base(name), i.Attr()}, nil
}

// Lstat implements [fs.ReadLinkFS].
func (v *VolumeFS) Lstat(name string) (fs.FileInfo, error) {
	i, err := v.find("lstat", name, false)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	return volumeInfo{path.Base(name), i.Attr()}, nil
}

// ReadLink implements [fs.ReadLinkFS].
func (v *VolumeFS) ReadLink(name string) (string, error) {
	i, err := v.find("readlink", name, false)
	if err != nil {
		return "", err
	}
	defer i.Release()
	if i.Mode()&ext4lite.ModeType != ext4lite.ModeLink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	target, err := i.Readlink()
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return target, nil
}

// ReadDir implements [fs.ReadDirFS].
func (v *VolumeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	i, err := v.find("readdir", name, true)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	list, err := readVolumeDir(i)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	return list, nil
}

// ReadFile implements [fs.ReadFileFS], for files of [MaxReadFileBytes] at most:
// a guest can make one of any size that takes no room. [VolumeFS.Open] has no
// limit.
func (v *VolumeFS) ReadFile(name string) ([]byte, error) {
	i, err := v.find("read", name, true)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	size := i.Attr().Size
	if size < 0 || size > MaxReadFileBytes {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errorf(KindLimit, "read file", "it has %d bytes, at most %d: use Open", size, MaxReadFileBytes)}
	}
	data := make([]byte, size)
	n, err := i.ReadAt(data, 0)
	if err != nil && err != io.EOF {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data[:n], nil
}

// readVolumeDir returns the entries of a directory, sorted.
func readVolumeDir(dir *ext4lite.Inode) ([]fs.DirEntry, error) {
	if dir.Mode()&ext4lite.ModeType != ext4lite.ModeDir {
		return nil, ext4lite.ENOTDIR
	}
	// Names of equal hash may be given twice: see [ext4lite.DirEntry].
	seen := make(map[string]bool)
	var list []fs.DirEntry
	var inner error
	err := dir.ReadDir(0, func(e ext4lite.DirEntry) bool {
		if e.Name == "." || e.Name == ".." || seen[e.Name] {
			return true
		}
		switch {
		case len(list) >= maxVolumeDirEntries:
			inner = errorf(KindLimit, "read directory", "more than %d entries", maxVolumeDirEntries)
			return false
		case strings.ContainsAny(e.Name, "/\x00"):
			// It would lead callers who join names out of their own directories.
			inner = errorf(KindVolume, "read directory", "an entry is named %q: the volume is damaged", e.Name)
			return false
		}
		seen[e.Name] = true
		list = append(list, volumeEntry{dir: dir.FS(), name: e.Name, ino: e.Ino})
		return true
	})
	if err = errors.Join(inner, err); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// volumeEntry implements [fs.DirEntry]. It holds no inode.
type volumeEntry struct {
	dir  *ext4lite.FS
	name string
	ino  uint32
}

func (e volumeEntry) Name() string { return e.name }
func (e volumeEntry) IsDir() bool  { return e.Type().IsDir() }

func (e volumeEntry) Type() fs.FileMode {
	info, err := e.Info()
	if err != nil {
		return fs.ModeIrregular
	}
	return info.Mode().Type()
}

func (e volumeEntry) Info() (fs.FileInfo, error) {
	i, err := e.dir.Inode(e.ino)
	if err != nil {
		return nil, err
	}
	defer i.Release()
	return volumeInfo{e.name, i.Attr()}, nil
}

// volumeInfo implements [fs.FileInfo]. Sys returns an [ext4lite.Attr].
type volumeInfo struct {
	name string
	attr ext4lite.Attr
}

func (i volumeInfo) Name() string       { return i.name }
func (i volumeInfo) Size() int64        { return i.attr.Size }
func (i volumeInfo) ModTime() time.Time { return time.Unix(i.attr.Mtime.Sec, int64(i.attr.Mtime.Nsec)) }
func (i volumeInfo) IsDir() bool        { return i.Mode().IsDir() }
func (i volumeInfo) Sys() any           { return i.attr }

func (i volumeInfo) Mode() fs.FileMode {
	return fileMode(uint32(i.attr.Mode))
}

// fileMode translates a mode as Linux has it.
func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&bit != 0 {
			mode |= flag
		}
	}
	switch uint16(m) & ext4lite.ModeType {
	case ext4lite.ModeReg:
	case ext4lite.ModeDir:
		mode |= fs.ModeDir
	case ext4lite.ModeLink:
		mode |= fs.ModeSymlink
	case ext4lite.ModeFifo:
		mode |= fs.ModeNamedPipe
	case ext4lite.ModeSocket:
		mode |= fs.ModeSocket
	case ext4lite.ModeBlock:
		mode |= fs.ModeDevice
	case ext4lite.ModeChar:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	default:
		mode |= fs.ModeIrregular
	}
	return mode
}

// volumeFile implements [fs.File], [io.ReaderAt] and [io.Seeker].
type volumeFile struct {
	*io.SectionReader
	name  string
	inode *ext4lite.Inode
	done  bool
}

func (f *volumeFile) info() volumeInfo {
	return volumeInfo{path.Base(f.name), f.inode.Attr()}
}

func (f *volumeFile) Stat() (fs.FileInfo, error) {
	if f.done {
		return nil, fs.ErrClosed
	}
	return f.info(), nil
}

func (f *volumeFile) Read(p []byte) (int, error) {
	if f.done {
		return 0, fs.ErrClosed
	}
	return f.SectionReader.Read(p)
}

func (f *volumeFile) ReadAt(p []byte, off int64) (int, error) {
	if f.done {
		return 0, fs.ErrClosed
	}
	return f.SectionReader.ReadAt(p, off)
}

func (f *volumeFile) Close() error {
	if f.done {
		return fs.ErrClosed
	}
	f.done = true
	f.inode.Release()
	return nil
}

// volumeDir implements [fs.ReadDirFile].
type volumeDir struct {
	*volumeFile
	list []fs.DirEntry
	read bool
}

func (d *volumeDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: ext4lite.EISDIR}
}

func (d *volumeDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.done {
		return nil, fs.ErrClosed
	}
	if !d.read {
		list, err := readVolumeDir(d.inode)
		if err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: err}
		}
		d.list, d.read = list, true
	}
	list := d.list
	switch {
	case n <= 0:
	case len(list) == 0:
		return nil, io.EOF
	default:
		list = list[:min(n, len(list))]
	}
	d.list = d.list[len(list):]
	return list, nil
}
