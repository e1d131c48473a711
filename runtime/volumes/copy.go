// SPDX-License-Identifier: Apache-2.0

// Copies of volumes: by sharing the host's blocks, or by reading and writing.

package volumes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/runtime/api"
)

// Progress is told how much of a copy is done.
type Progress func(done, total int64)

// Reflink makes a copy that shares all blocks with the original, where the
// host's file system can.
func (s *Store) Reflink(from, to Ref) error {
	return s.copyTo("reflink volume", from, to, func(f *os.File, files []*os.File) error {
		if len(files) > 1 {
			return api.Errorf(api.KindUnsupported, "reflink volume %s: it is a clone of %s: clone it with --delta, or --copy for a plain volume", from, files[1].Name())
		}
		err := device.Reflink(f, files[0])
		if errors.Is(err, errors.ErrUnsupported) {
			return api.Errorf(api.KindUnsupported, "reflink volume %s to %s: the file system of %s shares no blocks between files (XFS and Btrfs do, within one file system): use --delta, which is as fast and shares memory too, or --copy", from, to, filepath.Dir(to.Path))
		}
		return err
	})
}

// Copy makes a plain volume of all that another holds, bases included.
func (s *Store) Copy(from, to Ref, report Progress) error {
	return s.copyTo("copy volume", from, to, func(f *os.File, files []*os.File) error {
		src, err := delta.View(files...)
		if err != nil {
			return err
		}
		return fill(f, src, report)
	})
}

// copyTo makes a new file out of a volume that nobody writes meanwhile.
func (s *Store) copyTo(op string, from, to Ref, do func(f *os.File, files []*os.File) error) error {
	if to.Name != "" {
		if _, err := s.make(); err != nil {
			return err
		}
	}
	files, err := s.openChain(from, device.ReadOnly)
	if err != nil {
		return s.volumeError(op, from, err)
	}
	defer closeAll(files)
	err = newFile(to.Path, true, func(f *os.File) error { return do(f, files) })
	switch {
	case errors.Is(err, os.ErrExist):
		return hostError(op+" "+from.String(), err)
	case errors.Is(err, os.ErrNotExist):
		return hostError(op+" "+from.String()+": a directory is missing", err)
	}
	return s.volumeError(op, from, err)
}

// fill writes what a device holds into an empty file.
func fill(f *os.File, src device.Device, report Progress) error {
	dst, err := device.Donated(f, device.ReadWrite)
	if err == nil {
		err = dst.Truncate(src.Size())
	}
	if err != nil {
		return err
	}
	return delta.Copy(dst, src, delta.Progress(report))
}

// Flatten makes a plain volume of a clone, in its place: it no longer needs its
// base.
func (s *Store) Flatten(r Ref, report Progress) error {
	files, err := s.openChain(r, device.ReadWrite)
	if err != nil {
		return s.volumeError("flatten volume", r, err)
	}
	defer closeAll(files)
	if len(files) == 1 {
		return api.Errorf(api.KindState, "flatten volume %s: it is a plain volume already", r)
	}
	if clones := s.clones(r.Path, true); len(clones) > 0 {
		return hasClones("flatten volume", r, clones)
	}
	src, err := delta.View(files...)
	if err != nil {
		return s.volumeError("flatten volume", r, err)
	}
	temp := filepath.Join(filepath.Dir(r.Path), tempPrefix+rand.Text())
	defer os.Remove(temp)
	err = newFile(temp, true, func(f *os.File) error {
		if fi, err := files[0].Stat(); err == nil {
			if err := f.Chmod(fi.Mode().Perm()); err != nil {
				return fmt.Errorf("set its mode: %w", err)
			}
		}
		return fill(f, src, report)
	})
	if err == nil {
		// Still locked: nobody has written the clone since it was read.
		err = os.Rename(temp, r.Path)
	}
	if err == nil {
		// Its base may be gone from now on.
		err = syncName(r.Path, true)
	}
	return s.volumeError("flatten volume", r, err)
}
