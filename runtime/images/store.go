// SPDX-License-Identifier: Apache-2.0

// The store's directory: opening it, its version, and where things are.

package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"z.gfire.dev/gvx/oci/image"
	"z.gfire.dev/gvx/runtime/api"
)

// Version is the layout that this package reads and writes; see FORMAT.md. A
// store of a higher version is left alone.
const Version = 1

// versionMagic begins the version file, so that it can be told from any other.
const versionMagic = "gvx-images"

// The entries of the root directory.
const (
	fileVersion = "version"
	fileLock    = "lock"
	dirTmp      = "tmp"
	dirLocks    = "locks"
	dirRefs     = "refs"
	dirImages   = "images"
	dirBlobs    = "blobs/sha256"
	dirLayers   = "layers/sha256"
)

// maxVersionBytes bounds the version file: the magic and a number.
const maxVersionBytes = 64

// Options are the parts of a store that its caller decides.
type Options struct {
	// Source is how registries are reached; see oci/image. The zero value
	// reads docker's configuration of the present user.
	Source image.Options
	// Parallel bounds how many layers one pull converts at a time; 0 is one
	// per processor.
	Parallel int
	// Warn, if not nil, is told about damaged records that were passed over,
	// once each. It may be called by several goroutines.
	Warn func(format string, args ...any)
}

// Store is an open image store. Its methods may be called concurrently, by any
// number of goroutines and processes.
type Store struct {
	root string
	opt  Options
	// hook, when a test sets it, is told each step of a write and may fail it
	// or kill the process there.
	hook func(step string) error

	// warned are the problems that Warn was told about.
	warnedMu sync.Mutex
	warned   map[string]bool
}

// Open opens the store below root, an absolute directory, and makes it if it
// does not exist. A store that this user may only read opens too: images in it
// can be run.
func Open(root string, opt Options) (*Store, error) {
	if !filepath.IsAbs(root) {
		return nil, api.Errorf(api.KindInvalid, "open image store: %q is not an absolute path", root)
	}
	s := &Store{root: filepath.Clean(root), opt: opt}
	err := s.checkVersion()
	if errors.Is(err, fs.ErrNotExist) {
		err = s.create()
	}
	if err != nil {
		return nil, err
	}
	// One directory that is nearly always empty: this costs the run path
	// nothing, and debris is gone before anybody looks at the disk.
	if err := s.cleanTemps(); err != nil {
		return nil, err
	}
	return s, nil
}

// Root is the directory of the store.
func (s *Store) Root() string { return s.root }

// checkVersion returns fs.ErrNotExist when there is no store yet.
func (s *Store) checkVersion() error {
	path := filepath.Join(s.root, fileVersion)
	b, err := readFile(path, maxVersionBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil && !errors.Is(err, errTooLong) {
		return s.writeError("open image store", path, 0, err)
	}
	return s.judgeVersion(strings.TrimSpace(string(b)))
}

// judgeVersion accepts what this program writes, and tells what a newer one
// may have written from what no version of it would.
func (s *Store) judgeVersion(text string) error {
	word, num, cut := strings.Cut(text, " ")
	if !cut {
		num = word
	}
	v, err := strconv.Atoi(num)
	switch {
	case cut && word == versionMagic && err == nil && v > Version:
		return api.Errorf(api.KindUnsupported, "open image store %s: it has version %d, this program knows %d: a newer gvx wrote it; upgrade, or choose another --root (nothing was changed)", s.root, v, Version)
	case cut && word == versionMagic && err == nil && v >= 1:
		return nil
	case word == versionMagic && cut && err != nil, !cut && err == nil && v > Version:
		return api.Errorf(api.KindUnsupported, "open image store %s: its version file says %q, this program writes \"%s %d\": a newer gvx may have written it, or it is damaged; upgrade, or choose another --root (nothing was changed)", s.root, text, versionMagic, Version)
	}
	if text == "" {
		text = "nothing that a version could be"
	} else {
		text = strconv.Quote(text)
	}
	return api.Errorf(api.KindInvalid, "open image store %s: its version file says %s, no version of gvx writes that: it is another program's directory or is damaged; choose another --root, or remove the directory if it was an image store (nothing was changed)", s.root, text)
}

// create makes an empty store. Two processes may do it at once: each step is
// harmless when repeated, and the version file comes last.
func (s *Store) create() error {
	entries, err := os.ReadDir(s.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.writeError("create image store", s.root, 0, err)
	}
	for _, e := range entries {
		if !partOfStore(e.Name()) {
			return api.Errorf(api.KindInvalid, "create image store: %s is not empty and is no image store (it holds %q): choose another --root", s.root, e.Name())
		}
	}
	for _, d := range []string{"", dirTmp, dirLocks, dirRefs, dirImages, dirBlobs, dirLayers} {
		if err := os.MkdirAll(filepath.Join(s.root, d), 0o700); err != nil {
			return s.writeError("create image store", s.root, 0, err)
		}
	}
	return s.writeFile("version", filepath.Join(s.root, fileVersion), fmt.Appendf(nil, "%s %d\n", versionMagic, Version), 0o644)
}

// partOfStore reports whether name is what an interrupted create leaves.
func partOfStore(name string) bool {
	switch name {
	case fileVersion, dirTmp, dirLocks, dirRefs, dirImages, "blobs", "layers":
		return true
	}
	return false
}

// step runs the tests' hook.
func (s *Store) step(name string) error {
	if s.hook == nil {
		return nil
	}
	return s.hook(name)
}

// lock takes the store lock: see the package comment for its place.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(s.root, fileLock)
	f, err := lockPath(ctx, path, exclusive)
	if err != nil {
		return nil, s.writeError("lock image store", path, 0, err)
	}
	return func() { f.Close() }, nil
}

func (s *Store) dir(name string) string { return filepath.Join(s.root, filepath.FromSlash(name)) }

func (s *Store) blobPath(h hexDigest) string { return filepath.Join(s.dir(dirBlobs), string(h)) }
func (s *Store) imagePath(h hexDigest) string {
	return filepath.Join(s.dir(dirImages), string(h)+".json")
}
func (s *Store) lockFile(h hexDigest) string  { return filepath.Join(s.dir(dirLocks), string(h)) }
func (s *Store) layerPath(h hexDigest) string { return s.layerFile(h, extLayer) }

func (s *Store) layerFile(h hexDigest, ext string) string {
	return filepath.Join(s.dir(dirLayers), string(h)+ext)
}
