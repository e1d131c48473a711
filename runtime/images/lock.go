// SPDX-License-Identifier: Apache-2.0

// Locks on files: waiting for one with a context, and being sure that the file
// locked is still the one at the path.

package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// lockMode selects shared or exclusive.
type lockMode bool

const (
	shared    lockMode = false
	exclusive lockMode = true
)

// sameFile reports whether path still leads to the open file f.
func sameFile(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// lockPath opens path, creating it if need be, and waits for its lock. The
// lock lasts until the returned file is closed.
//
// The kernel's wait cannot be interrupted, so a cancelled caller leaves a
// goroutine behind that takes the lock when its turn comes and gives it back
// at once.
func lockPath(ctx context.Context, path string, mode lockMode) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := waitLock(ctx, f, mode); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if sameFile(f, path) {
			return f, nil
		}
		f.Close() // Removed by its last holder while we waited: a new one counts.
	}
}

// waitLock locks f or closes it.
func waitLock(ctx context.Context, f *os.File, mode lockMode) error {
	if ok, err := tryLock(f, mode); err != nil || ok {
		if err != nil {
			f.Close()
		}
		return err
	}
	done := make(chan error, 1)
	go func() { done <- blockLock(f, mode) }()
	select {
	case err := <-done:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			<-done
			f.Close()
		}()
		return ctx.Err()
	}
}

// tryLockPath opens the existing file at path and locks it if nobody else
// does. It returns nil without an error when the file is gone or locked.
func tryLockPath(path string, mode lockMode) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ok, err := tryLock(f, mode)
	if err != nil || !ok || !sameFile(f, path) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openShared opens the file at path read-only and pins it. The error is
// fs.ErrNotExist when there is none, also when a collector is just taking it
// away.
func openShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	ok, err := tryLock(f, shared)
	if err == nil && !ok {
		// A collector holds it for as long as an unlink takes, or only looked.
		err = blockLock(f, shared)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("pin %s: %w", path, err)
	}
	if !sameFile(f, path) {
		f.Close()
		return nil, &fs.PathError{Op: "pin", Path: path, Err: fs.ErrNotExist}
	}
	return f, nil
}
