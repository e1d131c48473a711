// SPDX-License-Identifier: Apache-2.0

// The two checksums of ext4: CRC-32C for metadata_csum and JBD2, CRC-16 for
// the older uninit_bg descriptors.

package disk

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C continues a CRC-32C as ext4 does it: without the inversion before
// and after that the library applies. The customary first seed is ^uint32(0).
func CRC32C(seed uint32, p []byte) uint32 {
	return ^crc32.Update(^seed, castagnoli, p)
}

// CRC32CU32 continues a CRC-32C over one little-endian word.
func CRC32CU32(seed, v uint32) uint32 {
	var b [4]byte
	le.PutUint32(b[:], v)
	return CRC32C(seed, b[:])
}

// CRC32CU64 continues a CRC-32C over one little-endian double word.
func CRC32CU64(seed uint32, v uint64) uint32 {
	var b [8]byte
	le.PutUint64(b[:], v)
	return CRC32C(seed, b[:])
}

var crc16Table = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i)
		for range 8 {
			if c&1 != 0 {
				c = c>>1 ^ 0xA001
			} else {
				c >>= 1
			}
		}
		t[i] = c
	}
	return t
}()

// CRC16 continues the CRC-16 (polynomial 0x8005, reflected) of uninit_bg.
func CRC16(crc uint16, p []byte) uint16 {
	for _, b := range p {
		crc = crc>>8 ^ crc16Table[byte(crc)^b]
	}
	return crc
}

var zero8 [8]byte
