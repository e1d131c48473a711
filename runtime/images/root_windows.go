// SPDX-License-Identifier: Apache-2.0

package images

import (
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/runtime/api"
)

// DefaultRoot is where images live unless told otherwise:
// %LocalAppData%\gvx\images.
func DefaultRoot() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", api.Errorf(api.KindInvalid, "find the image store: %%LocalAppData%% is not set: use --root: %w", err)
	}
	return filepath.Join(d, "gvx", "images"), nil
}
