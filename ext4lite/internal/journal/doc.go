// SPDX-License-Identifier: Apache-2.0

// Package journal makes changes to many metadata blocks atomic. It owns the
// cache of metadata blocks, the running transaction, and the JBD2 log.
//
// # Life of a change
//
// An operation starts a [Handle], edits cached blocks ([Buf]) and names each to
// [Handle.Dirty], and stops the handle. All handles stopped before a commit
// belong to one transaction:
//
//	Start ─ edit, Dirty ─ Stop          many at once, sharing the barrier
//	Commit: barrier held alone          prepare, copy the dirty blocks
//	        barrier released            new handles go to the next transaction
//	        write the copies to the log, sync, commit record, sync
//	Checkpoint                          log copies go home, log is empty again
//
// Blocks go home only when the log is full or the volume closes. Until then a
// block that falls out of the cache is read back from its place in the log, so
// the cache never has to keep a clean block.
//
// # Locks, in order
//
//	commitMu   one commit or checkpoint at a time
//	barrier    shared by handles, alone for the copying part of a commit
//	mu         the running transaction's sets
//	pendingMu  where the newest committed copy of a block lies
//	shard      one part of the cache
//
// The package does not know what the blocks mean: checksums come from the
// block's Seal, and in-memory state reaches blocks in [Hooks].Prepare. It never
// caches file data.
package journal
