// SPDX-License-Identifier: Apache-2.0

// `rungv volume`. Names, flags, columns and messages are docker's where docker
// has the thing.

package cli

import (
	"path/filepath"

	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/images"
	"z.gfire.dev/gvx/runtime/volumes"
)

// openVolumes opens the store of volumes that the global flags name. r names
// who has a volume that is in use.
func openVolumes(g *globals, r *container.Runner) (*volumes.Store, error) {
	root, err := volumesRoot(g)
	if err != nil {
		return nil, err
	}
	return volumes.New(root, volumes.Options{Holder: r.Holder, Warn: g.warn}), nil
}

// volumesRoot is beside the images: the disk that has room for them has room
// for volumes.
func volumesRoot(g *globals) (string, error) {
	if g.Root == "" {
		root, err := images.DefaultRoot()
		return filepath.Join(filepath.Dir(root), "volumes"), err
	}
	return filepath.Abs(filepath.Join(g.Root, "volumes"))
}
