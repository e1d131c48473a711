// SPDX-License-Identifier: Apache-2.0

//go:build unix

package images

import (
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/runtime/api"
)

// DefaultRoot is where images live unless told otherwise: /var/lib/gvx/images
// for root, $XDG_DATA_HOME/gvx/images for users.
func DefaultRoot() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/gvx/images", nil
	}
	// The XDG specification says to ignore a relative value.
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "gvx", "images"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", api.Errorf(api.KindInvalid, "find the image store: neither $XDG_DATA_HOME nor $HOME is set: use --root: %w", err)
	}
	return filepath.Join(home, ".local", "share", "gvx", "images"), nil
}
