// SPDX-License-Identifier: Apache-2.0

//go:build unix

package state

import (
	"os"
	"path/filepath"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

// created makes a container that waits to be started.
func created(t *testing.T, s *Store, r Record, name string) string {
	t.Helper()
	h, err := s.Create(r, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Update(func(r *Record) error { return r.SetState(api.StateCreated) }); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	return h.ID()
}

// TestCreatedIsAtRest: what was created and not started has no launcher and is
// not dead, --rm or not.
func TestCreatedIsAtRest(t *testing.T) {
	s := open(t)
	for _, auto := range []bool{false, true} {
		id := created(t, s, Record{AutoRemove: auto}, "")
		if list, err := s.List(); err != nil || len(list) != 1 || list[0].State != api.StateCreated {
			t.Fatalf("--rm %v: %v, %v", auto, list, err)
		}
		h, err := s.Acquire(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Acquire(id); api.KindOf(err) != api.KindState {
			t.Errorf("acquired twice: %v", err)
		}
		if err := s.Remove(id, false); api.KindOf(err) != api.KindState {
			t.Errorf("removed while it is started: %v", err)
		}
		if err := h.Update(func(r *Record) error { return r.SetState(api.StateRunning) }); err != nil {
			t.Fatal(err)
		}
		h.Close()
		r, err := s.Get(id)
		if auto != (api.KindOf(err) == api.KindNotFound) || err == nil && r.State != api.StateStopped {
			t.Errorf("--rm %v: after its launcher died: %v, %v", auto, r, err)
		}
		if _, err := s.Acquire(id); err == nil {
			t.Error("started a second time")
		}
		_ = s.Remove(id, true)
	}
}

func TestRename(t *testing.T) {
	s := open(t)
	h, other := create(t, s, "one"), create(t, s, "two")
	for name, kind := range map[string]api.Kind{"two": api.KindExists, "one": api.KindInvalid, "../x": api.KindInvalid} {
		if err := s.Rename("one", name); api.KindOf(err) != kind {
			t.Errorf("renamed to %q: %v", name, err)
		}
	}
	if err := s.Rename("one", "three"); err != nil {
		t.Fatal(err)
	}
	// The launcher, which knows the old name, goes on.
	if err := h.Update(func(r *Record) error { return r.SetState(api.StateRunning) }); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("three"); err != nil || r.ID != h.ID() || r.Name != "three" {
		t.Errorf("by its new name: %v, %v", r, err)
	}
	if _, err := s.Get("one"); api.KindOf(err) != api.KindNotFound {
		t.Errorf("by its old name: %v", err)
	}
	if err := h.Remove(); err != nil {
		t.Fatal(err)
	}
	other.Remove()
	if names, _ := os.ReadDir(s.path(dirNames)); len(names) != 0 {
		t.Errorf("names left: %v", names)
	}
}

func TestAmend(t *testing.T) {
	s := open(t)
	h := create(t, s, "box")
	defer h.Remove()
	memory := int64(1 << 30)
	change := func(a *Amendment) error {
		a.MemoryBytes, a.Paused = &memory, true
		return nil
	}
	if r, err := s.Amend("box", change); err != nil || r.Paused {
		t.Fatalf("%v, %v: paused before it runs", r, err)
	}
	if err := h.Update(func(r *Record) error { return r.SetState(api.StateRunning) }); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("box"); err != nil || !r.Paused || r.Options.MemoryBytes != memory {
		t.Errorf("%v, %v", r, err)
	}
	// Damage costs what was amended, nothing else.
	if err := os.WriteFile(filepath.Join(h.Dir(), fileAmend), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("box"); err != nil || r.Paused || r.Name != "box" {
		t.Errorf("damaged: %v, %v", r, err)
	}
}
