// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"io"
	"math"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// Mappings of files that change.
//
// A page of such a file can come to lie elsewhere: a hole gets a block, a block
// of a clone's base is written to the delta, a truncated block goes to another
// file. Guests' translations must go then. They cannot go at that moment, when
// the volume has the file locked: translating takes that lock with the memory
// manager's lock held, and invalidating takes that one. So
//
//   - the volume's report that something moves is noted, and invalidated once
//     the operation is over, before the guest that asked for it goes on;
//   - until then stale translations do no harm, because every block that was
//     ever translated is held, by the table below and by each guest's own
//     reference: it belongs to no other file, and the copy that a move was made
//     from does not change;
//   - a store through a mapping must be seen by all others at once, and cannot
//     invalidate them. So while any guest has the file mapped for shared
//     writing, no translation leads to a hole or to a base: reads, too, take
//     over the page first. The first such mapping invalidates what was
//     translated before.

// movable is what is known of the mappings of a file that changes.
type movable struct {
	// writablePages counts the pages mapped for shared writing, and owned says
	// that there are some and that what was translated before them is
	// invalidated. openState.mapsMu protects changes.
	writablePages atomic.Uint64
	owned         atomic.Bool

	// mu protects the rest.
	mu sync.Mutex
	// moved is the span of what the volume reported to move, as page offsets
	// of the file; empty if start >= end.
	moved memmap.MappableRange
	// held are the blocks that translations lead to: of each page of the file
	// the place in the volume, held once.
	held fsutil.FileRangeSet
	// stale are holds of places that pages had before they moved, until what
	// moved is invalidated.
	stale []heldRun
}

type heldRun struct{ volumeOff, n int64 }

// aheadBytes is how much more than it must a fault takes over or allocates, if
// the guest goes through the file page by page. What needs neither is translated
// up to translateAheadBytes ahead.
const (
	aheadBytes          = 64 << 10
	translateAheadBytes = 2 << 20
)

// note takes the volume's report. The file is locked.
func (m *movable) note(off, n int64) {
	if m.owned.Load() {
		// Nothing is translated that could move. What is truncated is
		// invalidated by who truncates.
		return
	}
	m.mark(uint64(pageDown(off)), pageEnd(off, n))
}

// mark adds a span of pages to what has moved.
func (m *movable) mark(start, end uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moved.Start >= m.moved.End {
		m.moved = memmap.MappableRange{Start: start, End: end}
		return
	}
	m.moved.Start, m.moved.End = min(m.moved.Start, start), max(m.moved.End, end)
}

// pageEnd is the end of the last page of [off, off+n).
func pageEnd(off, n int64) uint64 {
	if off > math.MaxInt64-n-hostarch.PageSize {
		return math.MaxUint64 &^ pageMask
	}
	return uint64(pageUp(off + n))
}

// hold keeps a run that was translated, and that the caller holds.
func (m *movable) hold(v WritableVolume, r *Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := memmap.MappableRange{Start: uint64(r.Off), End: pageEnd(r.Off, r.Len)}
	seg := m.held.LowerBoundSegment(at.Start)
	for at.Start < at.End {
		gapEnd := at.End
		if seg.Ok() {
			gapEnd = min(gapEnd, max(seg.Start(), at.Start))
		}
		if at.Start < gapEnd {
			part := memmap.MappableRange{Start: at.Start, End: gapEnd}
			m.held.InsertRange(part, uint64(r.VolumeOff)+part.Start-uint64(r.Off))
			at.Start = gapEnd
			seg = m.held.LowerBoundSegment(at.Start)
			continue
		}
		part := seg.Range().Intersect(at)
		now := uint64(r.VolumeOff) + part.Start - uint64(r.Off)
		was := seg.FileRangeOf(part).Start
		if was == now {
			v.ReleaseRun(int64(now), int64(part.Length())) // held already
		} else {
			m.stale = append(m.stale, heldRun{int64(was), int64(part.Length())})
			m.held.RemoveRange(part)
			m.held.InsertRange(part, now)
		}
		at.Start = part.End
		seg = m.held.LowerBoundSegment(at.Start)
	}
}

// take removes the holds of a span from the table, and those that are stale,
// for the caller to release.
//
// Preconditions: m.mu is locked.
func (m *movable) take(span memmap.MappableRange) []heldRun {
	runs := m.stale
	m.stale = nil
	m.held.RemoveRangeWith(span, func(seg fsutil.FileRangeIterator) {
		fr := seg.FileRange()
		runs = append(runs, heldRun{int64(fr.Start), int64(fr.Length())})
	})
	return runs
}

// settle invalidates guests' translations of what has moved.
//
// Preconditions: the caller holds no lock of a memory manager or of the volume.
func (i *inode) settle() {
	o := i.open.Load()
	if o == nil || o.moving == nil {
		return
	}
	m := o.moving
	m.mu.Lock()
	none := m.moved.Start >= m.moved.End
	m.mu.Unlock()
	if !none {
		i.invalidateMoved(o, memmap.InvalidateOpts{})
	}
}

// cut invalidates guests' translations of a range that has got other bytes, or
// none: also private copies if the file ends before it.
//
// Preconditions: those of settle.
func (i *inode) cut(off, n int64, ended bool) {
	o := i.open.Load()
	if o == nil || o.moving == nil {
		return
	}
	o.moving.mark(uint64(pageDown(off)), pageEnd(off, n))
	i.invalidateMoved(o, memmap.InvalidateOpts{InvalidatePrivate: ended})
}

// invalidateMoved does what settle and cut say. Holding mapsMu from taking the
// holds to releasing them makes sure that who finds a span taken also finds it
// invalidated.
func (i *inode) invalidateMoved(o *openState, opts memmap.InvalidateOpts) {
	m := o.moving
	o.mapsMu.Lock()
	defer o.mapsMu.Unlock()
	m.mu.Lock()
	span := m.moved
	m.moved = memmap.MappableRange{}
	if span.Start >= span.End {
		m.mu.Unlock()
		return
	}
	runs := m.take(span)
	m.mu.Unlock()
	o.mappings.Invalidate(span, opts)
	i.release(runs)
}

func (i *inode) release(runs []heldRun) {
	for _, r := range runs {
		i.fs.w.ReleaseRun(r.volumeOff, r.n)
	}
}

// whole is every page of a file.
var whole = memmap.MappableRange{Start: 0, End: math.MaxUint64 &^ pageMask}

// addMovable is AddMapping of a file that changes.
//
// Preconditions: o.mapsMu is locked.
func (i *inode) addMovable(o *openState, ms memmap.MappingSpace, ar hostarch.AddrRange, off uint64, writable bool) {
	m := o.moving
	if o.mappings.IsEmpty() {
		i.w.OnMove(m.note)
	}
	pages := uint64(ar.Length()) / hostarch.PageSize
	if writable && m.writablePages.Add(pages) == pages {
		m.mu.Lock()
		runs := m.take(whole)
		m.moved = memmap.MappableRange{}
		m.mu.Unlock()
		o.mappings.InvalidateAll(memmap.InvalidateOpts{})
		i.release(runs)
		m.owned.Store(true)
	}
	o.mappings.AddMapping(ms, ar, off, writable)
}

// removeMovable is RemoveMapping of a file that changes.
//
// Preconditions: o.mapsMu is locked.
func (i *inode) removeMovable(o *openState, ms memmap.MappingSpace, ar hostarch.AddrRange, off uint64, writable bool) {
	m := o.moving
	o.mappings.RemoveMapping(ms, ar, off, writable)
	if writable && m.writablePages.Add(-(uint64(ar.Length())/hostarch.PageSize)) == 0 {
		m.owned.Store(false)
	}
	if !o.mappings.IsEmpty() {
		return
	}
	i.w.OnMove(nil)
	m.mu.Lock()
	runs := m.take(whole)
	m.moved = memmap.MappableRange{}
	m.mu.Unlock()
	i.release(runs)
}

// translateMovable is Translate of a file that changes.
func (i *inode) translateMovable(ctx context.Context, required, optional memmap.MappableRange, at hostarch.AccessType) ([]memmap.Translation, error) {
	fileEnd := pageEnd(0, i.w.Attr().SizeBytes)
	var short error
	if required.End > fileEnd {
		if required.Start >= fileEnd {
			return nil, &memmap.BusError{Err: io.EOF}
		}
		required.End = fileEnd
		short = &memmap.BusError{Err: io.EOF}
	}
	m := i.opened().moving
	var ts []memmap.Translation
	var err error
	if at.Write || m.writablePages.Load() > 0 {
		ts, err = i.translateOwned(m, required, optional, fileEnd, at)
	} else {
		ahead := required
		ahead.End = max(required.End, min(optional.End, required.Start+translateAheadBytes, fileEnd))
		ts, err = i.translateRuns(m, required, ahead, hostarch.ReadExecute)
	}
	if len(ts) == 0 || ts[len(ts)-1].Source.End < required.End {
		if err == nil {
			err = io.EOF // the file was cut meanwhile
		}
		return ts, &memmap.BusError{Err: err}
	}
	return ts, short
}

// ahead is the range to take over for a fault: what is required, and more if
// the page before it is mapped, as then the guest goes on.
func (m *movable) ahead(required, optional memmap.MappableRange, fileEnd uint64) memmap.MappableRange {
	if required.Length() >= aheadBytes || required.Start == 0 {
		return required
	}
	m.mu.Lock()
	goesOn := m.held.FindSegment(required.Start - 1).Ok()
	m.mu.Unlock()
	if goesOn {
		required.End = max(required.End, min(required.Start+aheadBytes, optional.End, fileEnd))
	}
	return required
}

// translateOwned translates to pages of the file's own.
func (i *inode) translateOwned(m *movable, required, optional memmap.MappableRange, fileEnd uint64, at hostarch.AccessType) ([]memmap.Translation, error) {
	far := int64(max(required.End, min(optional.End, required.Start+translateAheadBytes, fileEnd)) - required.Start)
	var runs []Run
	var err error
	if !at.Write {
		if runs, err = i.w.MapForRead(int64(required.Start), far); err != nil {
			return nil, i.fs.answer("map inode", i.id, err)
		}
	}
	if at.Write || ownedEnd(runs) < required.End {
		i.releaseRuns(runs)
		// Also where all is owned: the file is about to be modified.
		own, err := i.takeOver(required, m.ahead(required, optional, fileEnd))
		if err != nil {
			return nil, err
		}
		defer i.releaseRuns(own)
		if runs, err = i.w.MapForRead(int64(required.Start), far); err != nil {
			return nil, i.fs.answer("map inode", i.id, err)
		}
	}
	n := 0
	for n < len(runs) && runs[n].Writable {
		n++
	}
	i.releaseRuns(runs[n:])
	// A page that was only read stays read-only, so that the first store tells
	// when the file was modified.
	perms := hostarch.ReadExecute
	if at.Write {
		perms = hostarch.AnyAccess
	}
	return i.translations(m, runs[:n], required, perms)
}

// ownedEnd is where the first byte lies that is not the file's own.
func ownedEnd(runs []Run) uint64 {
	end := uint64(0)
	for _, r := range runs {
		if !r.Writable {
			break
		}
		end = uint64(r.Off + r.Len)
	}
	return end
}

// takeOver makes pages the file's own: all that are ahead, or else what is
// required.
func (i *inode) takeOver(required, ahead memmap.MappableRange) ([]Run, error) {
	runs, err := i.w.MapForWrite(int64(ahead.Start), int64(ahead.Length()))
	if err != nil && ahead != required {
		runs, err = i.w.MapForWrite(int64(required.Start), int64(required.Length()))
	}
	if err != nil {
		return nil, i.fs.answer("map for writing inode", i.id, err)
	}
	return runs, nil
}

// translateRuns translates to wherever pages are.
func (i *inode) translateRuns(m *movable, required, ahead memmap.MappableRange, perms hostarch.AccessType) ([]memmap.Translation, error) {
	runs, err := i.w.MapForRead(int64(ahead.Start), int64(ahead.Length()))
	if err != nil {
		return nil, i.fs.answer("map inode", i.id, err)
	}
	return i.translations(m, runs, required, perms)
}

// translations makes translations of runs, of which it takes over the holds.
// Runs that begin behind what is required are left out: an answer must not have
// them.
func (i *inode) translations(m *movable, runs []Run, required memmap.MappableRange, perms hostarch.AccessType) ([]memmap.Translation, error) {
	ts := make([]memmap.Translation, 0, len(runs))
	for n := range runs {
		r := &runs[n]
		source := memmap.MappableRange{Start: uint64(r.Off), End: pageEnd(r.Off, r.Len)}
		if source.Start >= required.End {
			if r.File != nil {
				i.fs.w.ReleaseRun(r.VolumeOff, r.Len)
			}
			continue
		}
		if r.File != nil {
			m.hold(i.fs.w, r)
			ts = append(ts, memmap.Translation{Source: source, File: r.File, Offset: uint64(r.FileOff), Perms: perms})
			continue
		}
		for source.Start < min(source.End, required.End) {
			t, err := i.fs.copies.translateHole(i.fs.mf, source)
			if err != nil {
				i.releaseRuns(runs[n+1:])
				return ts, err
			}
			ts = append(ts, t)
			source.Start = t.Source.End
		}
		if source.Start < source.End {
			// The rest of a long hole is for other faults.
			i.releaseRuns(runs[n+1:])
			break
		}
	}
	return ts, nil
}

func (i *inode) releaseRuns(runs []Run) {
	for _, r := range runs {
		if r.File != nil {
			i.fs.w.ReleaseRun(r.VolumeOff, r.Len)
		}
	}
}
