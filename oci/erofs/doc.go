// SPDX-License-Identifier: Apache-2.0

// Package erofs writes, reads and verifies EROFS images: the read-only file
// systems in which image layers live, shared by all sandboxes through the
// host's page cache.
//
// # What it owns
//
// The format, in both directions. [Builder] turns a stream of entries, in the
// order of a tar archive, into one image: file data goes to disk at once,
// uncompressed and aligned to blocks, so that every file can be mapped from
// the image file; metadata follows when the builder finishes, and the
// superblock is written last, so that an interrupted build is never mistaken
// for an image. The same entries give the same bytes. [Open] reads what
// Builder writes and what the kernel's mkfs.erofs writes without compression.
// [Verify] walks a whole image. FORMAT.md has the tables.
//
//	0      1 KiB   4 KiB                                          blocks*4 KiB
//	+------+-------+----------------+------------------+----------------+
//	| zero | super | file data      | directory blocks | inodes, tails  |
//	|      | block | as it streamed | that are full    | xattrs, chunks |
//	+------+-------+----------------+------------------+----------------+
//	                written by Add    written by Finish
//
// # What it never does
//
// It mounts nothing, opens no path, syncs nothing to disk and renames nothing:
// callers own the file and its durability. It knows nothing of layers,
// whiteouts or digests, and imports nothing of gVisor.
//
// # Hostile images
//
// Every byte an image holds is checked when it is used: offsets against the
// size of the image, counts against named limits, names against the rules of
// the VFS. A broken image is answered with an error that wraps [ErrCorrupt],
// one that needs a feature we do not read with [ErrUnsupported] and the
// feature's name; never with a panic, an endless loop or an allocation larger
// than a few hundred kilobytes (Verify alone also keeps a few bytes for each
// inode it has seen). An Image holds no cache and may be used by any number of
// goroutines.
package erofs
