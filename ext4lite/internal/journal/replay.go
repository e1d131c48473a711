// SPDX-License-Identifier: Apache-2.0

// Replay: find the committed transactions in a log and where the newest copy
// of each block lies.

package journal

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// place is where the newest committed copy of a block lies: a block of the
// volume that belongs to the log.
type place struct {
	log    uint64
	seq    uint32
	escape bool // the block begins with JBD2's magic, which the log hides
}

// Area maps the log's blocks to the volume's.
type Area []disk.Extent

// Block is the volume's block that holds log block i.
func (a Area) Block(i uint32) uint64 {
	lo, hi := 0, len(a)
	for hi-lo > 1 {
		if m := (lo + hi) / 2; a[m].Logical <= i {
			lo = m
		} else {
			hi = m
		}
	}
	return a[lo].Physical + uint64(i-a[lo].Logical)
}

// contains tells whether a block of the volume is part of the log.
func (a Area) contains(block uint64) bool {
	for _, e := range a {
		if block >= e.Physical && block < e.Physical+uint64(e.Len) {
			return true
		}
	}
	return false
}

// scanner walks a log.
type scanner struct {
	st      *Store
	s       *Super
	area    Area
	seed    uint32
	pos     uint32
	left    uint32 // blocks of the log not yet looked at
	found   map[uint64]place
	revoked map[uint64]uint32 // the newest transaction that revoked a block
}

// seqAfter compares transaction numbers, which wrap around.
func seqAfter(a, b uint32) bool { return int32(a-b) > 0 }

// scan finds all that a dirty log holds. next is the transaction number that
// follows the last committed one.
func scan(st *Store, s *Super, area Area) (found map[uint64]place, next uint32, err error) {
	if s.Incompat&incompatFastCommit != 0 && s.Start != 0 {
		return nil, 0, fmt.Errorf("replay journal: it may hold fast commits, which ext4lite does not read: "+
			"mount the volume once with Linux, or run e2fsck on it: %w", errno.EOPNOTSUPP)
	}
	w := &scanner{st: st, s: s, area: area, seed: s.seed(), pos: s.Start, left: s.End() - s.First,
		found: map[uint64]place{}, revoked: map[uint64]uint32{}}
	seq := s.Sequence
	if s.Start == 0 {
		return w.found, seq, nil
	}
	for {
		ok, err := w.transaction(seq)
		if err != nil {
			return nil, 0, fmt.Errorf("replay journal: transaction %d: %w", seq, err)
		}
		if !ok {
			break
		}
		seq++
	}
	for b, p := range w.found {
		if r, ok := w.revoked[b]; ok && !seqAfter(p.seq, r) {
			delete(w.found, b)
		}
	}
	return w.found, seq, nil
}

// next reads the next block of the log.
func (w *scanner) next(p []byte) (uint64, error) {
	b := w.area.Block(w.pos)
	w.left--
	if w.pos++; w.pos >= w.s.End() {
		w.pos = w.s.First
	}
	return b, w.st.Read(b, p)
}

// transaction reads one transaction. It answers false where the log ends: at
// the first block that does not continue it. What the transaction holds counts
// only once its commit record is seen.
func (w *scanner) transaction(seq uint32) (bool, error) {
	bs := w.st.Size()
	p, data := make([]byte, bs), make([]byte, bs)
	tags := map[uint64]place{}
	var revokes []uint64
	var broken error
	for w.left > 0 {
		if _, err := w.next(p); err != nil {
			return false, err
		}
		if be.Uint32(p) != magic || be.Uint32(p[8:]) != seq {
			return false, nil
		}
		switch be.Uint32(p[4:]) {
		case blockDescriptor:
			if w.s.hasCsum() && !w.tailOK(p) {
				return false, nil
			}
			if err := w.descriptor(p, data, seq, tags); err != nil {
				broken = err // matters only if the transaction was committed
			}
		case blockRevoke:
			if w.s.hasCsum() && !w.tailOK(p) {
				return false, nil
			}
			list, err := w.revokes(p)
			if err != nil {
				broken = err
			}
			revokes = append(revokes, list...)
		case blockCommit:
			if w.s.hasCsum() && blockSum(w.seed, p, commitCsumOffset) != be.Uint32(p[commitCsumOffset:]) {
				return false, nil
			}
			if broken != nil {
				return false, broken
			}
			for b, pl := range tags {
				w.found[b] = pl
			}
			for _, b := range revokes {
				w.revoked[b] = seq
			}
			return true, nil
		default:
			return false, nil
		}
	}
	return false, nil
}

func (w *scanner) tailOK(p []byte) bool {
	at := len(p) - tailSize
	return blockSum(w.seed, p, at) == be.Uint32(p[at:])
}

// descriptor reads a descriptor block and the blocks it describes.
func (w *scanner) descriptor(p, data []byte, seq uint32, tags map[uint64]place) error {
	end, size := len(p), w.s.tagSize()
	if w.s.hasCsum() {
		end -= tailSize
	}
	var broken error
	for off := headerSize; off+size <= end; {
		t := p[off:]
		block := uint64(be.Uint32(t))
		var flags, sum uint32
		if w.s.Incompat&incompatCsumV3 != 0 {
			flags, sum = be.Uint32(t[4:]), be.Uint32(t[12:])
			if w.s.Incompat&incompat64Bit != 0 {
				block |= uint64(be.Uint32(t[8:])) << 32
			}
		} else {
			sum, flags = uint32(be.Uint16(t[4:])), uint32(be.Uint16(t[6:]))
			if w.s.Incompat&incompat64Bit != 0 {
				block |= uint64(be.Uint32(t[8:])) << 32
			}
		}
		if w.left == 0 {
			return disk.Corrupt("journal", "descriptor describes more blocks than the log has")
		}
		at, err := w.next(data)
		if err != nil {
			return err
		}
		switch {
		case block >= w.st.Blocks || w.area.contains(block):
			broken = disk.Corrupt("journal", "copy of block %d of %d", block, w.st.Blocks)
		case w.s.hasCsum() && !w.dataOK(data, seq, sum):
			broken = disk.Corrupt("journal", "copy of block %d: wrong checksum", block)
		default:
			tags[block] = place{log: at, seq: seq, escape: flags&tagEscape != 0}
		}
		off += size
		if flags&tagSameUUID == 0 {
			off += uuidSize
		}
		if flags&tagLast != 0 {
			break
		}
	}
	return broken
}

func (w *scanner) dataOK(data []byte, seq, sum uint32) bool {
	c := dataSum(w.seed, seq, data)
	if w.s.Incompat&incompatCsumV2 != 0 {
		c &= 0xffff
	}
	return c == sum
}

func (w *scanner) revokes(p []byte) ([]uint64, error) {
	end := len(p)
	if w.s.hasCsum() {
		end -= tailSize
	}
	used := int(be.Uint32(p[headerSize:]))
	if used < revokeHeaderSize || used > end {
		return nil, disk.Corrupt("journal", "revoke block of %d bytes", used)
	}
	var out []uint64
	size := 4
	if w.s.Incompat&incompat64Bit != 0 {
		size = 8
	}
	for off := revokeHeaderSize; off+size <= used; off += size {
		if size == 8 {
			out = append(out, be.Uint64(p[off:]))
		} else {
			out = append(out, uint64(be.Uint32(p[off:])))
		}
	}
	return out, nil
}

// readPlace reads a block's copy from the log.
func readPlace(st *Store, p place, data []byte) error {
	if err := st.Read(p.log, data); err != nil {
		return err
	}
	if p.escape {
		be.PutUint32(data, magic)
	}
	return nil
}
