// SPDX-License-Identifier: Apache-2.0

// The encoders of the writer: inodes, directory blocks, chunk indexes, the
// superblock.

package erofs

import (
	"context"
	"fmt"
)

// metaWriter writes the two regions of metadata side by side, each in order.
type metaWriter struct {
	l     *layout
	out   *blockWriter // full directory blocks, long links
	meta  *blockWriter // inodes
	start int64        // of meta, in the file
	block [blockSize]byte
}

// writeMetadata writes everything between the file data and the end.
func (b *Builder) writeMetadata(ctx context.Context, l *layout) error {
	w := &metaWriter{l: l, start: int64(l.metaBlock) << blockBits}
	w.out = newBlockWriter(b.f, int64(l.dirStart)<<blockBits, b.digest)
	w.meta = newBlockWriter(b.f, w.start, b.digest)
	for i, n := range l.order {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.node(uint32(i)+1, n); err != nil {
			return err
		}
	}
	if err := w.meta.padTo(l.totalBytes); err != nil {
		return err
	}
	if err := w.out.flush(); err != nil {
		return err
	}
	return w.meta.flush()
}

// node writes an inode and what follows it.
func (w *metaWriter) node(ino uint32, n *node) error {
	if err := w.meta.padTo(w.start + int64(n.nid<<slotBits)); err != nil {
		return err
	}
	var raw [inodeExtendedSize]byte
	n.encode(raw[:], ino)
	if err := w.meta.write(raw[:]); err != nil {
		return err
	}
	if err := w.meta.write([]byte(n.xattrs)); err != nil {
		return err
	}
	switch {
	case n.dir != nil:
		return w.directory(n)
	case n.mode&ModeType == ModeSymlink:
		return w.tail(n, []byte(n.target))
	case n.layout == layoutChunked:
		return w.chunks(n)
	}
	return nil
}

// encode fills in an extended inode.
func (n *node) encode(b []byte, ino uint32) {
	le.PutUint16(b[inodeFormat:], formatExtended|uint16(n.layout)<<formatLayoutShift)
	if n.xattrs != "" {
		le.PutUint16(b[inodeXattrCount:], uint16((len(n.xattrs)-xattrHeaderSize)/4+1))
	}
	le.PutUint16(b[inodeMode:], uint16(n.mode))
	le.PutUint64(b[inodeSize:], uint64(n.size))
	switch n.mode & ModeType {
	case ModeChar, ModeBlock:
		le.PutUint32(b[inodeU:], n.rdev)
	case ModeRegular, ModeDir, ModeSymlink:
		if n.layout == layoutChunked {
			le.PutUint32(b[inodeU:], uint32(n.sparse.chunkBits-blockBits))
		} else {
			le.PutUint32(b[inodeU:], n.block)
		}
	}
	le.PutUint32(b[inodeIno:], ino)
	le.PutUint32(b[inodeUID:], n.uid)
	le.PutUint32(b[inodeGID:], n.gid)
	le.PutUint64(b[inodeMtime:], uint64(n.mtime))
	le.PutUint32(b[inodeMtimeNsec:], n.mtimeNsec)
	le.PutUint32(b[inodeNlink:], n.nlink())
}

// directory writes the blocks of a directory.
func (w *metaWriter) directory(n *node) error {
	for names := n.dir.sorted; len(names) > 0; {
		count, used := nextBlock(names)
		n.encodeBlock(w.block[:], names[:count])
		names = names[count:]
		if len(names) == 0 {
			return w.tail(n, w.block[:used])
		}
		if err := w.out.write(w.block[:]); err != nil {
			return err
		}
	}
	return nil
}

// encodeBlock fills one directory block with names.
func (n *node) encodeBlock(b []byte, names []string) {
	clear(b)
	nameOff := len(names) * direntSize
	for i, name := range names {
		child := n.dir.children[name]
		switch name {
		case ".":
			child = n
		case "..":
			child = n.dir.parent
		}
		e := b[i*direntSize:]
		le.PutUint64(e[direntNID:], child.nid)
		le.PutUint16(e[direntNameOff:], uint16(nameOff))
		e[direntType] = fileType(child.mode)
		nameOff += copy(b[nameOff:], name)
	}
}

// tail writes the last part of a directory, or a link's target: behind the
// inode, or in a block of its own.
func (w *metaWriter) tail(n *node, p []byte) error {
	if n.layout == layoutInline {
		return w.meta.write(p)
	}
	if err := w.out.write(p); err != nil {
		return err
	}
	return w.out.padTo(roundUp(w.out.pos(), blockSize))
}

// chunks writes the index of a file with holes: a block number per chunk.
func (w *metaWriter) chunks(n *node) error {
	total := n.sparse.chunks(n.size)
	step := uint32(1) << (n.sparse.chunkBits - blockBits)
	at := int64(0)
	entry := func(block uint32) error {
		var b [4]byte
		le.PutUint32(b[:], block)
		at++
		return w.meta.write(b[:])
	}
	for _, r := range n.sparse.runs {
		for at < int64(r.chunk) {
			if err := entry(nullBlock32); err != nil {
				return err
			}
		}
		for i := range r.count {
			if err := entry(r.block + i*step); err != nil {
				return err
			}
		}
	}
	for at < total {
		if err := entry(nullBlock32); err != nil {
			return err
		}
	}
	return nil
}

// writeSuper writes block 0, and returns the image's UUID.
func (b *Builder) writeSuper(l *layout) ([16]byte, error) {
	var block [blockSize]byte
	s := block[superOffset:]
	le.PutUint32(s[sbMagic:], superMagic)
	le.PutUint32(s[sbFeatureCompat:], compatChecksum|compatMtime)
	s[sbBlockBits] = blockBits
	le.PutUint16(s[sbRootNID16:], uint16(b.root.nid))
	le.PutUint64(s[sbInodes:], uint64(len(l.order)))
	le.PutUint64(s[sbEpoch:], uint64(b.o.Time.Unix()))
	le.PutUint32(s[sbFixedNsec:], uint32(b.o.Time.Nanosecond()))
	le.PutUint32(s[sbBlocks:], uint32(l.totalBytes>>blockBits))
	le.PutUint32(s[sbMetaBlock:], l.metaBlock)
	copy(s[sbVolumeName:sbVolumeName+16], b.o.VolumeName)
	if l.chunked {
		le.PutUint32(s[sbFeatureIncompat:], incompatChunked)
	}
	uuid := b.o.UUID
	if b.o.FinalUUID != nil {
		uuid = b.o.FinalUUID()
	}
	if b.digest != nil {
		b.digest.Write(s)
		copy(uuid[:], b.digest.Sum(nil))
		uuid[6] = uuid[6]&0x0f | 0x80 // version 8: made by our own rule
		uuid[8] = uuid[8]&0x3f | 0x80 // RFC 9562 variant
	}
	copy(s[sbUUID:], uuid[:])
	le.PutUint32(s[sbChecksum:], superChecksum(s))
	if _, err := b.f.WriteAt(block[:], 0); err != nil {
		return uuid, fmt.Errorf("write superblock: %w", err)
	}
	return uuid, nil
}
