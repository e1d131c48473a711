// SPDX-License-Identifier: Apache-2.0

// Volumes by open files: the launcher opens and locks, the sandbox, which opens
// nothing, is given the files.

package delta

import (
	"fmt"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/errno"
)

// OpenChain opens and locks all files of a volume: the volume's own first, as
// access says, then its bases for reading, if it is a delta. The locks belong
// to the open files and go with them to whom they are given.
func OpenChain(path string, access device.Access) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	for depth := 0; ; depth++ {
		if depth > MaxDepth {
			return files, fmt.Errorf("open volume: more than %d deltas on one another: %w", MaxDepth, errno.ELOOP)
		}
		d, err := device.OpenFile(path, access)
		if err != nil {
			return files, fmt.Errorf("open volume: %w", err)
		}
		f := d.Host()
		files = append(files, f)
		if !IsDelta(f) {
			return files, nil
		}
		h, err := readHeader(f)
		if err != nil {
			return files, fmt.Errorf("open delta %s: %w", path, err)
		}
		if filepath.IsAbs(h.basePath) {
			path = h.basePath
		} else {
			path = filepath.Join(filepath.Dir(path), h.basePath)
		}
		access = device.ReadOnly
	}
}

// Donated makes a device of the files that OpenChain gave. The device owns
// them and closes them, also when this fails.
func Donated(access device.Access, files ...*os.File) (device.Device, error) {
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	if len(files) == 0 || len(files) > MaxDepth+1 {
		closeAll()
		return nil, fmt.Errorf("volume of %d files: %w", len(files), errno.EINVAL)
	}
	top, rest := files[0], files[1:]
	if !IsDelta(top) {
		if len(rest) > 0 {
			closeAll()
			return nil, fmt.Errorf("%s is no delta, but comes with a base: %w", top.Name(), errno.EINVAL)
		}
		return device.Donated(top, access)
	}
	h, err := readHeader(top)
	if err == nil && h.flags&flagMerging != 0 {
		err = fmt.Errorf("a commit into its base was cut short: commit again: %w", errno.EBUSY)
	}
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("open delta %s: %w", top.Name(), err)
	}
	base, err := Donated(device.ReadOnly, rest...)
	if err != nil {
		top.Close()
		return nil, fmt.Errorf("base of %s: %w", top.Name(), err)
	}
	if err := h.matches(base); err != nil {
		top.Close()
		base.Close()
		return nil, fmt.Errorf("base of %s: %w", top.Name(), err)
	}
	return assemble(top, h, base, access)
}
