// SPDX-License-Identifier: Apache-2.0

// What is known of volumes, without opening them: nothing here takes a lock, so
// nobody is disturbed.

package volumes

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/convert"
)

// Info is what is known of a volume.
type Info struct {
	Ref
	Labels  map[string]string
	Created time.Time
	// SizeBytes is the volume's size, DiskBytes what its file takes on the host.
	SizeBytes, DiskBytes int64
	// Bases are the files below a delta, the nearest first.
	Bases []string
	// Summary is what the superblock says; nil where it cannot be read.
	Summary *ext4lite.Summary
	// Problem says what is wrong with the volume, "" if nothing was seen.
	Problem string
}

// Exists reports whether something has the volume's path.
func (r Ref) Exists() bool { return !isMissing(r.Path) }

// Inspect tells what is known of a volume. One that is damaged has a Problem.
func (s *Store) Inspect(r Ref) (*Info, error) {
	fi, err := os.Stat(r.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noSuchVolume(r)
	}
	if err != nil {
		return nil, s.volumeError("inspect volume", r, err)
	}
	in := &Info{Ref: r, Created: birthTime(r.Path, fi), SizeBytes: fi.Size(), DiskBytes: diskBytes(fi)}
	if r.Name != "" {
		if in.Labels, err = s.readLabels(r.Name); err != nil {
			s.warn("%v", err)
		}
	}
	if err := in.look(); err != nil {
		in.Problem = err.Error()
	}
	return in, nil
}

// look reads headers and superblock.
func (in *Info) look() error {
	files, err := peek(in.Path)
	for _, f := range files[min(1, len(files)):] {
		in.Bases = append(in.Bases, f.Name())
	}
	if err != nil {
		if len(files) > 0 {
			if base, e := delta.BaseOf(files[len(files)-1], files[len(files)-1].Name()); e == nil {
				in.Bases = append(in.Bases, base) // named, though it cannot be opened
			}
		}
		closeAll(files)
		return err
	}
	d, err := delta.Donated(device.ReadOnly, files...) // closes them
	if err != nil {
		return err
	}
	defer d.Close()
	sum, err := ext4lite.Probe(d)
	if err != nil {
		return err
	}
	in.Summary, in.SizeBytes = &sum, d.Size()
	return nil
}

// List returns the store's volumes by name.
func (s *Store) List() ([]*Info, error) {
	names, err := s.names()
	if err != nil {
		return nil, hostError("list volumes", err)
	}
	var list []*Info
	for _, name := range names {
		in, err := s.Inspect(Ref{Name: name, Path: s.file(name)})
		if err != nil {
			continue // removed meanwhile
		}
		list = append(list, in)
	}
	return list, nil
}

// Names lists the store's volumes and is cheaper than List.
func (s *Store) Names() []string {
	names, err := s.names()
	if err != nil {
		s.warn("list volumes: %v", err)
	}
	return names
}

// names are those of the store's volumes, in order; none where there is no
// store yet.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), convert.VolumeExt); ok && convert.CheckVolumeName(name) == nil {
			names = append(names, name)
		}
	}
	return names, err
}
