// SPDX-License-Identifier: Apache-2.0

// Damaged records: one that cannot be read takes no other image away, is told
// to the user, and can be removed.

package images

import (
	"errors"

	"z.gfire.dev/gvx/runtime/api"
)

// passOver tells the user about a record that is left out.
func (s *Store) passOver(path string, err error) { s.warnOnce(path, "%v", err) }

// warnOnce is Options.Warn, once for each key: one verb may read a record
// several times.
func (s *Store) warnOnce(key, format string, args ...any) {
	if s.opt.Warn == nil {
		return
	}
	s.warnedMu.Lock()
	known := s.warned[key]
	if s.warned == nil {
		s.warned = map[string]bool{}
	}
	s.warned[key] = true
	s.warnedMu.Unlock()
	if !known {
		s.opt.Warn(format, args...)
	}
}

// removeDamaged is Remove of what [Store.Get] cannot read: the name alone if
// it is the damaged one, or else the image with all its names.
// Preconditions: the store lock is held.
func (s *Store) removeDamaged(ref string) (*Removed, error) {
	out := &Removed{}
	h, _, err := s.find(ref)
	if api.KindOf(err) == api.KindImage {
		name, err := NormalizeName(ref)
		if err != nil {
			return nil, err
		}
		if err := s.untag([]string{name}, out); err != nil {
			return out, err
		}
		return out, s.collect(out)
	}
	if err != nil {
		return nil, err
	}
	record, err := s.lockRecord(h.digest(), true)
	if err != nil {
		return nil, err
	}
	if record != nil {
		defer record.Close()
	}
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range refs {
		if r.Image == h.digest() {
			names = append(names, r.Name)
		}
	}
	if err := s.untag(names, out); err != nil {
		return out, err
	}
	if err := s.deleteImage(h.digest(), out); err != nil {
		return out, err
	}
	return out, s.collect(out)
}

// pruneDamaged removes damaged records that no sandbox uses, damaged names, and
// names that lead to no record, which is what a record removed by hand leaves.
// What could not even be read stays: it may be whole.
// Preconditions: the store lock is held.
func (s *Store) pruneDamaged(out *Removed) error {
	var problems []error
	_, err := s.scanImages(func(h hexDigest, err error) {
		if api.KindOf(err) == api.KindImage {
			problems = append(problems, s.pruneImage(&Image{ID: h.digest()}, out))
		}
	})
	if err != nil {
		return err
	}
	names, err := s.scanRefs(func(path string, err error) {
		if api.KindOf(err) == api.KindImage {
			problems = append(problems, s.remove(path, out))
		}
	})
	if err != nil {
		return err
	}
	var lost []string
	for _, r := range names {
		if gone(s.imagePath(hexDigest(r.Image.Encoded()))) {
			lost = append(lost, r.Name)
		}
	}
	problems = append(problems, s.untag(lost, out))
	return errors.Join(problems...)
}
