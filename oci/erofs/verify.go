// SPDX-License-Identifier: Apache-2.0

// Verify: the consistency of a whole image.

package erofs

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Verify walks the whole image of size bytes in r and checks it against the
// format and against itself: the superblock and its checksum, every directory
// (order, ".", "..", types), every inode's link count, attributes, link target
// and place of data, and the number of inodes. File data carry no checksum and
// are not read. It stops at the first fault.
//
// Work and memory are bounded by MaxVerifyEntries, whatever the image says.
func Verify(ctx context.Context, r io.ReaderAt, size int64) error {
	im, err := Open(r, size)
	if err != nil {
		return err
	}
	v := &verifier{ctx: ctx, im: im, names: make(map[uint64]nameCount)}
	if err := v.run(); err != nil {
		return fmt.Errorf("verify EROFS image: %w", err)
	}
	return nil
}

// verifier is one walk.
type verifier struct {
	ctx   context.Context
	im    *Image
	names map[uint64]nameCount // all inodes seen but directories
	dirs  map[uint64]struct{}
	todo  []dirTask
	work  int // entries, extents and attributes looked at
}

// nameCount compares the names found with an inode's link count.
type nameCount struct{ found, want uint32 }

type dirTask struct {
	nid, parent uint64
	path        string // for messages: at most its last maxShownPath bytes
}

// maxShownPath bounds the paths kept, which in a deep tree would otherwise add
// up to its depth squared.
const maxShownPath = 200

func (t dirTask) child(d Dirent) dirTask {
	p := t.path + "/" + d.Name
	return dirTask{nid: d.NID, parent: t.nid, path: strings.Clone(p[max(0, len(p)-maxShownPath):])}
}

func (v *verifier) run() error {
	root := v.im.Root()
	v.dirs = map[uint64]struct{}{root: {}}
	v.todo = []dirTask{{nid: root, parent: root}}
	for len(v.todo) > 0 {
		t := v.todo[len(v.todo)-1]
		v.todo = v.todo[:len(v.todo)-1]
		if err := v.directory(t); err != nil {
			return fmt.Errorf("directory %.200q: %w", t.path+"/", err)
		}
	}
	for nid, n := range v.names {
		if n.found != n.want {
			return corrupt("inode %d has %d names, but a link count of %d", nid, n.found, n.want)
		}
	}
	if got := uint64(len(v.names) + len(v.dirs)); got > v.im.sb.inodes {
		return corrupt("%d inodes, but the superblock counts %d", got, v.im.sb.inodes)
	}
	return nil
}

// spend counts work, and looks at the context now and then.
func (v *verifier) spend() error {
	if v.work++; v.work > MaxVerifyEntries {
		return fmt.Errorf("%w: more than %d entries, extents and attributes", ErrLimit, MaxVerifyEntries)
	}
	if v.work%checkEvery == 0 && v.ctx.Err() != nil {
		return context.Cause(v.ctx)
	}
	return nil
}

// directory checks one directory and the inodes it names for the first time.
func (v *verifier) directory(t dirTask) error {
	dir, err := v.im.Inode(t.nid)
	if err != nil {
		return err
	}
	if err := v.xattrs(&dir); err != nil {
		return err
	}
	last, dots, subdirs := "", 0, uint32(0)
	var fault error
	_, err = v.im.ReadDir(&dir, 0, func(d Dirent) bool {
		switch {
		case last != "" && d.Name <= last && !(dir.dotOmitted && d.Name == "."):
			fault = corrupt("%.200q follows %.200q", d.Name, last)
		case d.Name == ".":
			dots++
			if d.NID != t.nid {
				fault = corrupt(`"." is inode %d, not %d`, d.NID, t.nid)
			}
		case d.Name == "..":
			dots++
			if d.NID != t.parent {
				fault = corrupt(`".." is inode %d, not %d`, d.NID, t.parent)
			}
		default:
			if d.Type == TypeDir {
				subdirs++
			}
			if err := v.entry(t, d); err != nil {
				fault = fmt.Errorf("%.300q: %w", d.Name, err)
			}
		}
		last = d.Name
		if fault == nil {
			fault = v.spend()
		}
		return fault == nil
	})
	switch {
	case fault != nil:
		return fault
	case err != nil:
		return err
	case dots != 2:
		return corrupt(`"." or ".." is missing`)
	case dir.Nlink != 2+subdirs:
		return corrupt("%d subdirectories, but a link count of %d", subdirs, dir.Nlink)
	}
	return nil
}

// entry checks what one name points to.
func (v *verifier) entry(t dirTask, d Dirent) error {
	if d.Type == TypeDir {
		if _, seen := v.dirs[d.NID]; seen {
			return corrupt("directory %d has a second name", d.NID)
		}
	} else if n, seen := v.names[d.NID]; seen {
		n.found++
		v.names[d.NID] = n
		return nil
	}
	ino, err := v.im.Inode(d.NID)
	if err != nil {
		return err
	}
	if want := direntTypes[fileType(ino.Mode)]; d.Type != want {
		return corrupt("entry of type %d, but inode %d has mode %#o", d.Type, ino.NID, ino.Mode)
	}
	if d.Type == TypeDir {
		v.dirs[d.NID] = struct{}{}
		v.todo = append(v.todo, t.child(d))
		return nil
	}
	v.names[d.NID] = nameCount{found: 1, want: ino.Nlink}
	if err := v.xattrs(&ino); err != nil {
		return err
	}
	switch d.Type {
	case TypeSymlink:
		_, err = v.im.Readlink(&ino)
	case TypeRegular:
		err = v.extents(&ino)
	}
	return err
}

// extents checks that every part of a file lies in the image.
func (v *verifier) extents(ino *Inode) error {
	for off := int64(0); off < ino.Size; {
		e, err := v.im.Extent(ino, off)
		if err != nil {
			return err
		}
		off = e.Logical + e.Length
		if err := v.spend(); err != nil {
			return err
		}
	}
	return nil
}

// xattrs checks an inode's attributes.
func (v *verifier) xattrs(ino *Inode) error {
	if ino.xattrSize == 0 {
		return nil
	}
	seen := make(map[string]struct{})
	err := v.im.eachXattr(ino, func(e xattrEntry) (bool, error) {
		if _, twice := seen[e.name]; twice {
			return false, corrupt("attribute %q twice", e.name)
		}
		seen[e.name] = struct{}{}
		return true, v.spend()
	})
	if err != nil {
		return fmt.Errorf("attributes of inode %d: %w", ino.NID, err)
	}
	return nil
}
