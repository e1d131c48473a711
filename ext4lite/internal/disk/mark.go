// SPDX-License-Identifier: Apache-2.0

// The mark that stands in a superblock's place while a clone is committed into
// the volume: until all of it is there, neither we nor a kernel take the file
// for a volume.

package disk

import (
	"bytes"
	"fmt"

	"z.gfire.dev/gvx/ext4lite/errno"
)

const (
	// MarkSize is one sector, which a power cut leaves whole: the rest of the
	// superblock stays until the commit writes the new one.
	MarkSize = 512

	markMagic      = "gvxmerge"
	markBaseID     = 8
	markClone      = 64 // behind the place of the superblock's magic, which stays zero
	markCloneBytes = 256
	markCsumOffset = MarkSize - 4
)

// ErrCommitCut means that a volume has some blocks of a clone already, whose
// commit has to be finished.
var ErrCommitCut = fmt.Errorf("a commit was cut short: commit the clone again: %w", errno.EBUSY)

// CommitMark says whose commit has begun.
type CommitMark struct {
	BaseID [32]byte // what the clone knows its base by
	Clone  string   // the clone's name, for people
}

// Encode gives the sector.
func (m *CommitMark) Encode() []byte {
	p := make([]byte, MarkSize)
	copy(p, markMagic)
	copy(p[markBaseID:], m.BaseID[:])
	copy(p[markClone:markClone+markCloneBytes], m.Clone)
	le.PutUint32(p[markCsumOffset:], CRC32C(^uint32(0), p[:markCsumOffset]))
	return p
}

// DecodeCommitMark reads a mark, if that is what stands there.
func DecodeCommitMark(p []byte) (m CommitMark, ok bool) {
	if len(p) < MarkSize || string(p[:len(markMagic)]) != markMagic || CRC32C(^uint32(0), p[:markCsumOffset]) != le.Uint32(p[markCsumOffset:]) {
		return m, false
	}
	copy(m.BaseID[:], p[markBaseID:])
	name, _, _ := bytes.Cut(p[markClone:markClone+markCloneBytes], []byte{0})
	m.Clone = string(name)
	return m, true
}
