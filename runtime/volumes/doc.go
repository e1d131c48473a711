// SPDX-License-Identifier: Apache-2.0

// Package volumes keeps volumes on the host: ext4 file systems in one file
// each, made, found, opened and locked here, and donated to sandboxes by whoever
// starts them.
//
// A volume is named in two ways. A name, docker's, is a file of the store
// (ROOT/NAME.ext4). A path is a file anywhere, which the store merely opens.
//
// It owns the store's directory, the rules of who may open what together, and
// what tools do with volumes while no sandbox has them: create, copy, clone,
// compact, grow, check, and files in and out. It never mounts anything, never
// starts a sandbox and knows nothing of containers: who holds a volume is asked
// of its caller ([Options].Holder).
//
// # Locks
//
// Every open file of a volume is locked by an open-file-description lock of
// package device: alone for writing, shared for reading and for bases. The lock
// belongs to the description, so it goes with the descriptors into the sandbox
// and ends with the last of them: nothing is left to clean up after kill -9.
//
// A base must not change while it has clones. Clones that are open hold its
// lock; clones that are not are remembered in ROOT/clones, a file each, so that
// a writer is refused as long as one of them is good.
//
// # What is in the store
//
//	NAME.ext4        a volume, plain or a delta
//	NAME.json        its labels, where it has any
//	clones/H/D       the path of a clone, in a directory named after its base
//	empty/N.ext4     an empty volume of N bytes, the base of writable layers
package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"z.gfire.dev/gvx/oci/convert"
	"z.gfire.dev/gvx/runtime/api"
)

const (
	// DefaultSizeBytes is the size of a volume that nobody gave one: it is
	// sparse, and costs what is in it.
	DefaultSizeBytes = 64 << 30
	// lockWait is how long a volume in use is waited for: a sandbox that was
	// killed lets go of its files when the last of its processes has ended,
	// shortly after who killed it was told.
	lockWait = 500 * time.Millisecond
	lockStep = 5 * time.Millisecond
)

// Options are the parts of a store that its caller decides.
type Options struct {
	// Holder, if not nil, says who has a file open: "container web (…)", or "".
	Holder func(path string) string
	// Warn, if not nil, is told what went wrong without ending an operation.
	Warn func(format string, args ...any)
}

// Store is a directory of volumes. Its methods may be called concurrently, by
// any number of goroutines and processes.
type Store struct {
	root string
	opt  Options
}

// New returns the store below root, an absolute directory. Nothing is made
// before it is needed.
func New(root string, o Options) *Store { return &Store{root: filepath.Clean(root), opt: o} }

// Root is the store's directory.
func (s *Store) Root() string { return s.root }

// Ref is a volume: its file, and its name if it is one of the store's.
type Ref struct {
	Name string
	Path string
}

// String is how people call the volume.
func (r Ref) String() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Path
}

// Resolve finds what a name or a path stands for. It need not exist.
func (s *Store) Resolve(ref string) (Ref, error) {
	if !convert.IsVolumeFile(ref) {
		if err := convert.CheckVolumeName(ref); err != nil {
			return Ref{}, err
		}
		return Ref{Name: ref, Path: s.file(ref)}, nil
	}
	path, err := filepath.Abs(ref)
	if err != nil {
		return Ref{}, api.Errorf(api.KindInvalid, "volume %q: %w", ref, err)
	}
	r := Ref{Path: path}
	if name, ok := strings.CutSuffix(filepath.Base(path), convert.VolumeExt); ok && filepath.Dir(path) == s.root && convert.CheckVolumeName(name) == nil {
		r.Name = name
	}
	return r, nil
}

func (s *Store) file(name string) string { return filepath.Join(s.root, name+convert.VolumeExt) }

// make makes a directory of the store.
func (s *Store) make(elem ...string) (string, error) {
	dir := filepath.Join(append([]string{s.root}, elem...)...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", hostError("make the directory of volumes "+dir, err)
	}
	return dir, nil
}

func (s *Store) warn(format string, args ...any) {
	if s.opt.Warn != nil {
		s.opt.Warn(format, args...)
	}
}
