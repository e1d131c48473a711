// SPDX-License-Identifier: Apache-2.0

// Package disk knows the bytes of an ext4 volume: superblock, group
// descriptors, inodes, extent nodes, directory blocks, hash trees, extended
// attributes, and the checksums over each of them. FORMAT.md has the tables.
//
// It owns no state and does no I/O: it turns bytes into values and values into
// bytes. Every byte it is given is hostile: a decoder checks each field against
// the volume's geometry and answers with an error that wraps [errno.EUCLEAN],
// never with a panic, and never follows a length it has not bounded.
package disk

import (
	"encoding/binary"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
)

var le = binary.LittleEndian

// Corrupt is the error for bytes that cannot be part of a sound volume. What
// names the structure, the arguments what is wrong with it.
func Corrupt(what, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w (run e2fsck on a copy of the volume)", what, fmt.Sprintf(format, args...), errno.EUCLEAN)
}
