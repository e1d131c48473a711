// SPDX-License-Identifier: Apache-2.0

// Removal: names, images, and what nothing refers to any more.

package images

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

// Removed says what a removal did, in docker's terms.
type Removed struct {
	// Untagged are names that are gone, in their canonical form.
	Untagged []string
	// Deleted are images and layers that are gone.
	Deleted []digest.Digest
	// Kept counts layers that nothing refers to but a running sandbox uses.
	Kept int
	// Freed is what the disk got back, in bytes.
	Freed int64
}

// layerExts are the files of a layer. The converted one goes first, as it is
// what makes the layer exist.
var layerExts = []string{extLayer, extRecord, extSplit, extTar}

// Remove takes the name ref away, and with the last name the image. By its ID,
// an image goes with all its names, if it has more than one only with force.
// An image in use is only removed with force; the layers stay as long as they
// are used. An image whose record is damaged, or a damaged name, is only removed
// with force.
func (s *Store) Remove(ctx context.Context, ref string, force bool) (*Removed, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := s.Get(ref)
	if force && api.KindOf(err) == api.KindImage {
		return s.removeDamaged(ref)
	}
	if err != nil {
		return nil, err
	}
	all, err := s.Inspect(string(found.ID))
	if err != nil {
		return nil, err
	}
	names := append(append([]string{}, all.Names...), all.RepoDigests...)
	out := &Removed{}
	if byName := append(found.Names, found.RepoDigests...); len(byName) == 1 {
		// Digests follow the last tag of their repository, as with docker.
		names = s.namesGoing(byName[0], all)
		if len(names) < len(all.Names)+len(all.RepoDigests) {
			return out, s.untag(names, out)
		}
	} else if len(all.Names) > 1 && !force {
		return nil, api.Errorf(api.KindState, "conflict: unable to delete %s (must be forced) - image is referenced in multiple repositories", shortID(found.ID))
	}
	record, err := s.lockRecord(found.ID, force)
	if err != nil {
		return nil, err
	}
	if record != nil {
		defer record.Close()
	}
	if err := s.untag(names, out); err != nil {
		return out, err
	}
	if err := s.deleteImage(found.ID, out); err != nil {
		return out, err
	}
	return out, s.collect(out)
}

// namesGoing are the names that go when name does.
func (s *Store) namesGoing(name string, all *Image) []string {
	going := []string{name}
	repository, tag, _ := SplitName(name)
	if tag == "" {
		return going
	}
	for _, n := range all.Names {
		if r, _, _ := SplitName(n); r == repository && n != name {
			return going
		}
	}
	for _, n := range all.RepoDigests {
		if r, _, _ := SplitName(n); r == repository {
			going = append(going, n)
		}
	}
	return going
}

// lockRecord makes sure that no sandbox of this store uses the image, and that
// none begins to. With force it only tries.
func (s *Store) lockRecord(id digest.Digest, force bool) (*os.File, error) {
	h, err := hexOf(id)
	if err != nil {
		return nil, err
	}
	f, err := tryLockPath(s.imagePath(h), exclusive)
	if err != nil && !force {
		return nil, err
	}
	if f == nil && !force {
		return nil, api.Errorf(api.KindState, "conflict: unable to delete %s (must be forced) - image is being used by a running container", shortID(id))
	}
	if f != nil && !renameOpen {
		f.Close() // An open file cannot be removed there.
		return nil, nil
	}
	return f, nil
}

func shortID(d digest.Digest) string {
	h := strings.TrimPrefix(string(d), "sha256:")
	return h[:min(12, len(h))]
}

// untag removes names.
// Preconditions: the store lock is held.
func (s *Store) untag(names []string, out *Removed) error {
	for _, n := range names {
		if err := s.remove(s.refPath(n), nil); err != nil {
			return err
		}
		out.Untagged = append(out.Untagged, n)
	}
	return s.writeError("remove name", s.dir(dirRefs), 0, syncDir(s.dir(dirRefs)))
}

// deleteImage removes the record; the documents fall to collect.
// Preconditions: the store lock is held and no name is left.
func (s *Store) deleteImage(id digest.Digest, out *Removed) error {
	h, err := hexOf(id)
	if err != nil {
		return err
	}
	if err := s.remove(s.imagePath(h), out); err != nil {
		return err
	}
	out.Deleted = append(out.Deleted, id)
	return s.writeError("remove image", s.dir(dirImages), 0, syncDir(s.dir(dirImages)))
}

// remove unlinks a file, which may be gone already, and counts its bytes.
func (s *Store) remove(path string, out *Removed) error {
	fi, err := os.Lstat(path)
	if err == nil {
		err = s.step("remove " + filepath.Base(path))
	}
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && out != nil {
		out.Freed += diskBytes(fi)
	}
	return s.writeError("remove", path, 0, err)
}

// Prune removes images without a tag (all: every image that no sandbox uses),
// damaged records and names, and then whatever nothing refers to, also what
// crashes left behind.
func (s *Store) Prune(ctx context.Context, all bool) (*Removed, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	out := &Removed{}
	if err := s.pruneDamaged(out); err != nil {
		return out, err
	}
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		if !all && !i.Dangling() {
			continue
		}
		if err := s.pruneImage(i, out); err != nil {
			return out, err
		}
	}
	if err := s.cleanTemps(); err != nil {
		return out, err
	}
	if err := s.cleanLocks(); err != nil {
		return out, err
	}
	return out, s.collect(out)
}

// pruneImage removes an image unless it is in use.
func (s *Store) pruneImage(i *Image, out *Removed) error {
	record, err := s.lockRecord(i.ID, false)
	if api.KindOf(err) == api.KindState {
		return nil
	}
	if err != nil {
		return err
	}
	if record != nil {
		defer record.Close()
	}
	if err := s.untag(append(append([]string{}, i.Names...), i.RepoDigests...), out); err != nil {
		return err
	}
	return s.deleteImage(i.ID, out)
}

// used is what records and names refer to.
type used struct {
	layers, blobs map[hexDigest]bool
	// unknown says that a record or a name could not be read: what it refers
	// to may be anything, so nothing may be collected.
	unknown bool
}

// usedFiles reads all records and names.
func (s *Store) usedFiles() (*used, error) {
	u := &used{layers: map[hexDigest]bool{}, blobs: map[hexDigest]bool{}}
	bad := func(path string, err error) {
		u.unknown = true
		s.passOver(path, err)
	}
	records, err := s.scanImages(func(h hexDigest, err error) { bad(s.imagePath(h), err) })
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		u.blobs[hexDigest(r.ID.Encoded())] = true
		u.blobs[hexDigest(r.Manifest.Encoded())] = true
		for _, l := range r.Layers {
			u.layers[l.key()] = true
			u.layers[hexDigest(l.DiffID.Encoded())] = true // Its record says why it has a key of its own.
		}
	}
	names, err := s.scanRefs(bad)
	if err != nil {
		return nil, err
	}
	for _, r := range names {
		u.blobs[hexDigest(r.Manifest.Encoded())] = true
	}
	return u, nil
}

// collect removes layers and documents that nothing refers to.
// Preconditions: the store lock is held.
func (s *Store) collect(out *Removed) error {
	u, err := s.usedFiles()
	if err != nil {
		return err
	}
	if u.unknown {
		s.warnOnce("collect", "image store %s: layers stay on the disk as long as damaged records may refer to them: run rungv image prune", s.root)
		return nil
	}
	seen := map[hexDigest]bool{}
	for _, ext := range layerExts {
		list, err := listHex(s.dir(dirLayers), ext)
		if err != nil {
			return err
		}
		for _, h := range list {
			if seen[h] || u.layers[h] {
				continue
			}
			seen[h] = true
			if err := s.collectLayer(h, out); err != nil {
				return err
			}
		}
	}
	blobs, err := listHex(s.dir(dirBlobs), "")
	if err != nil {
		return err
	}
	for _, h := range blobs {
		if u.blobs[h] {
			continue
		}
		if err := s.remove(s.blobPath(h), out); err != nil {
			return err
		}
	}
	return nil
}

// collectLayer removes one layer unless somebody uses or makes it.
func (s *Store) collectLayer(h hexDigest, out *Removed) error {
	making, err := s.tryConversion(h)
	if err != nil || making == nil {
		out.Kept++
		return err
	}
	defer removeLocked(making, s.lockFile(h))
	path := s.layerPath(h)
	exists := false
	if _, err := os.Lstat(path); err == nil {
		exists = true
		f, err := tryLockPath(path, exclusive)
		if err != nil {
			return err
		}
		if f == nil {
			out.Kept++
			return nil
		}
		if renameOpen {
			// Whoever opens it before the unlink waits for this lock, and then
			// sees that the path leads elsewhere.
			defer f.Close()
		} else {
			f.Close()
		}
	}
	for _, ext := range layerExts {
		if err := s.remove(s.layerFile(h, ext), out); err != nil {
			return err
		}
	}
	if exists {
		out.Deleted = append(out.Deleted, h.digest())
	}
	return nil
}

// tryConversion takes the conversion lock of h unless somebody has it.
func (s *Store) tryConversion(h hexDigest) (*os.File, error) {
	f, err := os.OpenFile(s.lockFile(h), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, s.writeError("lock layer", s.lockFile(h), 0, err)
	}
	ok, err := tryLock(f, exclusive)
	if err != nil || !ok || !sameFile(f, s.lockFile(h)) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// cleanLocks removes lock files that dead processes left.
func (s *Store) cleanLocks() error {
	list, err := listHex(s.dir(dirLocks), "")
	if err != nil {
		return err
	}
	for _, h := range list {
		f, err := tryLockPath(s.lockFile(h), exclusive)
		if err != nil {
			return err
		}
		if f != nil {
			removeLocked(f, s.lockFile(h))
		}
	}
	return nil
}
