// SPDX-License-Identifier: Apache-2.0

// New volumes.

package volumes

import (
	"errors"
	"io/fs"
	"os"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/device"
)

// CreateOptions are what a volume is made with. Zero values are defaults.
type CreateOptions struct {
	SizeBytes  int64
	Filesystem ext4lite.MkfsOptions // but for its size
	Labels     map[string]string
}

// Create makes a volume, which must not exist: KindExists otherwise.
func (s *Store) Create(r Ref, o CreateOptions) error {
	if r.Name != "" {
		if _, err := s.make(); err != nil {
			return err
		}
	}
	err := newFile(r.Path, true, func(f *os.File) error { return format(f, o) })
	switch {
	case errors.Is(err, fs.ErrExist):
		return hostError("create volume "+r.String(), err)
	case errors.Is(err, fs.ErrNotExist):
		return hostError("create volume "+r.String()+": its directory is missing", err)
	case err != nil:
		return s.argumentError("create volume", r, err)
	}
	if r.Name == "" {
		return nil
	}
	return s.writeLabels(r.Name, o.Labels)
}

// format makes an empty volume in an empty file, which stays the caller's.
func format(f *os.File, o CreateOptions) error {
	size := o.SizeBytes
	if size == 0 {
		size = DefaultSizeBytes
	}
	d, err := device.Donated(f, device.ReadWrite)
	if err == nil {
		err = d.Truncate(size)
	}
	if err != nil {
		return err
	}
	m := o.Filesystem
	// Programs expect a new volume to be empty: databases refuse it otherwise.
	m.Size, m.NoLostFound = size, true
	return ext4lite.Mkfs(d, m)
}
