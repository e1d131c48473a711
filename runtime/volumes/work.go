// SPDX-License-Identifier: Apache-2.0

// What is done to a volume that no sandbox has.

package volumes

import (
	"os"
	"path/filepath"
	"slices"

	"z.gfire.dev/gvx/ext4lite"
	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/ext4lite/fsck"
	"z.gfire.dev/gvx/runtime/api"
)

// OpenFS opens a volume's files for a tool, as a sandbox would: locked. Writing
// is refused while the volume has clones.
func (s *Store) OpenFS(r Ref, write bool) (*ext4lite.FS, error) {
	access := device.ReadOnly
	if write {
		access = device.ReadWrite
	}
	files, err := s.openChain(r, access)
	if err != nil {
		return nil, s.volumeError("open volume", r, err)
	}
	dev, err := delta.Donated(access, files...)
	if err != nil {
		return nil, s.volumeError("open volume", r, err)
	}
	if _, err := ext4lite.Probe(dev); err != nil {
		dev.Close()
		return nil, s.volumeError("open volume", r, err)
	}
	if write { // Under the lock, which who makes a clone has too.
		if clones := s.rememberedClones(r.Path, true); len(clones) > 0 {
			dev.Close()
			return nil, hasClones("change volume", r, clones)
		}
	}
	fs, err := ext4lite.Open(dev, ext4lite.Options{ReadOnly: !write})
	if err != nil {
		dev.Close()
		return nil, s.volumeError("open volume", r, err)
	}
	if why := fs.ReadOnly(); write && why != nil {
		fs.Close()
		return nil, s.volumeError("change volume", r, why)
	}
	return fs, nil
}

// Compact gives back to the host all that a volume does not need, and closes
// it: what a prepared volume goes through before it is cloned.
func (s *Store) Compact(r Ref) (before, after int64, err error) {
	if fi, err := os.Stat(r.Path); err == nil {
		before = diskBytes(fi)
	}
	fs, err := s.OpenFS(r, true)
	if err != nil {
		return 0, 0, err
	}
	err = fs.Compact()
	if e := fs.Close(); err == nil {
		err = e
	}
	if err != nil {
		return 0, 0, s.volumeError("compact volume", r, err)
	}
	if fi, err := os.Stat(r.Path); err == nil {
		after = diskBytes(fi)
	}
	return before, after, nil
}

// Resize makes a volume larger.
func (s *Store) Resize(r Ref, sizeBytes int64) error {
	in, err := s.Inspect(r)
	if err != nil {
		return err
	}
	switch {
	case len(in.Bases) > 0:
		return api.Errorf(api.KindUnsupported, "resize volume %s: a clone is as large as its base: 'rungv volume flatten %s' makes it a volume of its own", r, r)
	case in.Summary == nil:
		return api.Errorf(api.KindInvalid, "resize volume %s: %s", r, in.Problem)
	case sizeBytes < in.Summary.SizeBytes:
		return api.Errorf(api.KindUnsupported, "resize volume %s: it has %d bytes, %d are asked for: volumes are not made smaller: what is in it may lie anywhere, and being sparse it costs the host only what is in it ('rungv volume compact' gives back the rest)", r, in.Summary.SizeBytes, sizeBytes)
	}
	// Before the volume is opened, which is a change already.
	if clones := s.Clones(r.Path); len(clones) > 0 {
		return hasClones("resize volume", r, clones)
	}
	fs, err := s.OpenFS(r, true)
	if err != nil {
		return err
	}
	err = fs.Grow(sizeBytes)
	if e := fs.Close(); err == nil {
		err = e
	}
	return s.argumentError("resize volume", r, err)
}

// Commit writes what a clone changed into its base, and removes the clone. The
// base must have no other one.
func (s *Store) Commit(r Ref, report Progress) (base Ref, err error) {
	in, err := s.Inspect(r)
	if err != nil {
		return Ref{}, err
	}
	if len(in.Bases) == 0 {
		return Ref{}, api.Errorf(api.KindInvalid, "commit volume %s: it is a plain volume, it has no base", r)
	}
	if base, err = s.Resolve(in.Bases[0]); err != nil {
		return Ref{}, err
	}
	var locked [2]*device.File
	for k, v := range []Ref{r, base} {
		if locked[k], err = s.lockWhole(v); err != nil {
			return base, s.volumeError("commit volume "+r.String()+": open", v, err)
		}
		defer locked[k].Close()
	}
	// Nobody makes a clone of either now.
	if clones := s.clones(r.Path, true); len(clones) > 0 {
		return base, hasClones("commit volume", r, clones)
	}
	others := slices.DeleteFunc(s.clones(base.Path, true), func(c string) bool { return samePath(c, r.Path) })
	if len(others) > 0 {
		return base, hasClones("commit volume "+r.String()+" into", base, others)
	}
	if err := delta.CommitOpen(locked[0], locked[1], r.Path, delta.Progress(report)); err != nil {
		return base, s.volumeError("commit volume", r, err)
	}
	s.forget(r)
	return base, nil
}

// forget removes what the store noted about a volume that is gone.
func (s *Store) forget(r Ref) {
	if r.Name != "" {
		_ = os.Remove(s.labelsPath(r.Name))
	}
	_ = os.RemoveAll(filepath.Join(s.root, dirClones, pathKey(r.Path)))
}

// Remove removes a volume that nobody has and nobody was cloned from. It
// returns what the host got back.
func (s *Store) Remove(r Ref) (freed int64, err error) {
	fi, err := os.Lstat(r.Path)
	if err != nil {
		return 0, s.volumeError("remove volume", r, err)
	}
	if !fi.Mode().IsRegular() {
		return 0, api.Errorf(api.KindInvalid, "remove volume %s: it is no file", r)
	}
	lock, err := s.lockWhole(r)
	if err != nil {
		return 0, s.volumeError("remove volume", r, err)
	}
	defer lock.Close()
	if clones := s.clones(r.Path, true); len(clones) > 0 { // Under the lock, which who makes one has too.
		return 0, hasClones("remove volume", r, clones)
	}
	// The note goes first: behind the file's removal it may be that of a new clone.
	base := s.forgetClone(r.Path)
	if err := os.Remove(r.Path); err != nil {
		if base != "" {
			s.remember(base, r.Path)
		}
		return 0, s.volumeError("remove volume", r, err)
	}
	s.forget(r)
	return diskBytes(fi), nil
}

// Check looks for damage. A volume that was not closed is not looked at; with
// replay it is closed first, which replayed reports.
func (s *Store) Check(r Ref, replay bool) (report *fsck.Report, replayed bool, err error) {
	dev, err := s.openDevice(r)
	if err != nil {
		return nil, false, err
	}
	if sum, e := ext4lite.Probe(dev); e == nil && sum.InUse && replay {
		dev.Close()
		if err := s.replay(r); err != nil {
			return nil, false, err
		}
		replayed = true
		if dev, err = s.openDevice(r); err != nil {
			return nil, replayed, err
		}
	}
	defer dev.Close()
	if report, err = fsck.Check(dev); err != nil {
		return report, replayed, s.volumeError("check volume", r, err)
	}
	return report, replayed, nil
}

// openDevice opens a volume's bytes, to look at them.
func (s *Store) openDevice(r Ref) (device.Device, error) {
	files, err := s.openChain(r, device.ReadOnly)
	if err != nil {
		return nil, s.volumeError("check volume", r, err)
	}
	dev, err := delta.Donated(device.ReadOnly, files...)
	return dev, s.volumeError("check volume", r, err)
}

// replay opens a volume for writing and closes it.
func (s *Store) replay(r Ref) error {
	fs, err := s.OpenFS(r, true)
	if err != nil {
		return err
	}
	return s.volumeError("replay the journal of volume", r, fs.Close())
}
