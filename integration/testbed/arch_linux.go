// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Architecture is this machine's, in the words of images.
const Architecture = runtime.GOARCH

// ReadableTree lets everybody read a tree that the test has made: the tests'
// user is not the one who writes their files.
func ReadableTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			return os.Chmod(path, info.Mode().Perm()|0o555)
		case entry.Type().IsRegular():
			return os.Chmod(path, info.Mode().Perm()|0o444)
		}
		return nil
	})
}
