// SPDX-License-Identifier: Apache-2.0

// The way out of a delta into a plain volume.

package delta

import (
	"errors"
	"fmt"
	"io"
	"os"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
)

// Progress is told how much of a copy is done.
type Progress func(done, total int64)

const copyChunk = 1 << 20

// Copy copies a device to another that reads as zero. Runs of zeros stay
// holes.
func Copy(dst, src device.Device, report Progress) error {
	size := src.Size()
	buf := make([]byte, copyChunk)
	for off := int64(0); off < size; {
		next, err := nextData(src, off)
		if err != nil {
			return fmt.Errorf("copy volume: %w", err)
		}
		if off = next; off >= size {
			break
		}
		p := buf[:min(copyChunk, size-off)]
		if n, err := src.ReadAt(p, off); err != nil && !(errors.Is(err, io.EOF) && n == len(p)) {
			return fmt.Errorf("copy volume: read at %d: %w", off, err)
		}
		for at := 0; at < len(p); at += BlockSize {
			b := p[at:min(at+BlockSize, len(p))]
			if zero(b) {
				continue
			}
			if _, err := dst.WriteAt(b, off+int64(at)); err != nil {
				return fmt.Errorf("copy volume: write at %d: %w", off, err)
			}
		}
		if off += int64(len(p)); report != nil {
			report(min(off, size), size)
		}
	}
	if report != nil {
		report(size, size)
	}
	return nil
}

// nextData skips what a device knows to be a hole.
func nextData(d device.Device, off int64) (int64, error) {
	if s, ok := d.(device.Skipper); ok {
		return s.NextData(off)
	}
	return off, nil
}

// NextData gives the first offset from off on that may hold anything but
// zeros.
func (d *Delta) NextData(off int64) (int64, error) {
	// What the delta holds is taken as data; holes are the base's to know.
	for off < d.h.size {
		here, err := d.has(off / BlockSize)
		if err != nil || here {
			return off, err
		}
		next, err := nextData(d.base, off)
		if err != nil {
			return 0, err
		}
		if next == off {
			return off, nil
		}
		// Somewhere before next the delta may hold a block.
		for at := off; at < next; at = (at/BlockSize + 1) * BlockSize {
			if here, err := d.has(at / BlockSize); err != nil || here {
				return at, err
			}
		}
		off = next
	}
	return d.h.size, nil
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// Flatten writes what a volume, plain or delta, holds to a new plain file.
func Flatten(path, to string, report Progress) error {
	src, err := OpenAny(path, device.ReadOnly)
	if err != nil {
		return fmt.Errorf("flatten: %w", err)
	}
	defer src.Close()
	dst, err := device.CreateFile(to, src.Size())
	if err != nil {
		return fmt.Errorf("flatten: %w", err)
	}
	if err = Copy(dst, src, report); err == nil {
		err = dst.Sync()
	}
	if e := dst.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(to)
		return fmt.Errorf("flatten %s: %w", path, err)
	}
	return nil
}

// Rebase would put a delta on another base. It is refused: which of its blocks
// would still be right depends on what differs between the two bases.
func Rebase(path, base string) error {
	return fmt.Errorf("rebase %s on %s: the delta's blocks make sense on its own base only: "+
		"flatten it, or copy its files: %w", path, base, errno.EOPNOTSUPP)
}
