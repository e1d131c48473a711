// SPDX-License-Identifier: Apache-2.0

// Package fsck looks for damage in a volume. It changes nothing.
//
// It reads the structures on its own, past the journal and past the code that
// serves files, with the decoders of package disk: a fault of that code should
// not hide here. What it finds is a list of [Problem]s, each with a code that
// names the kind. It finds what e2fsck finds in the structures ext4lite writes.
//
//	pass 1   superblock, descriptors, inodes and their maps: every block a
//	         file or a structure uses is claimed once
//	pass 2   directories: entries, hash trees
//	pass 3   every directory is reached from the root, by one name
//	pass 4   link counts
//	pass 5   bitmaps and counts
//
// A volume whose journal was not replayed is not checked: open it first.
// Memory is bounded: a bit per block, a few bytes per inode in use.
package fsck

import (
	"errors"
	"fmt"
	"io"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// Code names a kind of problem.
type Code string

// The kinds.
const (
	Superblock    Code = "superblock"
	Descriptor    Code = "group-descriptor"
	NotReplayed   Code = "journal-not-replayed"
	OrphansLeft   Code = "orphans-left"
	InodeBad      Code = "inode"
	MapBad        Code = "block-map"
	BlockShared   Code = "block-claimed-twice"
	BlocksCount   Code = "inode-block-count"
	SizeBad       Code = "inode-size"
	XattrBad      Code = "attributes"
	XattrRefs     Code = "attribute-block-references"
	DirBad        Code = "directory-block"
	DirDots       Code = "directory-dots"
	DirEntry      Code = "directory-entry"
	DirDuplicate  Code = "directory-duplicate-name"
	HashTree      Code = "hash-tree"
	DirLinked     Code = "directory-linked-twice"
	DirLost       Code = "directory-unreachable"
	InodeLost     Code = "inode-unreachable"
	LinkCount     Code = "link-count"
	BlockBitmap   Code = "block-bitmap"
	InodeBitmap   Code = "inode-bitmap"
	FreeCount     Code = "free-count"
	BitmapSum     Code = "bitmap-checksum"
	TooMany       Code = "too-many-problems"
	ReadError     Code = "read-error"
	JournalBad    Code = "journal"
	UnusedTable   Code = "inode-beyond-unused-mark"
	DirsCount     Code = "directory-count"
	ReservedInode Code = "reserved-inode"
)

// Problem is one thing that is wrong.
type Problem struct {
	Code  Code
	Inode uint32 // 0 where it concerns none
	Block uint64
	Text  string
}

func (p Problem) String() string {
	s := string(p.Code)
	if p.Inode != 0 {
		s += fmt.Sprintf(": inode %d", p.Inode)
	}
	if p.Block != 0 {
		s += fmt.Sprintf(": block %d", p.Block)
	}
	return s + ": " + p.Text
}

// Report is the outcome of a check.
type Report struct {
	Problems    []Problem
	Files       int
	Directories int
	BlocksUsed  uint64
	Extents     int
}

// Clean tells whether nothing was found.
func (r *Report) Clean() bool { return len(r.Problems) == 0 }

// maxProblems bounds a report: a volume with more is not worth a longer list.
const maxProblems = 1000

var errTooMany = errors.New("too many problems")

// Volume is what is checked.
type Volume interface {
	io.ReaderAt
	Size() int64
}

type checker struct {
	dev    Volume
	s      *disk.Super
	g      *disk.Geometry
	desc   []disk.Group
	zones  disk.Zones
	used   []byte // claimed blocks
	inodes map[uint32]*found
	xblock map[uint64]*xref
	r      *Report
}

// found is what pass 1 learnt of an inode in use.
type found struct {
	mode   uint16
	links  uint32
	flags  uint32
	gen    uint32
	size   uint64
	names  uint32 // counted in pass 2
	parent uint32 // of a directory, by the entry that names it
	dotdot uint32
	blocks []disk.Extent // of a directory
}

// xref counts the users of an attribute block.
type xref struct{ refs, seen uint32 }

// Check looks at a whole volume. The error is about reading; damage is in the
// report.
func Check(dev Volume) (*Report, error) {
	c := &checker{dev: dev, inodes: map[uint32]*found{}, xblock: map[uint64]*xref{}, r: &Report{}}
	for _, pass := range []func() error{c.structures, c.scanInodes, c.directories, c.connectivity, c.linkCounts, c.bitmaps} {
		if err := pass(); err != nil {
			if errors.Is(err, errTooMany) || errors.Is(err, errStop) {
				break
			}
			return c.r, fmt.Errorf("check volume: %w", err)
		}
	}
	return c.r, nil
}

// errStop ends a check whose ground is missing.
var errStop = errors.New("stop")

func (c *checker) problem(code Code, ino uint32, block uint64, format string, args ...any) error {
	if len(c.r.Problems) >= maxProblems {
		c.r.Problems = append(c.r.Problems, Problem{Code: TooMany, Text: fmt.Sprintf("the list ends at %d", maxProblems)})
		return errTooMany
	}
	c.r.Problems = append(c.r.Problems, Problem{code, ino, block, fmt.Sprintf(format, args...)})
	return nil
}

// damage turns a decoder's error into a problem; an error of the host stays
// one.
func (c *checker) damage(code Code, ino uint32, block uint64, err error) error {
	if e := errno.Of(err); e == errno.EUCLEAN || e == errno.EINVAL || e == errno.EOPNOTSUPP {
		return c.problem(code, ino, block, "%v", err)
	}
	return err
}

func (c *checker) read(block uint64) ([]byte, error) {
	p := make([]byte, c.g.BlockSize)
	if _, err := c.dev.ReadAt(p, int64(block)<<c.g.BlockShift); err != nil {
		return nil, fmt.Errorf("read block %d: %w", block, err)
	}
	return p, nil
}

// structures reads superblock and descriptors, and claims what they place.
func (c *checker) structures() error {
	p := make([]byte, disk.SuperSize)
	if _, err := c.dev.ReadAt(p, disk.SuperOffset); err != nil {
		return fmt.Errorf("read superblock: %w", err)
	}
	s, err := disk.DecodeSuper(p)
	if err != nil {
		c.damage(Superblock, 0, 0, err)
		return errStop
	}
	c.s, c.g = s, disk.NewGeometry(s)
	if int64(c.g.Blocks) > c.dev.Size()>>c.g.BlockShift {
		c.problem(Superblock, 0, 0, "the volume has %d blocks, the file %d bytes", c.g.Blocks, c.dev.Size())
		return errStop
	}
	if s.Incompat&disk.IncompatRecover != 0 {
		c.problem(NotReplayed, 0, 0, "open the volume once, then check it")
		return errStop
	}
	if err := c.super(); err != nil {
		return err
	}
	c.desc = make([]disk.Group, c.g.Groups)
	for gr := range c.g.Groups {
		b, err := c.descBlock(gr)
		if err != nil {
			return err
		}
		at := int(gr%c.g.DescPerBlock) * c.g.DescSize
		if c.desc[gr], err = disk.DecodeGroup(b[at:at+c.g.DescSize], gr, c.g, s); err != nil {
			c.damage(Descriptor, 0, 0, err)
			return errStop
		}
	}
	c.used = make([]byte, (c.g.Blocks+7)/8)
	for gr := range c.g.Groups {
		if n := c.g.GroupOverhead(gr); n > 0 {
			// Descriptor blocks kept for growth belong to inode 7 as well.
			c.mark(c.g.GroupStart(gr), n)
		}
		d := &c.desc[gr]
		for _, r := range []disk.Range{{Start: d.BlockBitmap, N: 1}, {Start: d.InodeBitmap, N: 1}, {Start: d.InodeTable, N: c.g.ItableBlocks}} {
			if err := c.claim(r.Start, r.N, 0); err != nil {
				return err
			}
		}
	}
	c.zones = disk.NewZones(c.g, c.desc)
	return nil
}

// descBlock reads the descriptor block a group is in; the last one is kept.
func (c *checker) descBlock(gr uint32) ([]byte, error) {
	return c.read(c.g.DescBlock(gr / c.g.DescPerBlock))
}

func (c *checker) mark(start, n uint64) {
	for b := start; b < start+n; b++ {
		c.used[b/8] |= 1 << (b % 8)
	}
}

// claim records that blocks are used, and finds that they are already.
func (c *checker) claim(start, n uint64, ino uint32) error {
	twice, first := uint64(0), uint64(0)
	for b := start; b < start+n; b++ {
		if c.used[b/8]>>(b%8)&1 != 0 {
			if twice == 0 {
				first = b
			}
			twice++
		}
		c.used[b/8] |= 1 << (b % 8)
	}
	if twice > 0 {
		return c.problem(BlockShared, ino, first, "%d blocks of %d at %d are used by something else too", twice, n, start)
	}
	return nil
}
