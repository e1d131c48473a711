// SPDX-License-Identifier: Apache-2.0

// The end of a build: every inode gets its place, then everything is written
// in the order of the image, the superblock last.

package erofs

import (
	"context"
	"fmt"
	"slices"
)

// checkEvery is how many inodes pass between two looks at the context.
const checkEvery = 4096

// layout is where everything goes. Inodes are laid out breadth first, the
// children of a directory side by side in the order of their names, so that
// reading a directory and looking at its files touches neighbouring blocks.
type layout struct {
	order      []*node
	metaBytes  int64
	outBlocks  uint32 // full blocks of directories, and long links
	dirStart   uint32 // first of them
	metaBlock  uint32
	totalBytes int64
	chunked    bool
}

// Finish writes the metadata and the superblock. The file is then complete,
// but nothing has been synced. The builder accepts no further calls.
func (b *Builder) Finish(ctx context.Context) (Summary, error) {
	s, err := b.finish(ctx)
	if err != nil {
		return Summary{}, fmt.Errorf("finish EROFS image: %w", err)
	}
	return s, nil
}

func (b *Builder) finish(ctx context.Context) (Summary, error) {
	if b.closed != nil {
		return Summary{}, b.closed
	}
	b.closed = ErrFinished
	if err := b.data.flush(); err != nil {
		return Summary{}, err
	}
	l := &layout{dirStart: b.data.block(), metaBytes: slotSize} // node number 0 stays unused: some programs take inode 0 for none
	if err := l.place(ctx, b.root); err != nil {
		return Summary{}, err
	}
	if end := int64(l.dirStart) + int64(l.outBlocks) + l.metaBytes>>blockBits; end >= nullBlock32-1 {
		return Summary{}, fmt.Errorf("%w: the image would exceed 2^32 blocks", ErrLimit)
	}
	l.metaBlock = l.dirStart + l.outBlocks
	l.totalBytes = roundUp(int64(l.metaBlock)<<blockBits+l.metaBytes, blockSize)
	if err := b.writeMetadata(ctx, l); err != nil {
		return Summary{}, err
	}
	uuid, err := b.writeSuper(l)
	if err != nil {
		return Summary{}, err
	}
	data := b.data.pos() - blockSize
	return Summary{
		UUID:          uuid,
		Bytes:         l.totalBytes,
		DataBytes:     data,
		DeadBytes:     b.deadBytes,
		HoleBytes:     b.holeBytes,
		MetadataBytes: l.totalBytes - blockSize - data,
		Inodes:        len(l.order),
		Entries:       b.entries,
	}, nil
}

// place gives every node a node number, and every directory its blocks.
func (l *layout) place(ctx context.Context, root *node) error {
	l.placeNode(root)
	for i := 0; i < len(l.order); i++ {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir := l.order[i].dir
		if dir == nil {
			continue
		}
		for _, name := range dir.sorted {
			if n := dir.children[name]; n != nil && n.nid == 0 {
				l.placeNode(n)
			}
		}
	}
	return nil
}

// placeNode places one inode with all that follows it.
func (l *layout) placeNode(n *node) {
	head := inodeExtendedSize + int64(len(n.xattrs))
	var tail, index int64
	switch {
	case n.dir != nil:
		n.sortNames()
		n.size = n.dir.measure()
		tail = l.placeTail(n, head)
	case n.mode&ModeType == ModeSymlink:
		tail = l.placeTail(n, head)
	case n.layout == layoutChunked:
		index = 4 * n.sparse.chunks(n.size) // all parts are multiples of 4
		l.chunked = true
	}
	pos := roundUp(l.metaBytes, slotSize)
	in := pos & (blockSize - 1)
	// An inline tail must not cross a block; the inode itself may, but then
	// takes two reads instead of one.
	if tail > 0 && in+head+tail > blockSize || in+inodeExtendedSize > blockSize {
		pos = roundUp(pos, blockSize)
	}
	n.nid = uint64(pos) >> slotBits
	l.metaBytes = pos + head + tail + index
	l.order = append(l.order, n)
}

// placeTail decides whether the last part of a directory or link follows the
// inode, returns its length if so, and takes blocks for the rest.
func (l *layout) placeTail(n *node, head int64) int64 {
	tail := n.size & (blockSize - 1)
	if tail == 0 || head+tail > blockSize {
		n.layout, tail = layoutPlain, 0
	} else {
		n.layout = layoutInline
	}
	n.block = l.dirStart + l.outBlocks
	l.outBlocks += uint32(roundUp(n.size-tail, blockSize) >> blockBits)
	return tail
}

// sortNames makes the sorted list of a directory's names.
func (n *node) sortNames() {
	names := make([]string, 0, len(n.dir.children)+2)
	names = append(names, ".", "..")
	for name := range n.dir.children {
		names = append(names, name)
	}
	slices.Sort(names)
	n.dir.sorted = names
}

// nextBlock returns how many of the names fit in one directory block, and the
// bytes they take.
func nextBlock(names []string) (count int, used int64) {
	for _, name := range names {
		more := direntSize + int64(len(name))
		if used+more > blockSize {
			break
		}
		used += more
		count++
	}
	return count, used
}

// measure is the size of a directory: full blocks, and what the last one uses.
func (d *directory) measure() int64 {
	blocks, used := int64(-1), int64(0)
	for names := d.sorted; len(names) > 0; blocks++ {
		var count int
		count, used = nextBlock(names)
		names = names[count:]
	}
	return blocks<<blockBits + used
}

// nlink is the link count: one per name, and for a directory its own two and
// one for the ".." of each directory in it.
func (n *node) nlink() uint32 {
	if n.dir != nil {
		return 2 + n.dir.subdirs
	}
	return n.names
}
