// SPDX-License-Identifier: Apache-2.0

// Directory hashes: legacy, half MD4 and TEA, each for signed and unsigned
// characters.

package disk

import "math/bits"

// Hash versions (s_def_hash_version, dx_root hash_version).
const (
	HashLegacy          = 0
	HashHalfMD4         = 1
	HashTEA             = 2
	HashLegacyUnsigned  = 3
	HashHalfMD4Unsigned = 4
	HashTEAUnsigned     = 5
)

// Hash is a name's place in a hash tree. Major is even: its lowest bit marks
// a bucket that goes on in the next block.
type Hash struct{ Major, Minor uint32 }

// Less orders hashes.
func (h Hash) Less(o Hash) bool { return h.Major < o.Major || h.Major == o.Major && h.Minor < o.Minor }

const eofHash = 0xfffffffe

// HashVersion folds a volume's signedness into a tree's hash version. It
// answers false for a version it does not know.
func HashVersion(version uint8, unsigned bool) (uint8, bool) {
	if version > HashTEAUnsigned {
		return 0, false
	}
	if version <= HashTEA && unsigned {
		version += 3
	}
	return version, true
}

// HashName computes a name's hash. version is one of the Hash constants.
func HashName(name string, version uint8, seed [4]uint32) Hash {
	signed := version <= HashTEA
	buf := [4]uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}
	if seed != [4]uint32{} {
		buf = seed
	}
	var h Hash
	switch version {
	case HashHalfMD4, HashHalfMD4Unsigned:
		for rest := name; len(rest) > 0; rest = rest[min(32, len(rest)):] {
			var in [8]uint32
			packName(in[:], rest, signed)
			halfMD4(&buf, &in)
		}
		h = Hash{buf[1], buf[2]}
	case HashTEA, HashTEAUnsigned:
		for rest := name; len(rest) > 0; rest = rest[min(16, len(rest)):] {
			var in [4]uint32
			packName(in[:], rest, signed)
			teaRounds(&buf, &in)
		}
		h = Hash{buf[0], buf[1]}
	default:
		h = Hash{legacyHash(name, signed), 0}
	}
	h.Major &^= 1
	if h.Major == eofHash {
		h.Major = eofHash - 2 // the top value means end of directory
	}
	return h
}

func charValue(c byte, signed bool) uint32 {
	if signed {
		return uint32(int32(int8(c)))
	}
	return uint32(c)
}

func legacyHash(name string, signed bool) uint32 {
	h0, h1 := uint32(0x12a3fe2d), uint32(0x37abe8f9)
	for i := range len(name) {
		h := h1 + (h0 ^ charValue(name[i], signed)*7152373)
		if h&0x80000000 != 0 {
			h -= 0x7fffffff
		}
		h1, h0 = h0, h
	}
	return h0 << 1
}

// packName fills words with the name's first bytes, most significant first,
// and pads with the name's whole length.
func packName(words []uint32, name string, signed bool) {
	pad := uint32(len(name)) | uint32(len(name))<<8
	pad |= pad << 16
	n := min(len(name), 4*len(words))
	w, v := 0, pad
	for i := range n {
		v = charValue(name[i], signed) + v<<8
		if i%4 == 3 {
			words[w] = v
			w, v = w+1, pad
		}
	}
	for ; w < len(words); w++ {
		words[w] = v
		v = pad
	}
}

func halfMD4(buf *[4]uint32, in *[8]uint32) {
	const k2, k3 = 0x5A827999, 0x6ED9EBA1
	type step struct{ word, shift int }
	rounds := [3][8]step{
		{{0, 3}, {1, 7}, {2, 11}, {3, 19}, {4, 3}, {5, 7}, {6, 11}, {7, 19}},
		{{1, 3}, {3, 5}, {5, 9}, {7, 13}, {0, 3}, {2, 5}, {4, 9}, {6, 13}},
		{{3, 3}, {7, 9}, {2, 11}, {6, 15}, {1, 3}, {5, 9}, {0, 11}, {4, 15}},
	}
	a, b, c, d := buf[0], buf[1], buf[2], buf[3]
	for r := range rounds {
		for _, s := range &rounds[r] {
			var f uint32
			switch r {
			case 0:
				f = d ^ (b & (c ^ d))
			case 1:
				f = (b & c) + ((b ^ c) & d) + k2
			default:
				f = (b ^ c ^ d) + k3
			}
			t := bits.RotateLeft32(a+f+in[s.word], s.shift)
			a, b, c, d = d, t, b, c
		}
	}
	buf[0] += a
	buf[1] += b
	buf[2] += c
	buf[3] += d
}

func teaRounds(buf *[4]uint32, in *[4]uint32) {
	const delta = 0x9E3779B9
	b0, b1, sum := buf[0], buf[1], uint32(0)
	for range 16 {
		sum += delta
		b0 += (b1<<4 + in[0]) ^ (b1 + sum) ^ (b1>>5 + in[1])
		b1 += (b0<<4 + in[2]) ^ (b0 + sum) ^ (b0>>5 + in[3])
	}
	buf[0] += b0
	buf[1] += b1
}
