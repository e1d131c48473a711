// SPDX-License-Identifier: Apache-2.0

// Volumes by open files: the launcher opens and locks, the sandbox, which opens
// nothing, is given the files.

package delta

import (
	"fmt"
	"io"
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
		if path, err = BaseOf(f, path); err != nil {
			return files, fmt.Errorf("open delta: %w", err)
		}
		access = device.ReadOnly
	}
}

// BaseOf tells which file the delta at a path was made on. It locks nothing.
func BaseOf(f io.ReaderAt, path string) (string, error) {
	h, err := readHeader(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if filepath.IsAbs(h.basePath) {
		return h.basePath, nil
	}
	return filepath.Join(filepath.Dir(path), h.basePath), nil
}

// Donated makes a device of the files that OpenChain gave. The device owns
// them and closes them, also when this fails.
func Donated(access device.Access, files ...*os.File) (device.Device, error) {
	d, err := build(access, files)
	if err != nil {
		for _, f := range files {
			f.Close()
		}
	}
	return d, err
}

// Verify tells whether the files that OpenChain gave make a volume: that bases
// are those the deltas were made on, and were closed. It reads headers only.
func Verify(files ...*os.File) error {
	_, err := build(device.ReadOnly, files)
	return err
}

// View makes a device of the files that OpenChain gave, for reading; the files
// stay the caller's, and the device is not to be closed.
func View(files ...*os.File) (device.Device, error) { return build(device.ReadOnly, files) }

// CreateOn makes a delta in an empty open file that has the name path or will
// have it, "" for none, on a base whose files OpenChain gave and which basePath
// names. All files stay the caller's.
func CreateOn(f *os.File, path, basePath string, base ...*os.File) error {
	if len(base) > MaxDepth {
		return fmt.Errorf("create delta on %s: more than %d deltas on one another: flatten it: %w", basePath, MaxDepth, errno.ELOOP)
	}
	b, err := build(device.ReadOnly, base)
	if err != nil {
		return fmt.Errorf("create delta: base: %w", err)
	}
	h, err := newHeader(b, basePath, path)
	if err != nil {
		return fmt.Errorf("create delta on %s: %w", basePath, err)
	}
	if err := h.begin(f); err != nil {
		return fmt.Errorf("create delta on %s: %w", basePath, err)
	}
	return nil
}

// build makes a device of files that stay the caller's if it fails.
func build(access device.Access, files []*os.File) (device.Device, error) {
	if len(files) == 0 || len(files) > MaxDepth+1 {
		return nil, fmt.Errorf("volume of %d files: %w", len(files), errno.EINVAL)
	}
	top, rest := files[0], files[1:]
	if !IsDelta(top) {
		if len(rest) > 0 {
			return nil, fmt.Errorf("%s is no delta, but comes with a base: %w", top.Name(), errno.EINVAL)
		}
		return device.Donated(top, access)
	}
	h, err := readHeader(top)
	if err == nil && h.flags&flagMerging != 0 {
		err = ErrCommitCut
	}
	if err != nil {
		return nil, fmt.Errorf("open delta %s: %w", top.Name(), err)
	}
	base, err := build(device.ReadOnly, rest)
	if err != nil {
		return nil, fmt.Errorf("base of %s: %w", top.Name(), err)
	}
	if err := h.matches(base); err != nil {
		return nil, fmt.Errorf("base of %s: %w", top.Name(), err)
	}
	return assemble(top, h, base, access)
}
