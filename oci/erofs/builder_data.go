// SPDX-License-Identifier: Apache-2.0

// File data on its way to disk: one buffer, large writes, no copy between the
// entry's reader and the buffer, and the detection of holes.

package erofs

import (
	"bytes"
	"fmt"
	"hash"
	"io"
)

const (
	// writeBuffer is the size of one write. Small files share a write.
	writeBuffer = 1 << 20
	// minHole is the smallest hole that is kept, and the smallest chunk of a
	// file with holes. Shorter runs of zeros, which any program has, would
	// only break the file into pieces; longer ones are worth an index.
	minHole = 64 << 10
	// smallChunks is how many chunks a file may have before its chunks grow,
	// up to writeBuffer: the index of a 16 GiB file takes 1 MiB.
	smallChunks = 1 << 18
)

// sparseMap says where the data of a file with holes lie.
type sparseMap struct {
	chunkBits uint8
	runs      []dataRun
}

// dataRun is a run of chunks that are no holes.
type dataRun struct{ chunk, count, block uint32 }

// chunks is the number of chunks of a file of size bytes.
func (m *sparseMap) chunks(size int64) int64 { return (size-1)>>m.chunkBits + 1 }

// blockWriter appends to a file in large writes, and hashes what it writes.
type blockWriter struct {
	f      io.WriterAt
	digest hash.Hash // may be nil
	buf    []byte
	n      int   // bytes in buf
	off    int64 // where buf goes
}

func newBlockWriter(f io.WriterAt, off int64, digest hash.Hash) *blockWriter {
	return &blockWriter{f: f, digest: digest, buf: make([]byte, writeBuffer), off: off}
}

// pos is where the next byte goes.
func (w *blockWriter) pos() int64 { return w.off + int64(w.n) }

// block is the number of the block at pos, which must be aligned.
func (w *blockWriter) block() uint32 { return uint32(w.pos() >> blockBits) }

// room makes sure that n bytes, at most writeBuffer, fit in the buffer.
func (w *blockWriter) room(n int) error {
	if len(w.buf)-w.n >= n {
		return nil
	}
	return w.flush()
}

func (w *blockWriter) flush() error {
	if w.n == 0 {
		return nil
	}
	if w.digest != nil {
		w.digest.Write(w.buf[:w.n])
	}
	if _, err := w.f.WriteAt(w.buf[:w.n], w.off); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	w.off += int64(w.n)
	w.n = 0
	return nil
}

// write appends p.
func (w *blockWriter) write(p []byte) error {
	for len(p) > 0 {
		if err := w.room(1); err != nil {
			return err
		}
		n := copy(w.buf[w.n:], p)
		w.n += n
		p = p[n:]
	}
	return nil
}

// padTo appends zeros up to offset pos of the file.
func (w *blockWriter) padTo(pos int64) error {
	for w.pos() < pos {
		if err := w.room(1); err != nil {
			return err
		}
		n := int(min(pos-w.pos(), int64(len(w.buf)-w.n)))
		clear(w.buf[w.n : w.n+n])
		w.n += n
	}
	return nil
}

// writeData streams the data of a regular file, and sets where they lie.
func (b *Builder) writeData(n *node, data io.Reader) error {
	if data == nil {
		return fmt.Errorf("%w: no data for a file of %d bytes", ErrInvalid, n.size)
	}
	w := b.data
	if (w.pos()+roundUp(n.size, blockSize))>>blockBits >= nullBlock32 {
		return fmt.Errorf("%w: the image would exceed 2^32 blocks", ErrLimit)
	}
	n.block = w.block()
	if n.size < minHole {
		if err := w.room(int(roundUp(n.size, blockSize))); err != nil {
			return err
		}
		if err := readData(data, w.buf[w.n:w.n+int(n.size)]); err != nil {
			return err
		}
		w.n += int(n.size)
	} else if err := b.writeChunks(n, data); err != nil {
		return err
	}
	return w.padTo(roundUp(w.pos(), blockSize))
}

// writeChunks streams a file that is large enough to have holes. Chunks are
// read straight into the write buffer; a chunk of zeros is dropped from it.
func (b *Builder) writeChunks(n *node, data io.Reader) error {
	w := b.data
	m := &sparseMap{chunkBits: chunkBitsFor(n.size)}
	size := 1 << m.chunkBits
	chunk := uint32(0)
	for left := n.size; left > 0; {
		if err := w.room(int(min(int64(size), roundUp(left, blockSize)))); err != nil {
			return err
		}
		// As many chunks as the buffer has room for, in one read.
		got := left
		if free := int64(len(w.buf) - w.n); got > free {
			got = free &^ int64(size-1)
		}
		read := w.buf[w.n : w.n+int(got)]
		if err := readData(data, read); err != nil {
			return err
		}
		for len(read) > 0 {
			k := min(size, len(read))
			if !allZero(read[:k]) {
				m.add(chunk, w.block())
				// Only moves bytes when a hole came before in this read.
				copy(w.buf[w.n:], read[:k])
				w.n += k
			} else {
				b.holeBytes += int64(k)
			}
			chunk++
			read = read[k:]
		}
		left -= got
	}
	if len(m.runs) == 1 && int64(m.runs[0].count) == m.chunks(n.size) {
		return nil
	}
	if len(m.runs) == 0 {
		// Nothing but a hole: one chunk if the format can say it.
		for m.chunkBits < blockBits+chunkBitsMask && m.chunks(n.size) > 1 {
			m.chunkBits++
		}
	}
	n.sparse, n.layout = m, layoutChunked
	return b.checkMetadata(4 * m.chunks(n.size))
}

// chunkBitsFor chooses the chunks of a file: minHole until there are too many.
func chunkBitsFor(size int64) uint8 {
	m := sparseMap{chunkBits: 16}
	for m.chunks(size) > smallChunks && 1<<m.chunkBits < writeBuffer {
		m.chunkBits++
	}
	return m.chunkBits
}

// add appends a chunk whose data begin at a block.
func (m *sparseMap) add(chunk, block uint32) {
	if len(m.runs) > 0 {
		last := &m.runs[len(m.runs)-1]
		if last.chunk+last.count == chunk {
			last.count++ // data only ever continue
			return
		}
	}
	m.runs = append(m.runs, dataRun{chunk: chunk, count: 1, block: block})
}

// dropData accounts for the data of a node that has lost its last name.
func (b *Builder) dropData(n *node) {
	if n.mode&ModeType != ModeRegular || n.size == 0 {
		return
	}
	if n.sparse == nil {
		b.deadBytes += roundUp(n.size, blockSize)
		return
	}
	chunks, size := n.sparse.chunks(n.size), int64(1)<<n.sparse.chunkBits
	b.metaBytes -= 4 * chunks
	data := int64(0)
	for _, r := range n.sparse.runs {
		data += int64(r.count) * size
		if int64(r.chunk)+int64(r.count) == chunks {
			data -= chunks*size - n.size
		}
	}
	b.holeBytes -= n.size - data
	b.deadBytes += roundUp(data, blockSize)
}

// readData fills p from an entry's reader.
func readData(r io.Reader, p []byte) error {
	n, err := io.ReadFull(r, p)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("the data end %d bytes too early: %w", len(p)-n, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return fmt.Errorf("read the data: %w", err)
	}
	return nil
}

// allZero reports whether p, which is not empty, holds only zeros: the first
// byte is zero, and each equals the one before it. The comparison runs at the
// speed of memory, and ends early for data.
func allZero(p []byte) bool { return p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }
