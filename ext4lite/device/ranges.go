// SPDX-License-Identifier: Apache-2.0

// Making part of a file durable without waiting for the rest of it.

package device

// RangeSyncer is a Device that can make ranges durable one by one, so that a
// small sync does not wait for what others have written to the same file.
type RangeSyncer interface {
	// CanSyncRanges tells whether the host's file system is one for which
	// this was shown to be safe.
	CanSyncRanges() bool
	// WriteBack returns when the bytes of a range have been handed to the
	// disk. It is no barrier: the disk's cache, and the host's notes on where
	// the bytes are, may still be volatile.
	WriteBack(off, n int64) error
	// StartWriteBack has the host begin with that, and does not wait for it.
	StartWriteBack(off, n int64) error
	// WriteDurable writes, and returns when that, and all that was written
	// back before, is on stable storage.
	WriteDurable(p []byte, off int64) error
}

// CanSyncRanges answers for the file's host file system. On ext4 and XFS a
// write with RWF_DSYNC commits the inode's mapping as a whole and flushes the
// disk's cache, which makes earlier write-back of other ranges durable too. On
// others, Btrfs among them, it logs the range alone.
func (d *File) CanSyncRanges() bool { return !d.readonly && canSyncRanges(d.f) }

// WriteBack writes a range's dirty pages and waits for the disk to take them.
func (d *File) WriteBack(off, n int64) error { return writeBack(d.f, off, n) }

// StartWriteBack queues a range's dirty pages for the disk.
func (d *File) StartWriteBack(off, n int64) error { return startWriteBack(d.f, off, n) }

// WriteDurable writes with RWF_DSYNC.
func (d *File) WriteDurable(p []byte, off int64) error { return writeDurable(d.f, p, off) }
