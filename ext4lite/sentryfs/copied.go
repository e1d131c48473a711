// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	// zeroRunBytes is the run of zero pages that all holes of a mount show. A
	// bigger one would mean fewer translations of huge holes, and more memory
	// for a guest that reads one.
	zeroRunBytes = 256 << 10

	// copyAroundBytes is how much is copied for one fault.
	copyAroundBytes = 64 << 10

	// keepCopiedBytes is how much a mount keeps of files that nobody maps any
	// more, for the next exec of the same program.
	keepCopiedBytes = 32 << 20

	// maxCopiedBytes bounds a mount's copies. Files that have to be copied
	// whole come from images with blocks smaller than a page; our own images
	// have none. Beyond the bound a guest gets SIGBUS.
	maxCopiedBytes = 1 << 30
)

// copyPool has the pages of a mount that are not the volume's own.
type copyPool struct {
	// bytes counts the copies of all inodes.
	bytes atomic.Int64

	// mu protects zeros, empty until the first hole is mapped.
	mu    sync.Mutex
	zeros memmap.FileRange
}

// wantsBack reports whether pages that nobody maps should be dropped.
func (p *copyPool) wantsBack() bool { return p.bytes.Load() > keepCopiedBytes }

// translateHole maps the beginning of a range that lies in a hole.
func (p *copyPool) translateHole(mf *pgalloc.MemoryFile, mr memmap.MappableRange) (memmap.Translation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.zeros.Length() == 0 {
		fr, err := mf.Allocate(zeroRunBytes, pgalloc.AllocOpts{
			Kind: usage.PageCache,
			Mode: pgalloc.AllocateCallerIndirectCommit,
		})
		if err != nil {
			return memmap.Translation{}, err
		}
		p.zeros = fr
	}
	mr.End = min(mr.End, mr.Start+zeroRunBytes)
	return memmap.Translation{Source: mr, File: mf, Offset: p.zeros.Start, Perms: hostarch.ReadExecute}, nil
}

// release gives the zero pages back. Mappings that show them have their own
// references.
func (p *copyPool) release(mf *pgalloc.MemoryFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.zeros.Length() != 0 {
		mf.DecRef(p.zeros)
		p.zeros = memmap.FileRange{}
	}
}

// translateCopied maps the page at off and some behind it, up to end, from the
// memory file, copying what is not there yet.
func (i *inode) translateCopied(ctx context.Context, off, end uint64, optional memmap.MappableRange) (memmap.Translation, error) {
	o := i.opened()
	o.copyMu.Lock()
	defer o.copyMu.Unlock()
	if t, ok := i.copiedAt(o, off, optional); ok {
		return t, nil
	}

	want := memmap.MappableRange{Start: off, End: min(end, off+copyAroundBytes, optional.End)}
	if gap := o.copied.FindGap(off); gap.Ok() {
		want.End = min(want.End, gap.End())
	}
	pool := &i.fs.copies
	if pool.bytes.Add(int64(want.Length())) > maxCopiedBytes {
		pool.bytes.Add(-int64(want.Length()))
		return memmap.Translation{}, i.fs.errno("copy pages of inode: the mount has reached its bound", i.id, linuxerr.ENOMEM)
	}
	_, err := o.copied.Fill(ctx, want, want, uint64(i.fixed.SizeBytes), i.fs.mf, pgalloc.AllocOpts{
		Kind:    usage.PageCache,
		MemCgID: pgalloc.MemoryCgroupIDFromContext(ctx),
		Mode:    pgalloc.AllocateAndWritePopulate,
	}, func(_ context.Context, dsts safemem.BlockSeq, at uint64) (uint64, error) {
		return i.readToBlocks(dsts, int64(at))
	})
	// Fill may stop early, and keeps what it got.
	pool.bytes.Add(int64(o.copied.SpanRange(want)) - int64(want.Length()))
	if t, ok := i.copiedAt(o, off, optional); ok {
		return t, nil
	}
	if err == nil {
		err = linuxerr.EIO
	}
	return memmap.Translation{}, err
}

// copiedAt maps the page at off, and what was copied with it, if it was.
//
// Preconditions: o.copyMu is locked.
func (i *inode) copiedAt(o *openState, off uint64, optional memmap.MappableRange) (memmap.Translation, bool) {
	seg := o.copied.FindSegment(off)
	if !seg.Ok() {
		return memmap.Translation{}, false
	}
	source := seg.Range().Intersect(optional)
	return memmap.Translation{
		Source: source,
		File:   i.fs.mf,
		Offset: seg.FileRangeOf(source).Start,
		Perms:  hostarch.ReadExecute,
	}, true
}

// dropCopied gives the inode's copied pages back. Guests that have them mapped
// hold references of their own.
//
// Preconditions: no translation to the pages can be given out at the same time.
func (i *inode) dropCopied() {
	o := i.open.Load()
	if o == nil {
		return
	}
	o.copyMu.Lock()
	defer o.copyMu.Unlock()
	i.fs.copies.bytes.Add(-int64(o.copied.Span()))
	o.copied.DropAll(i.fs.mf)
}
