// SPDX-License-Identifier: Apache-2.0

// Whole blocks of a device, with bounds.

package journal

import (
	"fmt"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/internal/disk"
)

// Store reads and writes whole blocks.
type Store struct {
	Dev    device.Device
	Blocks uint64
	Shift  uint
}

// Size is the size of a block in bytes.
func (s *Store) Size() int { return 1 << s.Shift }

// Read fills p, a whole number of blocks, from block on.
func (s *Store) Read(block uint64, p []byte) error {
	if n := uint64(len(p)) >> s.Shift; block >= s.Blocks || n > s.Blocks-block {
		return disk.Corrupt("block pointer", "block %d of %d", block, s.Blocks)
	}
	if _, err := s.Dev.ReadAt(p, int64(block)<<s.Shift); err != nil {
		return fmt.Errorf("read block %d: %w", block, err)
	}
	return nil
}

// Write stores p, a whole number of blocks, from block on.
func (s *Store) Write(block uint64, p []byte) error {
	if n := uint64(len(p)) >> s.Shift; block >= s.Blocks || n > s.Blocks-block {
		return disk.Corrupt("block pointer", "block %d of %d", block, s.Blocks)
	}
	if _, err := s.Dev.WriteAt(p, int64(block)<<s.Shift); err != nil {
		return fmt.Errorf("write block %d: %w", block, err)
	}
	return nil
}
