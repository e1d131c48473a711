// SPDX-License-Identifier: Apache-2.0

// A file's extents, for tools and measurements.

package ext4lite

// Extent is a run of a file's bytes and where it lies in the volume.
type Extent struct {
	Off, Len  int64
	Volume    int64
	Unwritten bool // reads as zero
}

// Extents lists what is mapped in [off, off+n). The first and last may reach
// beyond.
func (i *Inode) Extents(off, n int64) ([]Extent, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if err := i.regular("list extents of"); err != nil {
		return nil, err
	}
	if off < 0 || n < 0 {
		return nil, fail("list extents of", i.ino, EINVAL)
	}
	bs := int64(i.fs.g.BlockSize)
	end := min(off+n, i.fs.maxSize())
	var out []Extent
	for at := off / bs; at*bs < end; {
		e, ok, err := i.find(uint32(at))
		if err != nil {
			return nil, fail("list extents of", i.ino, err)
		}
		if ok {
			out = append(out, Extent{Off: int64(e.Logical) * bs, Len: int64(e.Len) * bs, Volume: int64(e.Physical) * bs, Unwritten: e.Unwritten})
		}
		at = int64(e.End())
	}
	return out, nil
}
