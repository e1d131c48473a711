// SPDX-License-Identifier: Apache-2.0

// Probe: what a superblock tells of a volume, without opening it.

package ext4lite

import (
	"fmt"
	"io"
	"math"

	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// Summary is what a superblock tells. While the volume is in use its counts lag
// behind.
type Summary struct {
	UUID       [16]byte
	Label      string
	SizeBytes  int64
	FreeBytes  int64
	Inodes     uint32
	FreeInodes uint32
	BlockSize  int
	Features   []string
	Made       Time
	// InUse says that the volume was not closed: it is open now, or its journal
	// has to be replayed, which the next open does.
	InUse bool
}

// Probe reads a volume's superblock. It needs no lock and changes nothing.
func Probe(r io.ReaderAt) (Summary, error) {
	p := make([]byte, disk.SuperSize)
	if _, err := r.ReadAt(p, disk.SuperOffset); err != nil {
		return Summary{}, fmt.Errorf("read superblock: not an ext4 volume: %w: %w", err, EINVAL)
	}
	s, torn, err := disk.DecodeSuperTorn(p)
	if err != nil {
		return Summary{}, err
	}
	bs := int64(s.BlockSize())
	if s.BlocksCount > math.MaxInt64/uint64(bs) {
		return Summary{}, disk.Corrupt("superblock", "%d blocks of %d bytes", s.BlocksCount, bs)
	}
	return Summary{
		UUID: s.UUID, Label: s.Label, SizeBytes: int64(s.BlocksCount) * bs, FreeBytes: int64(min(s.FreeBlocks, s.BlocksCount)) * bs,
		Inodes: s.InodesCount, FreeInodes: s.FreeInodes, BlockSize: int(bs), Features: s.Features(), Made: Time{Sec: int64(s.MkfsTime)},
		InUse: torn != nil || s.Incompat&disk.IncompatRecover != 0,
	}, nil
}
