// SPDX-License-Identifier: Apache-2.0

// Blocks of the orphan file, which newer volumes may use beside the list of
// orphans that starts in the superblock.

package disk

const orphanMagic = 0x0b10ca04

// OrphanSlots is how many inode numbers one orphan file block holds.
func (g *Geometry) OrphanSlots() int { return (g.BlockSize - 8) / 4 }

// CheckOrphanBlock verifies an orphan file block at a physical block number.
func CheckOrphanBlock(block []byte, seed uint32, number uint64, g *Geometry) error {
	tail := block[g.BlockSize-8:]
	if le.Uint32(tail) != orphanMagic {
		return Corrupt("orphan file", "block %d has no magic", number)
	}
	if g.Csum {
		if got, want := orphanSum(block, seed, number, g), le.Uint32(tail[4:]); got != want {
			return Corrupt("orphan file", "block %d: checksum %#08x, computed %#08x", number, want, got)
		}
	}
	return nil
}

// OrphanSlot reads slot i of an orphan file block: an inode number or 0.
func OrphanSlot(block []byte, i int) uint32 { return le.Uint32(block[4*i:]) }

// ClearOrphanBlock empties an orphan file block.
func ClearOrphanBlock(block []byte, seed uint32, number uint64, g *Geometry) {
	clear(block)
	tail := block[g.BlockSize-8:]
	le.PutUint32(tail, orphanMagic)
	if g.Csum {
		le.PutUint32(tail[4:], orphanSum(block, seed, number, g))
	}
}

func orphanSum(block []byte, seed uint32, number uint64, g *Geometry) uint32 {
	return CRC32C(CRC32CU64(seed, number), block[:4*g.OrphanSlots()])
}
