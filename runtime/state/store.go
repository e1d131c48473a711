// SPDX-License-Identifier: Apache-2.0

// The store: entering, finding and removing containers.

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// The entries of the root directory and of a container's.
const (
	fileLock      = "lock"
	dirContainers = "containers"
	dirNames      = "names"
	fileRecord    = "record.json"
	fileTemp      = "record.tmp"
)

// maxRecordBytes bounds a record: options and process of the largest spec.
const maxRecordBytes = 2 * api.MaxSpecBytes

// maxNameAttempts bounds the search for a free random name.
const maxNameAttempts = 8

// ErrNoContainer says that no container has an id or name, in docker's words.
//
//lint:ignore ST1005 clients of docker look for these words
var ErrNoContainer = errors.New("No such container")

// Store is a root directory with containers. Its methods may be called
// concurrently, by any number of processes.
type Store struct {
	root string
}

// Open opens the store below root, an absolute directory, and makes it if it
// does not exist. The directory has to be this user's own: whoever can write
// it can make a container's control socket point to a program of his.
func Open(root string) (*Store, error) {
	if !filepath.IsAbs(root) {
		return nil, api.Errorf(api.KindInvalid, "open container store: %q is not an absolute path", root)
	}
	s := &Store{root: filepath.Clean(root)}
	for _, dir := range []string{s.root, s.path(dirContainers), s.path(dirNames)} {
		if _, err := os.Lstat(dir); err == nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, wrapHost(err, "open container store: %w: choose another --root", err)
		}
	}
	if err := checkOwner(s.root); err != nil {
		return nil, err
	}
	return s, nil
}

// Root is the store's directory.
func (s *Store) Root() string { return s.root }

// Dir is the directory of a container, for its control socket.
func (s *Store) Dir(id string) string { return s.path(dirContainers, id) }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.root}, elem...)...)
}

// Create enters a container in state creating and locks it. An empty name gets
// a random one, which a task must not have; a name in use is an error of
// KindExists. The fields ID, Name,
// State, Launcher and CreatedAt are the store's to set.
func (s *Store) Create(r Record, name string) (*Handle, error) {
	if r.Name = name; name != "" || r.Task != nil {
		if err := r.checkName(); err != nil {
			return nil, err
		}
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()

	r.Version, r.ID, r.State, r.CreatedAt = RecordVersion, NewID(), api.StateCreating, time.Now().UTC()
	r.Launcher = self()
	if r.Name, err = s.claimName(name, r.ID); err != nil {
		return nil, err
	}
	h, err := s.enter(r)
	if err != nil {
		os.Remove(s.path(dirNames, r.Name))
		os.RemoveAll(s.Dir(r.ID))
		return nil, err
	}
	s.sweepSome(r.ID)
	return h, nil
}

// enter makes the container's directory, lock and record.
func (s *Store) enter(r Record) (*Handle, error) {
	dir := s.Dir(r.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, wrapHost(err, "create container %s: %w", r.ShortID(), err)
	}
	// Who lists containers asks for a moment with a shared lock: wait.
	lock, err := waitLock(filepath.Join(dir, fileLock))
	if err != nil {
		return nil, wrapHost(err, "create container %s: lock it: %w", r.ShortID(), err)
	}
	h := &Handle{store: s, record: r, lock: lock}
	if err := h.write(); err != nil {
		lock.Close()
		return nil, err
	}
	return h, nil
}

// claimName enters a name for id. A name is a symbolic link to its container's
// directory: made in one step, never half written.
//
// Preconditions: the store is locked.
func (s *Store) claimName(name, id string) (string, error) {
	if name != "" {
		return name, s.linkName(name, id)
	}
	var err error
	for attempt := range maxNameAttempts {
		name = randomName(attempt)
		if err = s.linkName(name, id); err == nil || api.KindOf(err) != api.KindExists {
			return name, err
		}
	}
	return "", fmt.Errorf("invent a container name: %w", err)
}

func (s *Store) linkName(name, id string) error {
	path := s.path(dirNames, name)
	target := filepath.Join("..", dirContainers, id)
	err := os.Symlink(target, path)
	if errors.Is(err, fs.ErrExist) {
		owner, gone := s.nameOwner(name)
		if !gone && !s.sweepLocked(owner) {
			return api.Errorf(api.KindExists, "Conflict. The container name %q is already in use by container %q. You have to remove (or rename) that container to be able to reuse that name.", "/"+name, owner)
		}
		// A crash came between a container's removal and its name's, or before
		// both.
		if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Symlink(target, path)
		}
	}
	if err != nil {
		return wrapHost(err, "enter the container name %q: %w", name, err)
	}
	return nil
}

// nameOwner returns the container that a name stands for, and whether it is
// gone.
func (s *Store) nameOwner(name string) (id string, gone bool) {
	target, err := os.Readlink(s.path(dirNames, name))
	if err != nil {
		return "", errors.Is(err, fs.ErrNotExist)
	}
	id = filepath.Base(target)
	if !isID(id) {
		return "", true
	}
	_, err = os.Lstat(filepath.Join(s.Dir(id), fileRecord))
	return id, errors.Is(err, fs.ErrNotExist)
}

// Resolve returns the id that a full id, a name, or the beginning of an id
// stands for, in docker's order.
func (s *Store) Resolve(ref string) (string, error) {
	if isID(ref) {
		if _, err := os.Lstat(s.Dir(ref)); err == nil {
			return ref, nil
		}
	}
	if CheckTaskID(ref) == nil { // A name is one too.
		if id, gone := s.nameOwner(ref); !gone && id != "" {
			return id, nil
		}
	}
	var found []string
	if ref != "" && strings.Trim(ref, "0123456789abcdef") == "" {
		ids, err := s.ids()
		if err != nil {
			return "", err
		}
		for _, id := range ids {
			if strings.HasPrefix(id, ref) {
				found = append(found, id)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", api.Errorf(api.KindNotFound, "%w: %s", ErrNoContainer, ref)
	case 1:
		return found[0], nil
	}
	return "", api.Errorf(api.KindInvalid, "multiple containers begin with %q: give more digits", ref)
}

// Get returns the record of a container, as it is now: see [Store.List].
func (s *Store) Get(ref string) (*Record, error) {
	id, err := s.Resolve(ref)
	if err != nil {
		return nil, err
	}
	r, err := s.read(id)
	if api.KindOf(err) == api.KindNotFound {
		s.sweep(id)
	}
	return r, err
}

// List returns all records, the newest first. A container whose launcher has
// died reads as stopped. Records that cannot be read are left out and reported
// in the error, beside the others.
func (s *Store) List() ([]*Record, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var records []*Record
	var problems []error
	for _, id := range ids {
		r, err := s.read(id)
		switch {
		case err == nil:
			records = append(records, r)
		case api.KindOf(err) == api.KindNotFound:
			// Removed meanwhile, or its launcher was killed: sweep.
			s.sweep(id)
		default:
			problems = append(problems, err)
		}
	}
	s.sweepNames()
	sort.SliceStable(records, func(i, j int) bool { return records[i].CreatedAt.After(records[j].CreatedAt) })
	return records, errors.Join(problems...)
}

func (s *Store) ids() ([]string, error) {
	entries, err := os.ReadDir(s.path(dirContainers))
	if err != nil {
		return nil, wrapHost(err, "list containers: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if isID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// read returns a record, corrected by what its lock says. One that was to go
// with its launcher is not found.
func (s *Store) read(id string) (*Record, error) {
	// The lock first: a launcher that ends between the two steps has written
	// its last word before it let go.
	alive, err := isLocked(filepath.Join(s.Dir(id), fileLock))
	if err != nil {
		return nil, wrapHost(err, "container %s: ask for its lock: %w", id, err)
	}
	r, err := s.load(id)
	if err != nil {
		return nil, err
	}
	a := s.amendment(id)
	a.cover(r)
	if !alive && r.AutoRemove && r.State != api.StateCreated {
		return nil, api.Errorf(api.KindNotFound, "%w: %s", ErrNoContainer, id)
	}
	if !alive && r.State != api.StateStopped && r.State != api.StateCreated {
		r.lost()
	}
	return r, nil
}

// load returns a record as it is on disk.
func (s *Store) load(id string) (*Record, error) {
	f, err := os.Open(filepath.Join(s.Dir(id), fileRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, api.Errorf(api.KindNotFound, "%w: %s", ErrNoContainer, id)
	}
	if err != nil {
		return nil, wrapHost(err, "container %s: %w", id, err)
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
	if err != nil {
		return nil, wrapHost(err, "container %s: read its record: %w", id, err)
	}
	r := new(Record)
	if len(doc) > maxRecordBytes {
		return nil, api.Errorf(api.KindInternal, "container %s: its record is longer than %d bytes: remove it with rungv rm -f", id, maxRecordBytes)
	}
	if err := json.Unmarshal(doc, r); err != nil {
		return nil, api.Errorf(api.KindInternal, "container %s: its record is damaged: remove it with rungv rm -f: %w", id, err)
	}
	if err := r.check(id); err != nil {
		return nil, err
	}
	return r, nil
}

// launcherDied is the error of a container whose launcher was killed.
const launcherDied = "launcher died: the sandbox ended with it"

// lostExitCode is SIGKILL's: what the sandbox process got.
const lostExitCode = 137

// lost corrects the record of a container that nobody answers for any more.
// The sandbox dies with its launcher, so it has stopped.
func (r *Record) lost() {
	if r.State == api.StateRunning {
		r.Exit = &api.ExitStatus{Code: lostExitCode, Signal: 9}
	}
	r.State, r.Paused = api.StateStopped, false
	r.Error = launcherDied
}

// Remove removes a container that has stopped. A container that runs is an
// error of KindState: end it first. With damaged set, a record that cannot be
// read is no obstacle.
func (s *Store) Remove(ref string, damaged bool) error {
	id, err := s.Resolve(ref)
	if err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	lock, ok, err := s.tryContainer(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.KindNotFound, "%w: %s", ErrNoContainer, ref)
	case err != nil:
		return wrapHost(err, "remove container %s: %w", ref, err)
	case !ok:
		return api.Errorf(api.KindState, "cannot remove container %q: container is running: stop the container before removing or force remove", ref)
	}
	defer lock.Close()
	r, err := s.read(id)
	if err != nil && !damaged && api.KindOf(err) != api.KindNotFound {
		return err
	}
	name := ""
	if err == nil {
		name = r.Name
	}
	return s.erase(id, name)
}

// erase removes a container's files, the record first: without it the rest is
// debris, which sweep and linkName recognise.
//
// Preconditions: the store and the container are locked.
func (s *Store) erase(id, name string) error {
	// Its name may not be its record's any more.
	if a := s.amendment(id); a.Name != "" {
		name = a.Name
	}
	err := os.Remove(filepath.Join(s.Dir(id), fileRecord))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrapHost(err, "remove container %s: %w", id, err)
	}
	if name != "" {
		if owner, _ := s.nameOwner(name); owner == id {
			os.Remove(s.path(dirNames, name))
		}
	}
	if err := os.RemoveAll(s.Dir(id)); err != nil {
		return wrapHost(err, "remove container %s: %w", id, err)
	}
	return nil
}

// askers bounds how often tryContainer finds that only somebody who asks holds
// a lock. Asking takes microseconds.
const askers = 100

// tryContainer tries for a container's lock, and does not take somebody who
// asks whether it is held for its launcher.
func (s *Store) tryContainer(id string) (lock *os.File, ok bool, err error) {
	path := filepath.Join(s.Dir(id), fileLock)
	for range askers {
		if lock, ok, err = tryLock(path); err != nil || ok {
			return lock, ok, err
		}
		if held, err := isLocked(path); err != nil || held {
			return nil, false, err
		}
		time.Sleep(time.Millisecond)
	}
	return nil, false, nil
}

// sweep removes what a launcher that was killed left behind: see [Store.sweepLocked].
func (s *Store) sweep(id string) {
	unlock, err := s.lock()
	if err != nil {
		return
	}
	defer unlock()
	s.sweepLocked(id)
}

// sweepLocked removes a container that nobody holds and that nobody will ask
// for: one without a record, whose creation or removal was cut short, and one
// that was to go with its launcher (--rm). It reports whether it did.
//
// Preconditions: the store is locked.
func (s *Store) sweepLocked(id string) bool {
	lock, ok, err := s.tryContainer(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && !ok {
		return false
	}
	if lock != nil {
		defer lock.Close()
	}
	r, err := s.load(id)
	switch {
	case err == nil && r.AutoRemove && r.State != api.StateCreated:
		return s.erase(id, r.Name) == nil
	case api.KindOf(err) == api.KindNotFound:
		return s.erase(id, "") == nil
	}
	return false
}

// sweepsPerCreate is how many containers each creation looks at, whatever their
// number: with more than one, the dead stay fewer than some part of the living.
const sweepsPerCreate = 4

// sweepSome sweeps a few containers, drawn by lot: who starts episodes with --rm,
// ends them by SIGKILL and never lists them gathers no records.
//
// Preconditions: the store is locked.
func (s *Store) sweepSome(but string) {
	dir, err := os.Open(s.path(dirContainers))
	if err != nil {
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil || len(names) == 0 {
		return
	}
	for range min(sweepsPerCreate, len(names)) {
		if id := names[rand.IntN(len(names))]; id != but && isID(id) {
			s.sweepLocked(id)
		}
	}
	s.removeNames(s.deadNames(sweepsPerCreate))
}

// sweepNames removes the names of containers that are gone: see [Store.deadNames].
func (s *Store) sweepNames() {
	if len(s.deadNames(math.MaxInt)) == 0 {
		return
	}
	unlock, err := s.lock()
	if err != nil {
		return
	}
	defer unlock()
	s.removeNames(s.deadNames(math.MaxInt))
}

// deadNames returns names of containers that are gone, of so many drawn by lot: of those
// whose creation was cut short nothing else tells the name. Without the store's lock they
// may be about to be.
func (s *Store) deadNames(of int) []string {
	dir, err := os.Open(s.path(dirNames))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return slices.DeleteFunc(names[:min(of, len(names))], func(name string) bool {
		_, gone := s.nameOwner(name)
		return !gone
	})
}

// removeNames removes dead names.
//
// Preconditions: the store is locked since before they were found.
func (s *Store) removeNames(names []string) {
	for _, name := range names {
		os.Remove(s.path(dirNames, name))
	}
}

// lock takes the store's lock.
func (s *Store) lock() (unlock func(), err error) {
	f, err := waitLock(s.path(fileLock))
	if err != nil {
		return nil, wrapHost(err, "lock the container store %s: %w", s.root, err)
	}
	return func() { f.Close() }, nil
}

// wrapHost gives an error of the host its kind.
func wrapHost(cause error, format string, args ...any) error {
	kind := api.KindInternal
	switch {
	case cause == nil:
	case errors.Is(cause, fs.ErrPermission):
		kind = api.KindPermission
	case isNoSpace(cause):
		kind = api.KindNoSpace
	}
	return api.Errorf(kind, format, args...)
}
