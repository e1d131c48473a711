// SPDX-License-Identifier: Apache-2.0

// Bitmaps: bit i is bit i%8 of byte i/8, set where something is in use.

package alloc

import (
	"encoding/binary"
	"math/bits"
)

func testBit(m []byte, i uint64) bool { return m[i/8]>>(i%8)&1 != 0 }

func setBits(m []byte, from, to uint64) {
	for i := from; i < to; {
		if i%8 == 0 && to-i >= 8 {
			m[i/8] = 0xff
			i += 8
			continue
		}
		m[i/8] |= 1 << (i % 8)
		i++
	}
}

func clearBits(m []byte, from, to uint64) {
	for i := from; i < to; {
		if i%8 == 0 && to-i >= 8 {
			m[i/8] = 0
			i += 8
			continue
		}
		m[i/8] &^= 1 << (i % 8)
		i++
	}
}

// nextClear finds the first clear bit in [from, end), or end.
func nextClear(m []byte, from, end uint64) uint64 { return next(m, from, end, ^uint64(0)) }

// nextSet finds the first set bit in [from, end), or end.
func nextSet(m []byte, from, end uint64) uint64 { return next(m, from, end, 0) }

// next finds the first bit in [from, end) that is set once the map is xored
// with flip. Maps are a multiple of eight bytes long.
func next(m []byte, from, end uint64, flip uint64) uint64 {
	for i := from; i < end; {
		w := binary.LittleEndian.Uint64(m[i/64*8:]) ^ flip
		if w >>= i % 64; w != 0 {
			return min(i+uint64(bits.TrailingZeros64(w)), end)
		}
		i = (i/64 + 1) * 64
	}
	return end
}

// findRun looks in [from, end) for a clear run of at least want bits. It
// answers the first such run, cut to want, or else the longest one.
func findRun(m []byte, from, end, want uint64) (at, n uint64) {
	for i := from; i < end; {
		s := nextClear(m, i, end)
		if s == end {
			break
		}
		e := nextSet(m, s, min(end, s+want))
		if e-s >= want {
			return s, want
		}
		if e-s > n {
			at, n = s, e-s
		}
		i = e
	}
	return at, n
}
