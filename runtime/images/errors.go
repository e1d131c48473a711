// SPDX-License-Identifier: Apache-2.0

// What a failed write means to a user: a full disk and a store that is not
// theirs have kinds and advice of their own.

package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"z.gfire.dev/gvx/runtime/api"
)

// notFound is the error for an image that the store does not hold, in
// docker's words.
func notFound(ref string) error {
	return api.Errorf(api.KindNotFound, "No such image: %s", ref)
}

// errLayerMissing says that the file of a layer is gone while its image is not.
var errLayerMissing = errors.New("is missing from the image store")

// missingLayer is the error for layer n of an image, which nobody but whoever
// made the image can bring back.
func missingLayer(img *Image, n int) error {
	name := string(img.ID)
	if byName := append(append([]string{}, img.Names...), img.RepoDigests...); len(byName) > 0 {
		name = FamiliarName(byName[0])
	}
	return api.Errorf(api.KindImage, "image %s: layer %s %w: pull, load or import the image again, or remove it with rungv image rm -f %s",
		name, img.LayerDiffIDs[n], errLayerMissing, shortID(img.ID))
}

// writeError explains why writing path failed. needBytes is how large the file
// would become as far as known, 0 if unknown.
func (s *Store) writeError(op, path string, needBytes int64, err error) error {
	switch {
	case err == nil:
		return nil
	case isNoSpace(err):
		need := "an unknown number of bytes"
		if needBytes > 0 {
			need = fmt.Sprintf("at least %d bytes", needBytes)
		}
		free := ""
		if n, ferr := freeBytes(s.root); ferr == nil {
			free = fmt.Sprintf(", %d bytes are free", n)
		}
		return api.Errorf(api.KindNoSpace, "%s: %s: needs %s%s: free some space (image prune) or choose another --root: %w", op, path, need, free, err)
	case errors.Is(err, fs.ErrPermission) || isReadOnly(err):
		return api.Errorf(api.KindPermission, "%s: image store %s is not writable for uid %d: choose a store of your own with --root, or change its owner: %w", op, s.root, os.Getuid(), err)
	}
	return fmt.Errorf("%s: %w", op, err)
}
