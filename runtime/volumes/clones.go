// SPDX-License-Identifier: Apache-2.0

// Clones that are kept: making them, and remembering who is the base of whom.

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"z.gfire.dev/gvx/ext4lite/delta"
	"z.gfire.dev/gvx/ext4lite/device"
	"z.gfire.dev/gvx/oci/convert"
)

const (
	dirClones = "clones"
	// maxClonePath bounds the note of a clone: a path.
	maxClonePath = 4096
	// maxScan bounds how many files of a directory are looked at for clones.
	maxScan = 10_000
	// keyBytes of a path's hash name its note.
	keyBytes = 16
	// sweepPrefix is how the name of every 256th note begins: with it, notes of what
	// has gone are removed. A program that removes its clones itself leaves no more.
	sweepPrefix = "00"
	// noteGrace is how old a note is when its clone must be there, if it is to be.
	noteGrace = time.Hour
)

// CloneDelta makes a clone of a volume in a file of its own, which must not
// exist. It takes the same time whatever the volume's size.
func (s *Store) CloneDelta(base, clone Ref) error {
	if clone.Name != "" {
		if _, err := s.make(); err != nil {
			return err
		}
	}
	files, err := s.openChain(base, device.ReadOnly)
	if err != nil {
		return s.volumeError("clone volume", base, err)
	}
	defer closeAll(files)
	// Remembered first, while the base is locked: see rememberedClones.
	s.remember(base.Path, clone.Path)
	err = newFile(clone.Path, false, func(f *os.File) error { return delta.CreateOn(f, clone.Path, base.Path, files...) })
	switch {
	case errors.Is(err, fs.ErrExist):
		return hostError("clone volume "+base.String(), err)
	case errors.Is(err, fs.ErrNotExist):
		return hostError("clone volume "+base.String()+": a directory is missing", err)
	}
	return s.volumeError("clone volume", base, err)
}

// remember notes a clone, so that its base is not changed. A store that cannot
// be written, or whose disk is full, goes without.
func (s *Store) remember(base, clone string) {
	key := pathKey(clone)
	note := func() (dir string, err error) {
		if dir, err = s.make(dirClones, pathKey(base)); err == nil {
			// In the place of one that forgetGone may be about to remove.
			err = replaceFile(filepath.Join(dir, key), []byte(clone))
		}
		return dir, err
	}
	dir, err := note()
	if errors.Is(err, fs.ErrNotExist) { // Somebody has just removed the directory, which was empty.
		dir, err = note()
	}
	if err != nil {
		s.warn("remember that %s is a clone of %s: %v: nothing will stop a change of its base", clone, base, err)
	}
	if strings.HasPrefix(key, sweepPrefix) {
		forgetGone(dir)
	}
}

// readNote reads the path in a note. What is none is not waited for, nor read.
func readNote(note string) (clone string, ok bool) {
	fi, err := os.Lstat(note)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxClonePath {
		return "", false
	}
	path, err := os.ReadFile(note)
	return string(path), err == nil && len(path) > 0
}

// forgetClone removes the note of a clone that is there and will not be. It returns the
// path of its base, "" if it has none.
func (s *Store) forgetClone(clone string) (base string) {
	f, err := device.OpenHost(clone, device.ReadOnly)
	if err != nil {
		return ""
	}
	defer f.Close()
	if !delta.IsDelta(f) {
		return ""
	}
	if base, err = delta.BaseOf(f, clone); err != nil {
		return ""
	}
	dir := filepath.Join(s.root, dirClones, pathKey(base))
	os.Remove(filepath.Join(dir, pathKey(clone)))
	os.Remove(dir) // If it was the last.
	return base
}

// pathKey is the name of a path's note: of the place that it leads to.
func pathKey(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:keyBytes])
}

// rememberedClones lists the good clones that this store knows of. With alone,
// the caller has the base's lock alone, so that nobody makes a clone of it: then
// notes whose clones are not there are about clones that are gone, and removed.
func (s *Store) rememberedClones(base string, alone bool) []string {
	dir := filepath.Join(s.root, dirClones)
	if isMissing(dir) {
		return nil
	}
	dir = filepath.Join(dir, pathKey(base))
	notes, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var clones []string
	for _, n := range notes {
		note := filepath.Join(dir, n.Name())
		path, ok := readNote(note)
		if !ok {
			continue
		}
		if isCloneOf(path, base) {
			clones = append(clones, path)
		} else if alone {
			os.Remove(note)
		}
	}
	if alone && len(clones) == 0 {
		os.Remove(dir)
	}
	return clones
}

// ForgetGone removes what is noted of clones whose files others have removed.
func (s *Store) ForgetGone() error {
	dir := filepath.Join(s.root, dirClones)
	bases, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostError("read "+dir, err)
	}
	for _, b := range bases {
		forgetGone(filepath.Join(dir, b.Name()))
	}
	return nil
}

// forgetGone removes the notes of a base's clones that are not there. A young one is
// of a clone that may be about to be made.
func forgetGone(dir string) {
	notes, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	if len(notes) == 0 && isOld(dir) {
		os.Remove(dir)
	}
	for _, n := range notes {
		note := filepath.Join(dir, n.Name())
		if !isOld(note) {
			continue
		}
		if path, ok := readNote(note); ok && isMissing(path) {
			forgetOld(note)
		}
	}
}

// isOld says that a note, or a directory of them, is older than noteGrace.
func isOld(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && time.Since(fi.ModTime()) > noteGrace
}

// forgetOld removes a note that was old when it was looked at. Another may have its
// name by now, of a clone that is being made: that one comes back, and is a note
// under its other name meanwhile.
func forgetOld(note string) {
	aside := note + "-old"
	if os.Rename(note, aside) != nil {
		return
	}
	if !isOld(aside) && os.Link(aside, note) != nil && isMissing(note) {
		return // It stays a note as it is.
	}
	os.Remove(aside)
}

// Clones lists the good clones of a volume: those that this store knows of, and
// those beside the base and in the store.
func (s *Store) Clones(base string) []string { return s.clones(base, false) }

// clones is Clones; alone as for rememberedClones.
func (s *Store) clones(base string, alone bool) []string {
	found := s.rememberedClones(base, alone)
	for _, dir := range []string{filepath.Dir(base), s.root} {
		d, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(maxScan)
		d.Close()
		for _, n := range names {
			path := filepath.Join(dir, n)
			if (strings.HasSuffix(n, convert.VolumeExt) || strings.HasSuffix(n, convert.DeltaExt)) && path != base && isCloneOf(path, base) {
				found = append(found, path)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// isCloneOf says whether a file is a clone of a base that did not change since,
// or that has a part of the clone already: only the clone can mend that.
func isCloneOf(path, base string) bool {
	files, err := peek(path)
	defer closeAll(files)
	if err != nil || len(files) < 2 {
		return false
	}
	below, err := files[1].Stat()
	if err != nil {
		return false
	}
	if named, err := os.Stat(base); err != nil || !os.SameFile(below, named) {
		return false
	}
	err = delta.Verify(files...)
	return err == nil || errors.Is(err, delta.ErrCommitCut)
}

// peek opens a volume's files, its own first, without locks: to look at headers.
func peek(path string) (files []*os.File, err error) {
	for range delta.MaxDepth + 1 {
		f, err := device.OpenHost(path, device.ReadOnly)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		if !delta.IsDelta(f) {
			return files, nil
		}
		if path, err = delta.BaseOf(f, path); err != nil {
			return files, err
		}
	}
	return files, nil
}
