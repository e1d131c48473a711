// SPDX-License-Identifier: Apache-2.0

// A transaction laid out as log blocks.

package journal

import "time"

// logWriter lays a transaction out. Blocks are copied straight to where they
// go in the log: runs of them, each behind the descriptor that names them.
type logWriter struct {
	m       *Manager
	seq     uint32
	seed    uint32
	perDesc int
	blocks  []uint64
	revoked []uint64
	escaped []bool
	out     []byte
}

// newLogWriter makes room for a transaction's blocks.
func newLogWriter(m *Manager, blocks, revoked []uint64) *logWriter {
	bs := m.st.Size()
	w := &logWriter{m: m, seq: m.seq, seed: m.super.seed(), blocks: blocks, revoked: revoked, escaped: make([]bool, len(blocks))}
	w.perDesc = (bs - headerSize - uuidSize - tailSize) / m.super.tagSize()
	descriptors := (len(blocks) + w.perDesc - 1) / w.perDesc
	spare := len(revoked)/m.revokesPerBlock() + 1
	w.out = make([]byte, (len(blocks)+descriptors)*bs, (len(blocks)+descriptors+spare)*bs)
	return w
}

// index is where in the transaction a block's copy goes.
func (w *logWriter) index(i int) int { return i + i/w.perDesc + 1 }

// slot is the copy of a block.
func (w *logWriter) slot(i int) []byte {
	bs := w.m.st.Size()
	k := w.index(i)
	return w.out[k*bs : (k+1)*bs : (k+1)*bs]
}

// finish writes descriptors and revoke blocks. The copies have their own
// checksums already.
func (w *logWriter) finish() {
	bs, s := w.m.st.Size(), w.m.super
	for first := 0; first < len(w.blocks); first += w.perDesc {
		k := w.index(first) - 1
		d := w.out[k*bs : (k+1)*bs]
		putHeader(d, blockDescriptor, w.seq)
		off, end := headerSize, min(first+w.perDesc, len(w.blocks))
		for i := first; i < end; i++ {
			p := w.slot(i)
			flags := uint32(0)
			if w.escaped[i] = be.Uint32(p) == magic; w.escaped[i] {
				be.PutUint32(p, 0)
				flags |= tagEscape
			}
			if i > first {
				flags |= tagSameUUID
			}
			if i == end-1 {
				flags |= tagLast
			}
			w.tag(d[off:], w.blocks[i], flags, p)
			if off += s.tagSize(); i == first {
				copy(d[off:], s.UUID[:])
				off += uuidSize
			}
		}
		if s.hasCsum() {
			be.PutUint32(d[bs-tailSize:], blockSum(w.seed, d, bs-tailSize))
		}
	}
	w.revokes(w.revoked)
}

func (w *logWriter) block() []byte {
	bs := w.m.st.Size()
	n := len(w.out)
	w.out = append(w.out, make([]byte, bs)...)
	return w.out[n : n+bs]
}

func (w *logWriter) tag(p []byte, block uint64, flags uint32, data []byte) {
	s := w.m.super
	be.PutUint32(p, uint32(block))
	if s.Incompat&incompatCsumV3 != 0 {
		be.PutUint32(p[4:], flags)
		be.PutUint32(p[8:], uint32(block>>32))
		be.PutUint32(p[12:], dataSum(w.seed, w.seq, data))
		return
	}
	be.PutUint16(p[6:], uint16(flags))
	if s.Incompat&incompat64Bit != 0 {
		be.PutUint32(p[8:], uint32(block>>32))
	}
}

func (w *logWriter) revokes(list []uint64) {
	bs, s := w.m.st.Size(), w.m.super
	size := 4
	if s.Incompat&incompat64Bit != 0 {
		size = 8
	}
	for len(list) > 0 {
		n := min(len(list), (bs-revokeHeaderSize-tailSize)/size)
		p := w.block()
		putHeader(p, blockRevoke, w.seq)
		be.PutUint32(p[headerSize:], uint32(revokeHeaderSize+n*size))
		for i, b := range list[:n] {
			if size == 8 {
				be.PutUint64(p[revokeHeaderSize+8*i:], b)
			} else {
				be.PutUint32(p[revokeHeaderSize+4*i:], uint32(b))
			}
		}
		if s.hasCsum() {
			be.PutUint32(p[bs-tailSize:], blockSum(w.seed, p, bs-tailSize))
		}
		list = list[n:]
	}
}

// commit is the commit record.
func (w *logWriter) commit() []byte {
	p := make([]byte, w.m.st.Size())
	putHeader(p, blockCommit, w.seq)
	now := time.Now()
	be.PutUint64(p[commitSecOffset:], uint64(now.Unix()))
	be.PutUint32(p[commitSecOffset+8:], uint32(now.Nanosecond()))
	if w.m.super.hasCsum() {
		be.PutUint32(p[commitCsumOffset:], blockSum(w.seed, p, commitCsumOffset))
	}
	return p
}
