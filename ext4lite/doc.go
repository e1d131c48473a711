// SPDX-License-Identifier: Apache-2.0

// Package ext4lite is a read-write, journalled ext4 in one host file.
//
// It serves the volumes that sandboxes keep their files in. Volumes it makes
// and writes are plain ext4: Linux mounts them, e2fsck finds nothing to mend.
//
// # Life of a volume
//
//	Mkfs(dev, …)              an empty volume on a sparse device
//	fs := Open(dev, …)        replay the journal, free the orphans
//	root := fs.Root()         an *Inode, counted: Release it
//	root.Create("f", …)       operations on inodes, by handle
//	fs.Sync()                 all that was done is committed
//	fs.Close()                committed, checkpointed, marked clean
//
// # What is cached
//
// File data never: reads and writes go to the host file, whose page cache is
// the only copy, so that guests can map the same pages. Metadata blocks are
// cached up to Options.CacheBytes, inodes up to a fixed number that nobody
// holds.
//
// # Durability
//
// In mode Host, Sync and SyncFile return when the volume's file is on stable
// storage, and a power cut costs nothing that was synced. In mode Process the
// same order of writes holds without waiting for the disk: the end of this
// process costs nothing that was synced, the end of the host may cost the
// volume. Data is ordered in both: no committed file shows blocks that were
// never written.
//
// # Locks, in order
//
//	FS.renameMu       two directories are locked together only under it
//	Inode.mu          parents before children; two children by number
//	journal handle    (see package journal: barrier, mu, pendingMu)
//	FS.orphanMu       the list of orphans
//	allocator         (see package alloc)
//	FS.dirtyMu        inodes changed in the running transaction
//	icache.mu         a leaf
//
// A handle is never started while another is open, and nothing waits for a
// commit with a handle open.
//
// # Hostile volumes
//
// Every pointer, length and count that comes from the volume is checked before
// it is used. What does not hold is an error that wraps [EUCLEAN]; when it is
// found during a change the volume goes read-only. Nothing panics.
//
// The package imports nothing of gvx and runs on Linux, macOS and Windows.
package ext4lite
