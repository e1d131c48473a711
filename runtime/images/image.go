// SPDX-License-Identifier: Apache-2.0

// Images as callers see them, and the ways to look one up.

package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"z.gfire.dev/gvx/runtime/api"
)

// minPrefix is the shortest image ID prefix that is looked up, so that a
// mistyped one-letter name does not select an image.
const minPrefix = 4

// Image is one image of the store, as it was when looked up.
type Image struct {
	// ID is the digest of the configuration: docker's image ID.
	ID digest.Digest
	// Digest is that of the manifest.
	Digest digest.Digest
	// Names are the tags ("docker.io/library/debian:12") and RepoDigests the
	// digest references ("docker.io/library/debian@sha256:…") of the image.
	// [Store.Get] fills in only the one it was found by; [Store.List] and
	// [Store.Inspect] fill in all.
	Names, RepoDigests []string
	// Config says how to run it.
	Config   ispec.ImageConfig
	Platform ispec.Platform
	// LayerDiffIDs are lowest first.
	LayerDiffIDs []digest.Digest
	// Created is the image's own claim, Stored when it came into this store.
	Created, Stored time.Time
	// Size is the sum of the layers as uncompressed tars, as docker shows it.
	Size int64

	// keys name the files of LayerDiffIDs.
	keys []hexDigest
}

// Dangling reports whether no tag names the image. Only an image with all its
// names can tell.
func (i *Image) Dangling() bool { return len(i.Names) == 0 }

func (r *imageRecord) image() *Image {
	i := &Image{
		ID: r.ID, Digest: r.Manifest, Config: r.Config, Platform: r.Platform, Stored: r.Stored,
		LayerDiffIDs: make([]digest.Digest, len(r.Layers)), keys: make([]hexDigest, len(r.Layers)),
	}
	if r.Created != nil {
		i.Created = *r.Created
	}
	for n, l := range r.Layers {
		i.LayerDiffIDs[n], i.keys[n] = l.DiffID, l.key()
		i.Size += l.Size
	}
	return i
}

func (i *Image) addName(name string) {
	if strings.Contains(name, "@") {
		i.RepoDigests = append(i.RepoDigests, name)
	} else {
		i.Names = append(i.Names, name)
	}
}

// Get looks up a name, a full image ID, or the beginning of one, in docker's
// order. An image that is not there is an error of kind not-found.
func (s *Store) Get(ref string) (*Image, error) {
	h, r, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return s.getID(h, ref)
	}
	i, err := s.getID(h, r.Name)
	if err != nil {
		return nil, err
	}
	i.Digest = r.Manifest
	i.addName(r.Name)
	return i, nil
}

// find is Get without the image's record, which may be damaged, or absent for
// a full ID. The name's record is nil if ref is an ID.
func (s *Store) find(ref string) (hexDigest, *refRecord, error) {
	for _, id := range []string{ref, "sha256:" + ref} {
		if h, err := hexOf(digest.Digest(id)); err == nil {
			return h, nil, nil
		}
	}
	name, nameErr := NormalizeName(ref)
	if nameErr == nil {
		r, err := s.readRef(s.refPath(name))
		switch {
		case err == nil:
			return hexDigest(r.Image.Encoded()), r, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", nil, err
		}
	}
	prefix := strings.TrimPrefix(ref, "sha256:")
	if len(prefix) >= minPrefix && isHex(prefix) {
		h, err := s.findPrefix(prefix, ref)
		return h, nil, err
	}
	if nameErr != nil {
		return "", nil, nameErr
	}
	return "", nil, notFound(ref)
}

func (s *Store) getID(h hexDigest, ref string) (*Image, error) {
	r, err := s.readImage(h)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound(ref)
	}
	if err != nil {
		return nil, err
	}
	return r.image(), nil
}

func (s *Store) findPrefix(prefix, ref string) (hexDigest, error) {
	all, err := s.imageIDs()
	if err != nil {
		return "", err
	}
	var found []hexDigest
	for _, h := range all {
		if strings.HasPrefix(string(h), prefix) {
			found = append(found, h)
		}
	}
	switch len(found) {
	case 0:
		return "", notFound(ref)
	case 1:
		return found[0], nil
	}
	return "", api.Errorf(api.KindInvalid, "Multiple IDs found with provided prefix: %s", prefix)
}

// imageIDs lists the records by name.
func (s *Store) imageIDs() ([]hexDigest, error) {
	return listHex(s.dir(dirImages), ".json")
}

// listHex lists the digests of the files in dir that end in ext.
func listHex(dir, ext string) ([]hexDigest, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []hexDigest
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ext)
		if !ok {
			continue
		}
		if h, err := hexOf(digest.Digest("sha256:" + base)); err == nil {
			out = append(out, h)
		}
	}
	return out, nil
}

// refs reads all names. One that cannot be read is passed over.
func (s *Store) refs() ([]*refRecord, error) { return s.scanRefs(s.passOver) }

// scanRefs reads all names, and tells bad about those that cannot be read. One
// that vanishes meanwhile is left out.
func (s *Store) scanRefs(bad func(path string, err error)) ([]*refRecord, error) {
	all, err := listHex(s.dir(dirRefs), ".json")
	if err != nil {
		return nil, err
	}
	var out []*refRecord
	for _, h := range all {
		path := filepath.Join(s.dir(dirRefs), string(h)+".json")
		r, err := s.readRef(path)
		switch {
		case err == nil:
			out = append(out, r)
		case !errors.Is(err, fs.ErrNotExist):
			bad(path, err)
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Name < out[b].Name })
	return out, nil
}

// scanImages is scanRefs for the image records.
func (s *Store) scanImages(bad func(h hexDigest, err error)) ([]*imageRecord, error) {
	ids, err := s.imageIDs()
	if err != nil {
		return nil, err
	}
	var out []*imageRecord
	for _, h := range ids {
		r, err := s.readImage(h)
		switch {
		case err == nil:
			out = append(out, r)
		case !errors.Is(err, fs.ErrNotExist):
			bad(h, err)
		}
	}
	return out, nil
}

// List returns all images with all their names, the newest first. Records and
// names that cannot be read are left out, and [Options].Warn is told.
func (s *Store) List() ([]*Image, error) {
	records, err := s.scanImages(func(h hexDigest, err error) { s.passOver(s.imagePath(h), err) })
	if err != nil {
		return nil, err
	}
	byID := map[digest.Digest]*Image{}
	var out []*Image
	for _, r := range records {
		i := r.image()
		byID[i.ID] = i
		out = append(out, i)
	}
	names, err := s.refs()
	if err != nil {
		return nil, err
	}
	for _, r := range names {
		if i := byID[r.Image]; i != nil {
			i.addName(r.Name)
		}
	}
	sort.SliceStable(out, func(a, b int) bool { return out[a].Created.After(out[b].Created) })
	return out, nil
}

// Inspect is Get with all names of the image.
func (s *Store) Inspect(ref string) (*Image, error) {
	i, err := s.Get(ref)
	if err != nil {
		return nil, err
	}
	names, err := s.refs()
	if err != nil {
		return nil, err
	}
	i.Names, i.RepoDigests = nil, nil
	for _, r := range names {
		if r.Image == i.ID {
			i.addName(r.Name)
		}
	}
	return i, nil
}

// RawConfig returns the image's configuration, byte for byte.
func (s *Store) RawConfig(i *Image) ([]byte, error) {
	h, err := hexOf(i.ID)
	if err != nil {
		return nil, err
	}
	return s.readBlob(h)
}

// readBlob reads a manifest or configuration and checks it against its name.
func (s *Store) readBlob(h hexDigest) ([]byte, error) {
	b, err := readFile(s.blobPath(h), maxBlobBytes)
	if err != nil {
		return nil, err
	}
	if digest.FromBytes(b) != h.digest() {
		return nil, api.Errorf(api.KindImage, "image store: %s does not have the digest that names it: pull the image again", s.blobPath(h))
	}
	return b, nil
}
