// SPDX-License-Identifier: Apache-2.0

// Volumes for a sandbox: found or made, cloned, locked, and open as files that
// can be donated.

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

// Opened is a volume that is open and locked until Close, here and in whatever
// process its files were donated to.
type Opened struct {
	// Ref is the volume that was asked for: of a clone, its base.
	Ref
	// Files are the volume's, the lowest base first, and Paths where they are;
	// the last path of a volume that goes with its container is "".
	Files []*os.File
	Paths []string
	// Created says that the volume was made.
	Created bool
}

// Close closes the files. Copies of them elsewhere keep the locks.
func (o *Opened) Close() {
	for _, f := range o.Files {
		f.Close()
	}
}

// Plain reports whether it is one file of its own: no clone, and nothing that
// goes with its container. This is what is worth compacting: others clone it.
func (o *Opened) Plain() bool { return len(o.Files) == 1 && o.Paths[0] != "" }

// DiskBytes is what the file that is written takes on the host's disk.
func (o *Opened) DiskBytes() (int64, error) {
	fi, err := o.Files[len(o.Files)-1].Stat()
	if err != nil {
		return 0, err
	}
	return diskBytes(fi), nil
}

// Title is what messages call the volume that is written.
func (o *Opened) Title() string {
	if last := o.Paths[len(o.Paths)-1]; last != "" {
		return last
	}
	if o.Path == "" {
		return "anonymous volume"
	}
	return o.Path + " (clone)"
}

// Open opens what a user asked to be mounted. A volume that does not exist is
// made.
func (s *Store) Open(v *convert.VolumeMount) (*Opened, error) {
	if v.Source == "" {
		files, err := s.OpenUpper(v.SizeBytes)
		if err != nil {
			return nil, err
		}
		return &Opened{Files: files, Paths: []string{files[0].Name(), ""}, Created: true}, nil
	}
	r, err := s.Resolve(v.Source)
	if err != nil {
		return nil, err
	}
	switch v.Clone {
	case "":
		return s.openPlain(r, v)
	case convert.CloneEphemeral:
		return s.openEphemeral(r, v)
	}
	return s.openKept(r, v)
}

// openPlain opens the volume itself, or makes it.
func (s *Store) openPlain(r Ref, v *convert.VolumeMount) (*Opened, error) {
	access := device.ReadWrite
	if v.ReadOnly {
		access = device.ReadOnly
	}
	files, err := s.openChain(r, access)
	created := false
	if errors.Is(err, fs.ErrNotExist) && isMissing(r.Path) && !v.MustExist {
		err = s.Create(r, CreateOptions{SizeBytes: v.SizeBytes, Labels: v.Labels, Filesystem: ext4lite.MkfsOptions{RootUID: v.UID, RootGID: v.GID}})
		if created = err == nil; err == nil || api.KindOf(err) == api.KindExists {
			files, err = s.openChain(r, access)
		}
	}
	if err != nil {
		return nil, s.volumeError("open volume", r, err)
	}
	o := opened(r, files)
	o.Created = created
	if err = s.check(o, v, access); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// opened takes files as openChain gives them: the volume's own first.
func opened(r Ref, files []*os.File) *Opened {
	slices.Reverse(files)
	o := &Opened{Ref: r, Files: files}
	for _, f := range files {
		o.Paths = append(o.Paths, f.Name())
	}
	return o
}

// check refuses what could not be mounted, before a sandbox is started for it.
func (s *Store) check(o *Opened, v *convert.VolumeMount, access device.Access) error {
	if err := verify(o.Files); err != nil {
		return s.volumeError("open volume", o.Ref, err)
	}
	top := o.Files[len(o.Files)-1]
	if fi, err := top.Stat(); err == nil && len(o.Files) == 1 && fi.Size() < v.SizeBytes {
		return api.Errorf(api.KindInvalid, "open volume %s: it has %d bytes, size=%d is asked for: 'rungv volume resize' makes it larger", o.Ref, fi.Size(), v.SizeBytes)
	}
	if access == device.ReadOnly {
		return nil
	}
	if clones := s.rememberedClones(o.Path, true); len(clones) > 0 {
		return hasClones("open volume", o.Ref, clones)
	}
	return nil
}

// verify looks at the headers of a volume's files, the lowest base first.
func verify(files []*os.File) error {
	top := slices.Clone(files)
	slices.Reverse(top)
	if err := delta.Verify(top...); err != nil {
		return err
	}
	base := files[0]
	sum, err := ext4lite.Probe(base)
	if err != nil {
		return err
	}
	if fi, err := base.Stat(); err == nil && fi.Mode().IsRegular() && fi.Size() < sum.SizeBytes {
		return fmt.Errorf("the volume has %d bytes, its file %d: it was cut off: %w", sum.SizeBytes, fi.Size(), ext4lite.EUCLEAN)
	}
	return nil
}

// openChain opens and locks a volume's files, its own first. One in use is
// waited for a little: see lockWait.
func (s *Store) openChain(r Ref, access device.Access) ([]*os.File, error) {
	for end := time.Now().Add(lockWait); ; time.Sleep(lockStep) {
		files, err := delta.OpenChain(r.Path, access)
		if err == nil {
			if still(files) {
				return files, nil
			}
			closeAll(files) // removed or replaced while we waited for the lock
			continue
		}
		if !errors.Is(err, device.ErrLocked) || time.Now().After(end) {
			return nil, err
		}
	}
}

// still says whether the paths still lead to the files that were locked.
func still(files []*os.File) bool {
	for _, f := range files {
		open, err := f.Stat()
		if err != nil {
			return false
		}
		if named, err := os.Stat(f.Name()); err != nil || !os.SameFile(open, named) {
			return false
		}
	}
	return true
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// openEphemeral opens a clone that has no name.
func (s *Store) openEphemeral(r Ref, v *convert.VolumeMount) (*Opened, error) {
	base, err := s.openChain(r, device.ReadOnly)
	if err != nil {
		return nil, s.volumeError("clone volume", r, err)
	}
	f, err := s.unlinkedBeside(r.Path)
	if err != nil {
		closeAll(base)
		return nil, s.volumeError("clone volume", r, err)
	}
	if err = delta.CreateOn(f, "", r.Path, base...); err != nil {
		closeAll(base)
		f.Close()
		return nil, s.volumeError("clone volume", r, err)
	}
	o := opened(r, base)
	o.Files, o.Paths = append(o.Files, f), append(o.Paths, "")
	return o, nil
}

// unlinkedBeside makes a file without a name in a volume's directory, or in the
// store where that is not to be written: on the same disk if possible, which
// has room for a volume.
func (s *Store) unlinkedBeside(path string) (*os.File, error) {
	f, err := unlinked(filepath.Dir(path), "clone of "+filepath.Base(path))
	if err == nil || isNoSpace(err) {
		return f, err
	}
	dir, err := s.make()
	if err != nil {
		return nil, err
	}
	return unlinked(dir, "clone of "+filepath.Base(path))
}

// openKept opens a clone in a file, or makes it.
func (s *Store) openKept(base Ref, v *convert.VolumeMount) (*Opened, error) {
	r, err := s.Resolve(v.Clone)
	if err != nil {
		return nil, err
	}
	access := device.ReadWrite
	if v.ReadOnly {
		access = device.ReadOnly
	}
	created := false
	if isMissing(r.Path) {
		err := s.CloneDelta(base, r)
		if created = err == nil; err != nil && api.KindOf(err) != api.KindExists {
			return nil, err
		}
	}
	files, err := s.openChain(r, access)
	if err != nil {
		return nil, s.volumeError("open clone", r, err)
	}
	o := opened(base, files)
	o.Created = created
	if err = s.checkKept(o, r, access); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// checkKept refuses a clone of something else than the base.
func (s *Store) checkKept(o *Opened, clone Ref, access device.Access) error {
	if len(o.Files) < 2 {
		return api.Errorf(api.KindInvalid, "open clone %s: it is a volume of its own, not a clone of %s: mount it without clone=", clone, o.Ref)
	}
	below, err := o.Files[len(o.Files)-2].Stat()
	if err != nil {
		return s.volumeError("open clone", clone, err)
	}
	if named, err := os.Stat(o.Path); err != nil || !os.SameFile(below, named) {
		return api.Errorf(api.KindInvalid, "open clone %s: it is a clone of %s, not of %s", clone, o.Paths[len(o.Paths)-2], o.Ref)
	}
	if err := verify(o.Files); err != nil {
		return s.volumeError("open clone", clone, err)
	}
	if access == device.ReadOnly {
		return nil
	}
	if clones := s.rememberedClones(clone.Path, true); len(clones) > 0 {
		return hasClones("open clone", clone, clones)
	}
	return nil
}

// isMissing says that nothing has the path.
func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
