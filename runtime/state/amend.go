// SPDX-License-Identifier: Apache-2.0

// What others than its launcher may change of a container.

package state

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	fileAmend     = "amend.json"
	fileAmendTemp = "amend.tmp"
	// maxAmendBytes bounds an amendment: a name and some numbers.
	maxAmendBytes = 64 << 10
)

// Amendment is what has changed of a container since its launcher wrote its
// record: it lies beside the record and covers it. Whoever holds the store's
// lock may write it, so that a container can be renamed, limited or paused
// without its launcher's help.
type Amendment struct {
	Name        string `json:"name,omitempty"`
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	CPUMillis   *int64 `json:"cpuMillis,omitempty"`
	Pids        *int64 `json:"pids,omitempty"`
	// Paused says that the guest was told to pause.
	Paused bool `json:"paused,omitempty"`
}

// cover writes the amendment over a record.
func (a *Amendment) cover(r *Record) {
	if a.Name != "" {
		r.Name = a.Name
	}
	for _, n := range []struct {
		from *int64
		to   *int64
	}{{a.MemoryBytes, &r.Options.MemoryBytes}, {a.CPUMillis, &r.Options.CPUMillis}, {a.Pids, &r.Options.Pids}} {
		if n.from != nil {
			*n.to = *n.from
		}
	}
	r.Paused = a.Paused && r.State == api.StateRunning
}

// amendment reads a container's amendment; one that is damaged is none, since
// all it tells can be told again.
func (s *Store) amendment(id string) Amendment {
	var a Amendment
	f, err := os.Open(filepath.Join(s.Dir(id), fileAmend))
	if err != nil {
		return a
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxAmendBytes))
	if err != nil || json.Unmarshal(doc, &a) != nil || a.Name != "" && checkName(a.Name) != nil {
		return Amendment{}
	}
	return a
}

// Amend changes what covers a container's record, and returns the record as it
// reads then.
func (s *Store) Amend(ref string, change func(*Amendment) error) (*Record, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := s.getLocked(ref)
	if err != nil {
		return nil, err
	}
	a := s.amendment(r.ID)
	if err := change(&a); err != nil {
		return nil, err
	}
	if err := s.writeAmendment(r.ID, &a); err != nil {
		return nil, err
	}
	a.cover(r)
	return r, nil
}

// Rename gives a container another name.
func (s *Store) Rename(ref, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.getLocked(ref)
	if err != nil {
		return err
	}
	if r.Name == name {
		return api.Errorf(api.KindInvalid, "Renaming a container with the same name as its current name")
	}
	// The new name first: a crash in between leaves a container with two.
	if err := s.linkName(name, r.ID); err != nil {
		return err
	}
	a := s.amendment(r.ID)
	a.Name = name
	if err := s.writeAmendment(r.ID, &a); err != nil {
		os.Remove(s.path(dirNames, name))
		return err
	}
	if err := os.Remove(s.path(dirNames, r.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrapHost(err, "rename container %s: give up its old name %q: %w", r.ShortID(), r.Name, err)
	}
	return nil
}

// getLocked is Get for who holds the store's lock.
//
// Preconditions: the store is locked.
func (s *Store) getLocked(ref string) (*Record, error) {
	id, err := s.Resolve(ref)
	if err != nil {
		return nil, err
	}
	return s.read(id)
}

func (s *Store) writeAmendment(id string, a *Amendment) error {
	doc, err := json.Marshal(a)
	if err != nil {
		return wrapHost(err, "container %s: encode its amendment: %w", id, err)
	}
	temp := filepath.Join(s.Dir(id), fileAmendTemp)
	if err := os.WriteFile(temp, doc, 0o600); err != nil {
		return wrapHost(err, "container %s: write its amendment: %w", id, err)
	}
	if err := os.Rename(temp, filepath.Join(s.Dir(id), fileAmend)); err != nil {
		return wrapHost(err, "container %s: replace its amendment: %w", id, err)
	}
	return nil
}

// Acquire takes a container that was created and never started, for its
// launcher: this process.
func (s *Store) Acquire(ref string) (*Handle, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	id, err := s.Resolve(ref)
	if err != nil {
		return nil, err
	}
	lock, ok, err := s.tryContainer(id)
	if err != nil {
		return nil, wrapHost(err, "container %s: lock it: %w", ref, err)
	}
	if !ok {
		return nil, api.Errorf(api.KindState, "container %s is running already", ref)
	}
	// As it is on disk, without what covers it: it will be written back.
	r, err := s.load(id)
	if err == nil && r.State != api.StateCreated {
		err = api.Errorf(api.KindUnsupported, "cannot start container %s a second time: what it wrote went with its sandbox: run a new one from its image %s", r.ShortID(), r.Image)
	}
	h := &Handle{store: s, lock: lock}
	if err == nil {
		h.record = *r
		h.record.Launcher = self()
		err = h.write()
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return h, nil
}
