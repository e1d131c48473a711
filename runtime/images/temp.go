// SPDX-License-Identifier: Apache-2.0

// Temporary files: how every file of the store comes into being, and how those
// of dead processes go away.

package images

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// orphanAge is how old an unlocked temporary file must be where an open file
// cannot be renamed and its writer thus has to unlock before it renames. It is
// ample for a rename and far below what would annoy anyone waiting for space.
const orphanAge = time.Hour

// temp is a file being written. It is locked shared from the start: that keeps
// the cleaner away, and once renamed it is already the pin of its maker.
type temp struct {
	*os.File
	s    *Store
	path string
	done bool
}

// newTemp makes an empty temporary file; kind is only for people who look.
func (s *Store) newTemp(kind string) (*temp, error) {
	for {
		var r [12]byte
		if _, err := rand.Read(r[:]); err != nil {
			return nil, err
		}
		path := filepath.Join(s.dir(dirTmp), kind+"-"+hex.EncodeToString(r[:]))
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, s.writeError("create temporary file", path, 0, err)
		}
		ok, err := tryLock(f, shared)
		if err != nil {
			f.Close()
			os.Remove(path)
			return nil, fmt.Errorf("lock temporary file: %w", err)
		}
		if ok && sameFile(f, path) {
			return &temp{File: f, s: s, path: path}, nil
		}
		f.Close() // A cleaner was faster than our lock and removed it.
	}
}

// commit makes the content durable and gives it its place, replacing what is
// there. The file stays open, and locked, where the system permits.
func (t *temp) commit(dst string, mode fs.FileMode) error {
	if err := t.s.step("commit-sync " + filepath.Base(dst)); err != nil {
		return err
	}
	if err := t.Chmod(mode); err != nil && renameOpen {
		return t.s.writeError("set mode", t.path, 0, err)
	}
	if err := t.Sync(); err != nil {
		return t.s.writeError("flush", t.path, 0, err)
	}
	if !renameOpen {
		if err := t.Close(); err != nil {
			return t.s.writeError("close", t.path, 0, err)
		}
	}
	if err := t.s.step("commit-rename " + filepath.Base(dst)); err != nil {
		return err
	}
	if err := os.Rename(t.path, dst); err != nil {
		return t.s.writeError("rename", dst, 0, err)
	}
	t.done = true
	if err := syncDir(filepath.Dir(dst)); err != nil {
		return t.s.writeError("flush directory", filepath.Dir(dst), 0, err)
	}
	return t.s.step("committed " + filepath.Base(dst))
}

// discard closes the file and removes it unless it was committed. It may be
// called after commit, and twice.
func (t *temp) discard() {
	if !t.done {
		if renameOpen {
			os.Remove(t.path)
			t.Close()
		} else {
			t.Close()
			os.Remove(t.path)
		}
		t.done = true
		return
	}
	t.Close()
}

// writeFile writes a whole file by way of a temporary one.
func (s *Store) writeFile(kind, dst string, data []byte, mode fs.FileMode) error {
	t, err := s.newTemp(kind)
	if err != nil {
		return err
	}
	defer t.discard()
	if _, err := t.Write(data); err != nil {
		return s.writeError("write", dst, int64(len(data)), err)
	}
	return t.commit(dst, mode)
}

// errTooLong says that a file is longer than what it should hold can be.
var errTooLong = errors.New("file is too long")

// readFile reads a file that should be small, and refuses one above max.
func readFile(path string, max int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, path, max)
}

func readAtMost(r io.Reader, path string, max int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("read %s: %w: larger than %d bytes", path, errTooLong, max)
	}
	return b, nil
}

// cleanTemps removes temporary files whose writers are dead.
func (s *Store) cleanTemps() error {
	entries, err := os.ReadDir(s.dir(dirTmp))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("clean temporary files: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.dir(dirTmp), e.Name())
		if !renameOpen {
			if fi, err := e.Info(); err != nil || time.Since(fi.ModTime()) < orphanAge {
				continue
			}
		}
		f, err := tryLockPath(path, exclusive)
		if err != nil || f == nil {
			continue // Alive, already gone, or not ours to judge.
		}
		removeLocked(f, path)
	}
	return nil
}

// gone reports whether nothing has the name path.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// removeLocked unlinks the file that the caller has locked exclusively.
func removeLocked(f *os.File, path string) error {
	if renameOpen {
		defer f.Close()
		return os.Remove(path)
	}
	f.Close()
	return os.Remove(path)
}
