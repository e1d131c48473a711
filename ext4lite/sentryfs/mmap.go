// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sentryfs

import (
	"io"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// maxTranslations bounds one answer of Translate. Only a forged file, mapped by
// a guest that populates a huge mapping of it, comes near: holes give one
// translation per zeroRunBytes, real files one per extent.
const maxTranslations = 1 << 16

// pageMask has the bits of an offset inside its page.
const pageMask = hostarch.PageSize - 1

func pageDown(off int64) int64 { return off &^ pageMask }
func pageUp(off int64) int64   { return (off + pageMask) &^ pageMask }

var _ memmap.Mappable = (*inode)(nil)

// AddMapping implements memmap.Mappable.
func (i *inode) AddMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, off uint64, writable bool) error {
	o := i.opened()
	o.mapsMu.Lock()
	defer o.mapsMu.Unlock()
	if o.moving != nil {
		i.addMovable(o, ms, ar, off, writable)
	} else {
		o.mappings.AddMapping(ms, ar, off, writable)
	}
	return nil
}

// RemoveMapping implements memmap.Mappable.
func (i *inode) RemoveMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, off uint64, writable bool) {
	o := i.opened()
	o.mapsMu.Lock()
	defer o.mapsMu.Unlock()
	if o.moving != nil {
		i.removeMovable(o, ms, ar, off, writable)
		return
	}
	o.mappings.RemoveMapping(ms, ar, off, writable)
	if o.mappings.IsEmpty() && i.fs.copies.wantsBack() {
		// No mapping, so no translation that could still point to them.
		i.dropCopied()
	}
}

// CopyMapping implements memmap.Mappable.
func (i *inode) CopyMapping(ctx context.Context, ms memmap.MappingSpace, srcAR, dstAR hostarch.AddrRange, off uint64, writable bool) error {
	return i.AddMapping(ctx, ms, dstAR, off, writable)
}

// InvalidateUnsavable implements memmap.Mappable. A checkpoint has no pages of
// host files, nor copies that can be made again.
func (i *inode) InvalidateUnsavable(context.Context) error {
	o := i.opened()
	o.mapsMu.Lock()
	defer o.mapsMu.Unlock()
	o.mappings.InvalidateAll(memmap.InvalidateOpts{})
	i.dropCopied()
	return nil
}

// Translate implements memmap.Mappable.
func (i *inode) Translate(ctx context.Context, required, optional memmap.MappableRange, at hostarch.AccessType) ([]memmap.Translation, error) {
	if i.w != nil {
		return i.translateMovable(ctx, required, optional, at)
	}
	if at.Write {
		// Private mappings copy on write; a shared one needs a file that
		// was opened for writing.
		return nil, &memmap.BusError{Err: linuxerr.EROFS}
	}
	fileEnd := uint64(pageUp(i.fixed.SizeBytes))
	var short error
	if required.End > fileEnd {
		if required.Start >= fileEnd {
			return nil, &memmap.BusError{Err: io.EOF}
		}
		required.End = fileEnd
		short = &memmap.BusError{Err: io.EOF}
	}
	optional.End = min(optional.End, fileEnd)

	var ts []memmap.Translation
	for off := required.Start; off < required.End; off = ts[len(ts)-1].Source.End {
		if len(ts) == maxTranslations {
			return ts, linuxerr.ENOMEM
		}
		t, err := i.translateAt(ctx, off, required, optional)
		if err != nil {
			return ts, &memmap.BusError{Err: err}
		}
		ts = append(ts, t)
		// What comes next begins where this one ends.
		optional.Start = t.Source.End
	}
	return ts, short
}

// translateAt translates the page at off, and as much around it, inside
// optional, as is found in the same place.
func (i *inode) translateAt(ctx context.Context, off uint64, required, optional memmap.MappableRange) (memmap.Translation, error) {
	e, err := i.extent(int64(off))
	if err != nil {
		return memmap.Translation{}, err
	}
	// The whole pages of the extent. The last page of the file counts as one,
	// if the bytes behind the file's end may be seen.
	whole := memmap.MappableRange{Start: uint64(pageUp(e.Off)), End: uint64(pageDown(e.end()))}
	if e.end() == i.fixed.SizeBytes && int64(whole.End) < e.end() && i.tailMappable(e, int64(required.End) > int64(whole.End)) {
		whole.End += hostarch.PageSize
	}
	aligned := e.File == nil || (e.FileOff-e.Off)&pageMask == 0
	if !aligned || off < whole.Start || off >= whole.End {
		return i.translateCopied(ctx, off, uint64(pageUp(e.end())), optional)
	}
	source := whole.Intersect(optional)
	if e.File == nil {
		return i.fs.copies.translateHole(i.fs.mf, memmap.MappableRange{Start: off, End: source.End})
	}
	return memmap.Translation{
		Source: source,
		File:   e.File,
		Offset: uint64(e.FileOff - e.Off + int64(source.Start)),
		Perms:  hostarch.ReadExecute,
	}, nil
}

// tailMappable reports whether the page with the file's last byte may be mapped
// as it is in the volume: POSIX wants zeros behind the end, and an image can
// have anything there. Unless the page is needed now, it is only mapped if it
// is known to be fine, since looking means reading it.
//
// Preconditions: e ends where the file does, inside a page.
func (i *inode) tailMappable(e Extent, needed bool) bool {
	if e.File == nil {
		return true
	}
	o := i.opened()
	if o.tailZero.Load() {
		return true
	}
	if !needed {
		return false
	}
	end := e.FileOff + e.Len
	if !e.File.zeroBetween(end, pageUp(end)) {
		return false
	}
	o.tailZero.Store(true)
	return true
}
