// SPDX-License-Identifier: Apache-2.0

// Builder: the public half of the writer. Entries come in the order of a tar
// archive; the tree they make is kept in memory, their data is not.
// A Builder must be used by one goroutine at a time.

package erofs

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"time"
)

// Entry describes one file, of whatever type.
type Entry struct {
	Mode         uint32 // Linux's st_mode, with the type
	UID, GID     uint32
	Mtime        time.Time
	Size         int64             // regular files
	Linkname     string            // symbolic links
	Major, Minor uint32            // devices
	Xattrs       map[string]string // full names
}

// BuilderOptions are what an image has besides its entries.
type BuilderOptions struct {
	// UUID of the image. When zero it is derived from the content, at the
	// price of hashing every byte; a caller who knows a digest of the
	// content gives a UUID made from that.
	UUID [16]byte
	// FinalUUID, if not nil, gives the UUID when the image is finished: for who
	// learns its name only by reading what goes into it.
	FinalUUID func() [16]byte
	// Time is the build time in the superblock, and the modification time of
	// directories that no entry describes. The zero value is the Unix epoch,
	// which keeps the bytes a function of the entries alone.
	Time time.Time
	// VolumeName is at most 16 bytes.
	VolumeName string
}

// Summary says what Finish has written.
type Summary struct {
	UUID          [16]byte
	Bytes         int64 // size of the image
	DataBytes     int64 // blocks of file data
	DeadBytes     int64 // of these, what belongs to replaced or removed files
	HoleBytes     int64 // holes of files that are kept as holes
	MetadataBytes int64 // directories, inodes, attributes, chunk indexes
	Inodes        int
	Entries       int // names, without "." and ".."
}

// Builder writes one image.
type Builder struct {
	f      *os.File
	o      BuilderOptions
	data   *blockWriter
	digest hash.Hash // nil when the UUID is given
	root   *node
	xattrs map[string]string // encoded attribute lists, each kept once

	entries   int
	metaBytes int64
	deadBytes int64
	holeBytes int64
	closed    error // why no more calls are accepted
}

// NewBuilder starts an image in f, which must be empty. The caller keeps f,
// and syncs and closes it after Finish.
func NewBuilder(f *os.File, o BuilderOptions) (*Builder, error) {
	if len(o.VolumeName) > 16 {
		return nil, fmt.Errorf("build EROFS image: %w: volume name %q is longer than 16 bytes", ErrInvalid, o.VolumeName)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("build EROFS image: %w", err)
	}
	if info.Size() != 0 {
		return nil, fmt.Errorf("build EROFS image: %w: %s already holds %d bytes", ErrInvalid, f.Name(), info.Size())
	}
	if o.Time.IsZero() {
		o.Time = time.Unix(0, 0)
	}
	b := &Builder{f: f, o: o, xattrs: make(map[string]string)}
	if o.UUID == ([16]byte{}) && o.FinalUUID == nil {
		b.digest = sha256.New()
	}
	// Block 0 is the superblock's; it is written last.
	b.data = newBlockWriter(f, blockSize, b.digest)
	b.root = b.newDir(nil)
	return b, nil
}

// Add adds the file at path, replacing what is there: a directory that
// replaces a directory keeps its children, anything else replaces a whole
// tree. Missing parents are created with mode 0755. Symbolic links among the
// parents are followed inside the image; one at path itself is replaced. For
// a regular file exactly e.Size bytes are read from data, at once.
//
// An error that comes from data or from the image file ends the builder; any
// other leaves it usable, with at most some parents made.
func (b *Builder) Add(path string, e Entry, data io.Reader) error {
	if err := b.add(path, e, data); err != nil {
		return fmt.Errorf("add %.200q: %w", path, err)
	}
	return nil
}

func (b *Builder) add(path string, e Entry, data io.Reader) error {
	if b.closed != nil {
		return b.closed
	}
	xattrs, err := b.checkEntry(&e)
	if err != nil {
		return err
	}
	parent, name, err := b.walk(path, true)
	if err != nil {
		return err
	}
	old := b.root
	if name != "" {
		old = parent.dir.children[name]
	}
	if old != nil && old.dir != nil && e.Mode&ModeType == ModeDir {
		if err := b.checkMetadata(int64(len(xattrs)) - int64(len(old.xattrs))); err != nil {
			return err
		}
		old.describe(&e, xattrs)
		return nil
	}
	if name == "" {
		return fmt.Errorf("%w: the root must be a directory, not mode %#o", ErrInvalid, e.Mode)
	}
	if old == nil && b.entries >= MaxEntries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, MaxEntries)
	}
	n := &node{}
	if e.Mode&ModeType == ModeDir {
		n = b.newDir(parent)
	}
	n.describe(&e, xattrs)
	if err := b.checkMetadata(n.metaCost(name)); err != nil {
		return err
	}
	if e.Mode&ModeType == ModeRegular && e.Size > 0 {
		if err := b.writeData(n, data); err != nil {
			b.closed = fmt.Errorf("%w: adding %.200q failed: %w", ErrFinished, path, err)
			return err
		}
	}
	b.unlink(parent, name)
	b.link(parent, name, n)
	return nil
}

// Link makes path another name of the file at target, which must exist and
// not be a directory. It replaces what is at path.
func (b *Builder) Link(path, target string) error {
	if err := b.linkPath(path, target); err != nil {
		return fmt.Errorf("link %.200q to %.200q: %w", path, target, err)
	}
	return nil
}

func (b *Builder) linkPath(path, target string) error {
	if b.closed != nil {
		return b.closed
	}
	n, err := b.find(target)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if n.dir != nil {
		return fmt.Errorf("%w: the target is a directory", ErrInvalid)
	}
	parent, name, err := b.walk(path, true)
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%w: the root cannot be replaced", ErrInvalid)
	}
	old := parent.dir.children[name]
	if old == n {
		return nil
	}
	if old == nil && b.entries >= MaxEntries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, MaxEntries)
	}
	if err := b.checkMetadata(direntSize + int64(len(name))); err != nil {
		return err
	}
	// The target may lie in the tree that path replaces. The extra
	// reference keeps it alive until it has its new name.
	n.names++
	b.unlink(parent, name)
	n.names--
	b.link(parent, name, n)
	return nil
}

// Remove removes path and what is below it. It returns ErrNotExist when there
// is no such path.
func (b *Builder) Remove(path string) error {
	if err := b.remove(path); err != nil {
		return fmt.Errorf("remove %.200q: %w", path, err)
	}
	return nil
}

func (b *Builder) remove(path string) error {
	if b.closed != nil {
		return b.closed
	}
	parent, name, err := b.walk(path, false)
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%w: the root cannot be removed", ErrInvalid)
	}
	if parent.dir.children[name] == nil {
		return ErrNotExist
	}
	b.unlink(parent, name)
	return nil
}

// Lookup returns the entry at path as it now is.
func (b *Builder) Lookup(path string) (Entry, bool) {
	n, err := b.find(path)
	if err != nil {
		return Entry{}, false
	}
	e := Entry{
		Mode:     n.mode,
		UID:      n.uid,
		GID:      n.gid,
		Mtime:    time.Unix(n.mtime, int64(n.mtimeNsec)),
		Linkname: n.target,
		Xattrs:   decodeXattrs(n.xattrs),
	}
	switch n.mode & ModeType {
	case ModeRegular:
		e.Size = n.size
	case ModeChar, ModeBlock:
		e.Major, e.Minor = decodeDev(n.rdev)
	}
	return e, true
}

// checkEntry refuses what the format or Linux cannot express, and returns the
// entry's attributes as the image stores them.
func (b *Builder) checkEntry(e *Entry) (xattrs string, err error) {
	if e.Mode > 0xffff || fileType(e.Mode) == 0 {
		return "", fmt.Errorf("%w: mode %#o is no file mode of Linux", ErrInvalid, e.Mode)
	}
	switch e.Mode & ModeType {
	case ModeRegular:
		if e.Size < 0 || e.Size > MaxFileSize {
			return "", fmt.Errorf("%w: size %d is not between 0 and %d", ErrLimit, e.Size, int64(MaxFileSize))
		}
	case ModeSymlink:
		if e.Linkname == "" || strings.IndexByte(e.Linkname, 0) >= 0 {
			return "", fmt.Errorf("%w: symbolic link to %.200q", ErrInvalid, e.Linkname)
		}
		if len(e.Linkname) > MaxPathBytes {
			return "", fmt.Errorf("%w: symbolic link target of %d bytes, at most %d", ErrLimit, len(e.Linkname), MaxPathBytes)
		}
	case ModeChar, ModeBlock:
		if e.Major > maxMajor || e.Minor > maxMinor {
			return "", fmt.Errorf("%w: device %d:%d, at most %d:%d", ErrInvalid, e.Major, e.Minor, maxMajor, maxMinor)
		}
	}
	if len(e.Xattrs) == 0 {
		return "", nil
	}
	xattrs, err = encodeXattrs(e.Xattrs)
	if err != nil {
		return "", err
	}
	if kept, ok := b.xattrs[xattrs]; ok {
		return kept, nil
	}
	b.xattrs[xattrs] = xattrs
	return xattrs, nil
}

// checkMetadata accounts for more bytes of metadata.
func (b *Builder) checkMetadata(more int64) error {
	if b.metaBytes+more > MaxMetadataBytes {
		return fmt.Errorf("%w: more than %d bytes of metadata", ErrLimit, MaxMetadataBytes)
	}
	b.metaBytes += more
	return nil
}
