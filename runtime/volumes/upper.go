// SPDX-License-Identifier: Apache-2.0

// Writable layers: volumes that go with their sandbox, at the cost of a few
// system calls.
//
// Making a volume takes milliseconds, so an empty one of each size is made once
// and kept, up to a number of sizes. A writable layer is a delta on it, in a file
// without a name.

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	dirEmpty = "empty"
	// minUpperBytes is what a volume needs for itself.
	minUpperBytes = 8 << 20
	// upperBytesPerIno is how much of a small writable layer there is for each
	// inode: programs of many small files are to run out of bytes first, and an
	// overlay leaves a whiteout for each name of a lower layer that is removed.
	upperBytesPerIno = 4096
	smallUpperBytes  = 16 << 30
	// maxEmpties bounds how many sizes have an empty volume, some 300 KB each on the
	// disk: whoever asks for a size of its own each time leaves no more than these.
	maxEmpties = 32
)

// OpenUpper makes an empty volume that has no name, of a size or of the default
// one. Its files are the empty volume it is a clone of, and its own.
func (s *Store) OpenUpper(sizeBytes int64) ([]*os.File, error) {
	if sizeBytes == 0 {
		sizeBytes = DefaultSizeBytes
	}
	// Whole blocks: the file's length is the volume's.
	sizeBytes = max(sizeBytes-sizeBytes%delta.BlockSize, minUpperBytes)
	template := Ref{Path: filepath.Join(s.root, dirEmpty, strconv.FormatInt(sizeBytes, 10)+convert.VolumeExt)}
	files, err := s.cloneEmpty(template)
	// Twice: who makes many sizes may have just removed it.
	for tries := 0; err != nil && tries < 2; tries++ {
		if !isMissing(template.Path) {
			if !isDamaged(template.Path) {
				break
			}
			// Sandboxes that have it keep it.
			if err := os.Remove(template.Path); err != nil {
				return nil, upperError(template, err)
			}
		}
		if err := s.makeEmpty(template, sizeBytes); err != nil {
			return nil, err
		}
		files, err = s.cloneEmpty(template)
	}
	if err != nil {
		return nil, upperError(template, err)
	}
	return files, nil
}

// cloneEmpty makes a delta on the empty volume.
func (s *Store) cloneEmpty(template Ref) ([]*os.File, error) {
	base, err := device.OpenFile(template.Path, device.ReadOnly)
	if err != nil {
		return nil, err
	}
	f, err := unlinked(filepath.Dir(template.Path), "writable layer")
	if err != nil {
		base.Close()
		return nil, err
	}
	if err := delta.CreateOn(f, "", template.Path, base.Host()); err != nil {
		base.Close()
		f.Close()
		return nil, err
	}
	return []*os.File{base.Host(), f}, nil
}

// isDamaged tells a file that is no volume.
func isDamaged(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = ext4lite.Probe(f)
	return err != nil
}

// makeEmpty makes the empty volume of a size. Several may try at once.
func (s *Store) makeEmpty(template Ref, sizeBytes int64) error {
	if _, err := s.make(dirEmpty); err != nil {
		return upperError(template, err)
	}
	err := newFile(template.Path, true, func(f *os.File) error {
		o := CreateOptions{SizeBytes: sizeBytes}
		if sizeBytes <= smallUpperBytes {
			o.Filesystem.BytesPerIno = upperBytesPerIno
		}
		if err := format(f, o); err != nil {
			return err
		}
		return f.Chmod(0o400)
	})
	if err != nil && !os.IsExist(err) {
		return upperError(template, fmt.Errorf("make an empty volume of %d bytes: %w", sizeBytes, err))
	}
	s.pruneEmpties(template)
	return nil
}

// pruneEmpties removes the oldest empty volumes above their number, but not the one
// that was just made. Who has one open keeps it. That one cannot be removed is no
// reason to go without a writable layer.
func (s *Store) pruneEmpties(keep Ref) {
	dir := filepath.Dir(keep.Path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.warn("bound the empty volumes: %v", err)
	}
	var old []fs.FileInfo
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() || !strings.HasSuffix(e.Name(), convert.VolumeExt) || e.Name() == filepath.Base(keep.Path) {
			continue // It has gone, is somebody's who is making it, or is none of ours.
		}
		old = append(old, fi)
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, fi := range old[:max(0, len(old)+1-maxEmpties)] {
		if err := os.Remove(filepath.Join(dir, fi.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.warn("bound the empty volumes: %v", err)
		}
	}
}

// upperError says what to do where there is no place for a writable layer.
func upperError(template Ref, err error) error {
	kind := api.KindOf(err)
	switch {
	case isNoSpace(err):
		kind = api.KindNoSpace
	case errors.Is(err, fs.ErrPermission):
		kind = api.KindPermission
	}
	return api.Errorf(kind, "make the container's writable layer in %s: %w: make room there, or choose another place with --root", filepath.Dir(template.Path), err)
}
