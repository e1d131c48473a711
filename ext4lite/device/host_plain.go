// SPDX-License-Identifier: Apache-2.0

//go:build darwin || windows

// What macOS and Windows lack alike, and what takes its place: one file system
// sync for everything, no ranges, no reflinks.

package device

import (
	"errors"
	"fmt"
	"os"
)

// nextData takes everything as data; copies look for zeros themselves.
func nextData(f *os.File, off, size int64) (int64, error) { return off, nil }

// Ranges cannot be made durable one by one here; canSyncRanges says so.
func canSyncRanges(f *os.File) bool { return false }

func writeBack(f *os.File, off, n int64) error { return datasync(f) }

func startWriteBack(f *os.File, off, n int64) error { return nil }

func writeDurable(f *os.File, p []byte, off int64) error {
	if _, err := f.WriteAt(p, off); err != nil {
		return err
	}
	return datasync(f)
}

func reflink(dst, src *os.File) error {
	return fmt.Errorf("reflink %s: not done on this operating system: %w", src.Name(), errors.ErrUnsupported)
}
