// SPDX-License-Identifier: Apache-2.0

// The launcher's hold on its container.

package state

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Handle is the right to change one container's record. Its holder is the
// container's launcher: others see the container alive for as long as the
// handle is open.
type Handle struct {
	store *Store
	lock  *os.File

	mu     sync.Mutex
	record Record
}

// ID is the container's id.
func (h *Handle) ID() string { return h.record.ID }

// Dir is the container's directory.
func (h *Handle) Dir() string { return h.store.Dir(h.record.ID) }

// Record returns a copy of the record as it is now.
func (h *Handle) Record() Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record
}

// Update changes the record with change and writes it. When change fails,
// nothing is written and the record is as before.
func (h *Handle) Update(change func(*Record) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := h.record
	if err := change(&changed); err != nil {
		return err
	}
	before := h.record
	h.record = changed
	if err := h.write(); err != nil {
		h.record = before
		return err
	}
	return nil
}

// write replaces the record on disk. It is not flushed: what it tells is over
// when the host crashes.
func (h *Handle) write() error {
	doc, err := json.Marshal(&h.record)
	if err != nil {
		return wrapHost(err, "container %s: encode its record: %w", h.record.ShortID(), err)
	}
	temp := filepath.Join(h.Dir(), fileTemp)
	if err := os.WriteFile(temp, doc, 0o600); err != nil {
		return wrapHost(err, "container %s: write its record: %w", h.record.ShortID(), err)
	}
	if err := os.Rename(temp, filepath.Join(h.Dir(), fileRecord)); err != nil {
		return wrapHost(err, "container %s: replace its record: %w", h.record.ShortID(), err)
	}
	return nil
}

// Close gives the container up and leaves its record.
func (h *Handle) Close() error { return h.lock.Close() }

// Remove gives the container up and removes it: `--rm`.
func (h *Handle) Remove() error {
	unlock, err := h.store.lock()
	if err != nil {
		h.lock.Close()
		return err
	}
	defer unlock()
	defer h.lock.Close()
	return h.store.erase(h.record.ID, h.record.Name)
}

// WaitReleased returns once nobody holds a container: its launcher has ended,
// or has given it up. A container that is gone counts.
func (s *Store) WaitReleased(ctx context.Context, id string) error {
	released := make(chan error, 1)
	go func() { released <- waitShared(filepath.Join(s.Dir(id), fileLock)) }()
	select {
	case err := <-released:
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	case <-ctx.Done():
		// The goroutine stays until the lock is free: one per call, in a
		// program that is about to end.
		return ctx.Err()
	}
}
