// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cli

import "os"

// isOurs reports whether dir is a directory.
func isOurs(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir()
}

// keepOwner does nothing: owners are not numbers here.
func keepOwner(*os.File, os.FileInfo) error { return nil }
