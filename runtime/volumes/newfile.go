// SPDX-License-Identifier: Apache-2.0

// New files, which appear under their name whole or not at all.

package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/ext4lite/device"
)

// tempPrefix begins the names of files that are being made where a file cannot
// be made without one.
const tempPrefix = ".gvx-new-"

// unlinkedByName is for file systems that cannot make a file without a name.
func unlinkedByName(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// newFile makes a file by fill and gives it its name, which nothing may have:
// fs.ErrExist otherwise. With durable it is on the disk before it has the name.
func newFile(path string, durable bool, fill func(*os.File) error) error {
	dir := filepath.Dir(path)
	if _, err := os.Lstat(path); err == nil {
		return &os.PathError{Op: "make", Path: path, Err: os.ErrExist}
	}
	if !canLink(dir) {
		return newNamed(path, durable, fill)
	}
	f, err := unlinked(dir, path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := finishFile(f, durable, fill); err != nil {
		return err
	}
	if err := link(f, path); err != nil {
		return err
	}
	return syncName(path, durable)
}

// syncName has a file's name survive a power cut, as the file does: what is
// synced in a volume must be found again.
func syncName(path string, durable bool) error {
	if !durable {
		return nil
	}
	if err := device.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write the name of %s to disk: %w", path, err)
	}
	return nil
}

// replaceFile gives a small file of the store a content, whole or not at all, in the
// place of one that is there.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // It has no such name any more, if all went well.
	_, err = f.Write(content)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// newNamed is newFile with a name from the start.
func newNamed(path string, durable bool, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := finishFile(f, durable, fill); err != nil {
		return err
	}
	// Not merely renamed: that would replace a file made meanwhile.
	err = os.Link(f.Name(), path)
	if err != nil && !errors.Is(err, os.ErrExist) {
		// There are no hard links here.
		f.Close()
		err = renameNew(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncName(path, durable)
}

func finishFile(f *os.File, durable bool, fill func(*os.File) error) error {
	if err := fill(f); err != nil {
		return err
	}
	if durable {
		if err := device.Datasync(f); err != nil {
			return fmt.Errorf("write %s to disk: %w", f.Name(), err)
		}
	}
	return nil
}
